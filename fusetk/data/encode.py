"""Conversion of lines of words to ids."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusetk.data.bpe_dropout import DropoutBPE
from fusetk.data.cache import WordCache
from fusetk.data.config import BPEConfig
from fusetk.data.corpus import flat
from fusetk.data.pipeline import SIDES, Pipeline
from fusetk.data.preprocess import LinePair


class SideEncoder:
    """Converts lines of words of a side to ids: without dropout, and in random segmentations."""

    def __init__(self, pipeline: Pipeline, side: str, dropout: BPEConfig | None):
        encode = pipeline.vocabulary(side).encode
        self.side = side
        self.ids = WordCache(lambda word: encode(pipeline.subwords(side, word)))
        self.dropout = dropout
        if dropout:
            self.bpe = DropoutBPE(pipeline.bpe[side], dropout.dropout)
            self.ids_of_subwords = WordCache(lambda subwords: encode(subwords.split(" ")))

    def __call__(self, words: list[str], line: int) -> list[list[int]]:
        """Return the ids of each segmentation of a line, first those without dropout.

        ``line`` is the number of the line, which determines the random numbers.
        """
        ids = self.ids
        segmentations = [[i for word in words for i in ids[word]]]
        if self.dropout:
            ids = self.ids_of_subwords
            for number in range(1, self.dropout.segmentations + 1):
                self.bpe.start(f"{self.dropout.seed} {number} {self.side} {line}")
                segmentations.append([i for word in words for i in ids[self.bpe.word(word)]])
        return segmentations


class NumberedLines(NamedTuple):
    """Consecutive pairs of lines."""

    first: int  # number of the first pair
    pairs: list[LinePair]


class DroppedPair(NamedTuple):
    """A pair with too many subwords."""

    place: int  # in its chunk
    tokens: list[int]  # for each side, the number of subwords without dropout, EOS included


# For each side: ids, lengths and number of words
EncodedLines = list[tuple[NDArray[np.uint32], NDArray[np.int64], int]]


class Encoder:
    """Converts pairs of lines of words to ids, and drops the pairs with too many subwords.

    ``text`` is the folder of the pipeline, and ``longest`` the largest number of subwords. With
    ``dropout``, each pair has several segmentations. It is dropped if one of them is too long.
    ``known`` maps each side to words and their subwords, which are separated by spaces.
    """

    def __init__(
        self,
        text: Path,
        longest: int | None,
        dropout: BPEConfig | None,
        known: Mapping[str, Mapping[str, str]],
    ):
        pipeline = Pipeline.load(text)
        for side, subwords in known.items():
            pipeline.bpe[side].cache.update(subwords)
        self.sides = [SideEncoder(pipeline, side, dropout) for side in SIDES]
        self.longest = longest
        self.segmentations = 1 + (dropout.segmentations if dropout else 0)

    def __call__(self, chunk: NumberedLines) -> tuple[list[EncodedLines], list[DroppedPair]]:
        """Return the lines in each segmentation, and the dropped pairs."""
        segmentations: list[list[list[list[int]]]] = [[[], []] for _ in range(self.segmentations)]
        words = [0, 0]
        dropped = []
        for index, pair in enumerate(chunk.pairs):
            split = [line.split(" ") if line else [] for line in pair]
            # For each side, the ids in each segmentation.
            ids = [
                encode(line, chunk.first + index)
                for line, encode in zip(split, self.sides, strict=True)
            ]
            if self.longest is not None and max(len(row) for s in ids for row in s) > self.longest:
                dropped.append(DroppedPair(index, [len(rows[0]) + 1 for rows in ids]))
                continue
            for side in (0, 1):
                words[side] += len(split[side])
                for row, segmentation in zip(ids[side], segmentations, strict=True):
                    segmentation[side].append(row)
        return [
            [(*flat(row), count) for row, count in zip(segmentation, words, strict=True)]
            for segmentation in segmentations
        ], dropped
