"""``fusetk train``."""

import os
from pathlib import Path

import click

from fusetk.cli.options import (
    config_argument,
    device_option,
    quiet_option,
    set_option,
    threads_option,
)


@click.command(
    "train",
    epilog="Example: fusetk train recipes/demo/demo.yaml --run runs/demo --set training.seed=2",
)
@config_argument
@click.option(
    "-r",
    "--run",
    type=click.Path(file_okay=False),
    help="Run folder; runs/<name of the config> by default.",
)
@set_option
@click.option(
    "--prep",
    "prepares",
    is_flag=True,
    help="Run fusetk prep first, which does nothing if the data are up to date.",
)
@device_option
@threads_option
@quiet_option
def command(
    config: str,
    run: str | None,
    overrides: tuple[str, ...],
    prepares: bool,
    device: str,
    threads: int | None,
    quiet: bool,
) -> None:
    """Train the model of CONFIG on its prepared data.

    A run folder that holds checkpoints is resumed where its last one stands; training in one go and training with
    interruptions give the same model to the bit on one device.

    The prepared data must be those that CONFIG describes: training stops if `data`, other than paths and test sets, or the raw text
    changed since `fusetk prep`. A run that is resumed keeps its prepared text.

    Several devices, or hosts that see the same folders, train together where torchrun starts a process for each:
    `torchrun --nproc-per-node 8 -m fusetk train CONFIG -r RUN` (torchrun takes --run for an option of its own). Batches are those
    of one process, so the updates are the same; each does a part of every batch.
    """
    import torch

    from fusetk import recipe, train
    from fusetk.cli import prep
    from fusetk.errors import ConfigError

    if threads:
        torch.set_num_threads(threads)
    resolved = recipe.load(config, overrides)
    if prepares and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--prep needs a single process: run fusetk prep before torchrun")
    if prepares:
        prep.run(resolved.data, threads or 1, force=False)
    default = Path("runs") / Path(config).stem
    folder = Path(os.path.expanduser(run)) if run else default  # a shell does not expand --run=~/x
    train.train(resolved, folder, device, quiet)
