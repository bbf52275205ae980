"""``fusetk compare``."""

from pathlib import Path

import click

from fusetk import DEVICE
from fusetk.cli.common_options import inform_of_warning
from fusetk.cli.compare_output import print_comparison
from fusetk.cli.options import (
    device_option,
    runs_argument,
    threads_option,
    tokenized_option,
    use_threads,
)
from fusetk.cli.parameters import FilePath
from fusetk.evaluation.compare import SENTENCE_METRICS
from fusetk.reporting.comparison import check_metric, compare, read_inputs, write_comparison


@click.command(
    "compare",
    epilog="Example: fusetk compare runs/transformer runs/coordinated -i raw/test.de "
    "-r raw/test.en --top 20",
)
@runs_argument("runs", "RUN RUN2", least=2, most=2)
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
@tokenized_option("All text is", run="runs")
@click.option(
    "-o",
    "--output",
    type=FilePath(path_type=Path),
    metavar="FILE.json",
    help="Also write the result as JSON.",
)
@device_option
@threads_option
def command(
    runs: tuple[Path, ...],
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

    RUN and RUN2 are each a run folder, whose best checkpoint is used, a checkpoint, or a text file
    with finished translations, line by line. Each run uses the search settings of its own config.

    With a reference, sentences are sorted by score difference, the largest gain of the second run
    first; without a reference, they keep their order. Scores are chrF by default, because BLEU of a
    single sentence depends on a few 4-grams. Words that only one translation has are coloured on a
    terminal. Other output marks them as wdiff does: [-only in the first-] and {+only in the
    second+}. Sentences with two identical translations are counted but not shown. The last line has
    the scores of both systems over all sentences, and the numbers of better, worse and equal
    sentences.
    """
    check_metric(metric, reference)
    model_options = {
        "--device": device != DEVICE,
        "--threads": threads is not None,
        "--tokenized": tokenized and reference is None,
    }
    given_options = [name for name, present in model_options.items() if present]
    first, second = runs
    inputs = read_inputs((first, second), source, reference, output, given_options)
    if inputs.has_runs:
        use_threads(threads)
    comparison = compare(
        inputs, metric or SENTENCE_METRICS[0], tokenized, device, inform_of_warning
    )
    if not everything:
        comparison = comparison.without_equal()
    comparison = comparison._replace(sentences=comparison.sentences[:top])
    # Write first: a reader of standard output that stops early ends this command.
    if output is not None:
        write_comparison(output, comparison)
    print_comparison(comparison)
