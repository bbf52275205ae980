"""Searches of several batches at the same time, each by a thread of its own.

The products of one step are small. Two threads that search a batch each are therefore faster than
two threads that share each product, because they do not wait for each other.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


# Each worker needs memory for its batch. Only one thread of a process runs Python code at a time,
# so many workers would wait for each other.
MAX_WORKERS = 4


def max_workers(device: torch.device) -> int:
    """Return how many batches can be searched at the same time on ``device``."""
    return min(torch.get_num_threads(), MAX_WORKERS) if device.type == "cpu" else 1


def map_in_threads(function: Callable[[T], R], items: Sequence[T], max_workers: int) -> Iterator[R]:
    """Apply ``function`` to the items in up to ``max_workers`` threads; yield the results in order.

    The workers divide the threads of PyTorch's operations among them, and use the autocast of the
    calling thread. If there is one worker or one item, the calling thread does the work.
    """
    workers = min(max_workers, len(items))
    if workers <= 1:
        yield from map(function, items)
        return
    threads = torch.get_num_threads()
    settings = (
        max(1, threads // workers),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
    )
    pool = ThreadPoolExecutor(workers, initializer=_configure, initargs=settings)
    try:
        yield from pool.map(function, items)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # later threads start with the number that was set last


def _configure(threads: int, autocast: bool, dtype: torch.dtype) -> None:
    torch.set_num_threads(threads)
    torch.set_autocast_enabled("cpu", autocast)
    torch.set_autocast_dtype("cpu", dtype)
