"""Value residual learning: the values of the lowest layer in every layer (Zhou et al. 2025)."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusetk import trace
from fusetk.models.residual.base import Norm, ResidualConfig, StreamEnds, SubLayer
from fusetk.models.residual.plain import PlainResidual
from fusetk.nn.value_residual import ValueInputs, ValueOutput, ValueResidualAttention


class ValueResidualConfig(ResidualConfig):
    """A mean of the values of self-attention and of those of the lowest layer."""

    kind: str = "value-residual"

    def check(self, norm: Norm, layers: int) -> None:
        if layers == 1:
            raise ValueError(
                "value-residual has no effect on a stack of one layer: choose another residual"
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
    """ResFormer: self-attention of layer n uses the values (V_n + V_1) / 2 (Zhou et al. 2025).

    V_1 are the values of the lowest layer of the stack at the same positions. The residual sum of
    the sub-layers is the usual one. The paper has decoders only; here each stack has its own V_1,
    and attention to the source has the usual values. Learned weights of V_n and V_1, and SVFormer,
    which uses V_1 alone in every layer, are not implemented. A model has the parameters of the
    plain model, but it does not compute its function.
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
        # A plot draws the inputs of the layers from which the values are computed.
        self.values_name = f"{sublayer.side}.connect.layer{self.layer + 1}.value"

    def before(self, stream: ValueStream) -> tuple[Any, ValueStream]:
        x = self.normed_input(stream.x)
        if not self.is_attention:
            return x, stream
        if trace.is_listening_for(self.values_name):
            weights = torch.zeros(self.layer + 1)
            weights[0] += 0.5
            weights[-1] += 0.5
            trace.record(self.values_name, weights)
        return ValueInputs(x, stream.first), stream

    def after(self, stream: ValueStream, y: Tensor | ValueOutput) -> ValueStream:
        first = stream.first
        if isinstance(y, ValueOutput):
            y, first = y
        return ValueStream(super().after(stream.x, y), first)
