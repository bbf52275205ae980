r"""Reading and writing of UTF-8 text files, plain or .gz. Only ``\n`` ends a line.

Carriage returns at the end of a line and a byte order mark at the start of a file are dropped.
Every other character (U+2028, U+0085, NBSP, form feed, tab, NUL, a carriage return within a line)
belongs to its line.
"""

import errno
import gzip
import io
import os
import stat
import sys
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice, zip_longest
from math import log
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

from fusetk.errors import DataError, OutputDiskFull, quantity
from fusetk.files import is_stream, similar_names

BOM = b"\xef\xbb\xbf"
GZIP = 31  # window bits of zlib for the format of gzip
STANDARD_INPUT = "standard input"
MAKE_ROOM = "free some disk space, and run the same command again"
# The advice in the error for a file that cannot be written, by the number of the OSError.
WRITE_ADVICE = {
    errno.ENOSPC: MAKE_ROOM,
    errno.EDQUOT: MAKE_ROOM,
    errno.EFBIG: "raise the limit of the size of a file (ulimit -f)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EISDIR: "name a file instead of a folder",
    errno.EEXIST: "a file has the name of this folder; choose another name",
    errno.ENOTDIR: "a file has the name of its folder; choose another folder",
}
# Lines at the end of the shorter file whose lengths may agree with those of the longer file by
# chance. If the files seem to be out of step only from one of these lines on, the shorter file ends
# early. They are at most a tenth of it, and at most this number.
MOST_CHANCE_LINES = 10


def read_lines(path: Path | str, bom: bool = True) -> Iterator[str]:
    """Yield the lines of a file without line feeds and the carriage returns before them.

    With ``bom``, a byte order mark at the start of the file is dropped.

    Raises DataError with file and line if the file cannot be opened, decompressed or decoded.
    """
    with open_bytes(path) as file:
        yield from decode_lines(file, str(path), bom)


