"""``fusetk score --system``: several systems in a table, with significance tests."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import click

from fusetk.cli.tables import NONE, show
from fusetk.evaluation.metrics import make_metrics
from fusetk.evaluation.significance import Sampling, SignificanceResult
from fusetk.evaluation.systems import SystemScores, few_lines_warnings, score_systems
from fusetk.evaluation.texts import (
    ScoredTexts,
    describe_inputs,
    ignored_options,
    read_texts,
    text_warnings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fusetk.cli.score_options import TextOptions


def run(
    text: "TextOptions",
    references: Sequence[str],
    files: "Mapping[str, str]",
    sampling: Sampling | None,
) -> None:
    """Score the systems in ``files``, test them if there is a ``sampling``, and print a table."""
    options = text.metric_options
    warnings = ignored_options(text.metric_names, options)
    texts = read_texts(files, references, text.source)
    metrics = make_metrics(texts.reference_lines, text.metric_names, options, texts.source_lines)
    columns = [score_systems(metric, texts.systems, sampling) for metric in metrics]
    named = [] if "all" in text.metrics else text.metrics
    warnings += text_warnings(texts, metrics, named, options)
    warnings += few_lines_warnings(columns)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if text.as_json:
        document = {**_as_dict(columns, texts, sampling), "warnings": warnings}
        click.echo(json.dumps(document, ensure_ascii=False, indent=2))
    elif sampling:
        _show_tests(columns, texts, sampling)
    else:
        _show_scores(columns, texts)


def _as_dict(
    columns: Sequence[SystemScores], texts: ScoredTexts, sampling: Sampling | None
) -> dict[str, Any]:
    test = None
    if sampling:
        test = {**sampling._asdict(), "sacrebleu": version("sacrebleu")}
    return {
        "sentences": columns[0].first.sentences,
        "references": [text.as_dict() for text in texts.references],
        "test": test,
        "systems": [
            {
                "name": name,
                **text.as_dict(),
                "scores": [_score_as_dict(column, name) for column in columns],
            }
            for name, text in texts.systems.items()
        ],
    }


def _score_as_dict(column: SystemScores, system: str) -> dict[str, Any]:
    test = None
    if column.tests:
        test = {"difference": column.difference(system), **column.tests[system]._asdict()}
    return {**asdict(column.scores[system]), "test": test}


def _inputs(texts: ScoredTexts) -> list[str]:
    return [
        f"{name}: {describe_inputs(text, texts.references)}" for name, text in texts.systems.items()
    ]


def _show_scores(columns: Sequence[SystemScores], texts: ScoredTexts) -> None:
    """Print one table of all metrics."""
    heads = ["system", *(column.first.metric for column in columns)]
    rows = [
        [name, *(f"{column.scores[name].value:.2f}" for column in columns)]
        for name in texts.systems
    ]
    signatures = [f"{column.first.metric}: {column.first.signature}" for column in columns]
    show(f"{len(texts.systems)} systems", heads, rows, [*_inputs(texts), *signatures])


def _show_tests(columns: Sequence[SystemScores], texts: ScoredTexts, sampling: Sampling) -> None:
    """Print a table of each metric with the test results."""
    heads = ["system", "score", "difference", "mean", "95%", "p"]
    for column in columns:
        rows = [_test_row(column, name, test) for name, test in (column.tests or {}).items()]
        show(column.first.metric, heads, rows, [f"signature: {column.first.signature}", ""])
    test = f"test: {sampling}, sacrebleu {version('sacrebleu')}"
    click.echo("\n".join([test, *_inputs(texts)]))


def _test_row(column: SystemScores, system: str, test: SignificanceResult) -> list[str]:
    is_first = test.p is None
    return [
        system,
        f"{column.scores[system].value:.2f}",
        NONE if is_first else f"{column.difference(system):+.2f}",
        f"{test.mean:.2f}",
        f"±{test.interval:.2f}",
        NONE if is_first else f"{test.p:.4f}",
    ]
