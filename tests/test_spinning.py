"""Spinning of OpenMP's threads beside other programs."""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusetk import spinning
from fusetk.spinning import (
    USER_SETTINGS,
    ProcessorTimes,
    SleepingThreads,
    SpinningWatch,
    processor_times,
)

ROOT = Path(__file__).parents[1]
TASKS = Path("/proc/self/task")
pytestmark = pytest.mark.skipif(not TASKS.exists(), reason="not Linux")


class Recorder:
    """Replaces the sleeping threads, and records their number while they sleep."""

    def __init__(self) -> None:
        self.asleep: list[int] = []

    def start(self, number: int) -> "Recorder":
        self.asleep.append(number)
        return self

    def end(self) -> None:
        self.asleep.clear()


def times(others: list[float], threads: int, processors: int) -> Iterator[ProcessorTimes]:
    """Yield times between which other programs use these numbers of processors."""
    clock = busy = own = 0.0
    yield ProcessorTimes(clock, busy, own, processors)
    for used in others:
        clock, busy, own = clock + 2, busy + 2 * (used + threads), own + 2 * threads
        yield ProcessorTimes(clock, busy, own, processors)


@pytest.mark.parametrize(
    ("threads", "processors", "others", "asleep"),
    [
        (2, 2, [0.1, 1.0, 0.3, 0.1, 0.3], [[], [1], [1], [], []]),
        (2, 8, [1.0, 6.0, 6.5, 6.1], [[], [], [7], []]),  # other processors are free
        (4, 8, [4.0, 5.0], [[], [5]]),  # another process of the same training, then a program
    ],
)
def test_threads_are_added_while_processors_are_missing(
    threads: int, processors: int, others: list[float], asleep: list[list[int]]
) -> None:
    recorder = Recorder()
    values = times(others, threads, processors)
    watch = SpinningWatch(recorder.start, lambda: next(values))
    watch.threads = threads
    seen = []
    for _ in others:
        watch.adapt()
        seen.append(list(recorder.asleep))
    assert seen == asleep


def test_a_system_without_further_threads_has_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: SpinningWatch) -> None:
        raise RuntimeError("can't start new thread")

    spinning._watch.cache_clear()
    monkeypatch.setattr(SpinningWatch, "start", fail)
    monkeypatch.setattr(spinning, "_gomp_parallel", lambda: print)
    for name in USER_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    spinning.adapt_spinning(2)
    spinning._watch.cache_clear()


def test_processor_times_count_other_programs() -> None:
    before = processor_times()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as program:
        time.sleep(0.5)
        program.kill()
    start = time.process_time()
    while time.process_time() - start < 0.2:
        pass
    after = processor_times()
    assert 0.2 <= after.own - before.own < 0.5
    # The other program had at least a part of a processor.
    assert after.busy - before.busy - (after.own - before.own) > 0.1
    assert after.clock - before.clock >= 0.7
    assert after.processors == before.processors > 0


def spinning_seconds() -> float:
    """Return the processor time of 100 loops in which one of two threads waits for 3 ms."""
    loop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    library = ctypes.CDLL(None)

    def wait_in_first_thread(_: int | None) -> None:
        if library.omp_get_thread_num() == 0:
            time.sleep(0.003)

    start = time.process_time()
    for _ in range(100):
        library.GOMP_parallel(loop(wait_in_first_thread), None, 2, 0)
    return time.process_time() - start


def print_spinning_seconds() -> None:
    """Print the processor time with and without additional threads. Run it in a new process."""
    processors = len(os.sched_getaffinity(0))
    spinning_seconds()  # starts the second thread
    tasks = len(list(TASKS.iterdir()))
    sleeping = SleepingThreads(processors - 1)
    while len(list(TASKS.iterdir())) < tasks + processors:
        time.sleep(0.01)
    with_threads = spinning_seconds()
    sleeping.end()
    while len(list(TASKS.iterdir())) > tasks:
        time.sleep(0.01)
    print(with_threads, spinning_seconds())


def test_additional_threads_shorten_spinning_until_they_end() -> None:
    """Other tests leave OpenMP threads in this process, which shorten spinning, too."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("with one processor, libgomp never spins")
    load = "import ctypes, torch; ctypes.CDLL(None).GOMP_parallel"
    if subprocess.run([sys.executable, "-c", load], capture_output=True).returncode:
        pytest.skip("not libgomp")
    script = f"{load}; from tests import test_spinning; test_spinning.print_spinning_seconds()"
    environment = {key: value for key, value in os.environ.items() if key not in USER_SETTINGS}
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        timeout=120,
    )
    with_threads, without = map(float, result.stdout.split())
    assert with_threads < 0.5 * without
