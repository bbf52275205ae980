"""Tables of text: drawn on a terminal, aligned where output goes elsewhere, or in Markdown."""

import sys
from collections.abc import Callable, Sequence

import click

NONE = "-"  # what is not known


def show(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    lines: Sequence[str],
    markdown: bool = False,
) -> None:
    """Print a table and the lines that belong under it. The first column stands to the left, numbers to the right."""
    if markdown:
        click.echo(_markdown(title, heads, rows, lines))
    elif sys.stdout.isatty():
        _draw(title, heads, rows, lines)
    else:
        click.echo("\n".join([title, *_aligned([heads, *rows]), *lines]))


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    put: list[Callable[[str, int], str]] = [str.ljust, *[str.rjust] * (len(widths) - 1)]
    return [
        "  ".join(
            into(cell, width) for into, cell, width in zip(put, row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _markdown(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], lines: Sequence[str]
) -> str:
    body = [
        heads,
        ["---", *["---:"] * (len(heads) - 1)],
        *([cell.replace("|", "\\|") for cell in row] for row in rows),
    ]
    table = "\n".join("| " + " | ".join(row) + " |" for row in body)
    return "\n\n".join(
        [f"**{title}**", table, *(["\n".join(f"- {line}" for line in lines)] if lines else [])]
    )


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
    console = Console()
    wide = console.measure(table, options=console.options.update(max_width=1000)).maximum
    Console(width=max(wide, console.width)).print(
        table
    )  # the terminal breaks lines that are too long; no cell is cut
    for line in lines:
        console.print(Text(line, style="dim"))
