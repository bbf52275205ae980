"""The residual connection of self-attention with separate inputs (``LayerInputs``)."""

from typing import Any

from torch import Tensor, nn

from fusetk.errors import ConfigError, class_name
from fusetk.models.connect.base import LayerInputs
from fusetk.models.residual.base import Residual, Stream, SubLayer
from fusetk.nn.attention import SelfAttention
from fusetk.nn.grouped_attention import AttentionInputs, GroupedSelfAttention
from fusetk.nn.norm import build_norm


class SeparateResidual(Residual):
    """Self-attention that reads queries, keys and values from separate inputs.

    With ``norm: pre`` each of them has its own normalisation (MUDDFormer, Equation 8). The output
    of the sub-layer is added to the fourth input. ``inner`` is the residual connection of the
    sub-layer; it normalises the queries. Its method ``before`` and its ``attention_class`` are not
    used.
    """

    attention_class = GroupedSelfAttention

    def __init__(self, inner: Residual, sublayer: SubLayer):
        """Raise ConfigError if ``inner`` has its own ``before`` or ``attention_class``."""
        nn.Module.__init__(self)
        cls = type(inner)
        if cls.before is not Residual.before or cls.attention_class is not SelfAttention:
            raise ConfigError(
                f"{class_name(inner)} ({inner.name}) has its own method before or attention_class, "
                f"which {sublayer.side}.connect with separate queries, keys and values would not "
                "use: choose another connect or residual"
            )
        self.inner = inner
        own_norms = sublayer.norm == "pre"
        self.key_norm, self.value_norm = (
            build_norm(sublayer.normalization, sublayer.width) if own_norms else nn.Identity()
            for _ in range(2)
        )

    def before(self, stream: LayerInputs) -> tuple[Any, Stream]:
        inputs = AttentionInputs(
            self.inner.normed_input(stream.query),
            self.key_norm(stream.key),
            self.value_norm(stream.value),
        )
        return inputs, stream.residual

    def after(self, stream: Stream, y: Tensor) -> Stream:
        return self.inner.after(stream, y)

    def initialise(self, sublayer: nn.Module) -> None:
        self.inner.initialise(sublayer)
