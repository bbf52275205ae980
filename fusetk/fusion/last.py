"""The usual stack: the highest layer is the output."""

from collections.abc import Sequence

from torch import Tensor

from fusetk.fusion.base import Fusion


class Last(Fusion):
    """phi(Z) = z^L (MLRF Table 1, "Baseline"). Without parameters."""

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[-1]
