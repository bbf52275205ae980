"""``fusetk score --by-length``."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from fusetk.cli.scored import Text, against, known_as, read
from fusetk.cli.tables import NONE, show
from fusetk.errors import DataError
from fusetk.evaluation.doubts import doubts
from fusetk.evaluation.length import BOUNDS, DEFAULT, Row, bins, count_words, grouped, longer, score_groups


class Bounds(click.ParamType):
    """Rising numbers of words."""

    name = "N,..."

    def convert(self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        if re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", value, re.ASCII):
            found = tuple(map(int, value.split(",")))
            if list(found) == sorted(set(found)):
                return found
        self.fail(f"{value!r} are not rising numbers of words with commas between, such as 0,10,20", param, ctx)


class System(click.ParamType):
    """A name and a file."""

    name = "NAME=FILE"

    def convert(self, value: str | tuple[str, str], param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, _, file = value.partition("=")
        if not (name and file):
            self.fail(f"{value!r} is not a name, = and a file of translations", param, ctx)
        return name, file


class Asked(NamedTuple):
    """The options beside --by-length."""

    source: str | None
    longer_than: bool
    bounds: tuple[int, ...] | None
    systems: tuple[tuple[str, str], ...]
    name: str | None
    output: Path | None

    def refuse(self) -> None:
        """Raise UsageError for those that are given without it."""
        names = "--source", "--longer-than", "--bounds", "--system", "--name", "--output"
        given = [name for name, value in zip(names, self, strict=True) if value not in (None, False, ())]
        if given:
            raise click.UsageError(f"{', '.join(given)}: of no use without --by-length; give it, too, or leave them out")

    def check(self, metrics: Sequence[str], tokenize: str | None, noted: Sequence[object]) -> str:
        """The metric; raises what is wrong with the options, of which ``noted`` are those about a run, before anything is scored."""
        chosen = list(dict.fromkeys(metrics)) or [DEFAULT]
        if len(chosen) > 1 or chosen == ["all"]:
            raise click.UsageError(f"--by-length shows one metric, not {', '.join(chosen)}: give one --metric, or none for {DEFAULT}")
        if any(value is not None for value in noted):
            raise click.UsageError("--run, --set-name and --checkpoint note the score of a whole test set: note it without --by-length")
        if tokenize is not None and chosen != ["sacrebleu"]:
            raise click.UsageError(f"--tokenize is for sacreBLEU, and {chosen[0]} is scored: give --metric sacrebleu, or leave it out")
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
                raise click.UsageError(f"two systems are called {name!r}; tell them apart by --name for HYP and --system NAME=FILE")
        return dict(pairs)


class Table(NamedTuple):
    """What was scored, and what was found."""

    metric: str
    signature: str | None  # None where no row has a sentence
    systems: Mapping[str, Text]
    references: Sequence[Text]
    source: Text | None  # None: lengths are those of the first reference
    rows: Sequence[Row]
    sentences: Sequence[int]  # of each row
    scores: Mapping[str, Sequence[float | None]]  # of each system, row by row
    blank: int  # lines without words, where lengths are counted

    @property
    def counted(self) -> Text:
        """The text of the lengths."""
        return self.source or self.references[0]


def run(
    asked: Asked, metric: str, hypothesis: str, names: Sequence[str], *, lowercase: bool, tokenize: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Score HYP and the systems beside it against the references ``names``; print a table or JSON, and draw what was asked for."""
    files = asked.files(hypothesis)
    texts = read([*files.values(), *names, *([asked.source] if asked.source is not None else [])])
    systems, references = dict(zip(files, texts, strict=False)), texts[len(files) : len(files) + len(names)]
    source = texts[-1] if asked.source is not None else None
    streams = [text.lines for text in references]
    lengths = count_words((source or references[0]).lines)
    rows = (longer if asked.longer_than else bins)(asked.bounds or BOUNDS)
    groups = grouped(rows, lengths)
    if asked.output is not None and not any(groups):
        least = rows[0].fewest - 1
        raise DataError(f"{asked.output}: there is nothing to draw, for no line has more than {least} words; give lower --bounds")
    found = {
        name: score_groups(text.lines, streams, groups, metric, lowercase=lowercase, tokenize=tokenize) for name, text in systems.items()
    }
    one = next((score for column in found.values() for score in column if score), None)
    table = Table(
        one.metric if one else metric, one.signature if one else None, systems, references, source, rows, [len(group) for group in groups],
        {name: [score.value if score else None for score in column] for name, column in found.items()}, lengths.count(0),
    )  # fmt: skip
    warnings = _warnings(table, lowercase)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        click.echo(json.dumps({**_document(table), "warnings": warnings}, ensure_ascii=False, indent=2))
    else:
        _print(table)
    if asked.output is not None:
        _draw(table, asked.output)


def _warnings(table: Table, lowercase: bool) -> list[str]:
    blind = lowercase or table.metric in ("multi-bleu-lc", "ter")
    streams = [text.lines for text in table.references]
    found = [(name, warning) for name, text in table.systems.items() for warning in doubts(text.lines, streams, lowercase=blind)]
    return [f"{name}: {warning}" if len(table.systems) > 1 else warning for name, warning in found]


# Output --------------------------------------------------------------------------------------------------------------


def _document(table: Table) -> dict[str, Any]:
    return {
        "metric": table.metric,
        "signature": table.signature,
        "sentences": len(table.counted.lines),
        "lengths": {"of": "source" if table.source else "reference", **table.counted.about(), "blank": table.blank},
        "systems": [{"name": name, **text.about()} for name, text in table.systems.items()],
        "references": [text.about() for text in table.references],
        "rows": [
            {**row._asdict(), "sentences": table.sentences[i], "scores": {name: column[i] for name, column in table.scores.items()}}
            for i, row in enumerate(table.rows)
        ],
    }


def _print(table: Table) -> None:
    heads = ["words", "sentences", *table.scores]
    columns = [map(str, table.rows), map(str, table.sentences), *(map(_cell, column) for column in table.scores.values())]
    lines = [f"{name}: {against(text, table.references)}" for name, text in table.systems.items()]
    why = "" if table.source else ", the first reference, for there is no --source"
    lines.append(f"lengths: words between white space in {table.counted.file}{why}")
    if table.blank:
        first = table.rows[0]
        lines.append(f"blank: {table.blank} of these lines, in {f'the row {first}' if first.has(0) else 'no row'}")
    if table.signature:
        lines.append(f"signature: {table.signature}")
    title = f"{table.metric} by the length of the {'source' if table.source else 'first reference'}"
    show(title, heads, list(zip(*columns, strict=True)), lines)


def _cell(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _draw(table: Table, output: Path) -> None:
    from fusetk.plotting.length import Chart, plot

    x = f"words of the {'source sentence' if table.source else 'first reference'}"
    plot(Chart([str(row) for row in table.rows], table.sentences, table.scores, x, table.metric), output)
