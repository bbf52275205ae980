"""Residual sums for deep post-norm models (DeepNorm)."""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from fusetk.models.residual.base import Norm, Residual, ResidualConfig, SubLayer, require_norm
from fusetk.nn.attention import CrossAttention, KeysValues, SelfAttention
from fusetk.nn.feedforward import FeedForward, GatedFeedForward


class DeepNormConfig(ResidualConfig):
    """A residual sum with a fixed factor of the state, and smaller initial weights."""

    kind: str = "deep-norm"

    def check(self, norm: Norm, layers: int) -> None:
        require_norm(self, norm, "post", "its factors balance the layer normalisation of the sum")


def deep_norm_factors(sublayer: SubLayer) -> tuple[float, float]:
    """Return the factors alpha and beta of a stack (DeepNet, Figure 2).

    Encoder of N layers and decoder of M layers: 0.81 (N^4 M)^(1/16) and 0.87 (N^4 M)^(-1/16) in the
    encoder, (3M)^(1/4) and (12M)^(-1/4) in the decoder. A model of one stack with N layers:
    (2N)^(1/4) and (8N)^(-1/4). The paper has no model like ``coordinated``. This model always has
    the factors of one stack, also with two stacks (``share_weights: false``).
    """
    if len(sublayer.layers) == 1:
        [n] = sublayer.layers.values()
        return (2 * n) ** 0.25, (8 * n) ** -0.25
    n, m = sublayer.layers["encoder"], sublayer.layers["decoder"]
    if sublayer.side == "encoder":
        return 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)
    return (3 * m) ** 0.25, (12 * m) ** -0.25


class DeepNormResidual(Residual):
    """LayerNorm(alpha x + f(x)) (DeepNet, Wang et al. 2022).

    alpha and beta depend on the numbers of layers of both sides. The initial weights of
    feed-forward layers, of values and of the output of attention are multiplied by beta.
    """

    Config = DeepNormConfig

    def __init__(self, config: DeepNormConfig, sublayer: SubLayer):
        super().__init__(config, sublayer)
        self.alpha, self.beta = deep_norm_factors(sublayer)

    def after(self, stream: Tensor, y: Tensor) -> Tensor:
        return self.normed_output(torch.add(self.dropout(y), stream, alpha=self.alpha))

    def initialise(self, sublayer: nn.Module) -> None:
        with torch.no_grad():
            for weight in _scaled_weights(sublayer):
                weight.mul_(self.beta)


def _scaled_weights(sublayer: nn.Module) -> list[Tensor]:
    """Return the weights that DeepNorm scales: not those of queries and keys."""
    if isinstance(sublayer, SelfAttention):
        return [sublayer.project.weight[-sublayer.keys_width :], sublayer.out.weight]
    if isinstance(sublayer, KeysValues):
        return [sublayer.weight.chunk(2)[1]]
    if isinstance(sublayer, CrossAttention):
        projections = cast(Iterable[nn.Linear], sublayer.project)
        values = [project.weight.chunk(2)[1] for project in projections]
        return [*values, sublayer.out.weight]
    if isinstance(sublayer, FeedForward | GatedFeedForward):
        return [sublayer.hidden.weight, sublayer.out.weight]
    return []
