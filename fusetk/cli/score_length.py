"""``fusetk score --by-length``."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from fusetk.cli.scored import Text, Texts, against, known_as, read, unheeded, warnings
from fusetk.cli.tables import NONE, show
from fusetk.errors import DataError
from fusetk.evaluation.length import (
    BOUNDS,
    DEFAULT,
    Row,
    bins,
    count_words,
    grouped,
    longer,
    score_groups,
)
from fusetk.evaluation.metrics import Options, make


class Bounds(click.ParamType):
    """Rising numbers of words."""

    name = "N,..."

    def convert(
        self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        if re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", value, re.ASCII):
            found = tuple(map(int, value.split(",")))
            if list(found) == sorted(set(found)):
                return found
        self.fail(
            f"{value!r} are not rising numbers of words with commas between, such as 0,10,20",
            param,
            ctx,
        )


class System(click.ParamType):
    """A name and a file."""

    name = "NAME=FILE"

    def convert(
        self, value: str | tuple[str, str], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, _, file = value.partition("=")
        if not (name and file):
            self.fail(f"{value!r} is not a name, = and a file of translations", param, ctx)
        return name, file


class Asked(NamedTuple):
    """Options of --by-length, some of which also serve without."""

    source: str | None
    longer_than: bool
    bounds: tuple[int, ...] | None
    systems: tuple[tuple[str, str], ...]
    name: str | None
    output: Path | None

    def refuse(self) -> None:
        """Raise UsageError for those that are of no use without it."""
        given = [
            ("--longer-than", self.longer_than),
            ("--bounds", self.bounds is not None),
            ("--output", self.output is not None),
        ]
        if names := [name for name, there in given if there]:
            raise click.UsageError(
                f"{', '.join(names)}: of no use without --by-length; give it, too, or leave them out"
            )
        if self.name is not None and not self.systems:
            raise click.UsageError(
                "--name: of no use without --system or --by-length; give one, too, or leave it out"
            )

    def check(self, metrics: Sequence[str], options: Options) -> str:
        """The metric; raises what is wrong with the options before anything is scored."""
        chosen = list(dict.fromkeys(metrics)) or [DEFAULT]
        if len(chosen) > 1 or chosen == ["all"]:
            raise click.UsageError(
                f"--by-length shows one metric, not {', '.join(chosen)}: give one --metric, or none for {DEFAULT}"
            )
        unheeded(chosen, options)
        if self.output is not None:
            from fusetk.plotting.figure import check_output

            check_output(self.output, numbers=False)
        return chosen[0]

    def files(self, hypothesis: str) -> dict[str, str]:
        """The file of each system by its name, HYP first; raises UsageError for a name that two have."""
        stem = known_as("-") if hypothesis == "-" else Path(hypothesis.removesuffix(".gz")).stem
        pairs = [(self.name or stem, hypothesis), *self.systems]
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise click.UsageError(
                    f"two systems are called {name!r}; tell them apart by --name for HYP and --system NAME=FILE"
                )
        return dict(pairs)


class Table(NamedTuple):
    """What was scored, and what was found."""

    metric: str
    signature: str | None  # None where no row has a sentence
    texts: Texts  # without a source, lengths are those of the first reference
    rows: Sequence[Row]
    sentences: Sequence[int]  # of each row
    scores: Mapping[str, Sequence[float | None]]  # of each system, row by row
    blank: int  # lines without words, where lengths are counted

    @property
    def counted(self) -> Text:
        """The text of the lengths."""
        return self.texts.source or self.texts.references[0]


def run(
    asked: Asked,
    hypothesis: str,
    names: Sequence[str],
    metrics: Sequence[str],
    options: Options,
    as_json: bool,
) -> None:
    """Score HYP and the systems beside it against the references ``names``; print a table or JSON, and draw what was asked for."""
    chosen = asked.check(metrics, options)
    texts = read(asked.files(hypothesis), names, asked.source)
    lengths = count_words((texts.source or texts.references[0]).lines)
    rows = (longer if asked.longer_than else bins)(asked.bounds or BOUNDS)
    groups = grouped(rows, lengths)
    if asked.output is not None and not any(groups):
        least = rows[0].fewest - 1
        raise DataError(
            f"{asked.output}: there is nothing to draw, for no line has more than {least} words; give lower --bounds"
        )
    [metric] = make([text.lines for text in texts.references], [chosen], options)
    found = {name: score_groups(metric, text.lines, groups) for name, text in texts.systems.items()}
    one = next((score for column in found.values() for score in column if score), None)
    scores = {
        name: [score.value if score else None for score in column] for name, column in found.items()
    }
    sizes = [len(group) for group in groups]
    table = Table(
        metric.name, one.signature if one else None, texts, rows, sizes, scores, lengths.count(0)
    )
    doubts = warnings(texts, [metric.name], metrics, options)
    for doubt in doubts:
        click.echo(f"warning: {doubt}", err=True)
    if as_json:
        click.echo(
            json.dumps({**_document(table), "warnings": doubts}, ensure_ascii=False, indent=2)
        )
    else:
        _print(table)
    if asked.output is not None:
        _draw(table, asked.output)


# Output --------------------------------------------------------------------------------------------------------------


def _document(table: Table) -> dict[str, Any]:
    return {
        "metric": table.metric,
        "signature": table.signature,
        "sentences": len(table.counted.lines),
        "lengths": {
            "of": "source" if table.texts.source else "reference",
            **table.counted.about(),
            "blank": table.blank,
        },
        "systems": [{"name": name, **text.about()} for name, text in table.texts.systems.items()],
        "references": [text.about() for text in table.texts.references],
        "rows": [
            {
                **row._asdict(),
                "sentences": table.sentences[i],
                "scores": {name: column[i] for name, column in table.scores.items()},
            }
            for i, row in enumerate(table.rows)
        ],
    }


def _print(table: Table) -> None:
    heads = ["words", "sentences", *table.scores]
    columns = [
        map(str, table.rows),
        map(str, table.sentences),
        *(map(_cell, column) for column in table.scores.values()),
    ]
    lines = [
        f"{name}: {against(text, table.texts.references)}"
        for name, text in table.texts.systems.items()
    ]
    why = "" if table.texts.source else ", the first reference, for there is no --source"
    lines.append(f"lengths: words between white space in {table.counted.file}{why}")
    if table.blank:
        first = table.rows[0]
        lines.append(
            f"blank: {table.blank} of these lines, in {f'the row {first}' if first.has(0) else 'no row'}"
        )
    if table.signature:
        lines.append(f"signature: {table.signature}")
    title = f"{table.metric} by the length of the {'source' if table.texts.source else 'first reference'}"
    show(title, heads, list(zip(*columns, strict=True)), lines)


def _cell(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _draw(table: Table, output: Path) -> None:
    from fusetk.plotting.length import Chart, plot

    x = f"words of the {'source sentence' if table.texts.source else 'first reference'}"
    plot(
        Chart([str(row) for row in table.rows], table.sentences, table.scores, x, table.metric),
        output,
    )