def decode_lines(file: Iterable[bytes], name: str, bom: bool = True) -> Iterator[str]:
    """Yield the lines of an open file of bytes; ``name`` names it in errors.

    Raises DataError as ``read_lines`` does.
    """
    number = 0
    try:
        for number, line in enumerate(file, 1):
            if number == 1 and bom and line.startswith(BOM):
                line = line[len(BOM) :]
                if not line:
                    return  # a file that holds only a byte order mark has no line
            yield line.removesuffix(b"\n").rstrip(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(name, number, error) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        if Path(name).is_file():  # a pipe cannot be read again
            number = _count_intact_lines(name)
        raise DataError(
            f"{name}: the compressed data is damaged after line {number} ({error}); "
            "copy or download the file again"
        ) from None
    except OSError as error:
        raise DataError(f"{name}: reading failed after line {number}: {error.strerror}") from None


def _count_intact_lines(path: str) -> int:
    """Return the number of complete lines before the damage in a .gz file.

    The reader of ``open_bytes`` may drop the last of them.
    """
    lines = 0
    decompressor = zlib.decompressobj(wbits=GZIP)
    with open(path, "rb") as file:
        while block := file.read(1 << 16):
            while block:
                before = decompressor.copy()
                try:
                    lines += decompressor.decompress(block).count(b"\n")
                except zlib.error:
                    return lines + _count_until_damage(before, block)
                block = decompressor.unused_data
                if decompressor.eof:
                    decompressor = zlib.decompressobj(wbits=GZIP)
    return lines


def _count_until_damage(decompressor: "zlib._Decompress", block: bytes) -> int:
    """Return the number of line feeds in a compressed block before its damage."""
    lines = 0
    for i in range(len(block)):
        try:
            lines += decompressor.decompress(block[i : i + 1]).count(b"\n")
        except zlib.error:
            break
    return lines


def _not_utf8(name: str, number: int, error: UnicodeDecodeError) -> DataError:
    byte = error.object[error.start]
    advice = "convert the file to UTF-8, or repair the line"
    if number == 1 and error.object[:2] == b"\x1f\x8b":
        advice = "it looks like gzip: decompress it, or give it as a file whose name ends in .gz"
    place = f"{name}, line {number}: byte 0x{byte:02x} at offset {error.start} of the line"
    return DataError(f"{place} is not UTF-8 ({error.reason}); {advice}")


def open_bytes(path: Path | str) -> BinaryIO:
    """Open a file for reading and decompress a .gz file.

    Raises DataError if the file cannot be opened.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise DataError(f"{path} is a folder; give a text file")
        if path.suffix == ".gz":
            return io.BufferedReader(_Decompressed(gzip.open(path, "rb")), 1 << 20)
        return open(path, "rb", 1 << 20)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist{_near(path)}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


class _Decompressed(io.RawIOBase):
    """The content of a .gz file, piece by piece.

    ``GzipFile.readinto`` fills its buffer with several pieces. If one of them is damaged, those
    before it are lost.
    """

    def __init__(self, file: gzip.GzipFile):
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._file.read1(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._file.close()
        super().close()


def _near(path: Path) -> str:
    """Return a hint: similar names in the same folder, or the fact that the folder is missing."""
    if not path.parent.is_dir():
        return f"; its folder {path.parent} does not exist either"
    if any(character in path.name for character in "*?["):
        return "; patterns are not expanded: list every prefix"
    near = similar_names(path)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def locate(prefix: str, language: str) -> Path:
    """Return the file `prefix.language` or `prefix.language.gz`.

    Raises DataError if neither or both exist, or if it is not a regular file.
    """
    plain = Path(f"{prefix}.{language}")
    compressed = Path(f"{prefix}.{language}.gz")
    try:
        has_plain = plain.exists()
        has_compressed = compressed.exists()
    except OSError as error:
        raise DataError(f"{plain} cannot be read: {error.strerror}") from None
    if has_plain and has_compressed:
        raise DataError(f"both {plain} and {compressed.name} exist; remove or rename one of them")
    if not has_plain and not has_compressed:
        short = prefix.removesuffix(".gz").removesuffix(f".{language}")
        if Path(prefix).is_file() and short != prefix:
            advice = f"; {prefix} is a file: give the prefix without the suffix, {short}"
        elif Path(prefix).is_dir():
            advice = f"; {prefix} is a folder: give the prefix of text files in it, {prefix}/PREFIX"
        else:
            advice = _near(plain)
        raise DataError(f"neither {plain} nor {compressed.name} exists{advice}")
    path = compressed if has_compressed else plain
    if path.is_dir():
        raise DataError(f"{path} is a folder; {prefix!r} must be the prefix of text files")
    if is_stream(path):
        raise DataError(f"{path} is not a regular file and cannot be read twice; copy it to a file")
    return path


@contextmanager
def writer(path: Path | str) -> Iterator[IO[str]]:
    """Open a text file for writing, compressed if it is named .gz.

    Raises DataError if the file cannot be written.
    """
    try:
        with open_text(path) as file:
            yield file
    except OSError as error:
        raise cannot_write(path, error) from None


def open_text(path: Path | str) -> IO[str]:
    """Open a file for writing UTF-8 with `\\n` line ends, compressed if it is named .gz."""
    if Path(path).suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path, "wb"), encoding="utf-8", newline="\n")
    return open(path, "w", 1 << 20, encoding="utf-8", newline="\n")


def check_inputs_and_output(inputs: Iterable[str | Path], output: Path) -> None:
    """Raise DataError if an input is the output or not readable, or if the output has no folder.

    Call it before the work, so that an error loses nothing. The input - is standard input. Pipes
    are not opened: if a pipe were opened and closed, its writer would end.
    """
    for path in inputs:
        if str(path) == "-":
            is_output = _is_standard_input(output)
        elif is_stream(path):
            continue
        else:
            open_bytes(path).close()
            is_output = output.exists() and output.samefile(path)
        if is_output:
            raise DataError(f"{output} is both read and written; write to another file")
    check_folder_of(output)


def check_folder_of(output: Path) -> None:
    """Raise DataError if the folder of an output file does not exist."""
    if not output.parent.is_dir():
        raise DataError(f"{output}: the folder {output.parent} does not exist; create it first")


def _is_standard_input(path: Path) -> bool:
    """Whether standard input is the regular file ``path``."""
    try:
        status = os.fstat(sys.stdin.fileno())
        return stat.S_ISREG(status.st_mode) and os.path.samestat(status, path.stat())
    except OSError:  # the file does not exist, or standard input has no descriptor (in tests)
        return False


def cannot_write(path: Path | str, error: OSError) -> DataError:
    """Return the error for a path that cannot be written, with the advice for its reason."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    kind = OutputDiskFull if full else DataError
    advice = WRITE_ADVICE.get(error.errno or 0, "choose another path, or make this one writable")
    return kind(f"{path} cannot be written: {error.strerror}; {advice}")


def display_name(path: str) -> str:
    """Return the name of an input in messages; the path - is standard input."""
    return STANDARD_INPUT if path == "-" else path


def standard_input() -> Iterator[str]:
    """Return the lines of standard input.

    Raises DataError with the line number if it cannot be read or decoded.
    """
    return decode_lines(sys.stdin.buffer, STANDARD_INPUT)


def read_input(path: str) -> Iterator[str]:
    """Return the lines of a file, or of standard input for the path -.

    Raises DataError if they cannot be read or decoded.
    """
    return standard_input() if path == "-" else read_lines(path)


def is_line(text: str) -> bool:
    """Whether a file can hold the text as a line: it has no line breaks and no lone surrogates."""
    if "\n" in text:
        return False
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


# Words -------------------------------------------------------------------------------------------


def single_spaces(line: str) -> str:
    """Return the line with one ASCII space between words and none at its ends.

    Carriage returns at its end are dropped: they would be lost when the line is written and read
    again. Other white space characters belong to the words.
    """
    line = line.rstrip(" \r")
    if "  " in line or line[:1] == " ":
        return " ".join(word for word in line.split(" ") if word)
    return line


def count_tokens(line: str) -> int:
    """Return the number of tokens of a line; tokens are separated by ASCII spaces."""
    if line and "  " not in line and line[0] != " " != line[-1]:
        return line.count(" ") + 1
    return sum(map(bool, line.split(" ")))


# Parallel files ----------------------------------------------------------------------------------


class FilePair(NamedTuple):
    """The two files of a parallel text."""

    source: Path
    target: Path


def read_pairs(pair: FilePair, bom: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the pairs of lines of two files.

    With ``bom``, a byte order mark at the start of a file is dropped.
    If one file ends first, raises DataError with both counts and the first suspicious line.
    """
    source = read_lines(pair.source, bom=bom)
    target = read_lines(pair.target, bom=bom)
    for count, (left, right) in enumerate(zip_longest(source, target)):
        if left is None or right is None:
            source_count = count + (left is not None) + sum(1 for _ in source)
            target_count = count + (right is not None) + sum(1 for _ in target)
            raise unequal(*pair, source_count, target_count)
        yield left, right


def unequal(first: Path | str, other: Path | str, first_count: int, other_count: int) -> DataError:
    """Return the error for two files with unequal numbers of lines.

    It names the line after which the files seem to be out of step. If this line is one of the last
    lines of the shorter file, the error says that this file seems to end early.
    """
    first, other = Path(first), Path(other)
    longer, shorter = (first, other) if first_count > other_count else (other, first)
    counts = f"{first} has {quantity(first_count, 'line')} and {other} has {other_count:,}"
    advice = "repair the files, because fusetk never drops surplus lines"
    if not (longer.is_file() and shorter.is_file()):  # a pipe cannot be read again
        return DataError(f"{counts}; {advice}")
    line = first_out_of_step(longer, shorter, abs(first_count - other_count))
    end = min(first_count, other_count)
    if line > end - min(MOST_CHANCE_LINES, end // 10):
        place = f"{shorter.name} seems to end early, after line {end}"
    else:
        place = f"their lines seem misaligned from line {line} on"
    return DataError(f"{counts}: {place}; {advice}")


def first_out_of_step(longer: Path, shorter: Path, surplus: int) -> int:
    """Return the most likely line (from 1) at which `longer` has `surplus` additional lines.

    Lines before it are compared with the same line of `shorter`, lines after it with the line
    `surplus` lines earlier. The chosen line has the best agreement of line lengths: the smallest
    sum of the absolute logarithms of their ratios.
    """
    best, best_line, total = 0.0, 1, 0.0
    lengths = (len(line.strip()) + 1 for line in read_lines(longer))
    window = deque(islice(lengths, surplus))
    for number, line in enumerate(read_lines(shorter), 1):
        size = len(line.strip()) + 1
        window.append(next(lengths))
        if surplus:
            shifted = abs(log(window[-1] / size))
            unshifted = abs(log(window.popleft() / size))
            total += shifted - unshifted
        if total >= best:
            best = total
            best_line = number + 1
    return best_line
