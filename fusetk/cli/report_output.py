"""Output of ``fusetk report``."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from fusetk.cli.common_options import inform
from fusetk.cli.tables import NONE, print_json, print_warnings, show
from fusetk.errors import quantity
from fusetk.reporting.formats import TextTable, csv_text, latex_text
from fusetk.reporting.result_layout import result_table_as_dict, text_tables
from fusetk.reporting.result_tables import read_tables
from fusetk.reporting.results_page import save_results_page
from fusetk.reporting.save_results import save_results
from fusetk.reporting.tables import PaperRow


def show_results(
    folder: Path,
    choices: Mapping[str, Sequence[str]],
    all_scores: bool,
    form: str,
    page: Path | None,
) -> None:
    """Print the tables of a folder of results, or write the ``page``.

    ``form`` is csv, json, latex, markdown or text.
    """
    tables = read_tables(folder, choices, all_scores)
    try:
        if page:
            save_results_page(tables, folder, page)
        elif form == "json":
            print_json({"tables": [result_table_as_dict(table) for table in tables]})
        else:
            show_tables([text for table in tables for text in text_tables(table)], form)
    finally:  # also if the process that reads the output has ended
        tables[0].p_values.save()


def show_tables(tables: Sequence[TextTable], form: str) -> None:
    """Print tables as csv, latex, markdown or text."""
    if form == "csv":
        click.echo(csv_text(tables), nl=False)
    elif form == "latex":
        click.echo("\n\n".join(map(latex_text, tables)))
    else:
        for i, table in enumerate(tables):
            if i:
                click.echo()
            cells = [[NONE if cell is None else cell for cell in row] for row in table.rows]
            show(table.title, table.heads, cells, table.notes, form == "markdown")


def save_and_inform(folder: Path, rows: Sequence[PaperRow], warnings: Sequence[str]) -> None:
    """Save the results of runs, and say which files were written."""
    report = save_results(folder, rows)
    for path, reason in report.left_out:
        inform(f"{path} is omitted: {reason}")
    print_warnings([*warnings, *report.notes])
    for old, new in report.renamed:
        inform(f"{old} is now {new.name}")
    for path in report.written:
        inform(f"{path} written")
    inform(
        f"{folder}: {quantity(len(report.written), 'result')} written, "
        f"{len(report.unchanged):,} unchanged"
    )


def inform_unmatched(unmatched_runs: Mapping[str, int]) -> None:
    """Say how many runs in each folder belong to no row."""
    for folder, number in unmatched_runs.items():
        runs = "1 run in {} does" if number == 1 else f"{number} runs in {{}} do"
        inform(f"{runs.format(folder)} not belong to a row of these tables")
