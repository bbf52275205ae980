"""Lines as they come: large chunks where there is plenty, at once what a waiting writer has typed."""

import select
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, TypeVar

from fusetk.errors import DataError

Item = TypeVar("Item")

PATIENCE = 0.03  # seconds to wait for more input before what is there is translated


class Arrivals:
    """The raw lines of a pipe, terminal or file, and whether another is there without waiting for it long."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.lines: deque[bytes] = deque()
        self.rest: list[bytes] = []  # pieces of a line whose end has not come
        self.over = False

    def __iter__(self) -> Iterator[bytes]:
        while True:
            while not self.lines and not self.over:
                self._read()
            if not self.lines:
                return
            yield self.lines.popleft()

    def ready(self) -> bool:
        """Whether iterating would give a line, or the end, now."""
        while not self.lines and not self.over:
            if not select.select([self.file], [], [], PATIENCE)[0]:
                return False
            self._read()
        return True

    def _read(self) -> None:
        data = self.file.read1(1 << 20)  # type: ignore[attr-defined]
        *lines, rest = data.split(b"\n")
        if lines:
            self.lines.append(b"".join([*self.rest, lines[0]]) + b"\n")
            self.lines.extend(line + b"\n" for line in lines[1:])
            self.rest = []
        self.rest.append(rest)
        self.over = not data
        if self.over and any(self.rest):
            self.lines.append(b"".join(self.rest))


def chunks(
    lines: Iterator[Item], most: int, ready: Callable[[], bool] = lambda: True, before: int = 0
) -> Iterator[list[Item]]:
    """At most ``most`` lines at a time, fewer when no more is ``ready``.

    Where so many lines are done ``before``, the first chunk ends where it would have ended without a break: chunks, and with them
    batches, are then the same. A DataError that ``lines`` raises comes after the lines before it.
    """
    size, over = most - before % most, False
    while not over:
        chunk: list[Item] = []
        broken: DataError | None = None
        try:
            while len(chunk) < size and (not chunk or ready()):
                chunk.append(next(lines))
        except StopIteration:
            over = True
        except DataError as error:
            broken = error
        if chunk:
            yield chunk
        if broken is not None:
            raise broken
        size = most


def deal(sizes: Sequence[int], hands: int) -> list[list[int]]:
    """Indices of things of these sizes, dealt to several hands, the largest first, so that each hand has about as much."""
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    return [order[hand::hands] for hand in range(hands)]
