"""``fusetk report``."""

from pathlib import Path

import click

from fusetk.cli.report_options import SECTIONS, report_options
from fusetk.cli.report_output import inform_unmatched, save_and_inform, show_results, show_tables
from fusetk.cli.sections import Sections
from fusetk.cli.tables import print_json, print_warnings
from fusetk.reporting.layout import table_as_dict, text_table
from fusetk.reporting.result_files import holds_results
from fusetk.reporting.tables import (
    assign_runs,
    count_row,
    make_tables,
    read_rows,
    select_columns,
)

EXAMPLE = (
    "Example: fusetk report recipes/mlrf/iwslt14_deen --runs runs --checkpoint best --markdown"
)


@click.command("report", cls=Sections, sections=SECTIONS, epilog=EXAMPLE)
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
    page: Path | None,
    save: Path | None,
) -> None:
    """Print a paper's table, from the recipes of its rows, with the scores of your runs.

    fusetk report RESULTS prints the table of a folder of results, which --save made.

    RECIPE is a config, or a folder with configs; configs without a row of a table (`paper.row`) are
    ignored. In a folder, configs of runs and files in the folders of --runs are ignored as well.
    The rows of other authors in the same table are printed too. A run belongs to the row that its
    own config names, and to each row whose recipe has the same config. The scores are those that
    `fusetk score --run` recorded. A cell has their mean and sample standard deviation over the runs
    of a row, and in brackets the number of runs. Δ is the difference to the row that the paper
    compares with, which is the first row if the recipe does not say.

    If the recipes say how the paper scored (`paper.metric`, `paper.checkpoint`, `paper.average`),
    the columns have only such scores, on the test sets that the paper prints. A row without one of
    these keys gets that of the first row with a metric and a checkpoint. --all, --checkpoint,
    --metric or --set-name select other scores.

    Lines below the table name the runs that differ from each other or from their recipes, and those
    that were scored otherwise. A run may keep its files in another folder than its recipe. It may
    also change the seed, which checkpoints it keeps, and how often it saves and logs. Other names
    of files of text, BPE codes or vocabularies count as differences.

    The table of a folder of results needs no runs and no recipes. It has the scores, their
    differences to the baseline, the cost, and whether each row has a gain. --all adds all recorded
    scores and tests all differences. docs/recipes.md describes the tables and the files in the
    folder.
    """
    forms = {"markdown": markdown, "csv": as_csv, "latex": latex, "json": as_json}
    if sum(forms.values()) + bool(page) > 1:
        raise click.UsageError(
            "--markdown, --csv, --latex, --json and --html exclude each other: give one"
        )
    choices = {"--set-name": sets, "--checkpoint": checkpoints, "--metric": metrics}
    chosen = all_scores or any(choices.values())
    form = next((name for name, is_chosen in forms.items() if is_chosen), "text")
    if save and (chosen or form != "text"):
        raise click.UsageError("--save prints no table: omit the options of tables")
    results = [path for path in recipes if holds_results(path, bool(folders or save))]
    if results:
        if len(recipes) > 1 or folders or save:
            raise click.UsageError(
                f"{results[0]} is a folder of results: give it alone, without --runs and --save"
            )
        if page and page.suffix not in (".html", ".htm"):
            raise click.UsageError(f"--html {page}: the name of a page ends with .html")
        show_results(results[0], choices, all_scores, form, page)
        return
    if page:
        raise click.UsageError("--html needs a folder of results, which --save makes")
    rows = read_rows(recipes, folders)
    unmatched_runs, warnings = assign_runs(rows, folders)
    if save:
        save_and_inform(save, rows, warnings)
        inform_unmatched(unmatched_runs)
        return
    for row in rows:
        count_row(row)
    tables = make_tables(rows, chosen)
    select_columns(tables, choices)
    print_warnings(warnings)
    if as_json:
        contents = [table_as_dict(table) for table in tables]
        print_json({"tables": contents, "unmatched_runs": unmatched_runs, "warnings": warnings})
        return
    show_tables([text_table(table, costs=form != "text") for table in tables], form)
    inform_unmatched(unmatched_runs)
