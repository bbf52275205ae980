"""``fusetk score --system``: several systems side by side, and whether they differ by more than chance."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, NamedTuple

import click

from fusetk.cli.scored import Text, Texts, against
from fusetk.cli.tables import NONE, show
from fusetk.evaluation.metrics import Metric, Score
from fusetk.evaluation.significance import FEW, Found, Sampling, compare


class Column(NamedTuple):
    """One metric of all systems, by their names."""

    scores: Mapping[str, Score]
    tests: Mapping[str, Found] | None = None  # None: nothing was tested

    @property
    def first(self) -> Score:
        """The score of the system that the others are compared with."""
        return next(iter(self.scores.values()))

    def difference(self, name: str) -> float:
        """What a system has more than the first."""
        return self.scores[name].value - self.first.value


def score(metric: Metric, systems: Mapping[str, Text], sampling: Sampling | None) -> Column:
    """One metric of all systems, tested if there is a ``sampling``."""
    counted = {name: metric.count(text.lines) for name, text in systems.items()}
    scores = {name: metric.score(rows) for name, rows in counted.items()}
    return Column(scores, compare(metric, counted, sampling) if sampling else None)


def too_few(columns: Sequence[Column]) -> list[str]:
    """A sentence for each test that rests on a few lines."""
    return [
        f"{column.first.metric}: lines that set {name} and {next(iter(column.scores))} apart: {found.differ}; with so few, p is too small"
        for column in columns
        for name, found in (column.tests or {}).items()
        if found.differ is not None and 0 < found.differ < FEW
    ]


# Output --------------------------------------------------------------------------------------------------------------


def document(columns: Sequence[Column], texts: Texts, sampling: Sampling | None) -> dict[str, Any]:
    """For JSON."""

    def entry(column: Column, name: str) -> dict[str, Any]:
        tested = (
            {"difference": column.difference(name), **column.tests[name]._asdict()}
            if column.tests
            else None
        )
        return {**asdict(column.scores[name]), "test": tested}

    return {
        "sentences": columns[0].first.sentences,
        "references": [text.about() for text in texts.references],
        "test": {**sampling._asdict(), "sacrebleu": version("sacrebleu")} if sampling else None,
        "systems": [
            {"name": name, **text.about(), "scores": [entry(column, name) for column in columns]}
            for name, text in texts.systems.items()
        ],
    }


def show_all(columns: Sequence[Column], texts: Texts, sampling: Sampling | None) -> None:
    """Print one table of all metrics, or one of each metric if they were tested."""
    lines = [f"{name}: {against(text, texts.references)}" for name, text in texts.systems.items()]
    if sampling is None:
        heads = ["system", *(column.first.metric for column in columns)]
        rows = [
            [name, *(f"{column.scores[name].value:.2f}" for column in columns)]
            for name in texts.systems
        ]
        lines += [f"{column.first.metric}: {column.first.signature}" for column in columns]
        show(f"{len(texts.systems)} systems", heads, rows, lines)
        return
    for column in columns:
        rows = [_row(column, name, found) for name, found in (column.tests or {}).items()]
        heads = ["system", "score", "difference", "mean", "95%", "p"]
        show(column.first.metric, heads, rows, [f"signature: {column.first.signature}", ""])
    click.echo("\n".join([f"test: {sampling}, sacrebleu {version('sacrebleu')}", *lines]))


def _row(column: Column, name: str, found: Found) -> list[str]:
    shown = [
        name,
        f"{column.scores[name].value:.2f}",
        f"{column.difference(name):+.2f}",
        f"{found.mean:.2f}",
        f"±{found.interval:.2f}",
    ]
    if found.p is None:
        shown[2] = NONE
    return [*shown, NONE if found.p is None else f"{found.p:.4f}"]
