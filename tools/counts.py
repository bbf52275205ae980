"""Tables of the numbers of parameters that papers print, and of those of the recipes' models."""

from collections.abc import Iterable
from pathlib import Path

from fusetk.cli.tables import markdown_rows
from fusetk.errors import DataError
from fusetk.reporting.tables import PaperRow, count_row, read_rows


def printed_rows(folder: Path) -> list[PaperRow]:
    """Return the rows of the recipes in a folder whose papers print a number, with our counts.

    Raises ConfigError if a recipe is not valid.
    """
    rows = [row for row in read_rows([folder]) if row.recipe and row.paper.parameters]
    for row in rows:
        count_row(row)
    return rows


def count_table(rows: Iterable[PaperRow]) -> str:
    """Return these rows as Markdown, and how many of the printed numbers agree.

    The rows must be counted. Raises DataError if the vocabulary of a row's paper is not known.
    """
    lines = []
    agreeing = 0
    for row in rows:
        agrees = row.parameters_match
        if agrees is None or row.count is None:
            raise DataError(f"{row.path} has no paper.vocabulary, so its count has no meaning")
        agreeing += agrees
        lines.append(
            [
                row.name,
                row.paper.table,
                row.paper.parameters or "",
                f"{row.count.total:,}",
                "yes" if agrees else "**no**",
                row.paper.note or "",
            ]
        )
    heads = ["system", "table", "printed", "here", "agrees", "note of the recipe"]
    total = f"{agreeing} of {len(lines)} printed numbers agree."
    return f"{markdown_rows(heads, lines, align='---')}\n\n{total}"
