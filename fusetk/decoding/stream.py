"""Lines from a pipe, terminal or file, in chunks of the lines that have arrived."""

import select
from collections import deque
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from fusetk.errors import DataError

Item = TypeVar("Item")

POLL_SECONDS = 0.03  # time to wait for more lines before the lines that arrived are translated


class LineReader:
    """Iterator over the raw lines of a pipe, terminal or file, with a test for waiting lines."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.lines: deque[bytes] = deque()
        self.partial: list[bytes] = []  # pieces of a line whose end has not been read
        self.at_end = False
        self.error: OSError | None = None  # the error that a read in ``ready`` raised

    def __iter__(self) -> Iterator[bytes]:
        while True:
            while not self.lines and not self.at_end:
                if self.error:
                    raise self.error
                self._read()
            if not self.lines:
                return
            yield self.lines.popleft()

    def ready(self) -> bool:
        """Whether the next line, the end or an error of reading comes within ``POLL_SECONDS``."""
        while not (self.lines or self.at_end or self.error):
            if not select.select([self.file], [], [], POLL_SECONDS)[0]:
                return False
            try:
                self._read()
            except OSError as error:  # `__iter__` raises it in the place of the next line
                self.error = error
        return True

    def _read(self) -> None:
        data = self.file.read1(1 << 20)  # type: ignore[attr-defined]
        *lines, rest = data.split(b"\n")
        if lines:
            self.lines.append(b"".join([*self.partial, lines[0]]) + b"\n")
            self.lines.extend(line + b"\n" for line in lines[1:])
            self.partial = []
        self.partial.append(rest)
        self.at_end = not data
        if self.at_end and any(self.partial):
            self.lines.append(b"".join(self.partial))


def chunks(
    lines: Iterator[Item],
    max_size: int,
    ready: Callable[[], bool] = lambda: True,
    num_done: int = 0,
) -> Iterator[list[Item]]:
    """Yield at most ``max_size`` lines at a time, or fewer if no further line is ``ready``.

    ``num_done`` lines were done in an earlier, interrupted run. The first chunk then ends at the
    same line as without the interruption, so all later chunks and batches are the same. If
    ``lines`` raises a DataError, the lines before it are yielded first.
    """
    size = max_size - num_done % max_size
    at_end = False
    while not at_end:
        chunk: list[Item] = []
        data_error: DataError | None = None
        try:
            while len(chunk) < size and (not chunk or ready()):
                chunk.append(next(lines))
        except StopIteration:
            at_end = True
        except DataError as error:
            data_error = error
        if chunk:
            yield chunk
        if data_error is not None:
            raise data_error
        size = max_size
