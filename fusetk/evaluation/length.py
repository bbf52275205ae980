"""Scores by the length of sentences: those longer than each bound, as in DTMT's Figure 3, or those between two bounds."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from fusetk.evaluation.metrics import Metric, Score, split_words

BOUNDS = (0, 10, 20, 30, 40, 50, 60)  # the paper's
DEFAULT = "multi-bleu"


class Row(NamedTuple):
    """Sentences of some lengths, in words."""

    fewest: int
    most: int | None = None  # None: there is no limit

    def __str__(self) -> str:
        if self.most is not None:
            return f"{self.fewest}-{self.most}" if self.most > self.fewest else str(self.most)
        return f"> {self.fewest - 1}" if self.fewest else "all"

    def has(self, length: int) -> bool:
        """Whether a sentence of this length is one of them."""
        return self.fewest <= length and (self.most is None or length <= self.most)


def bins(bounds: Sequence[int]) -> list[Row]:
    """A row up to each of the rising bounds and one beyond the last; each sentence is in one, a blank one in the first."""
    edges = [-1, *(bound for bound in bounds if bound > 0)]
    return [*(Row(low + 1, high) for low, high in pairwise(edges)), Row(edges[-1] + 1)]


def longer(bounds: Sequence[int]) -> list[Row]:
    """A row for each bound, of all sentences with more words; a blank one is in none."""
    return [Row(bound + 1) for bound in bounds]


def count_words(lines: Sequence[str]) -> list[int]:
    """Words of each line, between ASCII white space."""
    return [len(split_words(line)) for line in lines]


def grouped(rows: Sequence[Row], lengths: Sequence[int]) -> list[list[int]]:
    """The places of the sentences of each row."""
    return [[i for i, length in enumerate(lengths) if row.has(length)] for row in rows]


def score_groups(
    metric: Metric, hypotheses: Sequence[str], groups: Sequence[Sequence[int]]
) -> list[Score | None]:
    """The scores of the lines at the places of each group, None for a group without any."""
    rows = metric.count(hypotheses)
    return [metric.score([rows[i] for i in group]) if group else None for group in groups]
