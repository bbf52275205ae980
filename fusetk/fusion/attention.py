"""Fusion by multi-hop self-attention over the layers (MLRF section 3.2, Equations 4 to 7)."""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from fusetk import trace
from fusetk.fusion.base import LayerFusion, LayerFusionConfig
from fusetk.nn.dropout import Dropout
from fusetk.nn.feedforward import ACTIVATIONS, Activation, FeedForward


class AttentionConfig(LayerFusionConfig):
    """Attention over the layers in several hops, and a network of one hidden layer over what they found."""

    kind: str = "attention"
    layer_embedding: bool = True
    """Add a learned vector of its index to every layer (MLRF Equation 4). Sides of one width that both have it share it."""
    hops: int = Field(4, ge=1)
    """n_hop: independent distributions over the layers."""
    attention_hidden: int = Field(1024, ge=1)
    """d_a: hidden units of the network that gives the energies."""
    independent_w1: bool = False
    """Every layer has a W1 of its own (MLRF Table 3, "indep. W1")."""
    feature_wise: bool = False
    """Every feature has a weight of its own, a^l_{p;k} (MLRF section 3.2, "feature-wise fusion")."""
    activation: Activation = "relu"
    """sigma of Equation 5, and of the network at the end; MLRF does not name it, ReLU is the backbone's."""
    hidden: int = Field(512, ge=1)
    """d_f: hidden units of the network at the end."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """On the result, before the norm; MLRF says nothing of dropout here."""


class Attention(LayerFusion):
    """phi(Z) = FNN([s_1, ..., s_hops]), s_p = sum_l a_p^l z^l, a_p = softmax_l(e_p), e = W2 sigma(W1 z) (MLRF Equations 5 to 7)."""

    Config = AttentionConfig

    def __init__(self, config: AttentionConfig, widths: Sequence[int], width: int, name: str):
        super().__init__(config, widths, width, name)
        self.hops, self.features = config.hops, width if config.feature_wise else 1
        self.w1 = nn.ModuleList(
            nn.Linear(width, config.attention_hidden, bias=False)
            for _ in range(self.depth if config.independent_w1 else 1)
        )
        self.w2 = nn.Linear(config.attention_hidden, self.hops * self.features, bias=False)
        self.sigma = ACTIVATIONS[config.activation]
        self.ffn = FeedForward(self.hops * width, config.hidden, width, config.activation)
        self.dropout = Dropout(config.dropout)

    def fuse(self, layers: list[Tensor]) -> Tensor:
        e = torch.stack(
            [self.energy(i, layer) for i, layer in enumerate(layers)], -3
        )  # (..., L, hops, 1 or D)
        a = e.softmax(-3)  # Equation 6
        if trace.wanted(f"{self.name}.hops"):
            trace.record(f"{self.name}.hops", a.mean(-1).mT)  # (..., hops, L)
        z = torch.stack(layers, -2)  # (..., L, D)
        s = (
            a.squeeze(-1).mT @ z if self.features == 1 else (a * z.unsqueeze(-2)).sum(-3)
        )  # (..., hops, D), Equation 7
        return self.dropout(self.ffn(s.flatten(-2)))

    def energy(self, layer: int, z: Tensor) -> Tensor:
        """Equation 5 for one layer: (..., D) -> (..., hops, 1 or D)."""
        w1 = self.w1[layer if len(self.w1) > 1 else 0]
        return self.w2(self.sigma(w1(z))).unflatten(-1, (self.hops, self.features))
