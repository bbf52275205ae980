"""Iterative aggregation of the layers, from the lowest to the highest.

The structure is that of Dou et al. 2018, with the aggregations of RTAL (RTAL Table 5).
"""

from collections.abc import Sequence

from torch import Tensor, nn

from fusetk.fusion.aggregate import AggregateConfig, build_aggregation, record_betas
from fusetk.fusion.base import LayerFusion


class IterativeFusionConfig(AggregateConfig):
    """A chain of aggregations."""

    kind: str = "iterative"

    def check(self, layers: int) -> None:
        self.check_two_layers(layers)


class IterativeFusion(LayerFusion):
    """n_1 = h_1, n_l = AGG(h_l, n_{l-1}), phi(Z) = n_L. Every AGG has its own parameters.

    With ``embedding: true`` the chain begins with the word embedding: n_0 = h_0.
    """

    Config = IterativeFusionConfig

    def __init__(self, config: IterativeFusionConfig, widths: Sequence[int], width: int, name: str):
        super().__init__(config, widths, width, name)
        self.nodes = nn.ModuleList(
            build_aggregation(config, width) for _ in range(self.num_fused - 1)
        )

    def fuse(self, layers: list[Tensor]) -> Tensor:
        record_betas(self.nodes, f"{self.name}.betas")
        n = layers[0]
        for node, h in zip(self.nodes, layers[1:], strict=True):
            n = node(h, n)
        return n
