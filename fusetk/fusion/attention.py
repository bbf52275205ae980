"""Fusion by multi-hop self-attention over the layers (MLRF section 3.2).

At one position, let z^l be the output of layer l, and E^l its embedding. Hop p = 1, ..., n_hop
computes

    y^l   = z^l + E^l                  the layer with its embedding               (Equation 4)
    e^l   = W2 sigma(W1 y^l)           the energies of layer l, one for each hop  (Equation 5)
    a^l_p = softmax over l of e^l_p    the weight of layer l in hop p             (Equation 6)
    s_p   = sum over l of a^l_p y^l    the weighted sum of the layers in hop p    (Equation 7)

and phi(Z) = LN(FNN([s_1; ...; s_n_hop])); the base class applies LN. With ``feature_wise`` each
feature of y^l has its own energy and its own weight. With ``independent_w1: hops`` the energy of
hop p is row p of W2 times sigma(W1_p y^l).
"""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fusetk import trace
from fusetk.fusion.base import LayerFusion, LayerFusionConfig
from fusetk.nn.dropout import Dropout
from fusetk.nn.feedforward import ACTIVATIONS, Activation, FeedForward
from fusetk.nn.inference_linear import linear_part

LAYER_AXIS = -3  # axis L of the energies and weights (..., L, hops, 1 or D)


class AttentionFusionConfig(LayerFusionConfig):
    """Attention over the layers in several hops, then a network with one hidden layer."""

    kind: str = "attention"
    layer_embedding: bool = True
    hops: int = Field(4, ge=1)
    """n_hop: number of attention distributions over the layers."""
    attention_hidden: int = Field(1024, ge=1)
    """d_a: hidden units of the network that computes the energies."""
    independent_w1: bool | Literal["hops"] = False
    """`false`: all layers and hops share one W1. `true`: each layer has its own (MLRF Table 3,
    "indep. W1"). `hops`: each hop has its own. MLRF does not describe this, but Dec-SA with 6 hops
    then has the number of parameters that Table 2 prints."""
    feature_wise: bool = False
    """Give every feature its own weight a^l_{p;k} (MLRF section 3.2, "feature-wise fusion")."""
    activation: Activation = "relu"
    """sigma of Equation 5, and the activation of the last network. MLRF does not name it; the
    Transformer uses ReLU."""
    hidden: int = Field(512, ge=1)
    """d_f: hidden units of the last network."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the result, before its normalisation. MLRF does not mention dropout here."""

    def check(self, layers: int) -> None:
        self.check_two_layers(layers)
        if self.independent_w1 == "hops" and self.hops == 1:
            raise ValueError("independent_w1: hops has no effect with hops: 1: remove it")


class AttentionFusion(LayerFusion):
    """Multi-hop self-attention over the layers (MLRF, Equations 5 to 7)."""

    Config = AttentionFusionConfig

    def __init__(self, config: AttentionFusionConfig, widths: Sequence[int], width: int, name: str):
        super().__init__(config, widths, width, name)
        self.hops = config.hops
        # The number of weights that a layer has in each hop.
        self.weights_per_hop = width if config.feature_wise else 1
        count = {False: 1, True: self.num_fused, "hops": self.hops}[config.independent_w1]
        self.w1 = nn.ModuleList(
            nn.Linear(width, config.attention_hidden, bias=False) for _ in range(count)
        )
        self.w2 = nn.Linear(config.attention_hidden, self.hops * self.weights_per_hop, bias=False)
        self.sigma = ACTIVATIONS[config.activation]
        self.ffn = FeedForward(self.hops * width, config.hidden, width, config.activation)
        self.dropout = Dropout(config.dropout)

    def fuse(self, layers: list[Tensor]) -> Tensor:
        energies = [self.energy(i, y) for i, y in enumerate(layers)]  # Equation 5
        weights = torch.stack(energies, LAYER_AXIS).softmax(LAYER_AXIS)  # Equation 6
        if trace.is_listening_for(f"{self.name}.hops"):
            trace.record(f"{self.name}.hops", weights.mean(-1).mT)  # (..., hops, L)
        sums = self.weighted_sums(weights, torch.stack(layers, -2))  # Equation 7
        return self.dropout(self.ffn(sums.flatten(-2)))

    def energy(self, layer: int, y: Tensor) -> Tensor:
        """Return the energies of one layer (Equation 5): (..., D) -> (..., hops, 1 or D)."""
        shape = self.hops, self.weights_per_hop
        independent = self.config.independent_w1
        if independent == "hops":
            size = self.weights_per_hop
            energies = [
                linear_part(self.w2, self.sigma(w1(y)), slice(p * size, (p + 1) * size))
                for p, w1 in enumerate(self.w1)
            ]
            return torch.stack(energies, -2)
        w1 = self.w1[layer if independent else 0]
        return self.w2(self.sigma(w1(y))).unflatten(-1, shape)

    def weighted_sums(self, weights: Tensor, y: Tensor) -> Tensor:
        """Return the sums of Equation 7 (..., hops, D).

        The weights are (..., L, hops, 1 or D), the layers y are (..., L, D).
        """
        if self.weights_per_hop == 1:
            return weights.squeeze(-1).mT @ y
        return (weights * y.unsqueeze(-2)).sum(LAYER_AXIS)
