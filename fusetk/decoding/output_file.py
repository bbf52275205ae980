"""Output files that are written chunk by chunk and can be continued after an interruption."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fusetk.data.text import cannot_write

STANDARD_OUTPUT = "standard output"


class OutputFile:
    """An open file or standard output. Each write is flushed, so later errors do not lose it."""

    def __init__(self, file: Any, name: str, keep: int | None = None):
        """The first write removes all content after ``keep`` bytes; None removes nothing."""
        self.file = file
        self.name = name
        self.keep = keep

    def write(self, text: str) -> None:
        """Write text at once.

        Raises DataError if the system cannot write, and BrokenPipeError if the reader of a pipe has
        ended.
        """
        rest = memoryview(text.encode())
        try:
            if self.keep is not None:
                self.file.truncate(self.keep)
                self.keep = None
            while rest:
                rest = rest[self.file.write(rest) :]
            self.file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise cannot_write(self.name, error) from None


@contextmanager
def open_output(target: str, keep: int | None = 0) -> Iterator[OutputFile]:
    """Open a file for writing, or standard output for -.

    The first write removes all content of the file after ``keep`` bytes. If an error occurs before
    it, the file does not change, but a compressed file is emptied at once. Standard output, devices
    and pipes are never shortened. Raises DataError if the file cannot be written.
    """
    path = Path(target)
    if target == "-" or path.suffix == ".gz" or (path.exists() and not path.is_file()):
        keep = None
    try:
        file = _open(target, keep)
    except OSError as error:
        raise cannot_write(target, error) from None
    try:
        output = OutputFile(file, STANDARD_OUTPUT if target == "-" else target, keep)
        yield output
        output.write("")
    finally:
        if target != "-":
            try:
                file.close()
            except OSError as error:  # gzip writes its last bytes at the end
                raise cannot_write(target, error) from None


def _open(target: str, keep: int | None) -> Any:
    """Open a file without a buffer. A buffer would repeat the error of a full disk at closing."""
    if target == "-":
        try:
            return open(sys.stdout.fileno(), "wb", buffering=0, closefd=False)
        except OSError:  # a stream in memory, such as in tests
            return sys.stdout.buffer
    if Path(target).suffix == ".gz":
        import gzip

        return gzip.open(target, "wb")
    return open(target, "wb" if keep is None else "ab", buffering=0)
