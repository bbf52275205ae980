"""The key ``training.validation`` of a config, and the order of validation results.

This module does not import torch.
"""

import math
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from fusetk.config import Config
from fusetk.data.batch_config import MOST_IN_BATCH
from fusetk.runs import LOWER_IS_BETTER

Metric = Literal["loss", "ppl", "accuracy", "bleu"]


class ValidationConfig(Config):
    """Times and metric of the validations during training."""

    every_updates: int | None = Field(None, ge=1)
    """Number of updates between validations."""
    every_epochs: int | None = Field(None, ge=1)
    """Number of epochs between validations, counted in each stage; 1 if neither key is given. If
    both keys are given, training validates after every `every_updates` updates and `every_epochs`
    epochs."""
    metric: Metric = "loss"
    """Metric that selects the best checkpoint and that `patience` and `schedule: plateau` use.
    `loss` and `ppl` are per token, without label smoothing. `accuracy` is the fraction of tokens
    that are predicted correctly, given the reference prefix. `bleu` is the score of beam search
    (tokenised, with the arithmetic of multi-bleu). If values are equal, the loss decides."""
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

    @model_validator(mode="after")
    def _every_option_has_an_effect(self) -> "ValidationConfig":
        if not self.train_dropout and self.train_pairs is None:
            raise ValueError(
                "train_dropout has no effect without train_pairs: give train_pairs, too, or remove "
                "train_dropout"
            )
        return self


def perplexity(loss: float) -> float:
    """Return e to the loss per token; the loss is limited to 700, so that the result is finite."""
    return math.exp(min(loss, 700.0))


def ranking_key(metric: str, results: Mapping[str, float]) -> tuple[float, float]:
    """Return a sort key of validation results: the metric, then the loss. The best has the lowest.

    NaN is the worst value.
    """
    sign = 1 if metric in LOWER_IS_BETTER else -1
    value = sign * results.get(metric, math.nan)
    loss = results.get("loss", math.nan)
    return math.inf if math.isnan(value) else value, math.inf if math.isnan(loss) else loss
