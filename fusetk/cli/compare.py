"""``fusetk compare``."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fusetk import DEVICE
from fusetk.cli.options import device_option, threads_option
from fusetk.data.text import (
    STANDARD_INPUT,
    Pair,
    read_lines,
    readable,
    standard_input,
    unequal,
    writer,
)
from fusetk.errors import DataError
from fusetk.evaluation.compare import SENTENCE_METRICS, Case, Span, cases, marked, ranked
from fusetk.evaluation.metrics import score

if TYPE_CHECKING:
    from rich.text import Text

LABELS = ("source", "reference", "first", "second")
MARKS = (
    ("[-", "-]"),
    ("{+", "+}"),
)  # around words that only the first has, only the second; as of wdiff
STYLES = ("bold red", "bold green")


class Summary(NamedTuple):
    """All sentences in numbers."""

    sentences: int
    same: int  # translations that are equal to the letter
    better: int | None = None  # sentences of the second by their scores; None without references
    worse: int | None = None
    equal: int | None = None
    corpus: dict[str, tuple[float, float]] | None = None  # of each by the name of the metric

    def __str__(self) -> str:
        if self.corpus is None:
            return f"sentences: {self.sentences}, translations that differ: {self.sentences - self.same}, the same: {self.same}"
        scores = ", ".join(
            f"{name} {first:.2f} -> {second:.2f}" for name, (first, second) in self.corpus.items()
        )
        counts = (
            f"{self.better} better, {self.worse} worse, {self.equal} equal ({self.same} the same)"
        )
        return f"{scores}; of {self.sentences} sentences the second has {counts}"


@click.command(
    "compare",
    epilog="Example: fusetk compare runs/transformer runs/coordinated -i raw/test.de -r raw/test.en --top 20",
)
@click.argument("first", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("second", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "-i",
    "--input",
    "source",
    required=True,
    metavar="FILE",
    help="The source, plain or .gz; - is standard input.",
)
@click.option("-r", "--reference", metavar="FILE", help="Its translation by people, line by line.")
@click.option(
    "--metric",
    type=click.Choice(SENTENCE_METRICS),
    help="What sentences are scored by, with a reference: chrF (the default), or sentence BLEU (smoothed, effective order), both of the"
    " sacrebleu library.",
)
@click.option("--top", type=click.IntRange(1), metavar="N", help="Show only the first N.")
@click.option(
    "--all", "everything", is_flag=True, help="Show sentences whose translations are the same, too."
)
@click.option(
    "--tokenized",
    is_flag=True,
    help="All text is words as the runs' text preparation makes them, not yet subwords.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    help="Write what is shown as JSON, too.",
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
    """Translate the same sentences with two runs and show where they differ.

    RUN is a run folder, of which the best checkpoint is taken, a checkpoint, or a text file: translations that are there
    already, line by line. Runs search as their own configs say.

    With a reference, sentences are sorted by their scores, the largest gain of the second run first; without, they stand
    in their order. The scores are chrF unless --metric says otherwise: BLEU of one sentence hangs on its few 4-grams.
    Words that only one translation has are in colour on a terminal, and otherwise in marks, as of wdiff: [-only in the
    first-] and {+only in the second+}. Sentences with twice the same translation are left out but counted. The last line
    has the scores of both over all sentences, and how many sentences are better, worse and equal.
    """
    if metric and reference is None:
        raise DataError(
            f"--metric {metric} scores against a reference: give one with -r, or leave it out"
        )
    metric = metric or SENTENCE_METRICS[0]
    for path in (first, second):
        _check(path)
    if not (first.is_dir() or second.is_dir()):
        of_runs = {
            "--device": device != DEVICE,
            "--threads": threads is not None,
            "--tokenized": tokenized and reference is None,
        }
        if idle := [name for name, given in of_runs.items() if given]:
            raise DataError(
                f"{first} and {second} are translations already, so {' and '.join(idle)} would change nothing: leave that out"
            )
    if output is not None:
        _check_output(
            output,
            [Path(name) for name in (source, reference, first, second) if name not in (None, "-")],
        )
    sources = list(standard_input() if source == "-" else read_lines(source))
    name = STANDARD_INPUT if source == "-" else source
    if not sources:
        raise DataError(f"{name} is empty; there is nothing to compare")
    references = None if reference is None else _lines(reference, name, len(sources))
    given = [
        None if path.is_dir() else _lines(path, name, len(sources)) for path in (first, second)
    ]
    if threads and None in given:
        import torch

        torch.set_num_threads(threads)
    one, other = (
        _translate(path, sources, tokenized, device) if lines is None else (str(path), lines)
        for path, lines in zip((first, second), given, strict=True)
    )
    found = cases(sources, one[1], other[1], references, metric, tokenized)
    summary = _summary(found, references, tokenized)
    shown = [case for case in ranked(found) if everything or case.first != case.second][:top]
    if output is not None:  # first: the reader of standard output may go
        _write(output, shown, (one[0], other[0]), metric, summary)
    _print(shown, (one[0], other[0]), metric, summary)


def _check(path: Path) -> None:
    """Raise what is wrong with a run or a text before anything is translated."""
    if path.is_dir():
        from fusetk.runs import find_checkpoint

        find_checkpoint(path)
    elif not path.exists():
        raise DataError(
            f"{path} is neither a run folder nor a file of translations: there is no such place"
        )


def _check_output(output: Path, inputs: Sequence[Path]) -> None:
    if output.suffix != ".json":
        raise DataError(
            f"{output}: the name must end in .json; what is shown goes to standard output"
        )
    readable([path for path in inputs if path.is_file()], output)
    if not output.parent.is_dir():
        raise DataError(f"{output}: there is no folder {output.parent}; make it first")


def _lines(path: Path | str, source: str, wanted: int) -> list[str]:
    lines = list(read_lines(path))
    if len(lines) != wanted:
        raise unequal(Pair(Path(source), Path(path)), wanted, len(lines))
    return lines


def _translate(
    path: Path, sources: Sequence[str], tokenized: bool, device: str
) -> tuple[str, list[str]]:
    """What the run is called, and its translations."""
    from fusetk import system
    from fusetk.decoding.translate import Translator

    loaded = system.load_model(path, device)
    translator = Translator([loaded.model], loaded.pipeline, loaded.recipe.decoding)
    checkpoint = loaded.checkpoint.resolve()
    return f"{checkpoint.parent.parent.name}, {checkpoint.name}", translator.translate(
        sources, tokenized
    )


def _summary(found: Sequence[Case], references: Sequence[str] | None, tokenized: bool) -> Summary:
    same = sum(case.first == case.second for case in found)
    if references is None:
        return Summary(len(found), same)
    gains = [case.gain for case in found]
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    both = ([case.first for case in found], [case.second for case in found])
    first, second = (
        score(lines, [references], SENTENCE_METRICS, tokenize="none" if tokenized else None)
        for lines in both
    )
    corpus = {a.name: (a.value, b.value) for a, b in zip(first, second, strict=True)}
    return Summary(len(found), same, better, worse, len(found) - better - worse, corpus)


# Output --------------------------------------------------------------------------------------------------------------


def _print(shown: Sequence[Case], names: tuple[str, str], metric: str, summary: Summary) -> None:
    terminal = sys.stdout.isatty()
    for label, name in zip(LABELS[2:], names, strict=True):
        click.echo(f"{label}: {name}")
    for case in shown:
        click.echo()
        scores = (
            f", {metric} {case.scores[0]:.1f} -> {case.scores[1]:.1f} ({case.gain:+.1f})"
            if case.scores
            else ""
        )
        click.echo(f"line {case.line}{scores}")
        spans = marked(case.first, case.second)
        if terminal:
            _draw(case, spans)
        else:
            first, second = (_plain(side, *marks) for side, marks in zip(spans, MARKS, strict=True))
            for label, text in zip(
                LABELS, (case.source, case.reference, first, second), strict=True
            ):
                if text is not None:
                    click.echo(f"  {label:<9}  {text}".rstrip())
    click.echo()
    click.echo(str(summary))


def _plain(spans: Sequence[Span], before: str, after: str) -> str:
    return "".join(
        f"{span.space}{span.text}" if span.same else f"{span.space}{before}{span.text}{after}"
        for span in spans
    )


def _draw(case: Case, spans: Sequence[Sequence[Span]]) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    def styled(side: Sequence[Span], style: str) -> "Text":
        return Text.assemble(
            *(
                part
                for span in side
                for part in (span.space, (span.text, "" if span.same else style))
            )
        )

    table = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    first, second = (styled(side, style) for side, style in zip(spans, STYLES, strict=True))
    reference = None if case.reference is None else Text(case.reference)
    for label, text in zip(LABELS, (Text(case.source), reference, first, second), strict=True):
        if text is not None:
            table.add_row(Text(label, style="dim"), text)
    Console().print(table)


def _write(
    output: Path, shown: Sequence[Case], names: tuple[str, str], metric: str, summary: Summary
) -> None:
    document: dict[str, Any] = {
        "first": names[0],
        "second": names[1],
        "metric": metric if summary.corpus else None,
        "summary": summary._asdict(),
        "sentences": [case._asdict() for case in shown],
    }
    with writer(output) as file:
        file.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
