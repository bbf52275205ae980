"""The contract of every fusion: phi, many layers in, one representation out, position by position."""

from collections.abc import Sequence

from torch import Tensor, nn

from fusetk.config import Kind


class FusionConfig(Kind):
    """Options of a fusion; each fusion has a subclass of its own."""


class Fusion(nn.Module):
    """phi of MLRF Equation 3: what a stack of layers hands on, made from the outputs of all of them.

    A fusion acts on the layer axis alone: position t of what comes out depends on position t of what goes in and on
    nothing else. So it needs no state in decoding and works in every backbone.
    """

    Config: type[FusionConfig] = FusionConfig
    out_width: int

    def __init__(self, config: FusionConfig, widths: Sequence[int], width: int, name: str):
        """``widths`` of the history, the embedding's first; ``width`` wanted; ``name`` for ``fusetk.trace``."""
        super().__init__()
        self.name = name
        self.out_width = width

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        """[(..., widths[i])], the embedding first and the highest layer last -> (..., out_width)."""
        raise NotImplementedError
