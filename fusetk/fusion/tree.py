"""Tree aggregation of the highest layers.

With residual connections it is RTAL section 4.1. RTAL Table 5 has the "CNN-like tree" of Dou et al.
2018, with the aggregation of Equations 9 and 10. RTAL does not describe the structure; our reading
is the tree without residual connections.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field, field_validator
from torch import Tensor, nn

from fusetk.errors import quantity
from fusetk.fusion.aggregate import AggregateConfig, build_aggregation, record_betas
from fusetk.fusion.base import LayerFusion


class TreeFusionConfig(AggregateConfig):
    """A binary tree over the highest layers."""

    kind: str = "tree"
    embedding: bool = False
    """Allow the word embedding to be a leaf. It is the lowest leaf if the stack has one layer fewer
    than `leaves`. In a deeper stack it would not be a leaf, so this option is refused. If the stack
    has exactly `leaves` layers, a residual connection reads the embedding, even with `false`."""
    leaves: int = Field(4, ge=2)
    """Number of the highest layers that are aggregated, a power of two. RTAL uses 4, with stacks of
    4 and of 6 layers."""
    residual: Literal["preceding", "none"] = "preceding"
    """Residual connection of every node except the root. `preceding`: add the node that precedes
    its leftmost leaf in post-order. If there is no such node, add the input of the lowest leaf. A
    leaf that is the word embedding has no input. This is our reading: RTAL's text does not say what
    is added. `none`: add nothing. The key has no effect in a tree of two leaves, whose only node is
    the root."""

    @field_validator("leaves")
    @classmethod
    def _power_of_two(cls, leaves: int) -> int:
        if leaves & (leaves - 1):
            raise ValueError("leaves must be a power of two: 2, 4, 8, ...")
        return leaves

    def check(self, layers: int) -> None:
        if self.embedding and layers >= self.leaves:
            raise ValueError(
                f"fuse: tree has {self.leaves} leaves, and this stack has {layers} layers, so the "
                "embedding would not be a leaf: remove embedding: true"
            )
        available = layers + self.embedding
        if available < self.leaves:
            counted = " with the embedding" if self.embedding else ""
            raise ValueError(
                f"fuse: tree has {self.leaves} leaves, and this stack has "
                f"{quantity(available, 'layer')}{counted}: make the stack deeper, or give fewer "
                "leaves"
            )


class TreeFusion(LayerFusion):
    """phi(Z) is the root of a binary tree whose leaves are the highest layers.

    For leaves h_1 to h_4 and the input h_0 of h_1: n_1 = AGG(h_1, h_2) + h_0,
    n_2 = AGG(h_3, h_4) + n_1, phi(Z) = AGG(n_1, n_2). Larger trees are built by recursion.
    """

    Config = TreeFusionConfig

    def __init__(self, config: TreeFusionConfig, widths: Sequence[int], width: int, name: str):
        # A tree of two leaves has only a root, and the root has no residual connection.
        residual = config.residual == "preceding" and config.leaves > 2
        has_layer_below = residual and len(widths) > config.leaves
        first = len(widths) - config.leaves - int(has_layer_below)
        super().__init__(config, widths, width, name, first=first)
        self.leaves = config.leaves
        self.residual = residual
        # The nodes are in post-order.
        self.nodes = nn.ModuleList(
            build_aggregation(config, width) for _ in range(config.leaves - 1)
        )

    def fuse(self, layers: list[Tensor]) -> Tensor:
        record_betas(self.nodes, f"{self.name}.betas")
        below = layers[0] if len(layers) > self.leaves else None
        return self._node(layers[-self.leaves :], below, iter(self.nodes), root=True)

    def _node(
        self,
        leaves: list[Tensor],
        preceding: Tensor | None,
        nodes: Iterator[nn.Module],
        root: bool = False,
    ) -> Tensor:
        """Compute the node over ``leaves``; ``preceding`` is the node before them in post-order."""
        if len(leaves) == 1:
            return leaves[0]
        half = len(leaves) // 2
        left = self._node(leaves[:half], preceding, nodes)
        right = self._node(leaves[half:], left if self.residual else None, nodes)
        n: Tensor = next(nodes)(left, right)
        return n if root or preceding is None else n + preceding
