"""Application of a function to many items in several processes.

Results keep the order of the items. At most three items for each process are waiting. A process
that dies is an error.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

from fusetk.errors import DataError

T = TypeVar("T")
R = TypeVar("R")

_function: Callable[[Any], Any] | None = None  # set in each worker process


def ordered(
    make: Callable[..., Callable[[T], R]], arguments: tuple[Any, ...], items: Iterable[T], jobs: int
) -> Iterator[R]:
    """Apply the function ``make(*arguments)`` to each item; yield the results in the same order.

    With more than one job, each process calls ``make`` once; ``make`` must be defined at the top
    level of a module. Raises the errors of the function, and DataError if a process dies.
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
            f"one of the {jobs} worker processes died, perhaps because memory ran out; "
            "run again with fewer --jobs"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(make: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    global _function
    _function = make(*arguments)


def _work(item: Any) -> Any:
    assert _function is not None
    return _function(item)


def chunks(items: Iterable[T], size: Callable[[T], int], limit: int = 1 << 16) -> Iterator[list[T]]:
    """Yield lists of one or more consecutive items with a total size of about ``limit``."""
    chunk: list[T] = []
    total = 0
    for item in items:
        chunk.append(item)
        total += size(item) + 1
        if total >= limit:
            yield chunk
            chunk = []
            total = 0
    if chunk:
        yield chunk
