"""``fusetk score``."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from fusetk.cli import score_length, score_systems
from fusetk.cli.common_options import inform, is_quiet
from fusetk.cli.parameters import all_of, select
from fusetk.cli.score_length_options import LengthOptions, length_options
from fusetk.cli.score_options import TextOptions, source_option, text_options
from fusetk.cli.score_record_options import RecordOptions, record_options
from fusetk.cli.score_system_options import SystemOptions, system_options
from fusetk.cli.tables import draw_scores, print_json, print_warnings
from fusetk.display import Display
from fusetk.evaluation.systems import score_files
from fusetk.evaluation.texts import describe_inputs
from fusetk.reporting import score_log

EXAMPLE = (
    "Examples: fusetk score out.en -r test.en --metric multi-bleu-lc; "
    "fusetk score base.en -r test.en --system deep=deep.en --significance randomization; "
    "fusetk score base.en -r test.en --by-length --source test.de --system deep=deep.en "
    "-o length.png"
)


@click.command("score", epilog=EXAMPLE)
@all_of([*text_options, *system_options, *record_options, source_option, *length_options])
def command(by_length: bool, **values: Any) -> None:
    """Score the lines of HYP against one or more references, line by line.

    HYP and REF are files, plain or .gz; - is standard input, which is also HYP if no file is
    given. Each result is printed with its signature, which others need to reproduce the number.
    Warnings about the text are printed to standard error.

    sacrebleu, chrf, chrf++ and ter are metrics of the sacrebleu library and expect detokenised
    text. multi-bleu has the arithmetic of the Moses script multi-bleu.perl and scores the lines as
    they are: they should be tokenised, with subwords joined into words. multi-bleu-lc lower-cases
    all letters first; the script with -lc changes only A to Z. multi-bleu-joined first joins
    hyphens that the tokeniser split off (` @-@ `, ` ##AT##-##AT## `) to their words. mteval-v13a is
    NIST's script mteval-v13a.pl on detokenised text and ignores the case of A to Z.
    mteval-v13a-cased is the script with -c; its number equals that of sacrebleu, which took
    tokeniser, smoothing and reference length from the script. These kinds of BLEU differ by several
    points on the same output: compare scores with equal signatures only. comet is the neural metric
    COMET times 100. It needs the extra `comet` and --source.

    With --system, a table has a row for each system. --significance adds a 95 % interval, from
    bootstrap samples, and the p-value of the difference to HYP, computed as in the sacrebleu
    library; p is 1 if no line differs from HYP or the scores are equal. The bootstrap test often
    gives a smaller p than randomisation does.

    A score recorded by --run replaces an older one of the same test set, checkpoint and metric.

    With --by-length, a row has the sentences longer than one bound and not longer than the next
    one, or, with --longer-than, all sentences longer than one bound. Lengths are numbers of words
    that white space separates in the unchanged text. A blank line has no words. It is in the first
    row, but with --longer-than it is not in any row. A row without sentences shows -, null in
    JSON.
    """
    text = select(TextOptions, values)
    systems = select(SystemOptions, values)
    record = select(RecordOptions, values)
    length = select(LengthOptions, values)
    references = text.reference_files
    sampling = systems.sampling(by_length)
    if by_length:
        record.check_single("--by-length")
        score_length.run(text, references, systems.files(text.hypothesis), length)
        return
    length.check_unused()
    if systems.systems:
        record.check_single("--system")
        score_systems.run(text, references, systems.files(text.hypothesis), sampling)
        return
    systems.check_name()
    _score_hypothesis(text, references, record.destination())


def _score_hypothesis(
    text: TextOptions, references: Sequence[str], destination: score_log.ScoreDestination | None
) -> None:
    """Score HYP alone, record the scores if there is a destination, and print them."""
    files = {"": text.hypothesis}
    with Display(is_quiet()):
        scored = score_files(files, references, text.source, text.metrics, text.metric_options)
    texts = scored.texts
    scores = scored.first_scores
    print_warnings(scored.warnings)
    # Record first: a reader of standard output that stops early ends this command.
    if destination:
        file = score_log.record_scores(destination, scores, texts.reference_lines)
        inform(f"recorded in {file}")
    if text.as_json:
        print_json(scored.single_as_dict())
        return
    click.echo(f"scored: {describe_inputs(texts.first, texts.references)}")
    if sys.stdout.isatty():
        draw_scores(scores)
        return
    for score in scores:
        click.echo(f"{score.metric}: {score}  [{score.signature}]")
