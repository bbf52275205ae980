"""The input of ``fusetk decode``: lines to translate, with their prefixes and phrases."""

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from fusetk.data.text import (
    STANDARD_INPUT,
    decode_lines,
    display_name,
    open_bytes,
    read_lines,
    standard_input,
    unequal,
)
from fusetk.decoding.stream import LineReader
from fusetk.errors import ConfigError, DataError, quantity
from fusetk.files import is_stream

Ready = Callable[[], bool]  # returns whether the next line comes without a long wait


class Request(NamedTuple):
    """A line to translate, with requirements for its translation."""

    text: str
    prefix: str = ""  # words that the translation begins with
    constraints: tuple[str, ...] = ()  # phrases that the translation contains, in this order


class DecodeInputs(NamedTuple):
    """The files to read; - is standard input."""

    source: str
    prefixes: str | None  # a line for each source line
    constraints: str | None  # a line for each source line
    shard: tuple[int, int] | None  # (i, n): the i-th of n parts, i from 1

    @property
    def name(self) -> str:
        return display_name(self.source)

    @property
    def side_files(self) -> list[str]:
        """The files with prefixes or phrases. They have a line for each source line."""
        return [path for path in (self.prefixes, self.constraints) if path is not None]

    @property
    def files(self) -> list[str]:
        """The input and its side files; - is standard input."""
        return [self.source, *self.side_files]


def line_range(inputs: DecodeInputs) -> tuple[int, int | None]:
    """Return the first line to translate, from 0, and the line after the last line to translate.

    The second is None if all lines to the end of the file are translated. Raises ConfigError if
    two inputs are standard input, or if a shard is requested of an input that can be read only
    once. Raises DataError if a side file has another number of lines, or if standard input is
    closed.
    """
    if inputs.files.count("-") > 1:
        raise ConfigError("standard input can be only one of the files: give the other one by name")
    if "-" in inputs.files:
        standard_input()
    if inputs.shard is None:
        return 0, None
    from fusetk.data.manifest import count_lines

    for path in inputs.files:
        if is_stream(path):
            raise ConfigError(
                f"--shard counts the lines before it reads them, and {display_name(path)} can be "
                "read only once: give a file, plain or .gz"
            )
    lines = count_lines(Path(inputs.source))
    for path in inputs.side_files:
        others = count_lines(Path(path))
        if others != lines:
            raise unequal(inputs.source, path, lines, others)
    index, count = inputs.shard
    return (index - 1) * lines // count, index * lines // count


def count_file_lines(path: str) -> int | None:
    """Return the number of lines of a file.

    Returns None if it can be read only once, or if it cannot be read as UTF-8.
    """
    if is_stream(path):
        return None
    from fusetk.data.manifest import count_lines

    try:
        return count_lines(Path(path))
    except DataError:
        return None


def read_requests(
    inputs: DecodeInputs, start: int, end: int | None
) -> tuple[Iterator[Request], Ready]:
    """Return the requests of the lines from ``start`` to ``end``, and the function ``Ready``."""
    texts, ready = open_texts(inputs.files)
    names = [display_name(path) for path in inputs.files]

    def requests() -> Iterator[Request]:
        for line, *others in islice(parallel_lines(names, texts), start, end):
            prefix = others[0] if inputs.prefixes else ""
            phrases = others[-1].split("\t") if inputs.constraints else []
            yield Request(line, prefix, tuple(phrase for phrase in phrases if phrase.strip()))

    return requests(), ready


def open_texts(paths: Sequence[str]) -> tuple[list[Iterator[str]], Ready]:
    """Return the lines of each file, and the function ``Ready`` for the next line of all files."""
    opened = [_open_lines(path) for path in paths]
    return [lines for lines, _ in opened], lambda: all(ready() for _, ready in opened)


def _open_lines(source: str) -> tuple[Iterator[str], Ready]:
    """Return the lines of a file, or of standard input for -, and the function ``Ready``."""
    if source != "-":
        if not is_stream(source) or source.endswith(".gz"):
            return read_lines(source), lambda: True
        reader = LineReader(open_bytes(source))
        return decode_lines(reader, source), reader.ready
    try:
        sys.stdin.fileno()
    except OSError:  # a stream in memory, such as in tests
        return decode_lines(sys.stdin.buffer, STANDARD_INPUT), lambda: True
    reader = LineReader(sys.stdin.buffer)
    return decode_lines(reader, STANDARD_INPUT), reader.ready


def parallel_lines(names: Sequence[str], texts: Sequence[Iterator[str]]) -> Iterator[list[str]]:
    """Yield the lines with the same number of several texts.

    Raises DataError, after all complete lines, if a text is shorter or longer than the first.
    """
    count = 0
    while True:
        lines = [next(text, None) for text in texts]
        complete = [line for line in lines if line is not None]
        if len(complete) < len(texts):
            break
        count += 1
        yield complete
    for i in range(1, len(texts)):
        if (lines[0] is None) != (lines[i] is None):
            first, other = (_num_lines(names[k], count, lines[k], texts[k]) for k in (0, i))
            raise _unequal(names[0], names[i], first, other)


def _num_lines(name: str, count: int, line: str | None, rest: Iterator[str]) -> int | None:
    """Return the number of lines of a text; None for standard input that has not ended."""
    if line is not None and name == STANDARD_INPUT:
        return None
    return count + (line is not None) + sum(1 for _ in rest)


def _unequal(first: str, other: str, first_lines: int | None, other_lines: int | None) -> DataError:
    if first_lines is None or other_lines is None:
        other_count = quantity(other_lines or 0, "line")
        return DataError(
            f"{other} has {other_count} and {first} has more: give a line for each line of "
            f"{first}, blank for none"
        )
    return unequal(first, other, first_lines, other_lines)


def skip_done(
    requests: Iterator[Request], num_done: int, redo_last: bool, inputs: DecodeInputs, target: str
) -> Iterator[Request]:
    """Skip the first ``num_done`` requests; with ``redo_last`` the last of them is not skipped.

    Raises DataError if there are fewer requests.
    """
    last: list[Request] = []
    count = 0
    for request in islice(requests, num_done):
        last = [request]
        count += 1
    if count < num_done:
        part = f"part {inputs.shard[0]}/{inputs.shard[1]} of " if inputs.shard else ""
        raise DataError(
            f"{target} has translations of {quantity(num_done, 'line')}, but {part}{inputs.name} "
            f"has only {quantity(count, 'line')}: name the output that was made from this input"
        )
    return chain(last if redo_last else [], requests)
