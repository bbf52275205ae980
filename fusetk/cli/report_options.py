"""Options of ``fusetk report``."""

from pathlib import Path

import click

from fusetk.cli.options import json_option
from fusetk.cli.parameters import Decorator, FilePath, all_of

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
    click.option("--markdown", is_flag=True, help="Print tables in Markdown."),
    click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values."),
    click.option("--latex", is_flag=True, help="Print tables in LaTeX, for the package booktabs."),
    json_option,
    click.option(
        "--html",
        "page",
        metavar="FILE.html",
        type=FilePath(path_type=Path, dir_okay=False),
        help="With a folder of results: write one page with the table, the curves, the layer"
        " weights and the translations that differ, instead of a table.",
    ),
    click.option(
        "--save",
        metavar="DIR",
        type=FilePath(path_type=Path, file_okay=False),
        help="Write a result file for each scored run into this folder, instead of a table.",
    ),
)

report_options = all_of(OPTIONS)
