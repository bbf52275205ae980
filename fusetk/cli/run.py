"""``fusetk run``."""

import os
import time
from pathlib import Path

import click

from fusetk.cli.common_options import inform, is_quiet
from fusetk.cli.recipes import load_recipe
from fusetk.cli.run_options import SECTIONS, run_options
from fusetk.cli.run_slurm import submit
from fusetk.cli.sections import Sections
from fusetk.errors import ConfigError
from fusetk.experiment import STEPS

EXAMPLE = "Example: fusetk run recipes/mlrf/iwslt14_deen/both_ffn_sa.yaml --raw raw --smoke"
# Keys that --raw and --out set.
PLACES = ("data.folder", "data.train", "data.valid", "data.test")
VALIDATION_PAIRS = ("data.valid.every", "data.valid.sample", "data.valid.seed")  # no paths


@click.command("run", cls=Sections, sections=SECTIONS, epilog=EXAMPLE)
@run_options
def command(
    config: str,
    overrides: tuple[str, ...],
    raw: Path | None,
    dataset: bool,
    any_data: bool,
    out: Path | None,
    seeds: tuple[int, ...],
    jobs: int,
    device: str,
    devices: int,
    threads: int | None,
    slurm: bool,
    sbatch: tuple[str, ...],
    dry_run: bool,
    smoke: bool,
    until: str,
    average: int | None,
    metrics: tuple[str, ...],
) -> None:
    """Run all steps of CONFIG, from raw text to the scores and the table of its paper.

    The steps are prep, train, average, decode (all test sets), score and report. A published score
    of CONFIG determines the metric and the checkpoint. The command of each step is printed, after a
    plan: the folders, the device, and for each step whether it is done.

    With several seeds, the command runs all steps with the first seed, then with the next one. The
    table has the mean of their scores.

    A second call does only the missing steps, and training continues from its last checkpoint. Two
    processes cannot work on the same config and seed in one output folder at once. The rows of a
    folder share their prepared text; while one prepares it, the others wait.

    The prepared text is compared with the published counts of the config (`paper.text`). Another
    number of pairs is an error without --any-data.

    The batches of an update do not depend on the number of devices. If the number of batches in an
    update (`accumulate`) is a multiple of --devices, each device computes some of them; otherwise
    it computes a part of each batch.

    Several references of a test set are SET.en, SET.en1, SET.en2, and so on.
    """
    if raw is None:
        raise ConfigError("give the folder of the raw text with --raw")
    _check(config, overrides, seeds, device, devices, slurm, smoke, sbatch, until)
    if dry_run and (slurm or smoke):
        other = "--slurm" if slurm else "--smoke"
        raise ConfigError(f"--dry-run and {other} exclude each other: omit one of them")
    start = time.monotonic()
    all_settings = [[*overrides, f"training.seed={seed}"] for seed in seeds] or [[*overrides]]
    recipes = [load_recipe(config, settings) for settings in all_settings]
    from fusetk.experiment.places import is_row, places, recipe_with_folders
    from fusetk.experiment.raw import dataset_to_make, provide_raw_text
    from fusetk.experiment.run import Experiment, Options
    from fusetk.experiment.smoke import smoke_recipe
    from fusetk.reporting.runs import VALID

    if VALID in recipes[0].data.test:
        raise ConfigError(
            f"data.test.{VALID}: reports use this name for the validation text, so they would not "
            "show the scores of the test set: choose another name"
        )
    options = Options(
        metrics=metrics,
        average=average,
        jobs=jobs,
        device=device,
        devices=devices,
        threads=threads,
        until="prep" if slurm else until,  # the jobs do the other steps
        row=Path(os.path.abspath(config)) if is_row(recipes[0]) else None,
        quiet=is_quiet(),
        any_data=any_data,
    )
    experiments = []
    for settings, recipe in zip(all_settings, recipes, strict=True):
        where = places(Path(config), recipe, out)
        if smoke and not where.out.name:
            raise ConfigError(
                f"--smoke cannot make a folder beside --out {where.out}: give another --out"
            )
        if not (dry_run and dataset and dataset_to_make(recipe)):
            local = recipe_with_folders(recipe, raw, where)
            provide_raw_text(local, raw, dataset, any_data, inform)
        if smoke:
            # Not below OUT, so that no report finds the meaningless scores there.
            where = where._replace(out=where.out.with_name(f"{where.out.name}.smoke"))
            recipe = smoke_recipe(config, settings, recipe, raw, where)
        else:
            recipe = recipe_with_folders(recipe, raw, where)
        experiments.append(Experiment(recipe, where, options, inform))
    plans = [line for experiment in experiments for line in experiment.plan()]
    if dry_run:
        click.echo("\n".join(plans))
        return
    inform("\n".join(plans))
    for experiment in experiments:  # the training of the first seed may take days
        experiment.check_run()
    for experiment in experiments:
        if slurm:
            submit(experiment, sbatch)
        else:
            experiment.run()
    if smoke:
        steps = "all steps" if until == STEPS[-1] else f"all steps up to {until}"
        inform(f"smoke test: {steps} passed in {time.monotonic() - start:.0f} s")


def _check(
    config: str,
    settings: tuple[str, ...],
    seeds: tuple[int, ...],
    device: str,
    devices: int,
    slurm: bool,
    smoke: bool,
    sbatch: tuple[str, ...],
    until: str,
) -> None:
    """Raise ConfigError for values that cannot be used, and options that exclude each other."""
    if config == "-":
        raise ConfigError("CONFIG -: give a file, because the outputs are named after it")
    for setting in settings:
        name = setting.partition("=")[0]
        sets_place = name.split(".")[:2] in [key.split(".") for key in PLACES]
        if sets_place and name not in VALIDATION_PAIRS:
            raise ConfigError(
                f"--set {setting}: use --raw for the folder of the text, and --out for the output"
            )
    if len(set(seeds)) < len(seeds):
        raise ConfigError("--seed: the same seed is given twice; give each once")
    if slurm and len(seeds) > 1:
        raise ConfigError("--slurm submits the jobs of one seed: give one --seed in each call")
    if slurm and smoke:
        raise ConfigError("--slurm and --smoke exclude each other: run the smoke test here first")
    if slurm and until == "prep":
        raise ConfigError("--slurm and --until prep exclude each other: omit one of them")
    if slurm and devices > 1:
        raise ConfigError(
            "--slurm and --devices exclude each other: give the devices of the job as an option of "
            "sbatch, such as --sbatch=--gpus-per-node=8 --sbatch=--ntasks-per-node=8"
        )
    if devices > 1 and ":" in device:
        raise ConfigError(f"--devices and --device {device} exclude each other: give --device cuda")
    if sbatch and not slurm:
        raise ConfigError("--sbatch needs --slurm")
    for option in sbatch:
        if not option.startswith("-"):
            raise ConfigError(
                f"--sbatch={option}: give an option and its value together, such as "
                "--sbatch=--partition=gpu"
            )
