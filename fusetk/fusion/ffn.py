"""Fusion by a feed-forward network over the concatenated layers (MLRF section 3.2)."""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from fusetk.fusion.base import LayerFusion, LayerFusionConfig
from fusetk.nn.dropout import Dropout
from fusetk.nn.feedforward import Activation, FeedForward


class FFNFusionConfig(LayerFusionConfig):
    """A network with one hidden layer over the concatenation of the layers."""

    kind: str = "ffn"
    layer_embedding: bool = True
    hidden: int = Field(512, ge=1)
    """d_f: units of the hidden layer."""
    activation: Activation = "relu"
    """Activation of the hidden layer. MLRF does not name it; the Transformer uses ReLU."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the result, before its normalisation. MLRF does not mention dropout here."""


class FFNFusion(LayerFusion):
    """phi(Z) = FNN([z^1; ...; z^L]), L D -> d_f -> D (MLRF Table 1, "FNN-based").

    With ``embedding: true``, the default, it is FNN([z^0; ...; z^L]).
    """

    Config = FFNFusionConfig

    def __init__(self, config: FFNFusionConfig, widths: Sequence[int], width: int, name: str):
        super().__init__(config, widths, width, name)
        self.ffn = FeedForward(self.num_fused * width, config.hidden, width, config.activation)
        self.dropout = Dropout(config.dropout)

    def fuse(self, layers: list[Tensor]) -> Tensor:
        return self.dropout(self.ffn(torch.cat(layers, -1)))
