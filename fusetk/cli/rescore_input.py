"""What ``fusetk rescore`` reads: pairs of lines, n-best lists, and translations with their tokens."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fusetk.cli.decode_input import in_step, lines_of
from fusetk.data.text import STANDARD_INPUT
from fusetk.data.vocab import EOS
from fusetk.errors import DataError
from fusetk.evaluation.texts import display_name

if TYPE_CHECKING:
    from fusetk.evaluation.rescore import Pair, Rescorer

Encode = Callable[[str, str], list[int]]  # side, line

BAR = "|||"
GIVEN = {
    "": (2, "give SRC and TGT, or neither of them for lines with a tab on standard input"),
    "--tsv": (0, "with --tsv give no other file"),
    "--n-best": (1, "with --n-best give the source text SRC, and no other file"),
    "--json-lines": (0, "with --json-lines give no other file: the source tokens are in it"),
}


class Input(NamedTuple):
    """What is read: files, - being standard input."""

    files: tuple[str, ...] = ()  # source and target, or the source of an n-best list
    tsv: str | None = None
    n_best: str | None = None
    json_lines: str | None = None

    @property
    def names(self) -> list[str]:
        return [
            name
            for name in (*self.files, self.tsv, self.n_best, self.json_lines)
            if name is not None
        ]

    def checked(self) -> "Input":
        """The same, with standard input where nothing is named; raises UsageError for what is not one input."""
        options = {"--tsv": self.tsv, "--n-best": self.n_best, "--json-lines": self.json_lines}
        given = [option for option, name in options.items() if name is not None]
        if len(given) > 1:
            raise click.UsageError(f"{given[0]} and {given[1]} are two inputs: give one of them")
        if not self.names:
            return Input(tsv="-")
        count, said = GIVEN["".join(given)]
        if len(self.files) != count:
            raise click.UsageError(said)
        if self.names.count("-") > 1:
            raise click.UsageError("standard input can be only one of the files")
        return self


class Row(NamedTuple):
    """A line of the input, and what is to be scored of it."""

    content: Any  # None for a pair, the fields of a line of an n-best list, or an object
    pairs: "list[Pair | None]"


def rows(
    asked: Input, rescorer: "Rescorer", tokenized: bool, feature: str
) -> tuple[Iterator[Row], Callable[[], bool]]:
    """Line after line, and whether another is there without waiting for it long.

    ``feature`` is what is to be added to lists and objects. Raises DataError, with the line, after the lines before.
    """
    read = [lines_of(name) for name in asked.names]
    ready = next(
        (ready for name, (_, ready) in zip(asked.names, read, strict=True) if name == "-"),
        lambda: True,
    )
    names, texts = list(map(display_name, asked.names)), [text for text, _ in read]
    encode = partial(rescorer.translator.encode, tokenized=tokenized)
    if asked.json_lines is not None:
        return _objects(names[0], texts[0], rescorer, feature), ready
    if asked.n_best is not None:
        return _n_best(names, texts, encode, rescorer, feature), ready
    pairs = _split(names[0], texts[0]) if asked.tsv is not None else _in_step(names, texts)
    return _pairs(" and ".join(names), pairs, encode, rescorer), ready


@contextmanager
def _at(name: str, number: int) -> Iterator[None]:
    """Errors are of this line."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{name}, line {number}: {error}") from None


def _pairs(
    name: str, pairs: Iterator[Sequence[str]], encode: Encode, rescorer: "Rescorer"
) -> Iterator[Row]:
    for number, (source, target) in enumerate(pairs, 1):
        with _at(name, number):
            pair = rescorer.pair(encode("source", source), encode("target", target))
        yield Row(None, [pair])


def _split(name: str, lines: Iterator[str]) -> Iterator[Sequence[str]]:
    """The two sides of lines with a tab."""
    for number, line in enumerate(lines, 1):
        fields = line.split("\t")
        if len(fields) != 2 and line.strip():
            raise DataError(
                f"{name}, line {number}: there are {len(fields) - 1} tabs; give a source, one tab and a target"
            )
        yield fields if len(fields) == 2 else ("", "")


def _in_step(names: Sequence[str], texts: Sequence[Iterator[str]]) -> Iterator[Sequence[str]]:
    """The lines of two files; raises DataError when one has more."""
    turn = -1 if names[1] == STANDARD_INPUT else 1  # what may go on for ever comes first
    for pair in in_step(names[::turn], texts[::turn]):
        yield pair[::turn]


def _n_best(
    names: Sequence[str],
    texts: Sequence[Iterator[str]],
    encode: Encode,
    rescorer: "Rescorer",
    feature: str,
) -> Iterator[Row]:
    """A Moses n-best list, the second text. Of its source, the first, a line is read when its first translation comes."""
    (source, name), (lines, entries) = names, texts
    read, ids = 0, list[int]()
    for number, entry in enumerate(entries, 1):
        with _at(name, number):
            fields = entry.split(BAR)
            match = re.fullmatch(r"\s*([0-9]{1,12})\s*", fields[0])
            if len(fields) < 3 or not match:
                raise DataError(f"{entry[:40]!r} is not `ID ||| text ||| features ||| score`")
            wanted = int(match[1]) + 1
            if wanted < read:
                raise DataError(
                    f"ID {wanted - 1} stands behind ID {read - 1}; put the list in the order of its IDs"
                )
            if wanted > read:
                skipped = list(islice(lines, wanted - read))
                read += len(skipped)
                if read < wanted:
                    raise DataError(
                        f"there is no line for ID {wanted - 1}, counted from 0, in {source}, which has {read} lines"
                    )
                ids = rescorer.translator.cut([*encode("source", skipped[-1]), EOS], read)[:-1]
            pair = rescorer.pair(ids, encode("target", fields[1].strip()))
            if pair is None:
                raise DataError(
                    f"line {read} of {source}, its source, is blank, so that there is no score"
                )
            if f"{feature}=" in fields[2].split():
                raise _taken(feature)
        yield Row(fields, [pair])


def _objects(name: str, lines: Iterator[str], rescorer: "Rescorer", feature: str) -> Iterator[Row]:
    """What ``fusetk decode --json`` prints; of a source that is too long, what was translated is read."""
    pipeline, longest = rescorer.translator.pipeline, rescorer.translator.longest
    for number, line in enumerate(lines, 1):
        with _at(name, number):
            try:
                found = json.loads(line)
                source = pipeline.source_vocab.encode(_tokens(found["source_tokens"]))[:longest]
                targets = [
                    pipeline.target_vocab.encode(_tokens(one["tokens"]))
                    for one in found["translations"]
                ]
            except (ValueError, KeyError, TypeError) as error:
                reason = f"there is no {error}" if isinstance(error, KeyError) else str(error)
                raise DataError(
                    f"this is not what `fusetk decode --json` prints ({reason})"
                ) from None
            if any(feature in one for one in found["translations"]):
                raise _taken(feature)
            pairs = [rescorer.pair(source, target) for target in targets]
        yield Row(found, pairs)


def _tokens(found: Any) -> list[str]:
    if not isinstance(found, list) or not all(isinstance(token, str) for token in found):
        raise TypeError(f"{json.dumps(found)[:40]} is no list of tokens")
    return found


def _taken(feature: str) -> DataError:
    return DataError(f"there is a {feature} already; choose another name by --feature")
