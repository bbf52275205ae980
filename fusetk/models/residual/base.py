"""The interface of every residual connection: the input of a sub-layer and the use of its output.

A sub-layer is self-attention, attention to the source, or a feed-forward network. A *stream* flows
from sub-layer to sub-layer, and from layer to layer with ``connect: last``:

    stream = ends.open(x)                      # x: the input of the stack
    x, stream = residual.before(stream)        # x: the input of the sub-layer f
    stream = residual.after(stream, f(x))      # and so on for each sub-layer
    output = readout(stream)                   # readout = ends.readout()

With the usual residual sum the stream is the tensor x itself. Other connections keep more than one
tensor. A stream is a tensor, or a nested tuple of tensors; it belongs to one pass, and modules do
not store it. Connections treat each position independently, so decoding needs no state for them.
Tensors have the shape (..., D) with any leading dimensions.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from fusetk.config import ComponentConfig
from fusetk.nn.attention import SelfAttention
from fusetk.nn.dropout import Dropout
from fusetk.nn.norm import Normalization, build_norm
from fusetk.nn.reserved import reserve

Stream = Any
Norm = Literal["post", "pre", "none"]


class SubLayer(NamedTuple):
    """A sub-layer for which a residual connection is built."""

    name: str
    """Prefix of the tensors that the connection records with ``fusetk.trace``."""
    below: int
    """Number of sub-layers of the stack below it."""
    total: int
    """Number of sub-layers of the stack."""
    width: int
    """Features of its input and of its output."""
    norm: Norm
    """Place of the normalisation: after the residual sum, before the sub-layer, or none."""
    normalization: Normalization
    """Kind of the normalisation."""
    dropout: float
    """Rate of dropout on its output."""
    side: str
    """The stack: "encoder" or "decoder"."""
    layers: Mapping[str, int]
    """Number of layers of each stack."""


class ResidualConfig(ComponentConfig):
    """Options of a residual connection; each connection has its own subclass."""

    def check(self, norm: Norm, layers: int) -> None:
        """Raise ValueError, with a message for the user, if the options do not fit the model.

        ``norm`` is the model's key, and ``layers`` is the number of layers of the stack.
        """


class StreamEnds:
    """The two ends of the stream of a stack; in this class, the stream is one tensor.

    ``open`` makes the stream from the input of the stack. ``readout`` builds the module that
    computes the output.
    """

    sublayers = 0
    """Number of sub-layers of the stack that have been built."""

    def __init__(self, config: Any, name: str, width: int):
        """``config`` is that of the residual connection, and ``name`` a prefix of recorded tensors.

        ``width`` is the width of the stack's input.
        """
        self.config = config
        self.name = name
        self.width = width

    def open(self, x: Tensor) -> Stream:
        """Return the stream at the input x (..., D) of the stack."""
        return x

    def state(self, stream: Stream) -> Tensor:
        """Return the state of the stack (..., D) at this place, for fusions and attention."""
        return stream

    def readout(self) -> nn.Module:
        """Build the module that maps the stream above the highest sub-layer to (..., D)."""
        return HighestState(self)


class HighestState(nn.Module):
    """The state of a stack above its highest sub-layer."""

    def __init__(self, ends: StreamEnds):
        super().__init__()
        self.ends = ends

    def forward(self, stream: Stream) -> Tensor:
        """Return the state (..., D)."""
        return self.ends.state(stream)


class Residual(nn.Module):
    """The residual connection of one sub-layer f, with its normalisation and dropout."""

    Config: type[ResidualConfig] = ResidualConfig
    config: Any
    """The options, an object of the class ``Config``."""
    Ends: type[StreamEnds] = StreamEnds
    spans_layers = False
    """Whether the stream is not one tensor, so that it must flow from layer to layer."""
    attention_class: type[SelfAttention] = SelfAttention
    """Class of self-attention that accepts the input x that ``before`` returns, and whose output
    ``after`` accepts."""

    def __init__(self, config: ResidualConfig, sublayer: SubLayer):
        super().__init__()
        self.config = config
        self.name = sublayer.name
        self.width = sublayer.width
        self.norm: nn.Module = nn.Identity()
        if sublayer.norm != "none":
            self.norm = build_norm(sublayer.normalization, sublayer.width)
        self.dropout = Dropout(sublayer.dropout)
        self.pre = sublayer.norm == "pre"
        reserve(self, Residual, "name", "width", "norm", "pre")

    def normed_input(self, x: Tensor) -> Tensor:
        """Return the input of the sub-layer for the state x: the norm of x with ``norm: pre``."""
        return self.norm(x) if self.pre else x

    def normed_output(self, x: Tensor) -> Tensor:
        """Return the state for the residual sum x: the norm of x with ``norm: post``."""
        return x if self.pre else self.norm(x)

    def before(self, stream: Stream) -> tuple[Any, Stream]:
        """Return the input of the sub-layer, and the stream for ``after``.

        The input has the form that ``attention_class`` or the feed-forward network reads: (..., D),
        or a tuple of tensors. The old stream must not be used again.
        """
        return self.normed_input(stream), stream

    def after(self, stream: Stream, y: Tensor) -> Stream:
        """Return the stream with the output of the sub-layer.

        y = f(x) is (..., D), or the result of ``attention_class``.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method after")

    def initialise(self, sublayer: nn.Module) -> None:
        """Change the initial weights of the sub-layer or of this connection, if it requires it.

        Models call it once, after `init`.
        """


def require_norm(config: ResidualConfig, norm: Norm, required: Norm, reason: str) -> None:
    """Raise ValueError unless the model's ``norm`` is the required one."""
    if norm != required:
        raise ValueError(
            f"residual: {config.kind} needs norm: {required}, because {reason}; the model has "
            f"norm: {norm}"
        )
