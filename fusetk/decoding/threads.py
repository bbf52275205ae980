"""Searches of several batches at the same time, each by a thread of its own.

The products of one step of a small model are small. Two threads that share each product wait for
each other often. Two threads that search a batch each do not, so they are faster.
"""

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from fusetk import trace

T = TypeVar("T")
R = TypeVar("R")

# Each worker needs memory for its batch, and only one thread of a process runs Python code at a
# time.
MAX_WORKERS = 4

_thread = threading.local()  # ``events``: each of these events ends the work of this thread
# PyTorch has one setting per process for the number of threads that new threads use, so only one
# call may change it at a time.
_in_use = threading.Lock()


def max_workers(device: torch.device) -> int:
    """Return how many batches can be searched at the same time on ``device``.

    A listener of ``trace`` records only the tensors of its own thread. This thread then does all
    the work.
    """
    if device.type != "cpu" or trace.is_listening():
        return 1
    return min(torch.get_num_threads(), MAX_WORKERS)


def map_in_threads(
    function: Callable[[T], R], items: Sequence[T], max_workers: int
) -> Generator[R, None, None]:
    """Apply ``function`` to the items in up to ``max_workers`` threads; yield the results in order.

    The workers divide the threads of PyTorch's operations among them, and use the autocast of the
    calling thread. The calling thread does the work if there is one worker or one item, or while
    another call of this function has workers. If the generator is closed or raises the error of a
    call, the other calls end at their next ``raise_if_cancelled``.
    """
    workers = min(max_workers, len(items))
    if workers <= 1 or not _in_use.acquire(blocking=False):
        yield from map(function, items)
        return
    threads = torch.get_num_threads()
    shares = [threads // workers + (i < threads % workers) for i in range(workers)]
    cancelled = threading.Event()
    events = (*_events(), cancelled)

    def begin(autocast: bool, dtype: torch.dtype) -> None:
        _thread.events = events
        # PyTorch sets the number at the first use of a thread, which must be before the next line.
        torch.get_num_threads()
        torch.set_num_threads(shares.pop())
        torch.set_autocast_enabled("cpu", autocast)
        torch.set_autocast_dtype("cpu", dtype)

    autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    pool = ThreadPoolExecutor(workers, initializer=begin, initargs=autocast)
    try:
        yield from pool.map(function, items)
    finally:
        cancelled.set()
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # later threads start with the number that was set last
        _in_use.release()


@contextmanager
def cancelled_by(event: threading.Event) -> Iterator[None]:
    """End the work of this thread and of its workers, within the context, if ``event`` is set.

    The work ends at the next ``raise_if_cancelled``.
    """
    outer = _events()
    _thread.events = (*outer, event)
    try:
        yield
    finally:
        _thread.events = outer


def raise_if_cancelled() -> None:
    """Raise CancelledError if the work of this thread is cancelled."""
    if any(event.is_set() for event in _events()):
        raise CancelledError


def _events() -> tuple[threading.Event, ...]:
    return getattr(_thread, "events", ())
