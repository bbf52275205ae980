"""``fusetk score``."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import click

from fusetk.cli import score_length
from fusetk.cli.score_length import Asked, Bounds, System
from fusetk.cli.scored import Text, against, read
from fusetk.errors import CheckpointError
from fusetk.evaluation import notes
from fusetk.evaluation.bleu import DEFAULT, METRICS, Score, score
from fusetk.evaluation.doubts import doubts
from fusetk.evaluation.length import BOUNDS
from fusetk.evaluation.length import DEFAULT as BY_LENGTH

EXAMPLE = (
    "Examples: fusetk score out.en -r test.en --metric multi-bleu-lc; "
    "fusetk score base.en -r test.en --by-length --source test.de --system deep=deep.en -o length.png"
)


@click.command("score", epilog=EXAMPLE)
@click.argument("hypothesis", metavar="HYP")
@click.argument("more", metavar="[REF]...", nargs=-1)
@click.option("-r", "--reference", "references", metavar="REF", multiple=True, help="A reference; again for each further one.")
@click.option(
    "--metric", "metrics", metavar="NAME", multiple=True, type=click.Choice([*METRICS, "all"]),
    help=f"One of {', '.join(METRICS)}, or all; repeatable. Without it: {', '.join(DEFAULT)}; with --by-length {BY_LENGTH}.",
)
@click.option("--lowercase", is_flag=True, help="Ignore case in every metric (multi-bleu-lc and TER always do).")
@click.option("--tokenize", metavar="NAME", help="sacreBLEU's tokeniser: 13a (the default), intl, zh, char, none, ...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--run", metavar="RUN", type=click.Path(path_type=Path),
    help="Note the scores in scores.json of this run folder, or of the one that this checkpoint lies in; `fusetk report` reads them.",
)
@click.option("--set-name", metavar="NAME", help="With --run: the test set.")
@click.option("--checkpoint", metavar="LABEL", help="With --run: what was decoded, such as average-5. Without it: RUN's name, or best.")
@click.option("--by-length", is_flag=True, help="Print a table of one metric on the sentences of each range of lengths.")
@click.option(
    "--source", metavar="FILE", help="With --by-length: the source, whose words are counted. Without it, those of the first reference.",
)
@click.option("--longer-than", is_flag=True, help="With --by-length: a row for all sentences longer than each bound.")
@click.option(
    "--bounds", type=Bounds(), help=f"With --by-length: rising lengths that part the rows. Without it: {','.join(map(str, BOUNDS))}.",
)
@click.option("--system", "systems", type=System(), multiple=True, help="With --by-length: another translation beside HYP; repeatable.")
@click.option("--name", metavar="NAME", help="With --by-length: what HYP is called. Without it, the file's name without its ending.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="PICTURE", help="With --by-length: draw it, too, as .png, .pdf or .svg.",
)
def command(
    hypothesis: str, more: tuple[str, ...], references: tuple[str, ...], metrics: tuple[str, ...],
    lowercase: bool, tokenize: str | None, as_json: bool, run: Path | None, set_name: str | None, checkpoint: str | None,
    by_length: bool, source: str | None, longer_than: bool, bounds: tuple[int, ...] | None, systems: tuple[tuple[str, str], ...],
    name: str | None, output: Path | None,
) -> None:  # fmt: skip
    """Score the lines of HYP against one or more references, line by line.

    HYP or a REF may be -, standard input, and may be packed as .gz. Each result is printed with its signature, so that
    others can get the same number.

    sacrebleu, chrf, chrf++ and ter are those of the sacrebleu library and want detokenised text. multi-bleu is the
    arithmetic of the Moses script multi-bleu.perl on the lines as they are, which should be tokenised, and words of a
    BPE joined. multi-bleu-lc lower-cases first, by Unicode; the script with -lc changes only A to Z.

    What --run notes replaces an older note of the same set, checkpoint and metric.

    With --by-length, a row has the sentences whose source is longer than one bound and not longer than the next, or, with
    --longer-than, longer than one bound. Lengths are words between white space in the text as it stands. A blank line has
    no words: it counts in the first row, but with --longer-than in none. A row without sentences shows -, null in JSON.
    """
    names = [*references, *more]
    if not names:
        raise click.UsageError("give a reference: fusetk score HYP -r REF")
    asked = Asked(source, longer_than, bounds, systems, name, output)
    if by_length:
        metric = asked.check(metrics, tokenize, (run, set_name, checkpoint))
        score_length.run(asked, metric, hypothesis, names, lowercase=lowercase, tokenize=tokenize, as_json=as_json)
        return
    asked.refuse()
    place = _place(run, set_name, checkpoint)
    text, *told = read([hypothesis, *names])
    streams = [one.lines for one in told]
    chosen = list(METRICS) if "all" in metrics else list(metrics or DEFAULT)
    found = score(text.lines, streams, chosen, lowercase=lowercase, tokenize=tokenize)
    blind = lowercase or all(result.metric in ("multi-bleu-lc", "ter") for result in found)
    warnings = doubts(text.lines, streams, lowercase=blind)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        results = [asdict(result) for result in found]
        sides = {"hypothesis": text.about(), "references": [one.about() for one in told]}
        document = {"sentences": len(text.lines), **sides, "scores": results, "warnings": warnings}
        click.echo(json.dumps(document, ensure_ascii=False, indent=2))
    else:
        _print(found, text, told)
    if place:
        click.echo(f"noted in {_note(place, found, streams)}", err=True)


class Place(NamedTuple):
    """What scores are noted of."""

    run: Path
    set_name: str
    checkpoint: str


def _place(run: Path | None, set_name: str | None, checkpoint: str | None) -> Place | None:
    """Where to note the scores; raises what is wrong with it before anything is scored."""
    if run is None:
        if set_name is not None or checkpoint is not None:
            raise click.UsageError("--set-name and --checkpoint say what a score is of where it is noted: give --run, too")
        return None
    if not set_name:
        raise click.UsageError("--run notes the scores of a test set: give its name by --set-name")
    folder, name = notes.locate(run)
    notes.read(folder)
    if not (checkpoint or name):
        raise CheckpointError(f"{run} has no checkpoints/best or checkpoints/last: say what was decoded by --checkpoint")
    return Place(folder, set_name, checkpoint or name)


def _note(place: Place, found: Sequence[Score], references: Sequence[Sequence[str]]) -> Path:
    """Note the scores; returns the file."""
    updates, data = notes.progress(place.run)
    texts = notes.fingerprint(references)

    def note(one: Score) -> notes.Note:
        key = place.set_name, place.checkpoint, one.metric
        return notes.Note(*key, one.value, one.signature, one.details, one.sentences, texts, updates, data)

    return notes.write(place.run, [note(one) for one in found])


def _print(found: Sequence[Score], hypothesis: Text, references: Sequence[Text]) -> None:
    click.echo(f"scored: {against(hypothesis, references)}")
    if not sys.stdout.isatty():
        for result in found:
            click.echo(f"{result.metric}: {result}  [{result.signature}]")
        return
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    table = Table("metric", Column("value", justify="right"), Column("how", overflow="fold"), box=box.SIMPLE)
    for result in found:
        how = Text(result.details + "\n" if result.details else "").append(result.signature, style="dim")
        table.add_row(result.metric, Text(f"{result.value:.2f}", style="bold"), how)
    Console().print(table)
