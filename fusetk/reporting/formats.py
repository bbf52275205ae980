"""Reported tables as CSV and LaTeX."""

import csv
import io
from collections.abc import Sequence
from typing import NamedTuple

SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"\textbar{}",
    "×": r"$\times$",
    **{digit: f"\\textsuperscript{{{i}}}" for i, digit in enumerate(SUPERSCRIPTS)},
}


Cells = list[str | None]  # a row or a column; None: the value is unknown


class TextTable(NamedTuple):
    """A table whose cells are text."""

    title: str
    heads: list[str]
    rows: list[Cells]
    notes: list[str]  # lines below the table


def csv_text(tables: Sequence[TextTable]) -> str:
    """Return the tables as CSV: for each a line of heads, then a line for each row.

    The first column is the table's name. An unknown value is empty.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for table in tables:
        writer.writerow(["table", "row", *table.heads[1:]])
        writer.writerows([table.title, *(cell or "" for cell in row)] for row in table.rows)
    return file.getvalue()


def latex_text(table: TextTable) -> str:
    """Return a table as LaTeX, for the package booktabs. The notes are in its caption."""
    lines = [
        r"\begin{table}",
        r"\centering",
        f"\\begin{{tabular}}{{l{'r' * (len(table.heads) - 1)}}}",
        r"\toprule",
        _guard(" & ".join(map(_escape, table.heads))) + r" \\",
        r"\midrule",
        *(
            _guard(" & ".join("--" if cell is None else _escape(cell) for cell in row)) + r" \\"
            for row in table.rows
        ),
        r"\bottomrule",
        r"\end{tabular}",
        f"\\caption{{{'. '.join(map(_escape, [table.title, *table.notes]))}.}}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def signed(difference: float, digits: int = 2) -> str:
    """Return a difference with its sign. One that is rounded to 0 has a plus sign."""
    return f"{round(difference, digits) + 0.0:+.{digits}f}"


def _guard(row: str) -> str:
    """Return a row that LaTeX does not read as an argument of the command before it."""
    return f"{{}}{row}" if row.startswith(("[", "*")) else row


def _escape(text: str) -> str:
    """Return the text with LaTeX commands for its special characters."""
    return "".join(_LATEX.get(character, character) for character in text)
