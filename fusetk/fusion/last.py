"""No fusion: the output of the highest layer is the output of the stack."""

from collections.abc import Sequence

from torch import Tensor

from fusetk.fusion.base import Fusion, FusionConfig


class LastFusion(Fusion):
    """phi(Z) = z^L (MLRF Table 1, "Baseline"), without parameters.

    z^L is the top input, which ``connect`` makes above the highest layer. It is the output of the
    highest layer with ``connect: last``, the concatenation of all layers with ``dense`` (DenseNMT),
    and one more combination of them with ``linear`` (Wang et al. 2019).
    """

    reads_top_input = True
    fuses_several = False

    def __init__(self, config: FusionConfig, widths: Sequence[int], width: int, name: str):
        super().__init__(config, widths, width, name)
        self.out_width = widths[-1]

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[-1]
