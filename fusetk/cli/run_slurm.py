"""``fusetk run --slurm``."""

import sys
from typing import TYPE_CHECKING

from fusetk.cli.common_options import inform

if TYPE_CHECKING:
    from fusetk.experiment.run import Experiment


def submit(experiment: "Experiment", sbatch: tuple[str, ...]) -> None:
    """Prepare the text and submit the jobs. The second one repeats this command without --slurm."""
    from fusetk.experiment import slurm

    slurm.check_submission(experiment.places)  # the next line changes files that a queued job reads
    experiment.run()
    rest = [sys.executable, "-m", "fusetk", *without_slurm(sys.argv[1:])]
    machine = experiment.machine_options()
    first, second = slurm.submit(experiment.places, sbatch, machine, rest)
    inform(f"submitted: job {first} trains {experiment.places.run}; then job {second} scores it")


def without_slurm(arguments: list[str]) -> list[str]:
    """Return the arguments of this command without those for Slurm."""
    others = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--sbatch":
            next(rest, None)
        elif argument != "--slurm" and not argument.startswith("--sbatch="):
            others.append(argument)
    return others
