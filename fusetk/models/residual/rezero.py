"""Residual sums that begin without the sub-layers (ReZero)."""

import torch
from torch import Tensor, nn

from fusetk import trace
from fusetk.models.residual.base import Residual, ResidualConfig, SubLayer


class ReZeroResidual(Residual):
    """x + a f(x) with a number a, which is 0 at first (Bachlechner et al. 2020).

    Each sub-layer has its own number. In the authors' code, the sub-layers of a layer share one.
    The paper's networks have no layer normalisation (``norm: none``).
    """

    def __init__(self, config: ResidualConfig, sublayer: SubLayer):
        super().__init__(config, sublayer)
        self.factor = nn.Parameter(torch.zeros(()))

    def after(self, stream: Tensor, y: Tensor) -> Tensor:
        trace.record(self.name, self.factor, "write")
        return self.normed_output(stream + self.factor * self.dropout(y))
