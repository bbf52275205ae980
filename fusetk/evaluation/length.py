"""Scores by sentence length: in bins, or above each bound as in DTMT's Figure 3."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from fusetk.evaluation.metric import Metric, Score, score_of, statistics_of
from fusetk.evaluation.multi_bleu import split_words
from fusetk.evaluation.texts import ScoredTexts

BOUNDS = (0, 10, 20, 30, 40, 50, 60)  # as in DTMT's Figure 3
DEFAULT_METRIC = "multi-bleu"


class LengthRange(NamedTuple):
    """A range of sentence lengths in words, both ends included."""

    fewest: int
    most: int | None = None  # None: no limit

    def __str__(self) -> str:
        if self.most is None:
            return f"> {self.fewest - 1}" if self.fewest else "all"
        return f"{self.fewest}-{self.most}" if self.most > self.fewest else str(self.most)

    def contains(self, length: int) -> bool:
        """Whether a sentence of this length is in the range."""
        return self.fewest <= length and (self.most is None or length <= self.most)


class LengthTable(NamedTuple):
    """Scores of all systems by sentence length."""

    metric: str
    signature: str | None  # None if no range has a sentence
    texts: ScoredTexts
    ranges: Sequence[LengthRange]
    sentences: Sequence[int]  # in each range
    scores: Mapping[str, Sequence[float | None]]  # by system, one for each range
    blank: int  # lines without words in ``texts.length_text``

    def as_dict(self) -> dict[str, Any]:
        """Return the table for JSON."""
        systems = self.texts.systems.items()
        return {
            "metric": self.metric,
            "signature": self.signature,
            "sentences": len(self.texts.length_text.lines),
            "lengths": {
                "of": "source" if self.texts.source else "reference",
                **self.texts.length_text.as_dict(),
                "blank": self.blank,
            },
            "systems": [{"name": name, **text.as_dict()} for name, text in systems],
            "references": [text.as_dict() for text in self.texts.references],
            "rows": [
                {
                    **length_range._asdict(),
                    "sentences": self.sentences[i],
                    "scores": {name: values[i] for name, values in self.scores.items()},
                }
                for i, length_range in enumerate(self.ranges)
            ],
        }


def length_bins(bounds: Sequence[int]) -> list[LengthRange]:
    """Return a range that ends at each of the ascending bounds, and a last one without limit.

    Bounds below 1 are ignored. Every sentence is in one range. Blank lines are in the first one.
    """
    edges = [-1, *(bound for bound in bounds if bound > 0)]
    ranges = [LengthRange(low + 1, high) for low, high in pairwise(edges)]
    return [*ranges, LengthRange(edges[-1] + 1)]


def ranges_above(bounds: Sequence[int]) -> list[LengthRange]:
    """Return a range of all lengths above each bound; bounds of at least 0 exclude blank lines."""
    return [LengthRange(bound + 1) for bound in bounds]


def word_counts(lines: Sequence[str]) -> list[int]:
    """Return the number of words of each line, split at ASCII white space."""
    return [len(split_words(line)) for line in lines]


def group_by_range(ranges: Sequence[LengthRange], lengths: Sequence[int]) -> list[list[int]]:
    """Return the indices of the sentences in each range."""
    return [
        [i for i, length in enumerate(lengths) if length_range.contains(length)]
        for length_range in ranges
    ]


def score_groups(
    metric: Metric, hypotheses: Sequence[str], groups: Sequence[Sequence[int]]
) -> list[Score | None]:
    """Return the score of the lines of each group, None for an empty group."""
    rows = statistics_of(metric, hypotheses)
    return [score_of(metric, [rows[i] for i in group]) if group else None for group in groups]


def score_by_length(
    texts: ScoredTexts, metric: Metric, ranges: Sequence[LengthRange]
) -> LengthTable:
    """Score all systems on the sentences of each range of lengths.

    Lengths are those of the source, or of the first reference if the source was not read.
    """
    lengths = word_counts(texts.length_text.lines)
    groups = group_by_range(ranges, lengths)
    results = {
        name: score_groups(metric, text.lines, groups) for name, text in texts.systems.items()
    }
    signatures = [score.signature for scores in results.values() for score in scores if score]
    return LengthTable(
        metric=metric.name,
        signature=signatures[0] if signatures else None,
        texts=texts,
        ranges=ranges,
        sentences=[len(group) for group in groups],
        scores={
            name: [score.value if score else None for score in scores]
            for name, scores in results.items()
        },
        blank=lengths.count(0),
    )
