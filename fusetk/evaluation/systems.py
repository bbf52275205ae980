"""Scores of several systems by one metric, with significance tests against the first system."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fusetk.evaluation.metric import Metric, Score
from fusetk.evaluation.significance import (
    FEW_LINES,
    Sampling,
    SignificanceResult,
    compare_systems,
)
from fusetk.evaluation.texts import ScoredText


class SystemScores(NamedTuple):
    """The scores of all systems by one metric, by the system's name."""

    scores: Mapping[str, Score]
    tests: Mapping[str, SignificanceResult] | None = None

    @property
    def first(self) -> Score:
        """The score of the first system, with which the others are compared."""
        return next(iter(self.scores.values()))

    def difference(self, system: str) -> float:
        """Return the score of a system minus the score of the first system."""
        return self.scores[system].value - self.first.value


def score_systems(
    metric: Metric, systems: Mapping[str, ScoredText], sampling: Sampling | None
) -> SystemScores:
    """Score all systems by one metric; with ``sampling``, test them against the first one."""
    statistics = {name: metric.statistics(text.lines) for name, text in systems.items()}
    scores = {name: metric.score(rows) for name, rows in statistics.items()}
    tests = compare_systems(metric, statistics, sampling) if sampling else None
    return SystemScores(scores, tests)


def few_lines_warnings(columns: Sequence[SystemScores]) -> list[str]:
    """Return a warning for each test of two systems that differ in few lines only."""
    warnings = []
    for column in columns:
        first = next(iter(column.scores))
        for name, result in (column.tests or {}).items():
            if result.differ is not None and 0 < result.differ < FEW_LINES:
                lines = "1 line" if result.differ == 1 else f"{result.differ} lines"
                warnings.append(
                    f"{column.first.metric}: {name} and {first} differ in {lines}; "
                    "with so few lines, p is too small"
                )
    return warnings
