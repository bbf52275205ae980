"""``fusetk average``."""

from pathlib import Path

import click

from fusetk.cli.common_options import inform
from fusetk.cli.parameters import FilePath


@click.command(
    "average",
    epilog="Example: fusetk average runs/demo --last 5, "
    "then fusetk decode -m runs/demo/checkpoints/average",
)
@click.argument("run", type=FilePath(path_type=Path))
@click.option(
    "--last",
    type=click.IntRange(1),
    metavar="N",
    help="Average the last N checkpoints. A checkpoint that was written because of an interruption "
    "does not count. It is an error if training deleted one of the others.",
)
@click.option(
    "--best",
    type=click.IntRange(1),
    metavar="N",
    help="Average the N best of the kept checkpoints, ranked by --metric.",
)
@click.option(
    "--metric",
    type=click.Choice(["loss", "ppl", "accuracy", "bleu"]),
    help="Metric that ranks checkpoints for --best. Default: training.validation.metric.",
)
@click.option(
    "--update",
    "updates",
    type=click.IntRange(1),
    multiple=True,
    metavar="U",
    help="Average the checkpoints after these updates; repeat the option for each.",
)
@click.option(
    "--name",
    default="average",
    show_default=True,
    help="Folder of the new checkpoint in RUN/checkpoints.",
)
def command(
    run: Path,
    last: int | None,
    best: int | None,
    metric: str | None,
    updates: tuple[int, ...],
    name: str,
) -> None:
    """Average the weights of checkpoints of RUN (Vaswani et al. 2017, section 6.1).

    The mean is written as a checkpoint of RUN. It is the mean of the raw weights, even if training
    kept a moving average (EMA) of them.
    """
    if sum(map(bool, (last, best, updates))) != 1:
        raise click.UsageError("give exactly one of --last, --best and --update")
    if metric and not best:
        raise click.UsageError("--metric has an effect with --best only: remove it, or add --best")
    if not name or Path(name).name != name:
        raise click.UsageError(f"--name {name!r} is not the name of a folder: choose another")
    if name in ("best", "last") or name.startswith(("update-", ".")):
        raise click.UsageError(f"--name {name}: this folder name is reserved; choose another")

    from fusetk import recipe as recipes
    from fusetk.errors import DataError
    from fusetk.runs import CHECKPOINTS, CONFIG, find_checkpoint, read_state_if_valid
    from fusetk.training.average import average, choose

    run, _ = find_checkpoint(run)
    if metric is None:  # --last and --update need no component of the config
        metric = recipes.load(run / CONFIG).training.validation.metric if best else "loss"
    folders = choose(run, last, best, metric, updates)
    into = run / CHECKPOINTS / name
    if (into.exists() or into.is_symlink()) and "averaged" not in read_state_if_valid(into):
        raise DataError(
            f"{into} exists and has no record of fusetk average: choose another --name, or remove "
            "it"
        )
    average(folders, into)
    inform(f"{into}: mean of {', '.join(folder.name for folder in folders)}")
