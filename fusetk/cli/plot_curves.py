"""``fusetk plot-curves``."""

from pathlib import Path

import click

from fusetk.errors import DataError
from fusetk.plotting.curves import KINDS, TITLES, USUAL, curves, plot, read_metrics
from fusetk.plotting.figure import check_output


@click.command(
    "plot-curves",
    epilog="Example: fusetk plot-curves runs/base runs/deep --what loss,bleu --smooth 5 -o curves.png",
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A picture, .png, .pdf or .svg, or the numbers, .npz or .json.",
)
@click.option(
    "--what",
    metavar="NAME,...",
    help=f"What of metrics.jsonl to draw, each in a panel: {', '.join(TITLES)}. Without it: {', '.join(USUAL)}, as far as noted.",
)
@click.option(
    "--x",
    type=click.Choice(["updates", "epochs"]),
    default="updates",
    show_default=True,
    help="What the curves are drawn over.",
)
@click.option(
    "--train", is_flag=True, help="Draw the training curves; with --valid, or neither, both kinds."
)
@click.option("--valid", is_flag=True, help="Draw the validation curves.")
@click.option(
    "--smooth",
    "window",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Training curves: the mean of N points around each.",
)
@click.option(
    "--names",
    metavar="NAME,...",
    help="What the runs are called, in their order. Without it, their folders' names.",
)
def command(
    runs: tuple[Path, ...],
    output: Path,
    what: str | None,
    x: str,
    train: bool,
    valid: bool,
    window: int,
    names: str | None,
) -> None:
    """Draw the training and validation curves of one or more runs, a star at each best validation value.

    An .npz file holds, for each curve, the arrays RUN/KIND/QUANTITY.update, .epoch and .value; a .json file the same as a
    list.
    """
    check_output(output)
    called = names.split(",") if names is not None else _names(runs)
    if len(called) != len(runs):
        raise click.UsageError(
            f"--names has {len(called)} names for {len(runs)} runs; give as many, with commas between"
        )
    if len(set(called)) != len(called):
        twice = next(name for name in called if called.count(name) > 1)
        raise DataError(
            f"two runs are called {twice!r}; tell them apart by --names, or name each run once"
        )
    metrics = {name: read_metrics(run) for name, run in zip(called, runs, strict=True)}
    quantities = (
        [part.strip() for part in what.split(",") if part.strip()] if what is not None else []
    )
    kinds = [kind for kind, wanted in zip(KINDS, (train, valid), strict=True) if wanted] or KINDS
    plot(curves(metrics, quantities, kinds), output, x=x, window=window)


def _names(runs: tuple[Path, ...]) -> list[str]:
    """The folders' names, with as many folders above them as it takes to tell them apart."""
    parts = [run.resolve().parts for run in runs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return names
