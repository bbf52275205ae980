"""``fusetk average``."""

from pathlib import Path

import click

from fusetk.cli.common_options import inform
from fusetk.cli.options import runs_argument
from fusetk.cli.parameters import Parsed
from fusetk.errors import DataError, first_names
from fusetk.runs import CHECKPOINTS, CONFIG, read_state_if_valid, run_and_checkpoint
from fusetk.training.validation_config import checked_metric


@click.command(
    "average",
    epilog="Example: fusetk average runs/demo --last 5 && "
    "fusetk decode -m runs/demo/checkpoints/average < test.de > test.en",
)
@runs_argument("runs")
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
    type=Parsed("NAME", checked_metric),
    help="Metric that ranks checkpoints for --best. The validations must have computed it. "
    "Default: training.validation.metric.",
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
    help="Folder of the new checkpoint in RUN/checkpoints. RUN is the first one of several.",
)
def command(
    runs: tuple[Path, ...],
    last: int | None,
    best: int | None,
    metric: str | None,
    updates: tuple[int, ...],
    name: str,
) -> None:
    """Average the weights of checkpoints of RUN (Vaswani et al. 2017, section 6.1).

    The mean is written as a checkpoint of RUN. It is the mean of the raw weights, even if training
    kept a moving average (EMA) of them. With several RUNs, which must have equal models, the
    checkpoints of all are averaged. This suits runs that start from the same weights
    (`training.start_from`).
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
    from fusetk.training.average import average, choose

    first, *others = map(_run_folder, runs)
    _check_equal_models(first, others)
    folders = []
    for run in (first, *others):
        run_metric = metric or "loss"  # --last and --update need no component of the config
        if best and not metric:
            run_metric = recipes.load(run / CONFIG).training.validation.metric
        folders += choose(run, last, best, run_metric, updates)
    into = first / CHECKPOINTS / name
    if (into.exists() or into.is_symlink()) and "averaged" not in read_state_if_valid(into):
        raise DataError(
            f"{into} exists and has no record of fusetk average: choose another --name, or remove "
            "it"
        )
    average(folders, into)
    shown = [str(folder) if others else folder.name for folder in folders]
    inform(f"{into}: mean of {', '.join(shown)}")


def _run_folder(path: Path) -> Path:
    """Return ``path``. Raises DataError for a checkpoint, CheckpointError if it is not a run."""
    run, _ = run_and_checkpoint(path)
    if run != path:
        raise DataError(
            f"{path} is a checkpoint: name its run, {run}, and choose the checkpoints with --last, "
            "--best or --update"
        )
    return run


def _check_equal_models(first: Path, others: list[Path]) -> None:
    """Raise DataError if two runs are the same, or if the models of two configs differ."""
    from fusetk import recipe as recipes
    from fusetk.data.manifest import differences

    folders = [run.resolve() for run in (first, *others)]
    for i, run in enumerate(others, 1):
        if folders[i] in folders[:i]:
            raise DataError(f"{run} is given twice: name each run once")
        one, other = (recipes.load(path / CONFIG).model.model_dump() for path in (first, run))
        if changes := list(differences(one, other, "model")):
            raise DataError(
                f"{first} and {run} have different models "
                f"({first_names(changes, 3, '; ')}): choose runs with equal models"
            )
