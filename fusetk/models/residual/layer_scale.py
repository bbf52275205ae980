"""Residual sums with a factor for each feature (LayerScale)."""

import torch
from pydantic import Field
from torch import Tensor, nn

from fusetk import trace
from fusetk.models.residual.base import Residual, ResidualConfig, SubLayer


class LayerScaleConfig(ResidualConfig):
    """A residual sum with a learned factor for each feature of the sub-layer's output."""

    kind: str = "layer-scale"
    initial: float | None = Field(None, gt=0, le=1000)
    """Initial factor; by default 0.1 up to 18 layers, 1e-5 up to 24 layers, else 1e-6."""


class LayerScaleResidual(Residual):
    """x + diag(l) f(x) with a learned vector l (Touvron et al. 2021, "CaiT")."""

    Config = LayerScaleConfig

    def __init__(self, config: LayerScaleConfig, sublayer: SubLayer):
        super().__init__(config, sublayer)
        layers = sublayer.layers[sublayer.side]
        initial = config.initial
        if initial is None:
            initial = 0.1 if layers <= 18 else 1e-5 if layers <= 24 else 1e-6
        self.factor = nn.Parameter(torch.full((sublayer.width,), initial))

    def after(self, stream: Tensor, y: Tensor) -> Tensor:
        trace.record(self.name, self.factor.mean(), "write")
        return self.normed_output(stream + self.factor * self.dropout(y))
