"""Connections: how a layer's input is made from the outputs of the layers below it."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from fusetk.config import ComponentConfig, resolve
from fusetk.fusion.linear import ScalarMix
from fusetk.nn.precision import product_dtype

SummaryMode = Literal["no", "in-place", "added"]


class PlannedModule(NamedTuple):
    """One module of a stack, as its connection plans it: a layer or an added summary layer."""

    layer: int
    """Index of the layer (0 is the lowest). For an added summary layer: index of the layer below
    it."""
    width: int
    """Width with which the module is built; some layers of ``conv`` have an output twice as
    wide."""
    is_summary: bool
    """Whether this is an added summary layer; False for an in-place summary."""
    starts_block: bool
    """Whether this module is a summary of either kind: the modules above it cannot read the outputs
    below its own."""
    residual: bool
    """Whether a layer adds its input to its output."""


class ConnectConfig(ComponentConfig):
    """Options of a connection; each connection has its own subclass."""

    def check(self, layers: int) -> None:
        """Raise ValueError, with a message for the user, if ``layers`` layers are not allowed."""

    def width(self, layer: int, layers: int, usual: int) -> int:
        """Return the width of layer ``layer`` (0 is the lowest) in a stack of ``layers`` layers.

        ``usual`` is the width that the backbone would give it.
        """
        return usual

    def summary(self, layer: int, layers: int) -> SummaryMode:
        """Return whether layer ``layer`` is a summary (in-place) or is followed by one (added).

        Layers above a summary layer cannot read the layers below it.
        """
        return "no"

    def summarised_layers(self, layers: int) -> int:
        """Return the number of layers that the layers above the last summary cannot read."""
        ends = [i + 1 for i in range(layers) if self.summary(i, layers) != "no"]
        return max(ends, default=0)

    def plan(self, widths: Sequence[int], residual: bool) -> list[PlannedModule]:
        """Plan the modules of a stack, the lowest first.

        ``widths`` are the widths that the backbone gives to the embedding and to each layer. An
        added summary layer is as wide as the embedding. ``residual``: whether the layers of this
        connection are residual; summary layers are always residual.
        """
        modules = []
        layers = len(widths) - 1
        for i in range(layers):
            summary = self.summary(i, layers)
            in_place = summary == "in-place"
            layer = PlannedModule(
                layer=i,
                width=self.width(i, layers, widths[i + 1]),
                is_summary=False,
                starts_block=in_place,
                residual=residual or in_place,
            )
            modules.append(layer)
            if summary == "added":
                modules.append(
                    PlannedModule(i, widths[0], is_summary=True, starts_block=True, residual=True)
                )
        return modules


class Connection(nn.Module):
    """Module that makes the input of each layer of a stack from the outputs below the layer.

    While a stack is built, it calls the connection in the order in which the data will flow:
    ``register_output`` for each output that a layer will read, the embedding first, and
    ``register_input`` for each layer that will read. While the stack runs, ``append`` adds each
    output to a stream, and ``forward`` makes the input of the next layer from the stream. A stream
    belongs to one pass; the module does not store it.
    """

    Config: type[ConnectConfig] = ConnectConfig
    residual = True
    """Whether layers add their input to their output."""

    def __init__(self, config: ConnectConfig, name: str):
        """``name`` is the prefix of the tensors that are recorded with ``fusetk.trace``."""
        super().__init__()
        self.name = name

    def register_output(self, width: int, first: bool) -> None:
        """Announce an output of ``width`` features.

        ``first``: the layers that are registered after it cannot read earlier outputs.
        """
        raise NotImplementedError

    def register_input(self) -> int:
        """Announce a layer that reads the outputs registered so far; return its input width."""
        raise NotImplementedError

    def append(self, stream: Any, output: Tensor) -> Any:
        """Return the stream (None at the start) with one more output (B, T, D).

        The old stream must not be used again.
        """
        raise NotImplementedError

    def forward(self, stream: Any) -> Tensor:
        """Return the input (B, T, D) of the next layer."""
        raise NotImplementedError


class LastConnection(Connection):
    """The usual connection: a layer reads the output of the layer below it."""

    def register_output(self, width: int, first: bool) -> None:
        self.width = width

    def register_input(self) -> int:
        return self.width

    def append(self, stream: Tensor | None, output: Tensor) -> Tensor:
        return output

    def forward(self, stream: Tensor) -> Tensor:
        return stream


class LinearConnectionConfig(ConnectConfig):
    """A learned linear combination of all layers below."""

    kind: str = "linear"
    normalize: Literal["none", "softmax"] = "none"
    """Use the weights unchanged, initially 1/n, or normalise them with a softmax so that they sum
    to 1."""
    norm_layers: bool = True
    """Apply layer normalisation to every layer before it is weighted (Wang et al. 2019, section 3,
    for pre-norm layers)."""
    norm: bool = False
    """Apply layer normalisation to the combination (Wang et al. 2019, section 3, for post-norm
    layers)."""


class LinearConnection(Connection):
    """Dynamic linear combination of layers (Wang et al. 2019).

    Layer l reads sum_k w_lk LN(y_k), where y_k are the embedding and the outputs of the layers
    below. With ``fuse: last`` the output of the stack is one more combination. An output that is
    not as wide as the embedding is projected to the width of the embedding.
    """

    Config = LinearConnectionConfig

    def __init__(self, config: LinearConnectionConfig, name: str):
        super().__init__(config, name)
        self.config = config
        self.map = nn.ModuleList()
        self.norm_layers = nn.ModuleList()
        self.combine = nn.ModuleList()
        self.norm = nn.ModuleList()

    def register_output(self, width: int, first: bool) -> None:
        if first:
            self.width = width
        self.map.append(nn.Identity() if width == self.width else nn.Linear(width, self.width))
        norm_layers = self.config.norm_layers
        self.norm_layers.append(nn.LayerNorm(self.width) if norm_layers else nn.Identity())

    def register_input(self) -> int:
        normalize = self.config.normalize
        outputs = len(self.norm_layers)
        reader = len(self.combine) + 1
        if normalize == "softmax" and outputs == 1:  # the weight would always be 1
            self.combine.append(SingleInput())
        else:
            self.combine.append(ScalarMix(outputs, normalize, f"{self.name}.layer{reader}"))
        self.norm.append(nn.LayerNorm(self.width) if self.config.norm else nn.Identity())
        return self.width

    def append(self, stream: tuple[Tensor, ...] | None, output: Tensor) -> tuple[Tensor, ...]:
        stream = stream or ()
        i = len(stream)
        return (*stream, self.norm_layers[i](self.map[i](output)))

    def forward(self, stream: tuple[Tensor, ...]) -> Tensor:
        i = len(stream) - 1
        combined: Tensor = self.norm[i](self.combine[i](stream))
        return combined


class SingleInput(nn.Module):
    """The combination of one layer with weight 1."""

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        return layers[0]


class DenseConnectionConfig(ConnectConfig):
    """The concatenation of all layers below."""

    kind: str = "dense"
    growth: PositiveInt | list[PositiveInt] = 128
    """Features of a layer's output: one number, or one for each layer (the number of an in-place
    summary is not used). A decoder layer of the `conv` backbone adds twice as many features: those
    of its convolution and those of its attention."""
    summary_every: int | None = Field(None, ge=1)
    """Number of layers after which a summary layer of full width reads all features. Layers above a
    summary layer cannot read the layers below it. A stack does not end with a summary layer.
    (DenseNMT has no summary layers in stacks of 4 layers; in stacks of 8 layers the number is
    6.)"""
    summary_layer: Literal["in-place", "added"] = "in-place"
    """`in-place`: the last layer of each such number of layers is itself the summary, as in the
    authors' code. `added`: a simpler layer above it is the summary. This is another reading of the
    paper's text."""

    def check(self, layers: int) -> None:
        if self.summary_layer == "added" and not self.summarised_layers(layers):
            raise ValueError(
                "summary_layer: added has no effect without a summary: set summary_every to less "
                "than the number of layers"
            )
        if isinstance(self.growth, list) and len(self.growth) != layers:
            raise ValueError(
                f"growth lists {len(self.growth)} widths for a stack of {layers} layers: give one "
                "number, or one for each layer"
            )

    def width(self, layer: int, layers: int, usual: int) -> int:
        if self.summary(layer, layers) == "in-place":
            return usual
        return self.growth if isinstance(self.growth, int) else self.growth[layer]

    def summary(self, layer: int, layers: int) -> SummaryMode:
        number = layer + 1
        if self.summary_every is None or number == layers or number % self.summary_every:
            return "no"
        return self.summary_layer


