"""Output files that are written chunk by chunk and can be continued after an interruption."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fusetk.data.text import cannot_write
from fusetk.errors import DataError
from fusetk.files import is_stream, lock

STANDARD_OUTPUT = "standard output"


class OutputFile:
    """An open file or standard output. Each write is flushed, so later errors do not lose it."""

    def __init__(self, file: Any, name: str, keep: int | None, compress: bool):
        """The first write removes all content after ``keep`` bytes; None removes nothing.

        With ``compress``, gzip compresses the content.
        """
        self.opened = file
        self.file = file  # ``opened``, or the gzip file that writes to it
        self.name = name
        self.keep = keep
        self.compress = compress
        self.started = False

    def write(self, text: str) -> None:
        """Write text at once.

        Raises DataError if the system cannot write, and BrokenPipeError if the reader of a pipe has
        ended.
        """
        rest = memoryview(text.encode())
        try:
            if not self.started:
                self._start()
            while rest:
                rest = rest[self.file.write(rest) :]
            self.file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise cannot_write(self.name, error) from None

    def _start(self) -> None:
        if self.keep is not None:
            self.file.truncate(self.keep)
        if self.compress:
            import gzip

            self.file = gzip.GzipFile(self.name, "wb", fileobj=self.file)
        self.started = True

    def close(self) -> None:
        """Close the file. Raises DataError if gzip cannot write its last bytes."""
        try:
            with self.opened:
                self.file.close()
        except OSError as error:
            raise cannot_write(self.name, error) from None


@contextmanager
def open_output(target: str, keep: int | None) -> Iterator[OutputFile]:
    """Open a file for writing, or standard output for -.

    A file whose name ends with .gz is compressed. The first write removes all content of the file
    after ``keep`` bytes. If an error occurs before it, the file does not change. Standard output,
    devices and pipes are never shortened. Raises DataError if the file cannot be written, or if
    another process writes it.
    """
    if is_stream(target):
        keep = None
    try:
        file = _open(target, keep)
    except OSError as error:
        raise cannot_write(target, error) from None
    if keep is not None and not lock(file):
        file.close()
        raise DataError(
            f"another fusetk process is writing {target}: wait until it ends, or name another "
            "output"
        )
    name = STANDARD_OUTPUT if target == "-" else target
    output = OutputFile(file, name, keep, compress=Path(target).suffix == ".gz")
    try:
        yield output
        output.write("")
    finally:
        if target != "-":
            output.close()


def _open(target: str, keep: int | None) -> Any:
    """Open a file without a buffer. A buffer would repeat the error of a full disk at closing."""
    if target == "-":
        try:
            return open(sys.stdout.fileno(), "wb", buffering=0, closefd=False)
        except OSError:  # a stream in memory, such as in tests
            return sys.stdout.buffer
    return open(target, "wb" if keep is None else "ab", buffering=0)
