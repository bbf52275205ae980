"""Residual sums with a learned factor of the state (Admin)."""

import math

import torch
from torch import Tensor, nn

from fusetk import trace
from fusetk.models.residual.base import Norm, Residual, ResidualConfig, SubLayer, require_norm


class AdminConfig(ResidualConfig):
    """A residual sum with a learned factor for each feature of the state."""

    kind: str = "admin"

    def check(self, norm: Norm, layers: int) -> None:
        require_norm(self, norm, "post", "its factors balance the layer normalisation of the sum")


class AdminResidual(Residual):
    """LayerNorm(w x + f(x)) with a learned vector w (Liu et al. 2020).

    At first w = sqrt((L + 1) / ln(L + 1) - 1) in a stack of L sub-layers, as in the authors'
    package admin-torch, which needs no profiling of a batch.
    """

    Config = AdminConfig

    def __init__(self, config: AdminConfig, sublayer: SubLayer):
        super().__init__(config, sublayer)
        terms = sublayer.total + 1
        initial = math.sqrt(terms / math.log(terms) - 1)
        self.factor = nn.Parameter(torch.full((sublayer.width,), initial))

    def after(self, stream: Tensor, y: Tensor) -> Tensor:
        trace.record(self.name, self.factor.mean(), "mix")
        return self.normed_output(torch.addcmul(self.dropout(y), stream, self.factor))
