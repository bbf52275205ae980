"""Application of functions to many items in several processes.

Results keep the order of the items. At most three items for each process are waiting. A process
that dies is an error.
"""

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, TypeVar

from fusetk.errors import DataError

# With fewer items for each process, the processes take longer to start than to work.
MANY = 16

T = TypeVar("T")
R = TypeVar("R")


class Workers:
    """Processes that start when they are needed and run until the end of a ``with`` statement."""

    def __init__(self, jobs: int):
        """``jobs`` is the number of processes. With 1 the current process does the work."""
        self.jobs = jobs
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def ordered(
        self,
        make: Callable[..., Callable[[T], R]],
        arguments: tuple[Any, ...],
        items: Iterable[T],
        many: int | None = None,
    ) -> Iterator[R]:
        """Apply the function ``make(*arguments)`` to each item; yield the results in this order.

        Each process calls ``make`` once; ``make`` must be defined at the top level of a module. If
        there are less than ``many`` items, by default ``MANY`` for each process, the current
        process does the work. Raises the errors of the function, and DataError if a process dies.
        """
        fewest = MANY * self.jobs if many is None else many
        first = list(islice(items := iter(items), fewest))
        items = chain(first, items)
        if self.jobs <= 1 or len(first) < fewest:
            yield from map(make(*arguments), items)
            return
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.jobs, get_context("spawn"))
        pending: deque[Future[R]] = deque()
        with TemporaryDirectory() as folder:
            path = Path(folder) / "function"
            path.write_bytes(pickle.dumps((make, arguments)))
            try:
                for item in items:
                    pending.append(self._pool.submit(_work, path, item))
                    if len(pending) >= 3 * self.jobs:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            except BrokenProcessPool:
                raise DataError(
                    f"one of the {self.jobs} worker processes died, perhaps because memory ran "
                    "out; run again with fewer --jobs"
                ) from None
            finally:
                for future in pending:
                    future.cancel()


_latest: tuple[Path, Callable[[Any], Any]] | None = None  # the function of a worker process


def _work(path: Path, item: Any) -> Any:
    """Apply the function whose parts are pickled in the file ``path``."""
    global _latest
    if _latest is None or _latest[0] != path:
        make, arguments = pickle.loads(path.read_bytes())
        _latest = path, make(*arguments)
    return _latest[1](item)


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
