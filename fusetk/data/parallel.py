"""Application of functions to many items in several processes.

Results keep the order of the items. At most three items for each process are submitted and not yet
yielded. A process that dies is an error.
"""

import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from fusetk.errors import DataError, one_line

# With fewer items for each process, the processes take longer to start than to work.
MIN_ITEMS = 16

T = TypeVar("T")
R = TypeVar("R")


class Workers:
    """Processes that start when they are needed and run until ``close``."""

    def __init__(self, jobs: int):
        """``jobs`` is the number of processes. With 1 the current process does the work."""
        self.jobs = jobs
        self._pool: ProcessPoolExecutor | None = None

    def close(self) -> None:
        """End the processes; items that no process works on are dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def running(self) -> bool:
        """Whether the processes have started."""
        return self._pool is not None

    def ordered(
        self,
        make: Callable[..., Callable[[T], R]],
        arguments: tuple[Any, ...],
        items: Iterable[T],
        fewest: int | None = None,
    ) -> Iterator[R]:
        """Apply the function ``make(*arguments)`` to each item, and yield the results in order.

        Each process calls ``make`` once; ``make`` must be defined at the top level of a module. If
        there are fewer than ``fewest`` items, by default ``MIN_ITEMS`` for each process, the
        current process does the work. Raises the errors of the function, and DataError if a process
        dies or if a temporary file cannot be written.
        """
        if self.jobs <= 1:
            yield from map(make(*arguments), items)
            return
        if fewest is None:
            fewest = MIN_ITEMS * self.jobs
        rest = iter(items)
        first = list(islice(rest, fewest))
        items = chain(first, rest)
        if len(first) < fewest:
            yield from map(make(*arguments), items)
            return
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.jobs, get_context("spawn"), initializer=_end_with_parent
            )
        pending: deque[Future[R]] = deque()
        with _pickled((make, arguments)) as path:
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


def _end_with_parent() -> None:
    """End this worker process when its parent ends, also if the parent was killed."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _pickled(value: object) -> Iterator[Path]:
    """Yield a temporary file with the pickled ``value``."""
    with ExitStack() as stack:
        try:
            # On Windows, a file that a process still reads cannot be deleted.
            folder = stack.enter_context(TemporaryDirectory(ignore_cleanup_errors=True))
            path = Path(folder) / "function"
            with path.open("wb") as file:
                pickle.dump(value, file)
        except OSError as error:
            raise DataError(
                "the temporary file of the worker processes cannot be written "
                f"({error.strerror}); set TMPDIR to a folder with free space"
            ) from None
        except Exception as error:  # objects outside fusetk may raise anything
            raise _not_picklable(error) from error
        yield path


def _not_picklable(error: Exception) -> DataError:
    return DataError(
        f"a function cannot be passed to the worker processes ({one_line(error)}): the options and "
        "the models of a prep step must be picklable"
    )


# The file that this worker process read last, and the function that it holds.
_latest: tuple[Path, Callable[[Any], Any]] | None = None


def _work(path: Path, item: Any) -> Any:
    """Apply ``make(*arguments)`` to ``item``; the file ``path`` holds both, pickled."""
    global _latest
    if _latest is None or _latest[0] != path:
        content = path.read_bytes()
        try:
            make, arguments = pickle.loads(content)
        except Exception as error:  # objects outside fusetk may raise anything
            raise _not_picklable(error) from error
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
