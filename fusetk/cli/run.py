"""``fusetk run``."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusetk.cli.options import config_argument, device_option, set_option, threads_option
from fusetk.cli.sections import Sections
from fusetk.errors import ConfigError

if TYPE_CHECKING:
    from fusetk.experiment.places import Places
    from fusetk.recipe import Recipe

EXAMPLE = "Example: fusetk run recipes/mlrf/iwslt14_deen/both_ffn_sa.yaml --raw raw --smoke"
# Keys that --raw and --out set.
PLACES = ("data.folder", "data.train", "data.valid", "data.test")
SECTIONS = {
    "Text and output": ["raw", "out", "overrides", "seed", "jobs"],
    "Devices": ["device", "devices", "threads", "slurm", "sbatch"],
    "Steps": ["smoke", "until", "average", "metrics"],
}


@click.command("run", cls=Sections, sections=SECTIONS, epilog=EXAMPLE)
@config_argument
@click.option(
    "--raw",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder of the raw text. It replaces the folders of all paths in `data`: for raw/train, "
    "it has train.de and train.en, plain or .gz.",
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of all output. Default: work/PAPER_TASK for a row of a paper in a folder "
    "PAPER/TASK, and work/NAME for another config.",
)
@set_option
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Set training.seed.")
@click.option(
    "--jobs",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Number of processes for the preparation.",
)
@device_option
@click.option(
    "--devices",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Train and translate on N devices of this machine, with a process for each (torchrun).",
)
@threads_option
@click.option(
    "--slurm",
    is_flag=True,
    help="Prepare the text here, then submit a job of Slurm that trains, and a second job for the "
    "other steps.",
)
@click.option(
    "--sbatch",
    multiple=True,
    metavar="OPTION",
    help="Option of sbatch for the training, such as --sbatch=--nodes=2; repeatable. "
    "Default: one node with four GPUs.",
)
@click.option(
    "--smoke",
    is_flag=True,
    help="Test all steps on the first 3,000 pairs, with three updates, in OUT.smoke. The scores "
    "mean nothing.",
)
@click.option(
    "--until",
    type=click.Choice(["prep", "train", "average", "decode", "score", "report"]),
    default="report",
    show_default=True,
    help="Last step.",
)
@click.option(
    "--average",
    type=click.IntRange(1),
    metavar="N",
    help="Also score an average of the last N checkpoints. A config without a published score is "
    "scored at the best checkpoint and at an average of all that it keeps.",
)
@click.option(
    "--metric",
    "metrics",
    metavar="NAME",
    multiple=True,
    help="Another metric of `fusetk score`, besides that of the published score; repeatable. "
    "multi-bleu, multi-bleu-lc and multi-bleu-joined score tokenised text. Others score raw text, "
    "and ignore case if the config lowercases the target.",
)
def command(
    config: str,
    overrides: tuple[str, ...],
    raw: Path | None,
    out: Path | None,
    seed: int | None,
    jobs: int,
    device: str,
    devices: int,
    threads: int | None,
    slurm: bool,
    sbatch: tuple[str, ...],
    smoke: bool,
    until: str,
    average: int | None,
    metrics: tuple[str, ...],
) -> None:
    """Run all steps of CONFIG, from raw text to the scores and the table of its paper.

    The steps are prep, train, average, decode (all test sets), score and report. Metric and
    checkpoint are those of the published score. The command of each step is printed.

    A second call does only the missing steps, and training continues from its last checkpoint. Two
    processes cannot work on the same config and seed in one output folder at once. The rows of a
    folder share their prepared text; while one prepares it, the others wait.

    The batches of an update do not depend on the number of devices. If the number of batches in an
    update (`accumulate`) is a multiple of --devices, each device computes some of them; otherwise
    it computes a part of each batch.

    Several references of a test set are SET.en, SET.en1, SET.en2, and so on.
    """
    from fusetk import recipe as recipes
    from fusetk.experiment.places import is_row, places
    from fusetk.experiment.run import Experiment, Options

    start = time.monotonic()
    raw = _raw_folder(raw)
    settings = [*overrides, *([] if seed is None else [f"training.seed={seed}"])]
    _check(settings, slurm, smoke, sbatch)
    recipe = recipes.load(config, settings)
    where = places(Path(config), recipe, out)
    if smoke:
        # Not below OUT, so that no report finds the meaningless scores there.
        where = where._replace(out=where.out.with_name(f"{where.out.name}.smoke"))
        recipe = _smoke_recipe(config, settings, recipe, raw, where)
    else:
        recipe = _with_folders(recipe, raw, where)
    row = Path(config).absolute() if is_row(recipe) else None
    options = Options(metrics, average, jobs, device, devices, threads, until, row)
    if slurm:
        _submit(Experiment(recipe, where, options._replace(until="prep"), _say), sbatch)
        return
    Experiment(recipe, where, options, _say).run()
    if smoke:
        _say(f"smoke test: all steps passed in {time.monotonic() - start:.0f} s")


def _say(line: str) -> None:
    click.echo(line, err=True)


def _raw_folder(raw: Path | None) -> Path:
    if raw is None:
        raise ConfigError("give the folder of the raw text by --raw")
    raw = raw.expanduser()
    if not raw.is_dir():
        raise ConfigError(f"--raw {raw}: the folder does not exist")
    return raw


def _check(settings: list[str], slurm: bool, smoke: bool, sbatch: tuple[str, ...]) -> None:
    """Raise ConfigError for options that contradict each other."""
    for setting in settings:
        if setting.partition("=")[0].split(".")[:2] in [key.split(".") for key in PLACES]:
            raise ConfigError(
                f"--set {setting}: use --raw for the folder of the text, and --out for the output"
            )
    if slurm and smoke:
        raise ConfigError("--slurm and --smoke exclude each other: run the smoke test here first")
    if sbatch and not slurm:
        raise ConfigError("--sbatch needs --slurm")


def _with_folders(recipe: "Recipe", raw: Path, where: "Places") -> "Recipe":
    """Return the recipe with the paths of the experiment."""
    from fusetk.experiment.places import with_folders

    data = with_folders(recipe.data, raw, Path())
    return recipe.model_copy(
        update={"data": data.model_copy(update={"folder": str(where.prepared(data))})}
    )


def _smoke_recipe(
    config: str, settings: list[str], recipe: "Recipe", raw: Path, where: "Places"
) -> "Recipe":
    """Write the text of the smoke test, and return the recipe that reads it."""
    from fusetk import recipe as recipes
    from fusetk.experiment.smoke import smoke_settings, write_smoke_text

    text = where.out / "raw"
    write_smoke_text(_with_folders(recipe, raw, where), text)
    # The user's settings have precedence.
    recipe = recipes.load(config, [*smoke_settings(recipe), *settings])
    return _with_folders(recipe, text, where)


def _submit(experiment: object, sbatch: tuple[str, ...]) -> None:
    """Prepare the text and submit the jobs. The second one repeats this command without --slurm."""
    from fusetk.experiment import slurm
    from fusetk.experiment.run import Experiment

    assert isinstance(experiment, Experiment)
    experiment.run()
    rest = [sys.executable, "-m", "fusetk", *_without_slurm(sys.argv[1:])]
    first, second = slurm.submit(experiment.places, sbatch, rest)
    _say(f"submitted: job {first} trains {experiment.places.run}; then job {second} scores it")


def _without_slurm(arguments: list[str]) -> list[str]:
    """Return the arguments of this command without those for Slurm."""
    others = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--sbatch":
            next(rest, None)
        elif argument != "--slurm" and not argument.startswith("--sbatch="):
            others.append(argument)
    return others
