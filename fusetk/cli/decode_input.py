"""What ``fusetk decode`` reads: lines of a file or of standard input, and what goes with each of them."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fusetk.data.text import STANDARD_INPUT, Pair, decode_lines, read_lines, standard_input, unequal
from fusetk.errors import ConfigError, DataError

if TYPE_CHECKING:
    from fusetk.decoding.translate import Request


class Shard(click.ParamType):
    """``I/N`` as a pair of numbers."""

    name = "I/N"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[int, int]:
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", value)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            self.fail(
                f"{value!r} is not I/N, the I-th of N parts, I from 1 to N", parameter, context
            )
        return int(match[1]), int(match[2])


class Asked(NamedTuple):
    """What is to be read."""

    source: str  # a file, or - for standard input
    prefixes: str | None  # files in step with it
    constraints: str | None
    shard: tuple[int, int] | None

    @property
    def name(self) -> str:
        return STANDARD_INPUT if self.source == "-" else self.source

    @property
    def beside(self) -> list[str]:
        """The files that are read in step with the source."""
        return [path for path in (self.prefixes, self.constraints) if path is not None]

    @property
    def files(self) -> list[Path]:
        """All that can be opened, looked at, and opened again."""
        return [
            Path(path)
            for path in (self.source, *self.beside)
            if path != "-" and not _streams(Path(path))
        ]


def part(asked: Asked) -> tuple[int, int | None]:
    """The first line that is wanted, from 0, and the line after the last; None is the end.

    Raises ConfigError where a part is wanted of what cannot be read twice, DataError where a file beside it has other lines or where
    standard input is to be read and is closed.
    """
    if "-" in (asked.source, *asked.beside):
        standard_input()
    if asked.shard is None:
        return 0, None
    from fusetk.data.manifest import count_lines

    for path in (asked.source, *asked.beside):
        if path == "-" or _streams(Path(path)):
            name = STANDARD_INPUT if path == "-" else path
            raise ConfigError(
                f"--shard counts lines before it reads them, and {name} can be read only once: name a file, plain or .gz"
            )
    lines = count_lines(Path(asked.source))
    for path in asked.beside:
        if (others := count_lines(Path(path))) != lines:
            raise unequal(Pair(Path(asked.source), Path(path)), lines, others)
    index, count = asked.shard
    return (index - 1) * lines // count, index * lines // count


def _streams(path: Path) -> bool:
    return path.exists() and not (path.is_file() or path.is_dir())


def requests(
    asked: Asked, start: int, end: int | None
) -> tuple[Iterator["Request"], Callable[[], bool]]:
    """Lines from ``start`` to ``end`` with what goes with them, and whether another is there without waiting for it long."""
    from fusetk.decoding.translate import Request

    lines, ready = lines_of(asked.source)
    texts = [lines, *map(read_lines, asked.beside)]

    def made() -> Iterator[Request]:
        for line, *others in islice(in_step([asked.name, *asked.beside], texts), start, end):
            prefix = others[0] if asked.prefixes else ""
            phrases = (
                [phrase for phrase in others[-1].split("\t") if phrase.strip()]
                if asked.constraints
                else []
            )
            yield Request(line, prefix, tuple(phrases))

    return made(), ready


def lines_of(source: str) -> tuple[Iterator[str], Callable[[], bool]]:
    """The lines of a file, or of standard input for -, and whether another is there without waiting for it long."""
    from fusetk.decoding.stream import Arrivals

    if source != "-":
        return read_lines(source), lambda: True
    try:
        sys.stdin.fileno()
    except OSError:  # not of the operating system: all is there
        return decode_lines(sys.stdin.buffer, STANDARD_INPUT), lambda: True
    arrivals = Arrivals(sys.stdin.buffer)
    return decode_lines(arrivals, STANDARD_INPUT), arrivals.ready


def in_step(names: Sequence[str], texts: Sequence[Iterator[str]]) -> Iterator[list[str]]:
    """A line of each text; raises DataError, after the lines that all have, when one has fewer or more than the first."""
    count = 0
    while True:
        found = [next(text, None) for text in texts]
        lines = [line for line in found if line is not None]
        if len(lines) < len(texts):
            break
        count += 1
        yield lines
    for i in range(1, len(texts)):
        if (found[0] is None) != (found[i] is None):
            raise _unequal(
                names[0], names[i], *(_length(names[k], count, found[k], texts[k]) for k in (0, i))
            )


def _length(name: str, count: int, line: str | None, rest: Iterator[str]) -> int | None:
    """How many lines a text has in all; None for standard input that goes on, for who knows how long."""
    if line is not None and name == STANDARD_INPUT:
        return None
    return count + (line is not None) + sum(1 for _ in rest)


def _unequal(source: str, other: str, lines: int | None, others: int | None) -> DataError:
    if lines is None or others is None:
        return DataError(
            f"{other} has {others} lines and {source} has more: give it a line for each, blank for none"
        )
    return unequal(Pair(Path(source), Path(other)), lines, others)


def without(
    found: Iterator["Request"], done: int, again: bool, asked: Asked, target: str
) -> Iterator["Request"]:
    """The lines after those that are ``done``, of which the last is to be done ``again`` or not.

    Raises DataError when there are not so many lines.
    """
    seen: list[Request] = []
    count = 0
    for request in islice(found, done):
        seen = [request]
        count += 1
    if count < done:
        which = (
            f"part {asked.shard[0]}/{asked.shard[1]} of {asked.name}" if asked.shard else asked.name
        )
        raise DataError(
            f"{target} has translations of {done:,} lines and {which} only {count:,} lines: name the output that was made from it"
        )
    return chain(seen if again else [], found)
