"""The options of ``fusetk report``, and their headings in the help."""

from pathlib import Path

import click

from fusetk.cli.options import json_option
from fusetk.cli.parameters import Decorator, FilePath, all_of

SECTIONS = {
    "Runs and scores": ["folders", "checkpoints", "metrics", "sets", "all_scores"],
    "Output": ["markdown", "latex", "as_csv", "as_json", "save", "page"],
}

OPTIONS: tuple[Decorator, ...] = (
    click.argument(
        "recipes", metavar="RECIPE...", nargs=-1, required=True, type=FilePath(path_type=Path)
    ),
    click.option(
        "--runs",
        "folders",
        metavar="DIR",
        multiple=True,
        type=FilePath(path_type=Path),
        help="A run folder, or a folder to search for run folders; repeatable.",
    ),
    click.option(
        "--set-name",
        "sets",
        metavar="NAME",
        multiple=True,
        help="Show only scores of this test set; repeatable.",
    ),
    click.option(
        "--checkpoint",
        "checkpoints",
        metavar="LABEL",
        multiple=True,
        help="Show only scores of this checkpoint, such as best; repeatable.",
    ),
    click.option(
        "--metric",
        "metrics",
        metavar="NAME",
        multiple=True,
        help="Show only scores by this metric, such as multi-bleu; repeatable.",
    ),
    click.option(
        "--all",
        "all_scores",
        is_flag=True,
        help="Show all recorded scores, not only those of the kind that the paper prints.",
    ),
    click.option(
        "--markdown",
        is_flag=True,
        help="Print tables in Markdown. This form, LaTeX, CSV and JSON also have the updates, the "
        "hours, the speed in target tokens per second, the hardware and the seeds of the runs.",
    ),
    click.option("--latex", is_flag=True, help="Print tables in LaTeX, for the package booktabs."),
    click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values."),
    json_option,
    click.option(
        "--html",
        "page",
        metavar="FILE.html",
        type=FilePath(path_type=Path, dir_okay=False),
        help="With a folder of results: write one page, instead of a table. The page needs no"
        " network. It has the table, which a click sorts, the curves of all seeds, the layer"
        " weights, and the translations that differ from those of the baseline.",
    ),
    click.option(
        "--save",
        metavar="DIR",
        type=FilePath(path_type=Path, file_okay=False),
        help="Write a result file into this folder for each run that has scores of test sets,"
        " instead of a table. A second call writes only what changed.",
    ),
)

report_options = all_of(OPTIONS)
