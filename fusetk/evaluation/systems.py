"""Scores of several systems by one metric, with significance tests against the first system."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, NamedTuple

from fusetk.errors import quantity
from fusetk.evaluation.metric import Metric, MetricOptions, Score, score_of, statistics_of
from fusetk.evaluation.metrics import DEFAULT_METRICS, METRICS, make_metrics
from fusetk.evaluation.significance import (
    FEW_LINES,
    Sampling,
    SignificanceResult,
    compare_systems,
)
from fusetk.evaluation.texts import (
    ScoredText,
    ScoredTexts,
    ignored_options,
    read_texts,
    text_warnings,
)

ALL = "all"  # names all metrics


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

    def as_dict(self, system: str) -> dict[str, Any]:
        """Return the score and the test result of a system, for JSON."""
        test = None
        if self.tests:
            test = {"difference": self.difference(system), **self.tests[system]._asdict()}
        return {**asdict(self.scores[system]), "test": test}


class ScoredSystems(NamedTuple):
    """The scores of all systems by all metrics."""

    texts: ScoredTexts
    columns: list[SystemScores]  # one for each metric
    sampling: Sampling | None  # of the tests
    warnings: list[str]

    @property
    def first_scores(self) -> list[Score]:
        """The scores of the first system."""
        return [column.first for column in self.columns]

    @property
    def test(self) -> str:
        """The description of the significance test; there must be a ``sampling``."""
        return f"{self.sampling}, sacrebleu {version('sacrebleu')}"

    def single_as_dict(self) -> dict[str, Any]:
        """Return the scores of the first system, for JSON."""
        return {
            "sentences": len(self.texts.first.lines),
            "hypothesis": self.texts.first.as_dict(),
            "references": [text.as_dict() for text in self.texts.references],
            "scores": [asdict(score) for score in self.first_scores],
            "warnings": self.warnings,
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the scores and tests of all systems, for JSON."""
        test = None
        if self.sampling:
            test = {**self.sampling._asdict(), "sacrebleu": version("sacrebleu")}
        return {
            "sentences": self.columns[0].first.sentences,
            "references": [text.as_dict() for text in self.texts.references],
            "test": test,
            "systems": [
                {
                    "name": name,
                    **text.as_dict(),
                    "scores": [column.as_dict(name) for column in self.columns],
                }
                for name, text in self.texts.systems.items()
            ],
            "warnings": self.warnings,
        }


def score_files(
    files: Mapping[str, str],
    references: Sequence[str],
    source: str | None,
    metrics: Sequence[str],
    options: MetricOptions,
    sampling: Sampling | None = None,
) -> ScoredSystems:
    """Score the files of systems, by name; with ``sampling``, test them against the first one.

    ``metrics`` are the names that the user gave: none for the default metrics, ``ALL`` for all.
    Metrics that the user did not name are not checked for tokenised text; see ``text_warnings``.
    Raises DataError if a text or an option cannot be used.
    """
    named = [metric for metric in metrics if metric != ALL]
    names = list(dict.fromkeys([*METRICS, *named])) if ALL in metrics else named
    names = names or list(DEFAULT_METRICS)
    warnings = ignored_options(names, options)
    texts = read_texts(files, references, source)
    built = make_metrics(texts.reference_lines, names, options, texts.source_lines)
    columns = [score_systems(metric, texts.systems, sampling) for metric in built]
    warnings += text_warnings(texts, built, named, options)
    warnings += few_lines_warnings(columns)
    return ScoredSystems(texts, columns, sampling, warnings)


def score_systems(
    metric: Metric, systems: Mapping[str, ScoredText], sampling: Sampling | None
) -> SystemScores:
    """Score all systems by one metric; with ``sampling``, test them against the first one."""
    statistics = {name: statistics_of(metric, text.lines) for name, text in systems.items()}
    scores = {name: score_of(metric, rows) for name, rows in statistics.items()}
    tests = compare_systems(metric, statistics, sampling) if sampling else None
    return SystemScores(scores, tests)


def few_lines_warnings(columns: Sequence[SystemScores]) -> list[str]:
    """Return a warning for each test of two systems that differ in few lines only."""
    warnings = []
    for column in columns:
        first = next(iter(column.scores))
        for name, result in (column.tests or {}).items():
            may_differ = result.p is not None and result.p < 1
            if may_differ and result.differ is not None and 0 < result.differ < FEW_LINES:
                lines = quantity(result.differ, "line")
                warnings.append(
                    f"{column.first.metric}: {name} and {first} differ in {lines}; "
                    "with so few lines, p is too small"
                )
    return warnings
