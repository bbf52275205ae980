"""Fusion by average pooling over the layers (MLRF section 3.2)."""

import torch
from torch import Tensor

from fusetk.fusion.base import LayerFusion, LayerFusionConfig


class AverageFusionConfig(LayerFusionConfig):
    """The mean of the layers; only the layer normalisation has parameters."""

    kind: str = "average"

    def check(self, layers: int) -> None:
        self.check_two_layers(layers)


class AverageFusion(LayerFusion):
    """phi(Z) = 1/L sum_l z^l (MLRF Table 1, "Avg-pooling").

    MLRF sums from layer 1. With ``embedding: true``, the default, it is 1/(L+1) sum_{l=0..L} z^l.
    """

    Config = AverageFusionConfig

    def fuse(self, layers: list[Tensor]) -> Tensor:
        return torch.stack(layers).mean(0)
