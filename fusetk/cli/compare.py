"""``fusetk compare``."""

from collections.abc import Sequence
from pathlib import Path

import click

from fusetk import DEVICE
from fusetk.cli.compare_output import Comparison, print_comparison, write_comparison
from fusetk.cli.options import device_option, threads_option
from fusetk.data.text import Pair, read_lines, readable, standard_input, unequal
from fusetk.errors import DataError
from fusetk.evaluation.compare import (
    SENTENCE_METRICS,
    compare_sentences,
    rank_by_gain,
    summarize,
)
from fusetk.evaluation.texts import display_name


@click.command(
    "compare",
    epilog="Example: fusetk compare runs/transformer runs/coordinated -i raw/test.de "
    "-r raw/test.en --top 20",
)
@click.argument("first", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("second", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "-i",
    "--input",
    "source",
    required=True,
    metavar="FILE",
    help="File with the source sentences, plain or .gz; - is standard input.",
)
@click.option("-r", "--reference", metavar="FILE", help="File with the references, line by line.")
@click.option(
    "--metric",
    type=click.Choice(SENTENCE_METRICS),
    help="With a reference: metric of the sentence scores, chrF (the default) or sentence BLEU "
    "(smoothed, effective order), both from the sacrebleu library.",
)
@click.option("--top", type=click.IntRange(1), metavar="N", help="Show only the first N sentences.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also show sentences with two identical translations.",
)
@click.option(
    "--tokenized",
    is_flag=True,
    help="All text is already prepared like the training text of the runs, except for the split "
    "into subwords.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    help="Also write the result as JSON.",
)
@device_option
@threads_option
def command(
    first: Path,
    second: Path,
    source: str,
    reference: str | None,
    metric: str | None,
    top: int | None,
    everything: bool,
    tokenized: bool,
    output: Path | None,
    device: str,
    threads: int | None,
) -> None:
    """Translate the same sentences with two runs and show the differences.

    RUN is a run folder, whose best checkpoint is used, a checkpoint, or a text file with finished
    translations, line by line. Each run uses the search settings of its own config.

    With a reference, sentences are sorted by score difference, the largest gain of the second run
    first; without a reference, they keep their order. Scores are chrF by default, because BLEU of a
    single sentence depends on a few 4-grams. Words that only one translation has are coloured on a
    terminal. Other output marks them as wdiff does: [-only in the first-] and {+only in the
    second+}. Sentences with two identical translations are counted but not shown. The last line has
    the scores of both systems over all sentences, and the numbers of better, worse and equal
    sentences.
    """
    if metric and reference is None:
        raise DataError(
            f"--metric {metric} needs a reference: give one with -r, or leave --metric out"
        )
    for path in (first, second):
        _check_system(path)
    if not (first.is_dir() or second.is_dir()):
        model_options = {
            "--device": device != DEVICE,
            "--threads": threads is not None,
            "--tokenized": tokenized and reference is None,
        }
        unused = [name for name, present in model_options.items() if present]
        if unused:
            raise DataError(
                f"{first} and {second} are translations already, so {' and '.join(unused)} would "
                f"change nothing: leave {'it' if len(unused) == 1 else 'them'} out"
            )
    if output is not None:
        files = [source, reference, first, second]
        _check_output(output, [Path(file) for file in files if file not in (None, "-")])
    sources = list(standard_input() if source == "-" else read_lines(source))
    name = display_name(source)
    if not sources:
        raise DataError(f"{name} is empty: there is nothing to compare")
    # Read all files before the first translation, so that mistakes are reported at once.
    references = None if reference is None else _read(reference, name, len(sources))
    files_read = [
        None if path.is_dir() else _read(path, name, len(sources)) for path in (first, second)
    ]
    if threads and None in files_read:
        import torch

        torch.set_num_threads(threads)
    (first_name, first_lines), (second_name, second_lines) = (
        _translate(path, sources, tokenized, device) if lines is None else (str(path), lines)
        for path, lines in zip((first, second), files_read, strict=True)
    )
    metric = metric or SENTENCE_METRICS[0]
    sentences = compare_sentences(sources, first_lines, second_lines, references, metric, tokenized)
    summary = summarize(sentences, references, tokenized)
    sentences_to_show = [
        sentence
        for sentence in rank_by_gain(sentences)
        if everything or sentence.first != sentence.second
    ]
    comparison = Comparison((first_name, second_name), metric, sentences_to_show[:top], summary)
    # Write first: a reader of standard output that stops early ends this command.
    if output is not None:
        write_comparison(output, comparison)
    print_comparison(comparison)


def _check_system(path: Path) -> None:
    """Raise CheckpointError or DataError if a run or a file of translations does not exist."""
    if path.is_dir():
        from fusetk.runs import find_checkpoint

        find_checkpoint(path)
    elif not path.exists():
        raise DataError(f"{path} is neither a run folder nor a file: it does not exist")


def _check_output(output: Path, inputs: Sequence[Path]) -> None:
    if output.suffix != ".json":
        raise DataError(
            f"{output}: the name must end in .json; the text is printed to standard output"
        )
    readable([path for path in inputs if path.is_file()], output)
    if not output.parent.is_dir():
        raise DataError(f"{output}: there is no folder {output.parent}; make it first")


def _read(path: Path | str, source: str, sentences: int) -> list[str]:
    lines = list(read_lines(path))
    if len(lines) != sentences:
        raise unequal(Pair(Path(source), Path(path)), sentences, len(lines))
    return lines


def _translate(
    path: Path, sources: Sequence[str], tokenized: bool, device: str
) -> tuple[str, list[str]]:
    """Return the name of a run and its translations."""
    from fusetk import system
    from fusetk.decoding.translate import Translator

    loaded = system.load_model(path, device)
    translator = Translator([loaded.model], loaded.pipeline, loaded.recipe.decoding)
    checkpoint = loaded.checkpoint.resolve()
    name = f"{checkpoint.parent.parent.name}, {checkpoint.name}"
    return name, translator.translate(sources, tokenized)
