"""The usual stack: the highest layer is the output."""

from collections.abc import Sequence

from torch import Tensor

from fusetk.fusion.base import Fusion, FusionConfig


class Last(Fusion):
    """phi(Z) = z^L (MLRF Table 1, "Baseline"). Without parameters.

    A stack gives it, for the highest layer, what one more layer would read: of the residual stack that is the same, of a
    dense one the concatenation (DenseNMT), of a linear one one more combination (Wang et al. 2019).
    """

    def __init__(self, config: FusionConfig, widths: Sequence[int], width: int, name: str):
        super().__init__(config, widths, width, name)
        self.out_width = widths[-1]

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[-1]
