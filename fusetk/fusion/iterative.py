"""Iterative combination: layer after layer is taken in, from below (Dou et al. 2018; RTAL Table 5)."""

from collections.abc import Sequence

from torch import Tensor, nn

from fusetk.fusion.aggregate import AggregateConfig, aggregation, show_betas
from fusetk.fusion.base import LayerFusion


class IterativeConfig(AggregateConfig):
    """A chain of aggregations."""

    kind: str = "iterative"

    def check(self, layers: int) -> None:
        if layers + self.embedding < 2:
            raise ValueError(
                "an iterative fusion takes two layers or more: make the stack deeper, or set embedding: true"
            )


class Iterative(LayerFusion):
    """n_1 = h_1, n_l = AGG(h_l, n_{l-1}), phi = n_L; each AGG has parameters of its own."""

    Config = IterativeConfig

    def __init__(self, config: IterativeConfig, widths: Sequence[int], width: int, name: str):
        super().__init__(config, widths, width, name)
        self.nodes = nn.ModuleList(aggregation(config, width) for _ in range(self.depth - 1))

    def fuse(self, layers: list[Tensor]) -> Tensor:
        show_betas(self.nodes, f"{self.name}.betas")
        n = layers[0]
        for node, h in zip(self.nodes, layers[1:], strict=True):
            n = node(h, n)
        return n
