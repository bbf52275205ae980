"""The choice of checkpoints and metrics of an experiment."""

from collections.abc import Sequence

from fusetk.data.steps.base import line_steps
from fusetk.data.steps.lowercase import lowercases_target
from fusetk.data.steps.tokenize import Tokenize
from fusetk.errors import ConfigError
from fusetk.evaluation.metrics import METRICS, metric_class, scores_tokens
from fusetk.evaluation.systems import ALL
from fusetk.recipe import Recipe
from fusetk.runs import average_name, num_averaged


def metrics_of(recipe: Recipe, others: Sequence[str]) -> list[str]:
    """Return the metric of the published scores first, then those to print beside it.

    If the preparation splits words at hyphens, multi-bleu differs from that of unsplit words, so
    both are printed, and sacreBLEU. ``others`` are metrics that the user adds. They replace the
    default if there are no published scores: multi-bleu, or sacreBLEU if the tokens of the
    preparation are parts of words. Raises DataError if a metric is unknown or cannot be imported,
    and ConfigError if it needs the source (COMET), or if it would score parts of words.
    """
    published = recipe.paper.metric if recipe.paper else None
    default = "multi-bleu-lc" if lowercases_target(recipe.data.steps) else "multi-bleu"
    splitter = _splitter(recipe)
    if splitter:
        default = "sacrebleu"
    names = [published or default] if published or not others else []
    if not splitter and _splits_hyphens(recipe):
        names += ["multi-bleu", "multi-bleu-joined", "sacrebleu"]
    all_metrics = [name for name in METRICS if not (splitter and scores_tokens(name))]
    for other in others:
        names += all_metrics if other == ALL else [other]
    names = list(dict.fromkeys(names))
    for name in names:
        if metric_class(name).needs_source:
            raise ConfigError(
                f"the metric {name} needs the source: run `fusetk score --metric {name} --source` "
                "after the run"
            )
        if scores_tokens(name) and splitter:
            raise ConfigError(
                f"the metric {name} scores words, but the step {splitter} splits the target into "
                "parts of words: give --metric sacrebleu, or change paper.metric"
            )
    return names


def decoded_checkpoints(recipe: Recipe, average: int | None, existing: int) -> list[str]:
    """Return the names of the checkpoints that translate.

    They are the checkpoint of the published scores, and the mean of the last ``average`` ones. If
    the paper names no checkpoint, they are the best one and a mean of all that training keeps. A
    mean has at most ``existing`` checkpoints.
    """
    published = recipe.paper.checkpoint if recipe.paper else None
    names = [published or "best"]
    if published is None or average:
        names.append(average_name(average or recipe.training.keep_last))
    return list(dict.fromkeys(_at_most(name, existing) for name in names))


def _at_most(name: str, existing: int) -> str:
    """Return the name of an average of at most ``existing`` checkpoints, or another name."""
    number = num_averaged(name)
    return name if number is None else average_name(min(number, existing))


def _splitter(recipe: Recipe) -> str | None:
    """Return the step that splits the target into parts of words, such as `sentencepiece`."""
    steps = line_steps(recipe.data.steps, "target")
    return next((step.step for step in steps if step.splits_words), None)


def _splits_hyphens(recipe: Recipe) -> bool:
    """Whether the tokeniser splits words of the target at hyphens."""
    return any(
        isinstance(step, Tokenize) and step.aggressive_hyphens
        for step in line_steps(recipe.data.steps, "target")
    )
