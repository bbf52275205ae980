"""The interface of corpus metrics.

A metric computes one row of statistics for each line, and the sum of the rows determines the score.
So every line is counted once, and parts of a text (``length``) and random samples of it
(``significance``) are scored from the rows. A metric that is the mean of sentence scores, such as a
learned metric, has rows (score, 1).

To add a metric to fusetk, write a subclass of ``Metric`` in a file and add it to ``METRICS`` in
``metrics``. A subclass in another package is named `package.module:Name` and needs no entry.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    import numpy as np

from fusetk.errors import DataError, quantity

StatisticsRow = Sequence[float]


@dataclass(frozen=True)
class Score:
    """The score of a hypothesis by one metric."""

    metric: str  # the name of the metric: chrf, my_metric:ExactMatch
    name: str  # the usual name of the metric: BLEU, chrF2, TER
    value: float  # 0 to 100; TER may exceed 100
    details: str  # the parts of the value, such as precisions; may be empty
    signature: str  # all settings that are needed to reproduce the value
    sentences: int
    hypothesis_length: int | None = None  # in the metric's tokens; None if it counts no tokens
    reference_length: float | None = None
    brevity_penalty: float | None = None

    def __str__(self) -> str:
        return f"{self.name} = {self.value:.2f}" + (f", {self.details}" if self.details else "")


class MetricOptions(NamedTuple):
    """Options of all metrics. A metric ignores the options that it does not have."""

    lowercase: bool = False  # lower-case both sides first; TER always ignores case
    tokenize: str | None = None  # sacreBLEU's tokeniser; None is its default, 13a
    compound_split: bool = False  # split words at hyphens first
    comet_model: str | None = None  # name or file of COMET's model


class Metric(ABC):
    """A metric with its references, options and source.

    A metric is built with the references, ``references[k][i]`` for line i of reference k, the
    options, and the lines of the source if they are known. An instance may override the class
    attributes, because they can depend on the options.
    """

    name: str  # in METRICS; a metric outside fusetk gets the name that the user gave
    case_sensitive: bool = True
    # True: tokenises raw text; False: expects tokenised text; None: accepts both kinds of text.
    tokenizes: bool | None = None
    needs_source: ClassVar[bool] = False
    lower_is_better: ClassVar[bool] = False  # then a copy of a reference has the value 0
    options: ClassVar[Collection[str]] = ()  # its fields of MetricOptions, besides lowercase

    @abstractmethod
    def __init__(
        self,
        references: Sequence[Sequence[str]],
        options: MetricOptions,
        source: Sequence[str] | None = None,
    ) -> None: ...

    @abstractmethod
    def statistics(self, hypotheses: Sequence[str]) -> list[StatisticsRow]:
        """Return one row for each line; all rows have the same length.

        The number of lines must be that of each reference.
        """

    @abstractmethod
    def value(self, totals: StatisticsRow) -> float:
        """Return the value of the score for the sum of the rows of some lines."""

    def values(self, totals: "np.ndarray") -> "np.ndarray":
        """Return the value for each row of ``totals``, of shape (samples, statistics).

        It may differ from ``value`` by rounding. Subclasses can make it faster.
        """
        import numpy as np

        return np.array([self.value(row) for row in totals], dtype=np.float64)

    @abstractmethod
    def score(self, rows: Sequence[StatisticsRow]) -> Score:
        """Return the score of the lines with these rows; at least one row is required."""


def statistics_of(metric: Metric, hypotheses: Sequence[str]) -> list[StatisticsRow]:
    """Return the statistics of each line.

    Raises DataError if the metric, which may be a class outside fusetk, does not return a row of
    numbers for each line, or if the rows have different lengths.
    """
    rows: Any = metric.statistics(hypotheses)
    rows = list(rows) if isinstance(rows, Iterable) else rows
    if problem := _problem_of_rows(rows, len(hypotheses)):
        raise DataError(
            f"the metric {metric.name} returned {problem} as statistics: correct its method "
            "statistics so that it returns a row of numbers for each line, all of the same length"
        )
    return rows


def _problem_of_rows(rows: Any, lines: int) -> str | None:
    """Return what is wrong with the statistics of some lines; None if nothing is."""
    if not isinstance(rows, list):
        return f"{type(rows).__name__} instead of a list of rows"
    if len(rows) != lines:
        return f"{quantity(len(rows), 'row')} for {quantity(lines, 'line')}"
    try:
        lengths = {len(row) for row in rows}
    except TypeError:
        return "values instead of rows"
    if not all(_is_number(value) for row in rows for value in row):
        return "rows with values that are not numbers"
    return "rows of different lengths" if len(lengths) > 1 else None


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):  # a whole number may be too large for a float
        return False
    return not isinstance(value, str)


def score_of(metric: Metric, rows: Sequence[StatisticsRow]) -> Score:
    """Return the score of the lines with these rows, under the name of the metric.

    The value may be NaN. Raises DataError if the metric, which may be a class outside fusetk, does
    not return a ``Score`` whose value is a number that a float can store.
    """
    score: Any = metric.score(rows)
    if not isinstance(score, Score):
        raise DataError(
            f"the method score of the metric {metric.name} returned {type(score).__name__}: return "
            "a fusetk.evaluation.metric.Score"
        )
    if not _is_number(score.value):
        raise DataError(
            f"the score of the metric {metric.name} is {shortened(score.value)}, not a number that "
            "a float can store: correct its method value or score"
        )
    value = float(score.value)  # JSON cannot store numbers of NumPy
    return replace(score, metric=metric.name, value=value)
