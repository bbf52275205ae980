"""``fusetk score``."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import click

from fusetk.data.text import STANDARD_INPUT, Pair, read_lines, standard_input, unequal
from fusetk.errors import CheckpointError, DataError
from fusetk.evaluation import notes
from fusetk.evaluation.bleu import DEFAULT, METRICS, Score, score, split_words
from fusetk.evaluation.doubts import doubts


@click.command("score", epilog="Example: fusetk score out.en -r test.en --metric multi-bleu-lc")
@click.argument("hypothesis", metavar="HYP")
@click.argument("more", metavar="[REF]...", nargs=-1)
@click.option("-r", "--reference", "references", metavar="REF", multiple=True, help="A reference; again for each further one.")
@click.option(
    "--metric", "metrics", metavar="NAME", multiple=True, type=click.Choice([*METRICS, "all"]),
    help=f"One of {', '.join(METRICS)}, or all; repeatable. Without it: {', '.join(DEFAULT)}.",
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
def command(
    hypothesis: str, more: tuple[str, ...], references: tuple[str, ...], metrics: tuple[str, ...],
    lowercase: bool, tokenize: str | None, as_json: bool, run: Path | None, set_name: str | None, checkpoint: str | None,
) -> None:  # fmt: skip
    """Score the lines of HYP against one or more references, line by line.

    HYP or a REF may be -, standard input, and may be packed as .gz. Each result is printed with its signature, so that
    others can get the same number.

    sacrebleu, chrf, chrf++ and ter are those of the sacrebleu library and want detokenised text. multi-bleu is the
    arithmetic of the Moses script multi-bleu.perl on the lines as they are, which should be tokenised, and words of a
    BPE joined. multi-bleu-lc lower-cases first, by Unicode; the script with -lc changes only A to Z.

    What --run notes replaces an older note of the same set, checkpoint and metric.
    """
    names = [*references, *more]
    if not names:
        raise click.UsageError("give a reference: fusetk score HYP -r REF")
    if [hypothesis, *names].count("-") > 1:
        raise click.UsageError("standard input can be only one of the texts")
    place = _place(run, set_name, checkpoint)
    lines = _read(hypothesis)
    streams = [_read(name) for name in names]
    for name, stream in zip(names, streams, strict=True):
        if len(stream) != len(lines):
            raise _unequal(hypothesis, name, len(lines), len(stream))
    chosen = list(METRICS) if "all" in metrics else list(metrics or DEFAULT)
    found = score(lines, streams, chosen, lowercase=lowercase, tokenize=tokenize)
    blind = lowercase or all(result.metric in ("multi-bleu-lc", "ter") for result in found)
    warnings = doubts(lines, streams, lowercase=blind)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    sides = [Side(_known_as(name), _words(stream)) for name, stream in zip([hypothesis, *names], [lines, *streams], strict=True)]
    if as_json:
        results = [asdict(result) for result in found]
        texts = {"hypothesis": sides[0]._asdict(), "references": [side._asdict() for side in sides[1:]]}
        click.echo(json.dumps({"sentences": len(lines), **texts, "scores": results, "warnings": warnings}, ensure_ascii=False, indent=2))
    else:
        _print(found, sides, len(lines))
    if place:
        click.echo(f"noted in {_note(place, found, streams)}", err=True)


class Side(NamedTuple):
    """A text that was scored, or scored against."""

    file: str
    words: int  # as multi-bleu counts them: between ASCII white space


def _read(name: str) -> list[str]:
    lines = list(standard_input() if name == "-" else read_lines(name))
    if not lines:
        raise DataError(f"{_known_as(name)} is empty; there is nothing to score")
    return lines


def _known_as(name: str) -> str:
    return STANDARD_INPUT if name == "-" else name


def _words(lines: Sequence[str]) -> int:
    return sum(len(split_words(line)) for line in lines)


def _unequal(hypothesis: str, reference: str, mine: int, theirs: int) -> DataError:
    if "-" in (hypothesis, reference):
        return DataError(f"{_known_as(hypothesis)} has {mine} lines and {_known_as(reference)} has {theirs}; each line needs its reference")
    return unequal(Pair(Path(hypothesis), Path(reference)), mine, theirs)


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


def _print(found: Sequence[Score], sides: Sequence[Side], sentences: int) -> None:
    references = ", ".join(f"{side.file} ({side.words} words)" for side in sides[1:])
    click.echo(f"scored: {sides[0].file} ({sentences} sentences, {sides[0].words} words) against {references}")
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
