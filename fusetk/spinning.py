"""Shorter spinning of OpenMP's threads while other programs use the processors.

After its share of a parallel loop, a thread of libgomp spins for some milliseconds before it
sleeps, because the next loop usually starts sooner. Beside other programs, spinning threads take
processors from the threads for which they wait. libgomp has no function that shortens spinning, but
it spins very briefly while a process has more OpenMP threads than processors. So this module adds
sleeping threads while other programs are busy. Results do not depend on them.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

INTERVAL = 1.0  # seconds between two measurements
# Missing processors: those that other programs use and the threads need, minus those that exist.
SHORTEN_ABOVE = 0.4  # number of missing processors
RESTORE_BELOW = 0.2
USER_SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_LOOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def adapt_spinning(threads: int) -> None:
    """Shorten spinning while other programs need the processors of this process's ``threads``.

    This has no effect with one thread, with another OpenMP library than libgomp, outside Linux, and
    if the user has set one of ``USER_SETTINGS``. The limit of a container is not considered.
    """
    if threads > 1 and (watch := _watch()):
        watch.threads = threads


@cache
def _watch() -> "SpinningWatch | None":
    if any(name in os.environ for name in USER_SETTINGS) or not _gomp_parallel():
        return None
    try:
        watch = SpinningWatch(SleepingThreads, processor_times)
    except (AttributeError, OSError, ValueError):  # not Linux, or no /proc/stat
        return None
    try:
        watch.start()
    except RuntimeError:  # the system allows no further thread
        return None
    return watch


@cache
def _gomp_parallel() -> Callable[..., None] | None:
    """Return the function of libgomp that runs a function in a number of threads, or None."""
    with suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        if hasattr(library, "kmp_set_blocktime"):  # LLVM's or Intel's library
            return None
        function = library.GOMP_parallel
        function.argtypes = (_LOOP, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        function.restype = None
        return function
    return None


class SleepingThreads(threading.Thread):
    """A number of additional OpenMP threads. They sleep until ``end`` is called."""

    def __init__(self, number: int) -> None:
        super().__init__(name="additional OpenMP threads", daemon=True)
        self._number = number
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        if gomp_parallel := _gomp_parallel():
            # The loop runs in this thread and in new ones, which end with this thread.
            gomp_parallel(_LOOP(lambda _: None), None, self._number + 1, 0)
            self._ended.wait()

    def end(self) -> None:
        self._ended.set()


class ProcessorTimes(NamedTuple):
    """The clock and processor times, in seconds since fixed points in time."""

    clock: float
    busy: float  # of all programs, summed over the processors that this process may use
    own: float  # of this process
    processors: int


def processor_times() -> ProcessorTimes:
    """Return the times now. Raises OSError or ValueError if /proc/stat does not have them."""
    allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *fields = line.split()
        if name in allowed:
            user, nice, system, _idle, _waiting, *others = map(int, fields[:8])
            ticks += user + nice + system + sum(others)
    busy = ticks / os.sysconf("SC_CLK_TCK")
    return ProcessorTimes(time.monotonic(), busy, time.process_time(), len(allowed))


class SpinningWatch(threading.Thread):
    """A thread that adds sleeping threads while other programs need processors.

    ``threads`` is the number of threads that compute and need processors, too.
    ``start_threads`` starts a number of them and returns an object with the method ``end``.
    """

    def __init__(
        self, start_threads: Callable[[int], Any], read_times: Callable[[], ProcessorTimes]
    ) -> None:
        super().__init__(name="watch over spinning", daemon=True)
        self.threads = 1
        self._start_threads, self._read_times = start_threads, read_times
        self._sleeping: Any = None
        self._last = read_times()

    def run(self) -> None:
        with suppress(OSError, ValueError, RuntimeError):  # no further thread can start
            while True:
                time.sleep(INTERVAL)
                self.adapt()

    def adapt(self) -> None:
        """Start or end the sleeping threads, according to the times since the last call."""
        now, last = self._read_times(), self._last
        self._last = now
        others = (now.busy - last.busy - (now.own - last.own)) / (now.clock - last.clock)
        missing = others + self.threads - now.processors
        if self._sleeping is None and missing > SHORTEN_ABOVE:
            self._sleeping = self._start_threads(max(1, now.processors - self.threads + 1))
        elif self._sleeping is not None and missing < RESTORE_BELOW:
            self._sleeping.end()
            self._sleeping = None
