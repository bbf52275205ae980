"""The interface of every residual connection: what a sub-layer reads, and where its output goes.

A sub-layer is attention to the own sentence, attention to the source, or a feed-forward network. A
*stream* flows from sub-layer to sub-layer, and from layer to layer with ``connect: last``:

    stream = ends.open(x)                      # x: the input of the stack
    x, stream = residual.before(stream)        # x: the input of the sub-layer f
    stream = residual.after(stream, f(x))      # and so on for each sub-layer
    output = readout(stream)                   # readout = ends.readout()

With the usual residual sum the stream is the tensor x itself. Other connections keep more than one
tensor. A stream is a tensor, or a nested tuple of tensors; it belongs to one pass, and modules do
not store it. Connections treat each position independently, so decoding needs no state for them.
Tensors have the shape (..., D) with any leading dimensions.
"""

from typing import Any, NamedTuple

from torch import Tensor, nn

from fusetk.nn.dropout import Dropout

Stream = Any


class SubLayer(NamedTuple):
    """A sub-layer for which a residual connection is built."""

    name: str
    """Prefix of the tensors that the connection records with ``fusetk.trace``."""
    below: int
    """Number of sub-layers of the stack below it."""
    width: int
    """Features of its input and of its output."""
    pre_norm: bool
    """Whether its input is normalised, and not the result of the residual sum."""
    dropout: float
    """Rate of dropout on its output."""


class StreamEnds:
    """The ends of a stack's stream; here those of a stream that is one tensor."""

    def open(self, x: Tensor) -> Stream:
        """Return the stream at the input x (..., D) of the stack."""
        return x

    def state(self, stream: Stream) -> Tensor:
        """Return the state of the stack (..., D) at this place, for fusions and attention."""
        return stream

    def readout(self) -> nn.Module:
        """Build the module that maps the stream above the highest sub-layer to (..., D)."""
        return nn.Identity()


class Residual(nn.Module):
    """The residual connection of one sub-layer f, with its normalisation and dropout."""

    def __init__(self, sublayer: SubLayer):
        super().__init__()
        self.norm = nn.LayerNorm(sublayer.width)
        self.dropout = Dropout(sublayer.dropout)
        self.pre_norm = sublayer.pre_norm

    def before(self, stream: Stream) -> tuple[Tensor, Stream]:
        """Return the input x (..., D) of the sub-layer, and the stream for ``after``.

        The old stream must not be used again.
        """
        raise NotImplementedError

    def after(self, stream: Stream, y: Tensor) -> Stream:
        """Return the stream with the output y = f(x) (..., D) of the sub-layer."""
        raise NotImplementedError
