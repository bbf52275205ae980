"""Self-attention that uses the values of the lowest layer (ResFormer and SVFormer)."""

from typing import NamedTuple

from torch import Tensor

from fusetk.nn.grouped_attention import GroupedSelfAttention


class ValueInputs(NamedTuple):
    """The input of self-attention, and the values of the lowest layer that it uses."""

    x: Tensor
    """(B, T, D)."""
    first: Tensor | None
    """The values of the lowest layer at the same positions (B, T, groups * d), or None."""
    weights: tuple[Tensor | float, Tensor | float]
    """The weight of the values of the lowest layer, and that of the layer's own values."""


class ValueOutput(NamedTuple):
    """The output of self-attention, and the values that it used."""

    y: Tensor
    """(B, T, D)."""
    values: Tensor
    """(B, T, groups * d)."""


class ValueResidualAttention(GroupedSelfAttention):
    """Self-attention whose values are a V_1 + b V_n with weights a and b (Zhou et al. 2025).

    V_n are the layer's own values, and V_1 are those of the lowest layer. Without V_1 they are V_n.
    The cache holds the sum, so decoding needs no other state.
    """

    def _projections(self, x: ValueInputs, start: int | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super()._projections(x.x, start)
        if x.first is None:
            return q, k, v
        a, b = x.weights
        return q, k, a * x.first + b * v

    def _output(self, y: Tensor, x: ValueInputs, v: Tensor) -> ValueOutput:
        return ValueOutput(y, v)


class SharedValueAttention(ValueResidualAttention):
    """Self-attention with the values a V_1. It has no values of its own (SVFormer)."""

    @property
    def projection_widths(self) -> list[int]:
        return [self.width, self.keys_width]

    def _projections(self, x: ValueInputs, start: int | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert x.first is not None, "a layer without own values needs V_1"
        q, k = self.project(x.x).split(self.projection_widths, -1)
        return *self._rotated(q, k, start), x.weights[0] * x.first
