"""Tree aggregation, with residual connections (RTAL section 4.1) or without (the "CNN-like tree" of its Table 5)."""

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field, field_validator
from torch import Tensor, nn

from fusetk.fusion.aggregate import AggregateConfig, aggregation, show_betas
from fusetk.fusion.base import LayerFusion


class TreeConfig(AggregateConfig):
    """A binary tree over the highest layers."""

    kind: str = "tree"
    embedding: bool = False
    """The word embedding may be a leaf, where there are not enough layers. (As what stands below the leaves, it may be read either way.)"""
    leaves: int = Field(4, ge=2)
    """How many of the highest layers are aggregated, a power of two (RTAL: 4, of stacks of 4 and of 6 layers)."""
    residual: Literal["preceding", "none"] = "preceding"
    """What child nodes, all but the root, add to their aggregation: what stands before their leftmost leaf in post-order, which is
    the preceding node, and for the first ones the input of the lowest leaf (RTAL shows it in a figure only); or nothing."""

    @field_validator("leaves")
    @classmethod
    def _power_of_two(cls, leaves: int) -> int:
        if leaves & (leaves - 1):
            raise ValueError("the leaves of a tree are a power of two: 2, 4, 8, ...")
        return leaves

    def check(self, layers: int) -> None:
        if layers + self.embedding < self.leaves:
            raise ValueError(
                f"a tree over {self.leaves} layers needs a stack that has them, and this one has {layers + self.embedding}"
                f"{' with its embedding' if self.embedding else ''}: make it deeper, or set leaves to less"
            )


class Tree(LayerFusion):
    """Over leaves h1 .. h4: n1 = AGG(h1, h2) + h0, n2 = AGG(h3, h4) + n1, phi = AGG(n1, n2); deeper ones the same, recursively."""

    Config = TreeConfig

    def __init__(self, config: TreeConfig, widths: Sequence[int], width: int, name: str):
        # A tree of two leaves is its root alone, which adds nothing.
        residual = config.residual == "preceding" and config.leaves > 2
        below = int(residual and len(widths) > config.leaves)
        super().__init__(config, widths, width, name, first=len(widths) - config.leaves - below)
        self.leaves, self.residual = config.leaves, residual
        self.nodes = nn.ModuleList(
            aggregation(config, width) for _ in range(config.leaves - 1)
        )  # in post-order

    def fuse(self, layers: list[Tensor]) -> Tensor:
        show_betas(self.nodes, f"{self.name}.betas")
        below = layers[0] if len(layers) > self.leaves else None
        return self._node(layers[-self.leaves :], below, iter(self.nodes), root=True)

    def _node(
        self,
        leaves: list[Tensor],
        preceding: Tensor | None,
        nodes: Iterator[nn.Module],
        root: bool = False,
    ) -> Tensor:
        """The node over ``leaves``, in post-order after ``preceding``."""
        if len(leaves) == 1:
            return leaves[0]
        half = len(leaves) // 2
        left = self._node(leaves[:half], preceding, nodes)
        right = self._node(leaves[half:], left if self.residual else None, nodes)
        n: Tensor = next(nodes)(left, right)
        return n if root or preceding is None else n + preceding
