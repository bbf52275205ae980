"""Output of ``fusetk report``."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from fusetk.cli.common_options import inform
from fusetk.cli.tables import NONE, print_warnings, show
from fusetk.reporting.formats import TextTable, csv_text, latex_text
from fusetk.reporting.save_results import save_results
from fusetk.reporting.tables import PaperRow


def show_tables(tables: Sequence[TextTable], output: str) -> None:
    """Print tables as csv, latex, markdown or text."""
    if output == "csv":
        click.echo(csv_text(tables), nl=False)
    elif output == "latex":
        click.echo("\n\n".join(map(latex_text, tables)))
    else:
        for i, table in enumerate(tables):
            if i:
                click.echo()
            cells = [[NONE if cell is None else cell for cell in row] for row in table.rows]
            show(table.title, table.heads, cells, table.notes, output == "markdown")


def save_and_inform(folder: Path, rows: Sequence[PaperRow], warnings: Sequence[str]) -> None:
    """Save the results of runs, and say which files were written."""
    report = save_results(folder, rows)
    for path, reason in report.left_out:
        inform(f"{path} is left out: {reason}")
    print_warnings([*warnings, *report.notes])
    for old, new in report.renamed:
        inform(f"{old} is now {new.name}")
    for path in report.written:
        inform(f"{path} written")
    inform(f"{folder}: {len(report.written)} results written, {len(report.unchanged)} unchanged")


def inform_unmatched(unmatched_runs: Mapping[str, int]) -> None:
    """Say how many runs in each folder belong to no row."""
    for folder, number in unmatched_runs.items():
        runs = "1 run in {} does" if number == 1 else f"{number} runs in {{}} do"
        inform(f"{runs.format(folder)} not belong to a row of these tables")
