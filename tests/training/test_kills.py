"""`fusetk train`, killed at random moments and restarted, gives the uninterrupted result."""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusetk import runs
from fusetk.cli.main import main
from fusetk.weights import read_state
from tests.helpers.forks import Forks
from tests.helpers.metrics import records

STAGES = (
    "training.stages=["
    "{{optimizer: adam, schedule: {{kind: inverse-sqrt, peak: 0.01, warmup: 20}}, "
    "batch: {{size: 400}}, end: {{updates: {first}}}}}, "
    "{{optimizer: nag, schedule: {{kind: constant, rate: 0.001}}, "
    "batch: {{size: 30, unit: sentences}}, start: best, end: {{updates: {second}}}}}]"
)
OFTEN = [
    "training.validation={every_updates: 5, metric: bleu}",
    "training.save_every=2",
    "training.ema=0.9",
]


def start(config: Path, run: Path, updates: tuple[int, int], fresh: bool) -> int:
    """Start a training process and return its id.

    It is a fresh process, or a fork of this one, which starts at once because it imports nothing.
    """
    overrides = [STAGES.format(first=updates[0], second=updates[1]), *OFTEN]
    arguments = [
        "train",
        str(config),
        "--run",
        str(run),
        "--threads",
        "1",
        "--device",
        "cpu",
        "--quiet",
    ]
    arguments += [word for override in overrides for word in ("--set", override)]
    if pid := os.fork():
        return pid
    try:
        os.dup2(os.open(run.with_suffix(".said"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        if fresh:
            os.execve(
                sys.executable,
                [sys.executable, "-m", "fusetk", *arguments],
                {**os.environ, "OMP_NUM_THREADS": "1"},
            )
        os._exit(main(arguments, standalone_mode=False) or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def until(condition: Callable[[], bool]) -> float:
    """Wait at most 60 seconds for a condition. Return the time at the end."""
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    return time.monotonic()


def said(run: Path) -> int:
    """Return the size of the log in bytes."""
    return (run / "log.txt").stat().st_size if (run / "log.txt").exists() else 0


def last(run: Path) -> int:
    """Return the update of the last checkpoint; 0 if there is none."""
    link = run / "checkpoints" / "last"
    return int(link.readlink().name.removeprefix("update-")) if link.is_symlink() else 0


def contents(run: Path, update: int) -> dict[str, Any]:
    """Return the content of a checkpoint, except the duration of training."""
    folder = run / "checkpoints" / runs.checkpoint_name(update)
    files: dict[str, Any] = {
        path.name: path.read_bytes() for path in folder.iterdir() if path.name != runs.STATE
    }
    state = read_state(folder)
    state["progress"].pop("seconds")
    return {**files, **state}


def kill_and_compare(
    config: Path, folder: Path, kills: int, updates: tuple[int, int], seed: int, fresh: bool
) -> None:
    """Kill a training several times, and compare it with an uninterrupted one.

    A kill comes at a random moment of the start, or some random updates later at a random moment
    between two checkpoints.
    """
    choose, uninterrupted, killed, total = (
        random.Random(seed),
        folder / "alone",
        folder / "killed",
        sum(updates),
    )
    begun = time.monotonic()
    alone = start(config, uninterrupted, updates, fresh)
    began, saved = until(lambda: said(uninterrupted) > 0), until(lambda: last(uninterrupted) > 0)
    assert ended(alone) == 0, uninterrupted.with_suffix(".said").read_text()
    between = 2 * (time.monotonic() - saved) / total
    done: list[int] = []
    for _ in range(kills):
        # A quarter of the updates is left, so that training does not end before a late kill.
        latest = total * 3 // 4
        goal = min(last(killed) + choose.randrange(total * 8 // (kills * 5)), latest)
        before = said(killed)
        process = start(config, killed, updates, fresh)
        if choose.random() < 0.1:
            time.sleep(choose.random() * (began - begun))
        else:
            until(lambda before=before, goal=goal: said(killed) > before and last(killed) >= goal)
            time.sleep(choose.random() * 2 * between)
        os.kill(process, signal.SIGKILL)
        if ended(process) != -signal.SIGKILL:
            break
        done.append(last(killed))
    print(f"{len(done)} kills, after the updates {done}")
    assert len(done) > kills // 2, "killed too late"
    assert ended(start(config, killed, updates, fresh)) == 0, killed.with_suffix(
        ".said"
    ).read_text()
    assert contents(killed, total) == contents(uninterrupted, total)
    assert records(killed, "valid") == records(uninterrupted, "valid")
    names = [
        sorted(path.name for path in (run / "checkpoints").iterdir())
        for run in (uninterrupted, killed)
    ]
    assert names[0] == names[1]
    best = [(run / "checkpoints" / "best").resolve().name for run in (uninterrupted, killed)]
    assert best[0] == best[1]


def test_kills_lose_nothing(toy: Path, tmp_path: Path) -> None:
    """The test runs in a separate process, from which a fork is safe."""
    call = f"Path({str(toy)!r}), Path({str(tmp_path)!r}), 5, (30, 20), seed=4, fresh=False"
    program = (
        "from pathlib import Path\n"
        "from tests.training.test_kills import kill_and_compare\n"
        f"kill_and_compare({call})\n"
    )
    Forks([], code=program).succeed(seconds=500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_twenty_kills_lose_nothing(toy: Path, tmp_path: Path, seed: int) -> None:
    kill_and_compare(toy, tmp_path, kills=20, updates=(250, 150), seed=seed, fresh=True)
