"""``fusetk plot-curves``."""

import os
from pathlib import Path

import click

from fusetk.cli.options import runs_argument
from fusetk.cli.parameters import FilePath
from fusetk.cli.picture_options import check_numbers, check_picture, size_option, style_option
from fusetk.errors import DataError, quantity
from fusetk.plotting.curve_figure import plot
from fusetk.plotting.curves import (
    BY_LAYER,
    DEFAULT,
    RECORD_KINDS,
    TITLES,
    curves,
    read_curve_records,
)
from fusetk.plotting.figure import check_output
from fusetk.plotting.style import STYLES, Size


@click.command(
    "plot-curves",
    epilog="Example: fusetk plot-curves runs/base runs/deep --what loss,bleu --smooth 5"
    " -o curves.png",
)
@runs_argument("runs")
@click.option(
    "-o",
    "--output",
    required=True,
    type=FilePath(path_type=Path),
    metavar="FILE",
    help="Output file: a picture (.png, .pdf, .svg) or the numbers (.npz, .json).",
)
@click.option(
    "--what",
    metavar="NAME,...",
    help=f"Quantities of metrics.jsonl: {', '.join(TITLES)}, and the metric of"
    " `training.validation.metric`. Each has a panel."
    f" {' and '.join(BY_LAYER)} have a panel for each stack or fusion of each run, with a curve for"
    " each layer."
    f" Default: {', '.join(DEFAULT)} and other metrics of translations, if the runs have them.",
)
@click.option(
    "--x",
    type=click.Choice(["updates", "epochs"]),
    default="updates",
    show_default=True,
    help="Unit of the horizontal axis.",
)
@click.option(
    "--train",
    is_flag=True,
    help="Draw the training curves. Without --train and --valid, both kinds are drawn.",
)
@click.option("--valid", is_flag=True, help="Draw the validation curves.")
@click.option(
    "--smooth",
    "window",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Smooth training curves: draw the mean of the N points around each point. An even N counts"
    " as N + 1.",
)
@click.option(
    "--names",
    metavar="NAME,...",
    help="Names of the runs, in their order. Default: the names of their folders.",
)
@click.option("--title", default="", metavar="TEXT", help="Title of the picture. Default: none.")
@size_option("Default height: follows from the width and the number of panels.")
@style_option
def command(
    runs: tuple[Path, ...],
    output: Path,
    what: str | None,
    x: str,
    train: bool,
    valid: bool,
    window: int,
    names: str | None,
    title: str,
    size: Size | None,
    style: str,
) -> None:
    """Draw the training and validation curves of runs, with a star at each best validation value.

    A curve that has only one value is a dot.

    For each curve, an .npz file holds the arrays RUN/KIND/QUANTITY.update, .epoch and .value. The
    curve of a layer has the name RUN/KIND/QUANTITY/GROUP/LAYER; GROUP is a stack, a fusion or
    `other parts`. A .json file holds the same as a list.
    """
    check_output(output)
    check_picture(output, size, style)
    check_numbers(output, {"--title": bool(title)})
    quantities = list(filter(None, _split(what or "")))
    if what is not None and not quantities:
        raise click.UsageError("--what has no quantity: give one, or omit --what")
    run_names = _folder_names(runs) if names is None else _split(names)
    if not all(run_names):
        raise click.UsageError("--names has an empty name: give a name for each run")
    if len(run_names) != len(runs):
        raise click.UsageError(
            f"--names has {quantity(len(run_names), 'name')} for {quantity(len(runs), 'run')}; "
            "give one name for each run, separated by commas"
        )
    if len(set(run_names)) != len(run_names):
        duplicate = next(name for name in run_names if run_names.count(name) > 1)
        raise DataError(
            f"two runs have the name {duplicate!r}; set different names with --names, "
            "or give each run once"
        )
    metrics = {name: read_curve_records(run) for name, run in zip(run_names, runs, strict=True)}
    kinds = [kind for kind, selected in zip(RECORD_KINDS, (train, valid), strict=True) if selected]
    chosen = curves(metrics, quantities, kinds or RECORD_KINDS)
    plot(chosen, output, x=x, window=window, title=title, style=STYLES[style], size=size)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def _folder_names(runs: tuple[Path, ...]) -> list[str]:
    """Return the folders' names, with as many parent folders as make them different."""
    parts = [Path(os.path.realpath(run)).parts for run in runs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = [str(Path(*part[-depth:])) for part in parts]
        if len(set(names)) == len(names):
            return names
    return names
