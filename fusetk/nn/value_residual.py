"""Self-attention with the mean of its own values and those of the lowest layer (ResFormer)."""

from typing import NamedTuple

from torch import Tensor

from fusetk.nn.grouped_attention import GroupedSelfAttention


class ValueInputs(NamedTuple):
    """The input of self-attention, and the values of the lowest layer at the same positions."""

    x: Tensor
    """(B, T, D)."""
    first: Tensor | None
    """(B, T, groups * d); None in the lowest layer."""


class ValueOutput(NamedTuple):
    """The output of self-attention, and the values of the lowest layer at the same positions."""

    y: Tensor
    """(B, T, D)."""
    first: Tensor
    """(B, T, groups * d)."""


class ValueResidualAttention(GroupedSelfAttention):
    """Self-attention whose values are (V_n + V_1) / 2 (Zhou et al. 2025).

    V_n are the layer's own values, and V_1 are those of the lowest layer, which uses V_1 alone. The
    cache holds the mean, so decoding needs no other state.
    """

    def _projections(self, x: ValueInputs, start: int | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super()._projections(x.x, start)
        return q, k, v if x.first is None else (v + x.first) / 2

    def _output(self, y: Tensor, x: ValueInputs, v: Tensor) -> ValueOutput:
        return ValueOutput(y, v if x.first is None else x.first)
