"""Replacement of unknown words in a translation by the source words that they are aligned to.

The sources are Jean et al. 2015, section 3.3, and Luong et al. 2015.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from fusetk.data import bpe
from fusetk.data.text import read_lines
from fusetk.data.vocab import SPECIAL, UNK
from fusetk.errors import DataError


class Replacement:
    """Replaces an unknown word by its source word, or by the dictionary entry of that word."""

    def __init__(self, dictionary: Mapping[str, str] | None = None, subwords: bool = True):
        """``dictionary`` maps source words, as the pipeline makes them, to target words.

        With ``subwords=False`` every token is a word.
        """
        self.dictionary = dictionary or {}
        self.subwords = subwords

    def __call__(
        self, source: Sequence[str], target: Sequence[str], pairs: Iterable[tuple[int, int]]
    ) -> list[str]:
        """Return the target tokens with replacements.

        ``pairs`` are aligned tokens (source, target), counted from 0. A target word with an unknown
        token is replaced completely, by one token that is a word. Adjacent unknown target words
        that are aligned to the same source word are parts of it, so one word replaces them. An
        unknown word that is not aligned does not change.
        """
        if SPECIAL[UNK] not in target:
            return list(target)
        # If a target token is aligned to several source tokens, the first counts.
        source_of = {target_token: i for i, target_token in sorted(pairs, reverse=True)}
        source_words = self._words(source)
        replaced: list[str] = []
        previous: range | None = None  # the source word that was just copied
        for word in self._words(target):
            origins = [source_of[i] for i in word if target[i] == SPECIAL[UNK] and i in source_of]
            if not origins:
                replaced += target[word.start : word.stop]
                previous = None
                continue
            source_word = next(tokens for tokens in source_words if origins[0] in tokens)
            if source_word != previous:
                original = source[origins[0]]
                if self.subwords:
                    original = bpe.join(" ".join(source[source_word.start : source_word.stop]))
                replaced.append(self.dictionary.get(original, original))
            previous = source_word
        return replaced

    def _words(self, tokens: Sequence[str]) -> list[range]:
        """Return the indices of the tokens of each word."""
        starts = bpe.word_starts(tokens) if self.subwords else range(len(tokens))
        return [range(start, end) for start, end in pairwise([*starts, len(tokens)])]


def read_dictionary(path: Path | str) -> dict[str, str]:
    """Read lines of a source word, a tab and a target word, plain or .gz.

    If several lines have the same source word, the first counts. Raises DataError, with the line
    number, for any other line.
    """
    dictionary: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), 1):
        source, tab, target = line.partition("\t")
        source = source.strip(" ")
        if not tab or not target.strip() or "\t" in target or " " in source or not source.strip():
            raise DataError(
                f"{path}, line {number}: {line[:40]!r} is not a source word, a tab and a target "
                "word"
            )
        dictionary.setdefault(source, target.strip())
    return dictionary
