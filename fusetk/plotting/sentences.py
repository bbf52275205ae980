"""The sentences of ``fusetk plot-attention``, from the command line or from files."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fusetk.data.pipeline import Pipeline
from fusetk.data.text import FilePair, read_input, read_pairs
from fusetk.data.vocab import EOS, UNK
from fusetk.errors import DataError, first_names, quantity

if TYPE_CHECKING:
    from fusetk.decoding.target_scores import IdPair

MAX_NAMED = 20  # numbers or words that one warning names

BLANK = "blank"
TOO_LONG = "longer than the model's positions"
UNTRANSLATED = "no translation with the search settings of the run"


class InputPair(NamedTuple):
    """A line of the input and its translation, if the user gave one."""

    number: int  # from 1
    source: str
    target: str | None


class Sentence(NamedTuple):
    """Tokens as the model reads them, without BOS and EOS, and their ids as an ``IdPair``."""

    number: int
    source: list[str]
    target: list[str] | None  # None: to be translated by beam search
    ids: "IdPair"  # an unknown word is UNK; the target is empty as long as ``target`` is None


def command_line_pairs(sources: Sequence[str], targets: Sequence[str]) -> list[InputPair]:
    """Return the sentences of the command line.

    Raises DataError if a text has several lines or if only some translations are given.
    """
    if targets and len(targets) != len(sources):
        raise DataError(
            f"{quantity(len(sources), 'source sentence')} and "
            f"{quantity(len(targets), 'translation')} were given: give one translation for each "
            "sentence, in order, or none"
        )
    for side, texts in (("source", sources), ("target", targets)):
        for text in texts:
            if "\n" in text.rstrip("\n"):
                raise DataError(f"the {side} text has more than one line; give one sentence")
    return [
        InputPair(i + 1, source.rstrip("\n"), targets[i].rstrip("\n") if targets else None)
        for i, source in enumerate(sources)
    ]


def file_pairs(source: str, target: str | None, lines: range | None) -> Iterator[InputPair]:
    """Yield the ``lines`` (None: all) of a file and of its translation; ``-`` is standard input.

    Raises DataError if a file cannot be read, if it has fewer lines than ``lines`` requires, or if
    the two files have different numbers of lines.
    """
    pairs: Iterator[tuple[str, str | None]]
    if target is None:
        pairs = ((line, None) for line in read_input(source))
    elif "-" in (source, target):
        raise DataError("with a file of translations (-r), neither file can be standard input (-)")
    else:
        pairs = iter(read_pairs(FilePair(Path(source), Path(target))))
    number = 0
    for number, (left, right) in enumerate(pairs, 1):
        if lines is None or number in lines:
            yield InputPair(number, left, right)
        # Read two files to their ends: only then is it certain that they have equal lengths.
        if lines is not None and number >= lines.stop - 1 and target is None:
            return
    if lines is not None and number < lines.stop - 1:
        raise DataError(
            f"{source} has {quantity(number, 'line')}; --lines asks for {lines.stop - 1}"
        )


def line_range(text: str) -> range:
    """Parse ``A-B`` or ``N``, counted from 1. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", text.strip())
    first = int(match[1]) if match else 0
    last = int(match[2] or match[1]) if match else 0
    if not 1 <= first <= last:
        raise ValueError(f"{text!r} is neither a line nor a range of lines A-B, counted from 1")
    return range(first, last + 1)


class Reader:
    """Converts text to tokens and ids. Collects skipped lines and unknown words for ``notes``."""

    def __init__(self, pipeline: Pipeline, tokenized: bool, positions: int | None, strict: bool):
        """``positions``: the model's maximum. ``strict``: raise DataError for an empty sentence."""
        self.pipeline = pipeline
        self.tokenized = tokenized
        self.positions = positions
        self.strict = strict
        self.skipped: dict[str, list[int]] = {BLANK: [], TOO_LONG: [], UNTRANSLATED: []}
        self.unknown: dict[str, dict[str, None]] = {"source": {}, "target": {}}

    def __call__(self, pairs: Iterator[InputPair] | Sequence[InputPair]) -> Iterator[Sentence]:
        for pair in pairs:
            source = self._tokens("source", pair.source)
            target = None if pair.target is None else self._tokens("target", pair.target)
            if not source or target == []:
                self.skipped[BLANK].append(pair.number)
            elif self._is_too_long(source, target):
                self.skipped[TOO_LONG].append(pair.number)
            else:
                source_ids = [*self._ids("source", source), EOS]
                target_ids = [] if target is None else self._ids("target", target)
                yield Sentence(pair.number, source, target, (source_ids, target_ids))

    def with_target(self, sentence: Sentence, target: list[str]) -> Sentence:
        """Return the sentence with the model's translation, whose <unk> needs no warning."""
        ids = list(self.pipeline.target_vocab.encode(target))
        return sentence._replace(target=target, ids=(sentence.ids[0], ids))

    def _tokens(self, side: str, text: str) -> list[str]:
        words = text if self.tokenized else self.pipeline.words(side, text)
        tokens = self.pipeline.subwords(side, words)
        if self.strict and not tokens:
            raise DataError(f"the {side} sentence is empty; give one with words")
        return tokens

    def _ids(self, side: str, words: list[str]) -> list[int]:
        vocabulary = self.pipeline.vocabulary(side)
        ids = list(vocabulary.encode(words))
        unknown = [word for word, i in zip(words, ids, strict=True) if i == UNK]
        self.unknown[side] |= dict.fromkeys(unknown)
        return ids

    def _is_too_long(self, source: list[str], target: list[str] | None) -> bool:
        if self.strict or self.positions is None:
            return False
        return max(len(source), len(target or [])) + 1 > self.positions

    def notes(self) -> list[str]:
        """Return messages for the user, one a line: unknown words and skipped lines."""
        messages = [
            f"warning: these {side} tokens are unknown to the model and read as <unk>: "
            f"{first_names(list(words), MAX_NAMED, ' ')}"
            for side, words in self.unknown.items()
            if words
        ]
        for reason, numbers in self.skipped.items():
            if numbers:
                count = quantity(len(numbers), "line")
                lines = first_names([str(number) for number in numbers], MAX_NAMED, " ")
                messages.append(f"skipped {count} ({reason}): {lines}")
        return messages
