"""Value residual learning: the values of the lowest layer in other layers (Zhou et al. 2025)."""

from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from fusetk import trace
from fusetk.models.residual.base import Norm, ResidualConfig, StreamEnds, SubLayer
from fusetk.models.residual.plain import PlainResidual
from fusetk.nn.value_residual import (
    SharedValueAttention,
    ValueInputs,
    ValueOutput,
    ValueResidualAttention,
)


class ValueResidualConfig(ResidualConfig):
    """A weighted sum of the values of self-attention and of those of the lowest layer."""

    kind: str = "value-residual"
    first: float = Field(0.5, gt=0, le=1000)
    """Weight of the values of the lowest layer."""
    own: float = Field(0.5, ge=0, le=1000)
    """Weight of the layer's own values. 0: the layer computes no values (SVFormer, with `first:
    1`)."""
    learned: bool = False
    """Learn the weights of each layer; `first` and `own` are the initial values."""
    from_layer: int = Field(2, ge=2)
    """Lowest layer, counted from 1, that uses the values of layer 1."""

    def check(self, norm: Norm, layers: int) -> None:
        if layers == 1:
            raise ValueError(
                "value-residual has no effect on a stack of one layer: choose another residual"
            )
        if self.from_layer > layers:
            raise ValueError(
                f"value-residual has no effect with from_layer: {self.from_layer} on a stack of "
                f"{layers} layers: choose a smaller number"
            )
        if self.learned and self.own == 0:
            raise ValueError(
                "value-residual with own: 0 has no values of its own, so it cannot learn their "
                "weight: remove learned, or choose another number for own"
            )


class ValueStream(NamedTuple):
    """The residual sum, and the values of the lowest layer."""

    x: Tensor
    """(..., D)."""
    first: Tensor | None
    """(..., groups * d); None below the lowest self-attention."""


class ValueEnds(StreamEnds):
    """The residual sum at both ends."""

    def open(self, x: Tensor) -> ValueStream:
        return ValueStream(x, None)

    def state(self, stream: ValueStream) -> Tensor:
        return stream.x


class ValueResidual(PlainResidual):
    """ResFormer: self-attention of layer n uses the values a V_1 + b V_n (Zhou et al. 2025).

    V_1 are the values of the lowest layer of the stack at the same positions, and a and b are
    ``first`` and ``own``. The residual sum of the sub-layers is the usual one. The paper has
    decoders only; here each stack has its own V_1, and attention to the source has the usual
    values. The defaults are those of the paper's Identity-ResFormer, which has the parameters of
    the plain model, but does not compute its function. With b = 0, a layer that uses V_1 has
    no map of values. This is SVFormer if a is 1 and ``from_layer`` is 2.
    """

    Config = ValueResidualConfig
    Ends = ValueEnds
    spans_layers = True
    attention_class = ValueResidualAttention

    def __init__(self, config: ValueResidualConfig, sublayer: SubLayer):
        super().__init__(config, sublayer)
        per_layer = sublayer.total // sublayer.layers[sublayer.side]
        self.layer, part = divmod(sublayer.below, per_layer)
        self.is_attention = part == 0
        self.uses_first = self.is_attention and self.layer >= config.from_layer - 1
        if self.uses_first and config.own == 0:
            self.attention_class = SharedValueAttention
        # A plot draws the inputs of the layers from which the values are computed.
        self.values_name = f"{sublayer.side}.connect.layer{self.layer + 1}.value"
        learned = config.learned and self.uses_first
        initial = torch.tensor([config.first, config.own])
        self.weights = nn.Parameter(initial) if learned else None

    def before(self, stream: ValueStream) -> tuple[Any, ValueStream]:
        x = self.normed_input(stream.x)
        if not self.is_attention:
            return x, stream
        a, b = self.config.first, self.config.own
        if self.weights is not None:
            a, b = self.weights.unbind()
        if trace.is_listening_for(self.values_name):
            weights = torch.zeros(self.layer + 1)
            weights[-1] = 1
            if self.uses_first:
                weights[0], weights[-1] = a, b
            trace.record(self.values_name, weights)
        return ValueInputs(x, stream.first if self.uses_first else None, (a, b)), stream

    def after(self, stream: ValueStream, y: Tensor | ValueOutput) -> ValueStream:
        first = stream.first
        if isinstance(y, ValueOutput):
            y, values = y
            first = values if first is None else first
        return ValueStream(super().after(stream.x, y), first)
