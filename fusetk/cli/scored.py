"""Texts that ``fusetk score`` reads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from fusetk.data.text import STANDARD_INPUT, Pair, read_lines, standard_input, unequal
from fusetk.errors import DataError
from fusetk.evaluation.bleu import split_words


class Text(NamedTuple):
    """A text that is scored, or scored against."""

    file: str
    words: int  # as multi-bleu counts them: between ASCII white space
    lines: Sequence[str]

    def about(self) -> dict[str, Any]:
        """For JSON: all but the lines."""
        return {"file": self.file, "words": self.words}


def read(names: Sequence[str]) -> list[Text]:
    """The texts of these files, - being standard input; raises DataError for empty ones and unless all are as long as the first."""
    if names.count("-") > 1:
        raise click.UsageError("standard input can be only one of the texts")
    found: dict[str, Text] = {}
    for name in dict.fromkeys(names):
        lines = list(standard_input() if name == "-" else read_lines(name))
        if not lines:
            raise DataError(f"{known_as(name)} is empty; there is nothing to score")
        found[name] = Text(known_as(name), sum(len(split_words(line)) for line in lines), lines)
    first = len(found[names[0]].lines)
    for name, text in found.items():
        if len(text.lines) != first:
            raise _unequal(names[0], name, first, len(text.lines))
    return [found[name] for name in names]


def known_as(name: str) -> str:
    """What messages call a file."""
    return STANDARD_INPUT if name == "-" else name


def against(hypothesis: Text, references: Sequence[Text]) -> str:
    """What was scored, and against what."""
    sides = ", ".join(f"{text.file} ({text.words} words)" for text in references)
    return f"{hypothesis.file} ({len(hypothesis.lines)} sentences, {hypothesis.words} words) against {sides}"


def _unequal(first: str, second: str, mine: int, theirs: int) -> DataError:
    if "-" in (first, second):
        return DataError(f"{known_as(first)} has {mine} lines and {known_as(second)} has {theirs}; each line needs its counterpart")
    return unequal(Pair(Path(first), Path(second)), mine, theirs)
