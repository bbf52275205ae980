"""Training of an experiment as a job of Slurm, and a second job for the steps after it."""

import json
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fusetk.errors import ConfigError, FusetkError
from fusetk.experiment.launch import shown
from fusetk.experiment.places import Places
from fusetk.files import read_json, replace_file

SCRIPT = Path(__file__).parent / "train.sbatch"
# -A account, -p partition, -q QOS, -C constraint, -M clusters, -t time
SHORT_OPTIONS = ("-A", "-p", "-q", "-C", "-M", "-t")


def submit(
    places: Places, options: Sequence[str], machine: Sequence[str], rest: Sequence[str]
) -> tuple[str, str]:
    """Submit the training and the steps after it; return the numbers of both jobs.

    ``options`` are those of sbatch for the training, ``machine`` those of `fusetk train` for device
    and threads. ``rest`` is the command of the second job, which starts after the training has
    ended without error. Raises the errors of ``check_submission``, and FusetkError if sbatch fails.
    """
    check_submission(places)
    record = job_record(places)
    log = places.out / f"{places.run.name}.slurm.txt"
    common = ["--parsable", f"--output={log}", "--open-mode=append"]
    train = ["sbatch", *common, f"--job-name={places.run.name}", *options]
    command = [str(SCRIPT), str(places.config), "-r", str(places.run), *machine]
    first_job = _output([*train, *command]).strip()
    first = _number(first_job)
    # The record is written now, because the submission of the second job may fail.
    replace_file(record, json.dumps([first_job]) + "\n")
    finish = ["sbatch", *common, f"--job-name={places.run.name}.score", "--nodes=1", "--ntasks=1"]
    finish += [f"--dependency=afterok:{first}", "--kill-on-invalid-dep=yes", *_passed_on(options)]
    if "--device=cpu" not in machine:
        finish.append("--gpus=1")
    second_job = _output([*finish, f"--wrap={shlex.join(rest)}"]).strip()
    replace_file(record, json.dumps([first_job, second_job]) + "\n")
    return first, _number(second_job)


def job_record(places: Places) -> Path:
    """Return the file that records the jobs of an experiment."""
    return places.out / f".{places.run.name}.slurm.json"


def check_submission(places: Places) -> None:
    """Raise ConfigError if sbatch is not installed here, or if a job would not find fusetk.

    It is also raised if a job of the experiment is still queued or running.
    """
    if shutil.which("sbatch") is None:
        raise ConfigError(missing_program("sbatch"))
    if shutil.which("fusetk") is None:
        raise ConfigError(
            "fusetk is not on PATH, where a job of Slurm looks for it: activate its environment"
        )
    if jobs := queued(job_record(places)):
        raise ConfigError(
            f"{places.run} has queued or running jobs ({', '.join(jobs)}): "
            "wait until they end, or cancel them with scancel (-M CLUSTER for a named cluster)"
        )


def queued(record: Path) -> list[str]:
    """Return the jobs of a record that have not ended, with their clusters.

    A job of the record is a number, or `NUMBER;CLUSTER` on a named cluster.
    """
    running = []
    for number, _, cluster in (job.partition(";") for job in read_json(record) or ()):
        place = [f"--clusters={cluster}"] if cluster else []
        listed = _output(["squeue", "--noheader", "--me", "--format=%A", *place])
        if number in listed.split():
            running.append(f"{number} on {cluster}" if cluster else number)
    return running


def missing_program(name: str) -> str:
    return f"the program {name} is not installed here: run the command on a machine that has it"


def _output(words: Sequence[str]) -> str:
    """Return the output of a program of Slurm. Raises FusetkError if it fails or is missing."""
    try:
        result = subprocess.run(words, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise FusetkError(missing_program(words[0])) from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        raise FusetkError(
            f"`{shown(words)}` failed: {lines[-1]}; correct the options for Slurm, or run "
            "without --slurm"
        ) from None
    return result.stdout


def _number(answer: str) -> str:
    """Return the number of a job from the output of ``sbatch --parsable``: NUMBER[;CLUSTER]."""
    return answer.partition(";")[0]


def _passed_on(options: Sequence[str]) -> list[str]:
    """Return the options of sbatch that the second job needs, too: where and how long it may run.

    An option and its value are one word.
    """
    long = "account", "partition", "qos", "constraint", "reservation", "clusters", "time"
    names = tuple(f"--{name}=" for name in long)
    return [option for option in options if option.startswith((*names, *SHORT_OPTIONS))]
