"""``fusetk train``."""

from pathlib import Path

import click

from fusetk.cli.options import (
    config_argument,
    device_option,
    quiet_option,
    set_option,
    threads_option,
    use_threads,
)
from fusetk.cli.parameters import FilePath, check_paths
from fusetk.cli.recipes import load_recipe
from fusetk.errors import ConfigError


@click.command(
    "train",
    epilog="Example: fusetk train my.yaml --run runs/seed2 --set training.seed=2",
)
@config_argument
@click.option(
    "-r",
    "--run",
    type=FilePath(file_okay=False),
    help="Run folder; runs/<name of the config> by default.",
)
@set_option
@click.option(
    "--prep",
    "run_prep",
    is_flag=True,
    help="Run fusetk prep first. It does nothing if the data are up to date. If it would "
    "replace the prepared text of an existing run, training stops with an error.",
)
@device_option
@threads_option
@quiet_option
def command(
    config: str,
    run: str | None,
    overrides: tuple[str, ...],
    run_prep: bool,
    device: str,
    threads: int | None,
    quiet: bool,
) -> None:
    """Train the model of CONFIG on its prepared data.

    If the run folder holds checkpoints, training resumes from the last one. On the CPU, an
    interrupted training gives the same model as an uninterrupted one, bit for bit. On CUDA, the
    last bits may differ, because some kernels add in no fixed order.

    The prepared data must match CONFIG: training stops with an error if `data` (other than paths
    and test sets) or the raw text changed since `fusetk prep`. A resumed run keeps its prepared
    text.

    Several devices, or hosts with shared folders, train together if torchrun starts a process for
    each: `torchrun --nproc-per-node 8 -m fusetk train CONFIG -r RUN` (write -r, because torchrun
    has an option --run). The batches are those of a single process. If `accumulate` is a multiple
    of the number of processes, each process computes entire batches; otherwise it computes a part
    of each batch.
    """
    if config == "-":
        from fusetk.processes import world_size

        if run is None:
            raise ConfigError(
                "a config from standard input has no name: name the run folder with --run"
            )
        if world_size() > 1:
            raise ConfigError("CONFIG is -, but several processes cannot read it: give a file")
    resolved = load_recipe(config, overrides)
    folder = Path(run) if run else Path("runs") / Path(config).stem
    check_paths(folder, resolved.data.folder)
    from fusetk import train
    from fusetk.cli import prep
    from fusetk.processes import end_process, world_size
    from fusetk.resume import check_before_prep

    use_threads(threads)
    if run_prep:
        if world_size() > 1:
            raise ConfigError("--prep needs a single process: run fusetk prep before torchrun")
        check_before_prep(resolved, folder)
        prep.run(resolved.data, threads or 1, force=False)
    train.train(resolved, folder, device, quiet)
    end_process()
