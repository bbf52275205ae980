"""A function over many items in several processes: in order, with few items in flight, and without hanging when one dies."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

from fusetk.errors import DataError

T = TypeVar("T")
R = TypeVar("R")

_function: Callable[[Any], Any] | None = None  # of a worker process


def ordered(
    make: Callable[..., Callable[[T], R]], arguments: tuple[Any, ...], items: Iterable[T], jobs: int
) -> Iterator[R]:
    """``make(*arguments)`` applied to each item, results in the order of the items.

    With more than one job each process makes the function once; `make` must stand at the top of a module.
    Raises what the function raises, and DataError when a process dies.
    """
    if jobs <= 1:
        yield from map(make(*arguments), items)
        return
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (make, arguments))
    pending: deque[Future[R]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(_work, item))
            if len(pending) >= 3 * jobs:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise DataError(
            f"one of the {jobs} worker processes died (killed, perhaps for want of memory); run again with fewer --jobs"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(make: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    global _function
    _function = make(*arguments)


def _work(item: Any) -> Any:
    assert _function is not None
    return _function(item)


def chunks(items: Iterable[T], size: Callable[[T], int], limit: int = 1 << 19) -> Iterator[list[T]]:
    """Lists of consecutive items of about `limit` size together, at least one item each."""
    chunk: list[T] = []
    total = 0
    for item in items:
        chunk.append(item)
        total += size(item) + 1
        if total >= limit:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk
