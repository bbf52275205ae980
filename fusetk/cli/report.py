"""``fusetk report``."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from fusetk.cli.common_options import inform
from fusetk.cli.report_options import report_options
from fusetk.cli.tables import NONE, show
from fusetk.reporting.formats import csv_text, latex_text
from fusetk.reporting.layout import table_as_dict, table_cells, table_notes
from fusetk.reporting.save_results import save_results
from fusetk.reporting.tables import (
    PaperRow,
    PaperTable,
    assign_runs,
    count_row,
    make_tables,
    read_rows,
    select_columns,
)

EXAMPLE = (
    "Example: fusetk report recipes/mlrf/iwslt14_deen --runs runs --checkpoint best --markdown"
)


@click.command("report", epilog=EXAMPLE)
@report_options
def command(
    recipes: tuple[Path, ...],
    folders: tuple[Path, ...],
    sets: tuple[str, ...],
    checkpoints: tuple[str, ...],
    metrics: tuple[str, ...],
    all_scores: bool,
    markdown: bool,
    as_csv: bool,
    latex: bool,
    as_json: bool,
    save: Path | None,
) -> None:
    """Print a paper's table, from the recipes of its rows, with the scores of your runs.

    RECIPE is a config, or a folder with configs; configs without a row of a table (`paper.row`) are
    ignored. The rows of other authors in the same table are printed too. A run belongs to the row
    that its own config names, and to each row whose recipe has the same config. The scores are
    those that `fusetk score --run` recorded. A cell has their mean and sample standard deviation
    over the runs of a row, and in brackets the number of runs. Δ is the difference to the row that
    the paper compares with, which is the first row if the recipe does not say.

    If the recipes say how the paper scored (`paper.metric`, `paper.checkpoint`, `paper.average`),
    the columns have only such scores, on the test sets that the paper prints. --all, --set-name,
    --checkpoint or --metric select other scores.

    Lines below the table name the runs that differ from each other or from their recipes, and those
    that were scored otherwise. A run may keep its files in another folder than its recipe. It may
    also change the seed, which checkpoints it keeps, and how often it saves and logs. Other names
    of training, validation or test files count as differences.

    Markdown, CSV, LaTeX and JSON also have the updates, the hours, the speed in target tokens per
    second, the hardware and the seeds of the runs.

    --save DIR writes a small file DIR/SYSTEM.seedN.json for each run that has scores of test sets,
    and prints no table. SYSTEM is the file name of the recipe. If the config of a run differs from
    the recipe, as in a pilot, the name also has the keys and values that differ, for example
    dec_sa.seed1.peak=0.0005.json. The file has the config, the revision of the code, the machine,
    the cost, the curves, the scores and the mean layer weights of the run. Compressed files beside
    it have the translations (DIR/translations) and, once for all runs, the sources and references
    (DIR/texts). A second call writes only what changed. Results in DIR are renamed if their recipe
    changed, so a pilot becomes a result of its row if the recipe adopts its values.
    """
    if markdown + as_csv + latex + as_json > 1:
        raise click.UsageError("--markdown, --csv, --latex and --json exclude each other: give one")
    if save and (
        sets or checkpoints or metrics or all_scores or markdown or as_csv or latex or as_json
    ):
        raise click.UsageError("--save prints no table: leave the options of tables out")
    rows = read_rows(recipes)
    unmatched_runs, warnings = assign_runs(rows, folders)
    if save:
        _save(save, rows, warnings)
        _inform_unmatched(unmatched_runs)
        return
    for row in rows:
        count_row(row)
    choices = {"--set-name": sets, "--checkpoint": checkpoints, "--metric": metrics}
    tables = make_tables(rows, all_scores or any(choices.values()))
    select_columns(tables, choices)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        document = {
            "tables": [table_as_dict(table) for table in tables],
            "strangers": unmatched_runs,
            "warnings": warnings,
        }
        click.echo(json.dumps(document, ensure_ascii=False, indent=1))
        return
    if as_csv:
        click.echo(csv_text(tables), nl=False)
    elif latex:
        click.echo("\n\n".join(map(latex_text, tables)))
    else:
        for i, table in enumerate(tables):
            if i:
                click.echo()
            _show(table, markdown)
    _inform_unmatched(unmatched_runs)


def _save(folder: Path, rows: Sequence[PaperRow], warnings: Sequence[str]) -> None:
    report = save_results(folder, rows)
    for path, reason in report.left_out:
        inform(f"{path} is left out: {reason}")
    for warning in [*warnings, *report.notes]:
        click.echo(f"warning: {warning}", err=True)
    for old, new in report.renamed:
        inform(f"{old} is now {new.name}")
    for path in report.written:
        inform(f"{path} written")
    inform(f"{folder}: {len(report.written)} results written, {len(report.unchanged)} unchanged")


def _inform_unmatched(unmatched_runs: Mapping[str, int]) -> None:
    for folder, number in unmatched_runs.items():
        runs = "1 run in {} does" if number == 1 else f"{number} runs in {{}} do"
        inform(f"{runs.format(folder)} not belong to a row of these tables")


def _show(table: PaperTable, markdown: bool) -> None:
    heads, rows = table_cells(table, costs=markdown)
    cells = [[NONE if cell is None else cell for cell in row] for row in rows]
    show(table.title, heads, cells, table_notes(table), markdown)