class DenseConnection(Connection):
    """h_{l+1} = H([h_l, ..., h_0]) (DenseNMT, section 3.1).

    Our concatenation is in the order from the embedding to the highest layer. All features between
    two summaries are in one buffer. Each feature is written once, and a layer reads the first
    columns of the buffer. Therefore no concatenation copies earlier features.
    """

    Config = DenseConnectionConfig
    residual = False

    def __init__(self, config: DenseConnectionConfig, name: str):
        super().__init__(config, name)
        self.features = 0  # number of features since the last summary
        self.max_features = 0

    def register_output(self, width: int, first: bool) -> None:
        self.features = width if first else self.features + width
        self.max_features = max(self.max_features, self.features)

    def register_input(self) -> int:
        return self.features

    def append(self, stream: "DenseStream | None", output: Tensor) -> "DenseStream":
        if stream is None:
            shape = (*output.shape[:-1], self.max_features)
            stream = DenseStream(output.new_empty(shape, dtype=product_dtype(output)), None)
        features = _Append.apply([stream.buffer], stream.features, output)
        return DenseStream(stream.buffer, features)

    def forward(self, stream: "DenseStream") -> Tensor:
        assert stream.features is not None
        return stream.features


class DenseStream(NamedTuple):
    """The features since the last summary."""

    buffer: Tensor  # (B, T, max_features)
    features: Tensor | None  # (B, T, number of features so far), the first columns of the buffer


class _Append(torch.autograd.Function):
    """Operation that writes ``new`` into the buffer after the columns ``features``.

    It returns ``features`` and ``new`` as one view of the buffer. The write does not change the
    earlier columns, so the views of them that autograd saved stay valid. The write goes through
    ``data``, which hides it from autograd: otherwise autograd would treat it as a change of all
    columns. The buffer is in a list so that autograd does not treat it as an input.
    """

    @staticmethod
    def forward(ctx: Any, buffers: list[Tensor], features: Tensor | None, new: Tensor) -> Tensor:
        start = 0 if features is None else features.shape[-1]
        ctx.start = start
        ctx.dtype = new.dtype
        extended = buffers[0].data[..., : start + new.shape[-1]]
        extended[..., start:] = new
        return extended

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, Tensor]:
        [grad] = grads
        features_grad = grad[..., : ctx.start] if ctx.start else None
        return None, features_grad, grad[..., ctx.start :].to(ctx.dtype)


CONNECTIONS: dict[str, type[Connection]] = {
    "last": LastConnection,
    "linear": LinearConnection,
    "dense": DenseConnection,
}


def build_connection(config: ConnectConfig, name: str) -> Connection:
    """Build the connection that ``config.kind`` names. Raises ValueError if there is none."""
    connection: Connection = resolve(config.kind, CONNECTIONS, Connection)(config, name)
    return connection
