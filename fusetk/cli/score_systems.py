"""``fusetk score --system``: several systems in a table, with significance tests."""

from collections.abc import Mapping, Sequence

import click

from fusetk.cli.common_options import is_quiet
from fusetk.cli.score_options import TextOptions
from fusetk.cli.tables import NONE, print_json, print_warnings, show
from fusetk.display import Display
from fusetk.evaluation.significance import Sampling, SignificanceResult
from fusetk.evaluation.systems import ScoredSystems, SystemScores, score_files
from fusetk.evaluation.texts import describe_systems
from fusetk.reporting.formats import signed


def run(
    text: TextOptions,
    references: Sequence[str],
    files: Mapping[str, str],
    sampling: Sampling | None,
) -> None:
    """Score the systems in ``files``, test them if there is a ``sampling``, and print a table."""
    options = text.metric_options
    with Display(is_quiet()):
        scored = score_files(files, references, text.source, text.metrics, options, sampling)
    print_warnings(scored.warnings)
    if text.as_json:
        print_json(scored.as_dict())
    elif sampling:
        _show_tests(scored)
    else:
        _show_scores(scored)


def _show_scores(scored: ScoredSystems) -> None:
    """Print one table of all metrics."""
    texts, columns = scored.texts, scored.columns
    heads = ["system", *(column.first.metric for column in columns)]
    rows = [
        [name, *(f"{column.scores[name].value:.2f}" for column in columns)]
        for name in texts.systems
    ]
    signatures = [f"{column.first.metric}: {column.first.signature}" for column in columns]
    show(f"{len(texts.systems)} systems", heads, rows, [*describe_systems(texts), *signatures])


def _show_tests(scored: ScoredSystems) -> None:
    """Print a table of each metric with the test results."""
    heads = ["system", "score", "difference", "mean", "95%", "p"]
    for column in scored.columns:
        rows = [_test_row(column, name, test) for name, test in (column.tests or {}).items()]
        show(column.first.metric, heads, rows, [f"signature: {column.first.signature}", ""])
    click.echo("\n".join([f"test: {scored.test}", *describe_systems(scored.texts)]))


def _test_row(column: SystemScores, system: str, test: SignificanceResult) -> list[str]:
    is_first = test.p is None
    return [
        system,
        f"{column.scores[system].value:.2f}",
        NONE if is_first else signed(column.difference(system)),
        f"{test.mean:.2f}",
        f"±{test.interval:.2f}",
        NONE if is_first else f"{test.p:.4f}",
    ]
