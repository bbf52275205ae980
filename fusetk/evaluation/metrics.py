"""The table of metrics, and functions that score lines by the names of metrics."""

from collections.abc import Sequence

from fusetk.config import imported_subclass, outside_error
from fusetk.config.messages import unknown_choice
from fusetk.errors import DataError, FusetkError, quantity
from fusetk.evaluation.comet import Comet
from fusetk.evaluation.metric import Metric, MetricOptions, Score, score_of, statistics_of
from fusetk.evaluation.multi_bleu import JoinedMultiBleu, LowercaseMultiBleu, MultiBleu
from fusetk.evaluation.sacrebleu_metrics import (
    CasedMteval,
    Chrf,
    ChrfPlusPlus,
    Mteval,
    SacreBleu,
    Ter,
)

METRICS: dict[str, type[Metric]] = {
    metric.name: metric
    for metric in (
        SacreBleu,
        MultiBleu,
        LowercaseMultiBleu,
        JoinedMultiBleu,
        Mteval,
        CasedMteval,
        Chrf,
        ChrfPlusPlus,
        Ter,
    )
}
# Metrics that need an optional library and a model. The name `all` does not include them.
LEARNED_METRICS: dict[str, type[Metric]] = {Comet.name: Comet}
DEFAULT_METRICS = ("sacrebleu", "multi-bleu", "multi-bleu-lc", "chrf", "ter")


def is_outside_metric(name: str) -> bool:
    """Whether the name of a metric, ``package.module:Name``, is that of a class outside fusetk."""
    return ":" in name


def metric_class(name: str) -> type[Metric]:
    """Return the metric with this name, which may be ``package.module:Name``.

    Raises DataError if the name is unknown, or if no subclass of ``Metric`` can be imported.
    """
    known = {**METRICS, **LEARNED_METRICS}
    if name in known:
        return known[name]
    if not is_outside_metric(name):
        raise DataError(f"{unknown_choice('metric', name, list(known))}; or package.module:Name")
    try:
        imported: type[Metric] = imported_subclass(name, Metric)
    except ValueError as error:
        raise DataError(str(error)) from error
    return imported


def make_metrics(
    references: Sequence[Sequence[str]],
    names: Sequence[str],
    options: MetricOptions,
    source: Sequence[str] | None = None,
) -> list[Metric]:
    """Build the metrics with these names.

    Each metric is built once. With the option ``lowercase``, multi-bleu and multi-bleu-lc are the
    same metric. Raises DataError if a metric or a tokeniser is unknown, if a metric needs the
    source and there is none, or if a metric outside fusetk cannot be built.
    """
    distinct = list(dict.fromkeys(names))
    for name in distinct:
        if source is None and metric_class(name).needs_source:
            raise DataError(
                f"the metric {name} needs the source: give it to fusetk score with --source"
            )
    metrics = [_build(name, references, options, source) for name in distinct]
    return list({metric.name: metric for metric in metrics}.values())


def _build(
    name: str,
    references: Sequence[Sequence[str]],
    options: MetricOptions,
    source: Sequence[str] | None,
) -> Metric:
    chosen = metric_class(name)
    if not is_outside_metric(name):
        return chosen(references, options, source)
    try:
        metric = chosen(references, options, source)
    except FusetkError:
        raise
    except (Exception, SystemExit) as error:
        raise DataError(
            f"the metric {name} cannot be built with (references, options, source): "
            f"{outside_error(error)}"
        ) from error
    metric.name = name
    return metric


def is_lower_better(name: str) -> bool:
    """Whether a lower score of a metric is better; False for other metrics than those of fusetk.

    This imports no class: the names come from files of results.
    """
    return name in METRICS and METRICS[name].lower_is_better


def scores_tokens(name: str) -> bool:
    """Whether a metric scores tokenised text.

    Raises DataError like ``metric_class``.
    """
    return metric_class(name).tokenizes is False


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = DEFAULT_METRICS,
    *,
    lowercase: bool = False,
    tokenize: str | None = None,
    compound_split: bool = False,
) -> list[Score]:
    """Score lines against one or more references.

    ``references[k][i]`` is reference k for hypothesis i. Raises DataError if a metric or a
    tokeniser is unknown, if a metric needs the source, as COMET does, if line counts differ, or if
    the hypotheses or references are empty.
    """
    if not references:
        raise DataError("no reference to score against: give at least one")
    if not hypotheses:
        raise DataError("nothing to score: the hypothesis has no lines")
    for k, lines in enumerate(references, 1):
        if len(lines) != len(hypotheses):
            raise DataError(
                f"the hypothesis has {quantity(len(hypotheses), 'line')} and reference {k} has "
                f"{len(lines):,}: give one reference line for each hypothesis line"
            )
    built = make_metrics(references, metrics, MetricOptions(lowercase, tokenize, compound_split))
    return [score_of(metric, statistics_of(metric, hypotheses)) for metric in built]
