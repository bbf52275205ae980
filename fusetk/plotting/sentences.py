"""Sentences to draw: from the command line or from files, as tokens and ids."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fusetk.data.pipeline import Pipeline
from fusetk.data.text import Pair, read_lines, read_pairs, standard_input
from fusetk.data.vocab import UNK
from fusetk.errors import DataError

SHOWN = 20  # of the numbers and words that a warning names


class Text(NamedTuple):
    """A line of the input and its translation, if one is given."""

    number: int  # from 1
    source: str
    target: str | None


class Sentence(NamedTuple):
    """Tokens as the model sees them, without begin and end marks. An unknown word is UNK in the ids."""

    number: int
    source: list[str]
    target: list[str] | None  # None: to be found by search
    source_ids: list[int]
    target_ids: list[int]


def given(sources: Sequence[str], targets: Sequence[str]) -> list[Text]:
    """Sentences of the command line; raises DataError when one has several lines, or when translations are missing."""
    if targets and len(targets) != len(sources):
        raise DataError(
            f"there are {len(sources)} source sentences and {len(targets)} translations: give one for each, in order, or none"
        )
    for side, texts in (("source", sources), ("target", targets)):
        for text in texts:
            if "\n" in text.rstrip("\n"):
                raise DataError(f"the {side} text has more than one line; give one sentence")
    return [
        Text(i + 1, source.rstrip("\n"), targets[i].rstrip("\n") if targets else None)
        for i, source in enumerate(sources)
    ]


def read(source: str, target: str | None, lines: range | None) -> Iterator[Text]:
    """The ``lines`` (None: all) of a file, - being standard input, and of its translation.

    Raises DataError where the files cannot be read, have not as many lines as are asked for, or differ in length.
    """
    number = 0
    pairs: Iterator[tuple[str, str | None]]
    if target is not None:
        if "-" in (source, target):
            raise DataError(
                "with a file of translations the source must be a file too: neither can be standard input"
            )
        pairs = iter(read_pairs(Pair(Path(source), Path(target))))
    else:
        pairs = (
            (line, None) for line in (standard_input() if source == "-" else read_lines(source))
        )
    for number, (left, right) in enumerate(pairs, 1):
        if lines is None or number in lines:
            yield Text(number, left, right)
        if lines is not None and number >= lines.stop - 1 and target is None:
            return  # a pair of files is read to the end: they may be out of step
    if lines is not None and number < lines.stop - 1:
        raise DataError(f"{source} has {number} lines; --lines asks for {lines.stop - 1}")


def line_range(text: str) -> range:
    """``A-B`` or ``N``, counted from 1; raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        raise ValueError(f"{text!r} is neither a line nor a range of lines A-B, counted from 1")
    return range(first, last + 1)


class Reader:
    """Text to tokens and ids. Notes what it passes over and what the model does not know, for ``warn``."""

    def __init__(self, pipeline: Pipeline, tokenized: bool, positions: int | None, strict: bool):
        """``positions`` that the model has. ``strict`` passes over nothing: it raises DataError for a sentence that is empty."""
        self.pipeline, self.tokenized, self.positions, self.strict = (
            pipeline,
            tokenized,
            positions,
            strict,
        )
        self.passed_over: dict[str, list[int]] = {
            "blank": [],
            "longer than the model's positions": [],
        }
        self.unknown: dict[str, dict[str, None]] = {"source": {}, "target": {}}

    def __call__(self, texts: Iterator[Text] | Sequence[Text]) -> Iterator[Sentence]:
        for text in texts:
            source = self._tokens("source", text.source)
            target = None if text.target is None else self._tokens("target", text.target)
            if source and target != [] and not self._too_long(text.number, source, target):
                source_ids = self._ids("source", source)
                yield Sentence(
                    text.number,
                    source,
                    target,
                    source_ids,
                    [] if target is None else self._ids("target", target),
                )
            elif not source or target == []:
                self.passed_over["blank"].append(text.number)

    def found(self, sentence: Sentence, target: list[str]) -> Sentence:
        """A sentence with the translation that was found for it."""
        return sentence._replace(target=target, target_ids=self._ids("target", target))

    def _tokens(self, side: str, text: str) -> list[str]:
        found = self.pipeline.subwords(
            side, text if self.tokenized else self.pipeline.words(side, text)
        )
        if self.strict and not found:
            raise DataError(f"the {side} sentence is empty; give one with words")
        return found

    def _ids(self, side: str, words: list[str]) -> list[int]:
        vocabulary = self.pipeline.source_vocab if side == "source" else self.pipeline.target_vocab
        ids = list(vocabulary.encode(words))
        self.unknown[side] |= dict.fromkeys(
            word for word, i in zip(words, ids, strict=True) if i == UNK
        )
        return ids

    def _too_long(self, number: int, source: list[str], target: list[str] | None) -> bool:
        longest = max(len(source), len(target or []))
        if self.strict or self.positions is None or longest + 1 <= self.positions:
            return False
        self.passed_over["longer than the model's positions"].append(number)
        return True

    def notes(self) -> list[str]:
        """What the user should know, a line each."""
        found = [
            f"warning: the model reads <unk> for what it does not know on the {side} side: {_some(list(words))}"
            for side, words in self.unknown.items()
            if words
        ]
        for reason, numbers in self.passed_over.items():
            if numbers:
                lines = _some([str(number) for number in numbers])
                found.append(
                    f"passed over {len(numbers)} line{'s' if len(numbers) > 1 else ''} ({reason}): {lines}"
                )
        return found


def _some(words: Sequence[str]) -> str:
    more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return " ".join(words[:SHOWN]) + more
