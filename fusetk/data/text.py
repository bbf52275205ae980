r"""Text files read and written safely: UTF-8, plain or .gz, a line ends at ``\n`` and nowhere else.

CR LF counts as LF, and a byte order mark at the start of a file is dropped. Every other character (U+2028, U+0085, NBSP,
form feed, tab, NUL, a lone CR) is a character inside its line.
"""

import difflib
import gzip
import io
import os
import sys
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import log
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

from fusetk.errors import DataError

BOM = b"\xef\xbb\xbf"
STANDARD_INPUT = "standard input"


def read_lines(path: Path | str, bom: bool = True) -> Iterator[str]:
    """The lines of a file without their ends; `bom` drops a byte order mark at the start of the file.

    Raises DataError with file and line for what cannot be opened, unpacked or decoded.
    """
    with open_bytes(path) as file:
        yield from decode_lines(file, str(path), bom)


def decode_lines(file: Iterable[bytes], name: str, bom: bool = True) -> Iterator[str]:
    """The lines of an open file of bytes that the user knows as `name`; raises DataError as `read_lines` does."""
    number = 0
    try:
        for number, line in enumerate(file, 1):
            if number == 1 and bom and line.startswith(BOM):
                line = line[len(BOM) :]
                if not line:
                    return  # a file of a mark and nothing else has no line
            if line.endswith(b"\n"):
                line = line[:-2] if line.endswith(b"\r\n") else line[:-1]
            yield line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(name, number, error) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{name}: the compressed data are damaged after line {number} ({error}); copy or download the file again"
        ) from None
    except OSError as error:
        raise DataError(f"{name}: reading failed after line {number}: {error.strerror}") from None


def _not_utf8(name: str, number: int, error: UnicodeDecodeError) -> DataError:
    byte = error.object[error.start]
    packed = number == 1 and error.object[:2] == b"\x1f\x8b"
    advice = (
        "this looks like gzip, so name the file .gz"
        if packed
        else "convert the file to UTF-8, or repair the line"
    )
    where = f"{name}, line {number}: byte 0x{byte:02x} at offset {error.start} of the line"
    return DataError(f"{where} is not UTF-8 ({error.reason}); {advice}")


def open_bytes(path: Path | str) -> BinaryIO:
    """Open a file for reading, unpacked when it is named .gz; raises DataError when there is none."""
    path = Path(path)
    try:
        if path.is_dir():
            raise DataError(f"{path} is a folder; give a text file")
        if path.suffix == ".gz":
            return io.BufferedReader(gzip.open(path, "rb"), 1 << 20)
        return open(path, "rb", 1 << 20)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist{_near(path)}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _near(path: Path) -> str:
    """A hint at files of similar names in the folder, or at the folder that is missing."""
    if not path.parent.is_dir():
        return f"; there is no folder {path.parent} either"
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, 3)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def locate(prefix: str, language: str) -> Path:
    """The file `prefix.language` or `prefix.language.gz`; raises DataError when there is neither, or both."""
    plain, packed = Path(f"{prefix}.{language}"), Path(f"{prefix}.{language}.gz")
    try:
        there = plain.exists(), packed.exists()
    except OSError as error:
        raise DataError(f"{plain} cannot be read: {error.strerror}") from None
    if all(there):
        raise DataError(
            f"both {plain} and {packed.name} exist, and it is not known which is meant; remove or rename one of them"
        )
    found = packed if there[1] else plain
    if not any(there):
        raise DataError(f"neither {plain} nor {packed.name} exists{_near(plain)}")
    if found.is_dir():
        raise DataError(f"{found} is a folder; {prefix!r} must be the prefix of text files")
    return found


@contextmanager
def writer(path: Path | str) -> Iterator[IO[str]]:
    """A text file to write lines into, packed when it is named .gz; raises DataError when that fails."""
    try:
        with open_text(path) as file:
            yield file
    except OSError as error:
        raise cannot_write(path, error) from None


def open_text(path: Path | str) -> IO[str]:
    """Open a file for writing UTF-8 with `\\n` line ends."""
    if Path(path).suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path, "wb"), encoding="utf-8", newline="\n")
    return open(path, "w", 1 << 20, encoding="utf-8", newline="\n")


def readable(inputs: Iterable[Path], output: Path) -> None:
    """Check that every input can be opened and is not the output, before the output is begun; raises DataError."""
    for path in inputs:
        open_bytes(path).close()
        if output.exists() and output.samefile(path):
            raise DataError(f"{output} is both read and written; write somewhere else")


def cannot_write(path: Path | str, error: OSError) -> DataError:
    """The error for a path that the system did not let us write."""
    return DataError(
        f"{path} cannot be written: {error.strerror}; choose another place or free this one"
    )


def standard_input() -> Iterator[str]:
    """The lines of standard input; raises DataError that names it and the line, at once where the command finds it closed."""
    return decode_lines(sys.stdin.buffer, STANDARD_INPUT)


# Parallel files ------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """The two files of a parallel text."""

    source: Path
    target: Path


def read_pairs(pair: Pair) -> Iterator[tuple[str, str]]:
    """Line by line; raises DataError with both counts and the first suspicious line when one file ends first."""
    source, target = read_lines(pair.source), read_lines(pair.target)
    count = 0
    while True:
        left, right = next(source, None), next(target, None)
        if left is None or right is None:
            break
        count += 1
        yield left, right
    if left is not None or right is not None:
        lines = [
            count + (first is not None) + sum(1 for _ in rest)
            for first, rest in ((left, source), (right, target))
        ]
        raise unequal(pair, lines[0], lines[1])


def unequal(pair: Pair, source: int, target: int) -> DataError:
    """The error for files of unequal length, with the line from which they seem to be out of step."""
    longer, shorter = (pair.source, pair.target) if source > target else (pair.target, pair.source)
    counts = f"{pair.source} has {source} lines and {pair.target} has {target}"
    if not (longer.is_file() and shorter.is_file()):  # a pipe cannot be read again
        return DataError(f"{counts}; repair them, nothing is cut")
    line = first_out_of_step(longer, shorter, abs(source - target))
    end = min(source, target)
    where = (
        f"{shorter.name} seems to end early, after line {end}"
        if line > end
        else f"they seem to be out of step from line {line} on"
    )
    return DataError(f"{counts}: {where}; repair the files, nothing is cut")


def first_out_of_step(longer: Path, shorter: Path, surplus: int) -> int:
    """The likeliest line (from 1) at which `longer` has `surplus` lines that `shorter` lacks.

    Pairs before it are taken as they stand and pairs behind it shifted by `surplus`; the place is chosen where the lengths
    of the pairs then agree best, measured by the logarithm of their ratio.
    """
    best, best_line, total = 0.0, 1, 0.0
    lengths = (len(line.strip()) + 1 for line in read_lines(longer))
    window: deque[int] = deque()
    for _ in range(surplus):
        window.append(next(lengths))
    number = 0
    for number, line in enumerate(read_lines(shorter), 1):
        size = len(line.strip()) + 1
        window.append(next(lengths))
        total += abs(log(window[-1] / size)) - abs(log(window.popleft() / size)) if surplus else 0.0
        if total >= best:
            best, best_line = total, number + 1
    return best_line
