"""``fusetk score``."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import click

from fusetk import runs
from fusetk.cli import score_length, score_systems
from fusetk.cli.score_length import Asked, Bounds, System
from fusetk.cli.score_systems import Column
from fusetk.cli.scored import Texts, against, read, unheeded, warnings
from fusetk.errors import CheckpointError
from fusetk.evaluation.length import BOUNDS
from fusetk.evaluation.length import DEFAULT as BY_LENGTH
from fusetk.evaluation.metrics import DEFAULT, METRICS, Options, Score, make
from fusetk.evaluation.significance import SAMPLES, SEED, Sampling
from fusetk.reporting import score_log

EXAMPLE = (
    "Examples: fusetk score out.en -r test.en --metric multi-bleu-lc; "
    "fusetk score base.en -r test.en --system deep=deep.en --significance randomization; "
    "fusetk score base.en -r test.en --by-length --source test.de --system deep=deep.en -o length.png"
)


@click.command("score", epilog=EXAMPLE)
@click.argument("hypothesis", metavar="HYP")
@click.argument("more", metavar="[REF]...", nargs=-1)
@click.option(
    "-r",
    "--reference",
    "references",
    metavar="REF",
    multiple=True,
    help="A reference; again for each further one.",
)
@click.option(
    "--metric",
    "metrics",
    metavar="NAME",
    multiple=True,
    type=click.Choice([*METRICS, "all"]),
    help=f"One of {', '.join(METRICS)}, or all; repeatable. Without it: {', '.join(DEFAULT)}; with --by-length {BY_LENGTH}.",
)
@click.option(
    "--lowercase",
    is_flag=True,
    help="Ignore case in every metric (multi-bleu-lc, mteval-v13a and TER always do).",
)
@click.option(
    "--tokenize",
    metavar="NAME",
    help="sacreBLEU's tokeniser: 13a (the default), intl, zh, char, none, ...",
)
@click.option(
    "--compound-split",
    is_flag=True,
    help="In multi-bleu, split words at hyphens first, as is usual for WMT English-German: rich-text is rich ##AT##-##AT## text.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--system",
    "systems",
    type=System(),
    multiple=True,
    help="Another translation beside HYP, in a table; repeatable.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="What HYP is called in a table. Without it, the file's name without its ending.",
)
@click.option(
    "--significance",
    type=click.Choice([*SAMPLES]),
    help="Test whether each --system differs from HYP by more than chance: paired bootstrap, or approximate randomisation.",
)
@click.option(
    "--samples",
    type=click.IntRange(1),
    metavar="N",
    help=f"With --significance: samples to draw. Without it: {', '.join(f'{n} ({kind})' for kind, n in SAMPLES.items())}, as in sacreBLEU.",
)
@click.option(
    "--seed",
    type=click.IntRange(1),
    metavar="N",
    help=f"With --significance: the seed. Without it: {SEED}, as in sacreBLEU.",
)
@click.option(
    "--run",
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="Note the scores in scores.json of this run folder, or of the one that this checkpoint lies in; `fusetk report` reads them.",
)
@click.option("--set-name", metavar="NAME", help="With --run: the test set.")
@click.option(
    "--checkpoint",
    metavar="LABEL",
    help="With --run: what was decoded, such as average-5. Without it: RUN's name, or best.",
)
@click.option(
    "--source",
    metavar="FILE",
    help="The source, to warn of lines that were not translated. With --by-length its words are counted, and without it those of the first"
    " reference.",
)
@click.option(
    "--by-length",
    is_flag=True,
    help="Print a table of one metric on the sentences of each range of lengths.",
)
@click.option(
    "--longer-than",
    is_flag=True,
    help="With --by-length: a row for all sentences longer than each bound.",
)
@click.option(
    "--bounds",
    type=Bounds(),
    help=f"With --by-length: rising lengths that part the rows. Without it: {','.join(map(str, BOUNDS))}.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="PICTURE",
    help="With --by-length: draw it, too, as .png, .pdf or .svg.",
)
def command(
    hypothesis: str,
    more: tuple[str, ...],
    references: tuple[str, ...],
    metrics: tuple[str, ...],
    lowercase: bool,
    tokenize: str | None,
    compound_split: bool,
    as_json: bool,
    systems: tuple[tuple[str, str], ...],
    name: str | None,
    significance: str | None,
    samples: int | None,
    seed: int | None,
    run: Path | None,
    set_name: str | None,
    checkpoint: str | None,
    source: str | None,
    by_length: bool,
    longer_than: bool,
    bounds: tuple[int, ...] | None,
    output: Path | None,
) -> None:
    """Score the lines of HYP against one or more references, line by line.

    HYP or a REF may be -, standard input, and may be packed as .gz. Each result is printed with its signature, so that
    others can get the same number. What looks wrong with the text is a warning on standard error.

    sacrebleu, chrf, chrf++ and ter are those of the sacrebleu library and want detokenised text. multi-bleu is the
    arithmetic of the Moses script multi-bleu.perl on the lines as they are, which should be tokenised, and words of a
    BPE joined. multi-bleu-lc lower-cases first, by Unicode; the script with -lc changes only A to Z. mteval-v13a is NIST's
    script mteval-v13a.pl on detokenised text, which ignores the case of A to Z; mteval-v13a-cased is the script with -c, and
    the same number as sacrebleu: that took tokeniser, smoothing and reference length from the script. Which of them is meant by
    BLEU changes it by several points on the same output: compare equal signatures only.

    With --system, a table has a row for each system. --significance adds a 95 % interval, from bootstrap samples, and the p-value of the
    sacrebleu library's test against HYP; p is 1 for a system that no line sets apart from HYP. The library's bootstrap often
    gives a smaller p than its randomisation does.

    What --run notes replaces an older note of the same set, checkpoint and metric.

    With --by-length, a row has the sentences whose source is longer than one bound and not longer than the next, or, with
    --longer-than, longer than one bound. Lengths are words between white space in the text as it stands. A blank line has
    no words: it counts in the first row, but with --longer-than in none. A row without sentences shows -, null in JSON.
    """
    names = [*references, *more]
    if not names:
        raise click.UsageError("give a reference: fusetk score HYP -r REF")
    asked = Asked(source, longer_than, bounds, systems, name, output)
    options = Options(lowercase, tokenize, compound_split)
    sampling = _sampling(significance, samples, seed, bool(systems) and not by_length)
    if (systems or by_length) and any(value is not None for value in (run, set_name, checkpoint)):
        one = "--by-length" if by_length else "--system"
        raise click.UsageError(
            f"--run, --set-name and --checkpoint note the scores of HYP on a whole test set: note them without {one}"
        )
    if by_length:
        score_length.run(asked, hypothesis, names, metrics, options, as_json)
        return
    asked.refuse()
    place = _place(run, set_name, checkpoint)
    chosen = list(METRICS) if "all" in metrics else list(metrics or DEFAULT)
    remarks = unheeded(chosen, options)
    texts = read(asked.files(hypothesis), names, source)
    made = make([text.lines for text in texts.references], chosen, options)
    columns = [score_systems.score(metric, texts.systems, sampling) for metric in made]
    remarks += warnings(
        texts, [metric.name for metric in made], [] if "all" in metrics else metrics, options
    )
    remarks += score_systems.too_few(columns)
    for remark in remarks:
        click.echo(f"warning: {remark}", err=True)
    if as_json:
        document = (
            score_systems.document(columns, texts, sampling)
            if systems
            else _document(columns, texts)
        )
        click.echo(json.dumps({**document, "warnings": remarks}, ensure_ascii=False, indent=2))
    elif systems:
        score_systems.show_all(columns, texts, sampling)
    else:
        _print(columns, texts)
    if place:
        click.echo(f"noted in {_note(place, columns, texts)}", err=True)


def _sampling(
    kind: str | None, samples: int | None, seed: int | None, several: bool
) -> Sampling | None:
    """How systems are tested; raises UsageError for options that need others."""
    if kind is None:
        if samples is not None or seed is not None:
            raise click.UsageError("--samples and --seed are for a test: give --significance, too")
        return None
    if not several:
        raise click.UsageError(
            "--significance tests systems against HYP on the whole text: give --system NAME=FILE, and no --by-length"
        )
    return Sampling(kind, samples or SAMPLES[kind], seed or SEED)


class Place(NamedTuple):
    """What scores are noted of."""

    run: Path
    set_name: str
    checkpoint: str


def _place(run: Path | None, set_name: str | None, checkpoint: str | None) -> Place | None:
    """Where to note the scores; raises what is wrong with it before anything is scored."""
    if run is None:
        if set_name is not None or checkpoint is not None:
            raise click.UsageError(
                "--set-name and --checkpoint say what a score is of where it is noted: give --run, too"
            )
        return None
    if not set_name:
        raise click.UsageError("--run notes the scores of a test set: give its name by --set-name")
    folder, name = runs.find(run)
    score_log.read(folder)
    if not (checkpoint or name):
        raise CheckpointError(
            f"{run} has no checkpoints/best or checkpoints/last: say what was decoded by --checkpoint"
        )
    return Place(folder, set_name, checkpoint or name)


def _note(place: Place, columns: Sequence[Column], texts: Texts) -> Path:
    """Note the scores; returns the file."""
    updates, data = runs.progress(place.run)
    references = score_log.fingerprint(text.lines for text in texts.references)

    def note(one: Score) -> score_log.Note:
        key = place.set_name, place.checkpoint, one.metric
        return score_log.Note(
            *key, one.value, one.signature, one.details, one.sentences, references, updates, data
        )

    return score_log.write(place.run, [note(column.first) for column in columns])


def _document(columns: Sequence[Column], texts: Texts) -> dict[str, Any]:
    """For JSON, of one system."""
    return {
        "sentences": len(texts.first.lines),
        "hypothesis": texts.first.about(),
        "references": [one.about() for one in texts.references],
        "scores": [asdict(column.first) for column in columns],
    }


def _print(columns: Sequence[Column], texts: Texts) -> None:
    found = [column.first for column in columns]
    click.echo(f"scored: {against(texts.first, texts.references)}")
    if not sys.stdout.isatty():
        for result in found:
            click.echo(f"{result.metric}: {result}  [{result.signature}]")
        return
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    table = Table(
        "metric", Column("value", justify="right"), Column("how", overflow="fold"), box=box.SIMPLE
    )
    for result in found:
        how = Text(result.details + "\n" if result.details else "").append(
            result.signature, style="dim"
        )
        table.add_row(result.metric, Text(f"{result.value:.2f}", style="bold"), how)
    Console().print(table)
