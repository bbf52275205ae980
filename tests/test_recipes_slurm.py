"""recipes/slurm/train.sbatch: each process gets its rank, a signal reaches all processes, and a job
that was saved is queued again. Fake programs replace Slurm."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "recipes" / "slurm" / "train.sbatch"

SCONTROL = """#!/bin/sh
case "$1 $2" in
    "show hostnames") echo 127.0.0.1; seq -f node%.0f 50000 ;;
    "show job") echo "JobId=$3 JobState=$(cat "$FAKE/state")" ;;
    requeue*) echo "$2" >> "$FAKE/requeued" ;;
esac
"""
# This program starts the command in $SLURM_NTASKS processes, passes signals on, and ends with the
# highest of their exit codes. It writes its options to a file as soon as it passes signals on.
SRUN = """#!/usr/bin/env python3
import os, signal, subprocess, sys
command = sys.argv[1:]
options = [command.pop(0) for _ in range(len(command)) if command[0].startswith("-")]
tasks = [
    subprocess.Popen(command, env={**os.environ, "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)})
    for i in range(int(os.environ["SLURM_NTASKS"]))
]
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, _: [task.send_signal(number) for task in tasks])
open(os.environ["FAKE"] + "/srun", "w").write(" ".join(options))
codes = [task.wait() for task in tasks]
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""
# This program writes its arguments to a file. It ends with $CODE at once, or with 75 after USR1.
FUSETK = """#!/bin/bash
trap 'exit 75' USR1
echo "$RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $MASTER_PORT $*" > "$FAKE/process.$RANK"
[ -z "$CODE" ] || exit "$CODE"
while :; do sleep 0.05; done
"""


@pytest.fixture
def fake(tmp_path: Path) -> dict[str, str]:
    """The environment of a job. The programs of the cluster are scripts in a folder."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "scontrol": SCONTROL,
        "srun": SRUN.replace("/usr/bin/env python3", sys.executable),
        "fusetk": FUSETK,
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "state").write_text("RUNNING")
    job = {
        "SLURM_JOB_ID": "4100042",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_NTASKS": "3",
        "SLURM_CPUS_PER_TASK": "2",
    }
    return {
        **os.environ,
        **job,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "FAKE": str(tmp_path),
        "CODE": "",
        "OMP_NUM_THREADS": "1",
    }


def submit(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    """Start a copy of the script in another folder, as sbatch does."""
    copy = Path(environment["FAKE"]) / "slurm_script"
    shutil.copy(SCRIPT, copy)
    return subprocess.Popen(
        ["bash", copy, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until(path: Path, process: subprocess.Popen[str], text: str = "", seconds: float = 60) -> None:
    """Wait until a file contains a text."""
    end = time.monotonic() + seconds
    while not path.exists() or text not in path.read_text(encoding="utf-8"):
        assert process.poll() is None and time.monotonic() < end, (
            process.communicate()[0] if process.poll() is not None else path
        )
        time.sleep(0.02)


def requeued(environment: dict[str, str]) -> int:
    path = Path(environment["FAKE"]) / "requeued"
    return path.read_text().split().count("4100042") if path.exists() else 0


def test_every_process_gets_its_rank(fake: dict[str, str]) -> None:
    ran = submit({**fake, "CODE": "0"}, "my config.yaml", "--run", "runs/my")
    assert (ran.communicate(timeout=30)[0], ran.returncode) == ("", 0)
    said = [(Path(fake["FAKE"]) / f"process.{i}").read_text() for i in range(3)]
    assert said == [
        f"{i} 3 {i} 127.0.0.1 {20000 + 4100042 % 20000} train my config.yaml --run runs/my\n"
        for i in range(3)
    ]
    assert (
        Path(fake["FAKE"]) / "srun"
    ).read_text() == "--wait=60 --cpus-per-task=2" and not requeued(fake)


@pytest.mark.parametrize(("code", "again"), [(0, 0), (1, 0), (2, 0), (74, 0), (75, 1), (137, 0)])
def test_only_a_saved_job_is_queued_again(fake: dict[str, str], code: int, again: int) -> None:
    ran = submit({**fake, "CODE": str(code)}, "my.yaml")
    said = ran.communicate(timeout=30)[0]
    assert (ran.returncode, requeued(fake)) == (code, again) and ("queued again" in said) == bool(
        again
    )


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_reaches_every_process(fake: dict[str, str], number: signal.Signals) -> None:
    ran = submit(fake, "my.yaml")
    for name in ("srun", *(f"process.{i}" for i in range(3))):
        until(Path(fake["FAKE"]) / name, ran)
    ran.send_signal(number)
    assert (
        "saved; queued again" in ran.communicate(timeout=30)[0]
        and ran.returncode == 75
        and requeued(fake) == 1
    )


def test_a_job_that_a_signal_killed_at_its_start_is_queued_again(fake: dict[str, str]) -> None:
    (Path(fake["FAKE"]) / "bin" / "fusetk").write_text(
        '#!/bin/bash\ntouch "$FAKE/started"\nexec sleep 60\n'
    )
    ran = submit(fake, "my.yaml")
    for name in ("srun", "started"):
        until(Path(fake["FAKE"]) / name, ran)
    ran.send_signal(signal.SIGUSR1)
    assert (
        "ended; queued again" in ran.communicate(timeout=30)[0]
        and ran.returncode == 128 + signal.SIGUSR1
        and requeued(fake) == 1
    )


def test_a_cancelled_job_is_not_queued_again(fake: dict[str, str]) -> None:
    (Path(fake["FAKE"]) / "state").write_text("CANCELLED")
    ran = submit({**fake, "CODE": "75"}, "my.yaml")
    assert (ran.communicate(timeout=30)[0], ran.returncode, requeued(fake)) == ("", 75, 0)


def test_the_error_names_a_missing_part(fake: dict[str, str]) -> None:
    alone = {name: value for name, value in fake.items() if name != "SLURM_JOB_ID"}
    for environment, arguments, said in (
        (fake, [], "give the arguments of fusetk train"),
        (alone, ["my.yaml"], "this is for Slurm"),
    ):
        ran = submit(environment, *arguments)
        assert said in ran.communicate(timeout=30)[0] and ran.returncode == 2


def test_there_is_time_to_save() -> None:
    options = [
        line.removeprefix("#SBATCH ")
        for line in SCRIPT.read_text().splitlines()
        if line.startswith("#SBATCH")
    ]
    assert {"--signal=B:USR1@120", "--requeue", "--open-mode=append"} <= set(options) and os.access(
        SCRIPT, os.X_OK
    )


def test_it_passes_shellcheck() -> None:
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    subprocess.run(["shellcheck", SCRIPT], check=True)


@pytest.mark.slow
def test_training_continues_in_the_next_job(
    fake: dict[str, str], toy: Path, tmp_path: Path
) -> None:
    """Two real processes are stopped twice. The model is that of an uninterrupted training."""
    program = Path(fake["FAKE"]) / "bin" / "fusetk"
    program.write_text(f'#!/bin/bash\nexec {sys.executable} -m fusetk "$@"\n')
    options = [
        str(toy),
        "--device",
        "cpu",
        "--set",
        "training.stages.0.end.updates=150",
        "--set",
        "training.save_every=1",
        "--run",
    ]
    environment = {**fake, "SLURM_NTASKS": "2"}
    for text in ("update 3 ", "resumed after"):
        ran = submit(environment, *options, str(tmp_path / "parts"))
        until(tmp_path / "parts" / "log.txt", ran, text)
        ran.send_signal(signal.SIGUSR1)
        said = ran.communicate(timeout=120)[0]
        assert ran.returncode == 75 and "saved; queued again" in said, said
    ran = submit(environment, *options, str(tmp_path / "parts"))
    said = ran.communicate(timeout=120)[0]
    assert ran.returncode == 0 and requeued(fake) == 2, said
    ran = submit(environment, *options, str(tmp_path / "whole"))
    assert ran.wait(timeout=120) == 0, ran.communicate()[0]
    for file in ("model.safetensors", "training.safetensors"):
        one, other = (
            tmp_path / name / "checkpoints" / "update-0000150" / file for name in ("whole", "parts")
        )
        assert one.read_bytes() == other.read_bytes()
