"""``fusetk train``."""

import os
from pathlib import Path

import click

from fusetk.cli.options import config_argument, device_option, quiet_option, set_option, threads_option


@click.command("train", epilog="Example: fusetk train recipes/demo/demo.yaml --run runs/demo --set training.seed=2")
@config_argument
@click.option("-r", "--run", type=click.Path(file_okay=False), help="Run folder; runs/<name of the config> by default.")
@set_option
@device_option
@threads_option
@quiet_option
def command(config: str, run: str | None, overrides: tuple[str, ...], device: str, threads: int | None, quiet: bool) -> None:
    """Train the model of CONFIG on its prepared data.

    A run folder that holds checkpoints is resumed where its last one stands; training in one go and training with
    interruptions give the same model to the bit on one device.

    Several devices, or hosts that see the same folders, train together where torchrun starts a process for each:
    `torchrun --nproc-per-node 8 -m fusetk train CONFIG -r RUN` (torchrun takes --run for an option of its own). Batches are those
    of one process, so the updates are the same; each does a part of every batch.
    """
    import torch

    from fusetk import recipe
    from fusetk import run as runs

    if threads:
        torch.set_num_threads(threads)
    folder = Path(os.path.expanduser(run)) if run else Path("runs") / Path(config).stem  # a shell leaves the ~ of --run=~/x
    runs.train(recipe.load(config, overrides), folder, device, quiet)
