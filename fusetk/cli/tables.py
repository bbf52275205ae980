"""Output of tables: drawn on a terminal, as aligned text elsewhere, or as Markdown."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fusetk.cli.common_options import print_warning
from fusetk.evaluation.metric import Score

if TYPE_CHECKING:
    from rich.table import Table

NONE = "-"  # an unknown value


def show(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    lines: Sequence[str],
    markdown: bool = False,
) -> None:
    """Print a table and the ``lines`` below it.

    The first column is aligned to the left, the others to the right.
    """
    if markdown:
        click.echo(markdown_table(title, heads, rows, lines))
    elif sys.stdout.isatty():
        _draw(title, heads, rows, lines)
    else:
        click.echo("\n".join([title, *_aligned([heads, *rows]), *lines]))


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    first_width, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    texts = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths, strict=True)]
        texts.append("  ".join([first.ljust(first_width), *cells]).rstrip())
    return texts


def markdown_table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], lines: Sequence[str]
) -> str:
    """Return a table in Markdown, with its title before it and the ``lines`` below it."""
    blocks = [f"**{title}**", markdown_rows(heads, rows)]
    if lines:
        blocks.append("\n".join(f"- {line}" for line in lines))
    return "\n\n".join(blocks)


def markdown_rows(heads: Sequence[str], rows: Sequence[Sequence[str]], align: str = "---:") -> str:
    """Return a table in Markdown without a title; ``align`` holds for all columns but the first."""
    head, *body = ([cell.replace("|", "\\|") for cell in row] for row in (heads, *rows))
    table = [head, ["---", *[align] * (len(heads) - 1)], *body]
    return "\n".join("| " + " | ".join(row) + " |" for row in table)


def _draw(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], lines: Sequence[str]
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    first, *others = (Text(head.replace(" ", "\n")) for head in heads)
    numbers = (Column(head, justify="right", no_wrap=True) for head in others)
    table = Table(
        Column(first, no_wrap=True), *numbers, title=Text(title), box=box.SIMPLE, pad_edge=False
    )
    for row in rows:
        table.add_row(*map(Text, row))
    print_complete(table)
    console = Console()
    for line in lines:
        console.print(Text(line, style="dim"))


def print_complete(table: "Table", stderr: bool = False) -> None:
    """Print a table with its natural width: the terminal wraps long lines, and no cell is cut."""
    from rich.console import Console

    console = Console(stderr=stderr)
    wide = console.measure(table, options=console.options.update(max_width=1000)).maximum
    console.width = max(wide, console.width)
    console.print(table)


def draw_scores(scores: Sequence[Score]) -> None:
    """Draw the scores of one system on the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    value = Column("value", justify="right")
    table = Table("metric", value, Column("how", overflow="fold"), box=box.SIMPLE)
    for score in scores:
        details = Text(score.details + "\n" if score.details else "")
        details.append(score.signature, style="dim")
        table.add_row(score.metric, Text(f"{score.value:.2f}", style="bold"), details)
    Console().print(table)


def print_warnings(warnings: Sequence[str]) -> None:
    """Print warnings to standard error."""
    for warning in warnings:
        print_warning(warning)


def print_json(document: dict[str, Any]) -> None:
    """Print a JSON object with an indentation."""
    click.echo(json.dumps(document, ensure_ascii=False, indent=2))
