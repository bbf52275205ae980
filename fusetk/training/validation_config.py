"""The key ``training.validation`` of a config, and the order of validation results.

This module does not import torch.
"""

import math
from collections.abc import Mapping

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from fusetk.config import Config
from fusetk.config.messages import unknown_choice
from fusetk.data.batch_config import MOST_IN_BATCH
from fusetk.errors import DataError
from fusetk.runs import HIGHER_IS_BETTER, LOWER_IS_BETTER

# Metrics that validation computes without a search.
WITHOUT_SEARCH = ("loss", "ppl", "accuracy")
BLEU = "bleu"  # multi-bleu


class ValidationConfig(Config):
    """Times and metric of the validations during training."""

    every_updates: int | None = Field(None, ge=1)
    """Number of updates between validations."""
    every_epochs: int | None = Field(None, ge=1)
    """Number of epochs between validations, counted in each stage; 1 if neither key is given. If
    both keys are given, training validates after every `every_updates` updates and `every_epochs`
    epochs."""
    metric: str = "loss"
    """Metric that selects the best checkpoint and that `patience` and `schedule: plateau` use.
    `loss` and `ppl` are per token, without label smoothing. `accuracy` is the fraction of tokens
    that are predicted correctly, given the reference prefix. `bleu` is the score of beam search
    (tokenised, with the arithmetic of multi-bleu). The other metrics also score beam search. They
    are those of `fusetk score` that do not read the source: `sacrebleu`, `multi-bleu`,
    `multi-bleu-lc`, `multi-bleu-joined`, `mteval-v13a`, `mteval-v13a-cased`, `chrf`, `chrf++`,
    `ter`, or `package.module:Name`. The metrics of multi-bleu, and classes with `tokenizes =
    False`, read tokenised text. The other metrics read detokenised text and the raw references, and
    they ignore case if the preparation lowercases the target. The lowest `ter` is the best. If
    values are equal, the loss decides."""
    bleu: bool = False
    """Compute BLEU at each validation, even if `metric` is another metric."""
    tokens: int = Field(8192, ge=1, le=MOST_IN_BATCH)
    """Maximum number of target tokens in a batch when losses are computed."""
    train_pairs: int | None = Field(None, ge=1)
    """Number of training pairs, evenly spaced in the corpus, on which loss and accuracy are also
    computed (`train_loss`, `train_accuracy`). Wang et al. 2018 show the accuracy on training text
    (MLRF, Figure 4); they do not say how many pairs they use."""
    train_dropout: bool = True
    """Compute loss and accuracy on training pairs with dropout, as in training. MLRF's text says
    that more dropout lowers the accuracy on training text dramatically, so we think that the figure
    has it."""
    share_pairs: int | None = Field(None, ge=1)
    """Number of validation pairs, evenly spaced in the corpus, from which each validation computes
    the share of each layer in each fusion, as `fusetk plot-attention --what fuse --corpus` does.
    `fusetk plot-curves --what layer_shares` draws the shares. The model must have a `fuse` of
    several layers."""

    @field_validator("metric")
    @classmethod
    def _is_a_metric(cls, name: str) -> str:
        return checked_metric(name)

    @model_validator(mode="after")
    def _every_option_has_an_effect(self) -> "ValidationConfig":
        if not self.train_dropout and self.train_pairs is None:
            raise ValueError(
                "train_dropout has no effect without train_pairs: give train_pairs, too, or remove "
                "train_dropout"
            )
        return self


def checked_metric(name: str) -> str:
    """Return the name of a validation metric.

    Raises ValueError if the name is unknown, if the metric cannot be imported, or if it needs the
    source.
    """
    if not scores_translations(name) or name == BLEU:
        return name
    # These imports are slow.
    from fusetk.evaluation.metrics import LEARNED_METRICS, METRICS, is_outside_metric, metric_class

    if name in METRICS:
        return name
    if not is_outside_metric(name) and name not in LEARNED_METRICS:
        known = [*WITHOUT_SEARCH, BLEU, *METRICS]
        raise ValueError(f"{unknown_choice('metric', name, known)}; or package.module:Name")
    try:
        needs_source = metric_class(name).needs_source
    except DataError as error:
        raise PydanticCustomError("import", "{error}", {"error": str(error)}) from error
    if needs_source:
        raise ValueError(
            f"the metric {name} needs the source, which validation does not give to a metric: "
            f"choose another one, and compute {name} after training with `fusetk score`"
        )
    return name


def scores_translations(metric: str) -> bool:
    """Whether a validation metric scores translations, so that validation needs a search."""
    return metric not in WITHOUT_SEARCH


def is_lowest_best(metric: str) -> bool:
    """Whether the lowest value of a validation metric is the best.

    Imports a class outside fusetk. Raises DataError if it cannot be imported.
    """
    if metric in LOWER_IS_BETTER | HIGHER_IS_BETTER:
        return metric in LOWER_IS_BETTER
    from fusetk.evaluation.metrics import metric_class  # slow to import

    return metric_class(metric).lower_is_better


def perplexity(loss: float) -> float:
    """Return e to the loss per token; the loss is limited to 700, so that the result is finite."""
    return math.exp(min(loss, 700.0))


def ranking_key(metric: str, results: Mapping[str, float]) -> tuple[float, float]:
    """Return a sort key of validation results: the metric, then the loss. The best has the lowest.

    NaN is the worst value.
    """
    sign = 1 if is_lowest_best(metric) else -1
    value = sign * results.get(metric, math.nan)
    loss = results.get("loss", math.nan)
    return math.inf if math.isnan(value) else value, math.inf if math.isnan(loss) else loss
