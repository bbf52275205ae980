"""Fusion of the highest layers of groups (GTrans, Yang et al. 2022)."""

from collections.abc import Sequence

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fusetk import trace
from fusetk.errors import quantity
from fusetk.fusion.base import LayerFusion, LayerFusionConfig
from fusetk.nn.combine import weighted_sum


class GroupFusionConfig(LayerFusionConfig):
    """A gated mean of the highest layer of each group."""

    kind: str = "groups"
    groups: int = Field(2, ge=1)
    """Number of groups of equal size into which the layers are divided."""
    embedding: bool = False
    """Fuse the word embedding too, as a group of its own."""

    def check(self, layers: int) -> None:
        if layers % self.groups:
            raise ValueError(
                f"{quantity(layers, 'layer')} cannot be divided into {self.groups} groups of equal "
                "size: give a divisor of the number of layers"
            )
        if self.groups + self.embedding < 2:
            raise ValueError(
                "groups: 1 selects only the highest layer, so it fuses nothing: give more groups, "
                "or set embedding: true"
            )

    @model_validator(mode="after")
    def _every_option_has_an_effect(self) -> "GroupFusionConfig":
        if self.layer_embedding:
            raise ValueError(
                "layer_embedding is a vector for every layer, and groups reads only some layers: "
                "remove it"
            )
        return self


class GroupFusion(LayerFusion):
    """phi(Z) = 1/G sum_g sigmoid(w_g) h_g, where h_g is the highest layer of group g (GTrans).

    The numbers w_g are 0 at first. This is the fusion of GTrans' encoder, and of its decoder
    "without ensemble". Its ensemble of the predictions of all groups is not a fusion.
    """

    Config = GroupFusionConfig

    def __init__(self, config: GroupFusionConfig, widths: Sequence[int], width: int, name: str):
        super().__init__(config, widths, width, name)
        size = (self.num_fused - config.embedding) // config.groups
        self.selected = list(range(self.num_fused - 1, -1, -size))[::-1]
        for i in range(self.num_fused):
            if i not in self.selected:  # its parameters would have no effect
                self.project[i] = self.norm_layers[i] = nn.Identity()
        self.weight = nn.Parameter(torch.zeros(len(self.selected)))

    def fuse(self, layers: list[Tensor]) -> Tensor:
        weights = self.weight.sigmoid() / len(self.selected)
        trace.record_selected(f"{self.name}.weights", weights, self.selected, self.num_fused)
        return weighted_sum(weights, [layers[i] for i in self.selected])
