"""Fusion by pooling: the mean of the layers (MLRF section 3.2)."""

import torch
from torch import Tensor

from fusetk.fusion.base import LayerFusion, LayerFusionConfig


class AverageConfig(LayerFusionConfig):
    """The mean of the layers, without parameters but for the norm."""

    kind: str = "average"


class Average(LayerFusion):
    """phi(Z) = 1/L sum_l z^l (MLRF Table 1, "Avg-pooling"). MLRF sums from layer 1; ``embedding`` says whether from 0."""

    Config = AverageConfig

    def fuse(self, layers: list[Tensor]) -> Tensor:
        return torch.stack(layers).mean(0)
