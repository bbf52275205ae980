"""Standard streams that are closed or cannot be written, and the encoding of the output."""

import codecs
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
    """Protect a command from closed standard streams and closed pipes.

    Using a closed standard input or output raises DataError. Messages to a standard error that is
    closed or cannot be written are discarded: they are never the result of a command. Files that
    are opened in this context never get the descriptors 0 to 2. Standard input becomes blocking:
    Python's buffered files treat a pause in a non-blocking input as the end of the file. Standard
    output can write every character in every locale.
    """
    streams = sys.stdin, sys.stdout, sys.stderr
    _occupy()
    os.set_blocking(0, True)
    with open(os.devnull, "w") as nowhere:
        try:
            if sys.stdin is None:
                sys.stdin = _ClosedStream("standard input")
            if sys.stdout is None:
                sys.stdout = _ClosedStream("standard output")
            _accept_all_characters(sys.stdout)
            sys.stderr = nowhere if sys.stderr is None else _never_failing(sys.stderr)
            yield
        finally:
            sys.stdin, sys.stdout, sys.stderr = streams


def _occupy() -> None:
    """Open the null device as each standard descriptor that is closed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The new descriptor is the lowest free number: the one that is closed.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _accept_all_characters(stream: object) -> None:
    """Let a stream write characters that the encoding of the locale lacks.

    Files and pipes get UTF-8, like the files that commands write. A terminal needs the encoding of
    the locale: other characters become escapes such as ``\\u0394``. ``PYTHONIOENCODING`` sets
    another encoding.
    """
    if not isinstance(stream, io.TextIOWrapper) or codecs.lookup(stream.encoding).name == "utf-8":
        return
    if stream.isatty() or "PYTHONIOENCODING" in os.environ:
        stream.reconfigure(errors="backslashreplace")
    else:
        stream.reconfigure(encoding="utf-8", errors=stream.errors)


class _ClosedStream(io.TextIOBase):
    """A closed standard stream: using its content or its descriptor raises DataError."""

    encoding = "utf-8"
    errors = "strict"

    def __init__(self, name: str):
        self._name = name

    def _refuse(self, *arguments: object) -> NoReturn:
        raise DataError(f"{self._name} is closed: {ADVICE[self._name]}")

    fileno = read = readline = write = _refuse
    buffer = property(_refuse)


class _DiscardingFile(io.FileIO):
    """A file that discards everything after a write has failed."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError:  # a closed pipe, a closed terminal, a full disk
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())  # also for other threads, libraries, processes
            os.close(null)
            return memoryview(data).nbytes  # type: ignore[arg-type]


def _never_failing(stream: TextIO) -> TextIO:
    """Return a stream to the same file that discards the text of failed writes."""
    try:
        descriptor = stream.fileno()
    except (OSError, AttributeError):
        return stream  # a stream without a file descriptor
    file = io.BufferedWriter(_DiscardingFile(descriptor, "w", closefd=False))
    return io.TextIOWrapper(
        file, encoding=stream.encoding, errors=stream.errors, line_buffering=True
    )
