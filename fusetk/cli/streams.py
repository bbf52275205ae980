"""Standard streams that are closed, or whose reader is gone."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn, TextIO

from fusetk.errors import DataError

ADVICE = {
    "standard input": "name a file instead, or connect it to a file or pipe",
    "standard output": "connect it to a file or pipe; to discard it, use > /dev/null",
}


@contextmanager
def guarded() -> Iterator[None]:
    """Within this context a closed stream or a closed pipe cannot end a command without its product.

    Using standard input or standard output that is closed raises DataError. Messages to a standard
    error that is closed, or whose reader is gone, are discarded: they are never the product of a
    command. Files that are opened do not get the numbers 0 to 2.
    """
    streams = sys.stdin, sys.stdout, sys.stderr
    _occupy()
    with open(os.devnull, "w") as nowhere:
        try:
            if sys.stdin is None:
                sys.stdin = _Closed("standard input")
            if sys.stdout is None:
                sys.stdout = _Closed("standard output")
            sys.stderr = nowhere if sys.stderr is None else _unbreakable(sys.stderr)
            yield
        finally:
            sys.stdin, sys.stdout, sys.stderr = streams


def _occupy() -> None:
    """Open the null device as each standard descriptor that is closed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(
                os.open(os.devnull, os.O_RDWR), True
            )  # gets the lowest number that is free


class _Closed(io.TextIOBase):
    """A standard stream that is closed: what asks for its content or its descriptor gets a DataError."""

    encoding = "utf-8"
    errors = "strict"

    def __init__(self, name: str):
        self._name = name

    def _refuse(self, *given: object) -> NoReturn:
        raise DataError(f"{self._name} is closed: {ADVICE[self._name]}")

    fileno = read = readline = write = _refuse
    buffer = property(_refuse)


class _Discarding(io.FileIO):
    """A file that takes everything, also when its reader is gone."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError:  # a closed pipe, a closed terminal, a full disk
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())  # for other threads, libraries and processes, too
            os.close(null)
            return memoryview(data).nbytes  # type: ignore[arg-type]


def _unbreakable(stream: TextIO) -> TextIO:
    """The same stream, but a closed pipe is not an error."""
    try:
        number = stream.fileno()
    except (OSError, AttributeError):
        return stream  # not of the operating system
    file = io.BufferedWriter(_Discarding(number, "w", closefd=False))
    return io.TextIOWrapper(
        file, encoding=stream.encoding, errors=stream.errors, line_buffering=True
    )
