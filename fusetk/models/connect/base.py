"""The interface of every connection, and the plan of a stack's modules."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from fusetk.config import ComponentConfig
from fusetk.errors import ConfigError, class_name
from fusetk.nn.projection import projection_or_identity
from fusetk.nn.reserved import reserve

SummaryMode = Literal["no", "in-place", "added"]


class PlannedModule(NamedTuple):
    """One module of a stack, as its connection plans it: a layer or an added summary layer."""

    layer: int
    """Index of the layer (0 is the lowest). For an added summary layer: index of the layer below
    it."""
    width: int
    """Width with which the module is built; some layers of ``conv`` have an output twice as
    wide."""
    is_added: bool
    """Whether this is an added summary layer."""
    is_summary: bool
    """Whether this is a summary, in-place or added: the modules above it cannot read the outputs
    below its own."""
    adds_input: bool
    """Whether a layer adds its input to its output. Only the layers of ``conv`` read it."""


class ConnectConfig(ComponentConfig):
    """Options of a connection; each connection has its own subclass."""

    @property
    def separate_inputs(self) -> bool:
        """Whether a layer reads ``LayerInputs`` and not one tensor."""
        return False

    @property
    def separate_inputs_advice(self) -> str:
        """Advice for a model whose layers cannot read ``LayerInputs``."""
        return "choose another connection"

    def check(self, layers: int) -> None:
        """Raise ValueError, with a message for the user, if ``layers`` layers are not allowed."""

    def check_inputs(self, inputs: int) -> None:
        """Raise ValueError, with a message for the user, if ``inputs`` inputs are not allowed.

        This is the number of inputs that the connection makes: one for each layer, and one more for
        a fusion that reads the top input.
        """

    def check_two_inputs(self, inputs: int) -> None:
        """Raise ValueError if the stack has only one input, which reads the embedding alone."""
        if inputs < 2:
            raise ValueError(
                f"connect: {self.kind} has no layers to connect, because this stack has one layer "
                "and nothing reads its top input: make the stack deeper, or remove connect"
            )

    def width(self, layer: int, layers: int, usual: int) -> int:
        """Return the width of layer ``layer`` (0 is the lowest) in a stack of ``layers`` layers.

        ``usual`` is the width that the backbone would give it.
        """
        return usual

    def summary(self, layer: int, layers: int) -> SummaryMode:
        """Return ``in-place`` if layer ``layer`` is a summary, and ``added`` if one follows it.

        Otherwise, return ``no``. Layers above a summary layer cannot read the layers below it.
        """
        return "no"

    def summarised_layers(self, layers: int) -> int:
        """Return the number of layers that the layers above the last summary cannot read."""
        ends = [i + 1 for i in range(layers) if self.summary(i, layers) != "no"]
        return max(ends, default=0)

    def plan(self, widths: Sequence[int], adds_input: bool) -> list[PlannedModule]:
        """Plan the modules of a stack, the lowest first.

        ``widths`` are those of the input of the lowest layer and of each layer, as the backbone
        gives them. An added summary layer is as wide as this input. ``adds_input``: whether
        the layers of this connection add their input to their output; summary layers always do.
        """
        modules = []
        layers = len(widths) - 1
        for i in range(layers):
            summary = self.summary(i, layers)
            in_place = summary == "in-place"
            layer = PlannedModule(
                layer=i,
                width=self.width(i, layers, widths[i + 1]),
                is_added=False,
                is_summary=in_place,
                adds_input=adds_input or in_place,
            )
            modules.append(layer)
            if summary == "added":
                modules.append(
                    PlannedModule(i, widths[0], is_added=True, is_summary=True, adds_input=True)
                )
        return modules


class LayerInputs(NamedTuple):
    """Separate inputs of a layer, each (..., D)."""

    query: Tensor
    """The input from which self-attention computes its queries."""
    key: Tensor
    value: Tensor
    residual: Tensor
    """The stream to which the output of self-attention is added."""


class Connection(nn.Module):
    """Module that makes the input of each layer of a stack from the outputs below the layer.

    While a stack is built, it calls the connection in the order in which the data will flow:
    ``register_output`` for each output that a layer will read, the embedding first, and
    ``register_input`` for each layer that will read. ``register_top_input`` announces that the
    fusion will read the top input, which the connection makes above the highest layer. While the
    stack runs, ``append`` adds each output to the outputs so far, ``forward`` makes the input of
    the next layer from them, and ``top_input`` makes the top input. The outputs belong to one pass;
    the module does not store them.
    """

    Config: type[ConnectConfig] = ConnectConfig
    adds_input = True
    """Whether layers add their input to their output. Only the layers of ``conv`` read it."""
    config: Any
    """The options, an object of the class ``Config``."""

    def __init__(self, config: ConnectConfig, name: str):
        """``name`` is the prefix of the tensors that are recorded with ``fusetk.trace``."""
        super().__init__()
        self.config = config
        self.name = name
        reserve(self, Connection, "name")

    def initialise(self) -> None:
        """Change the initial weights, if the connection needs others than those of the model's
        `init`.

        Models call it once, after `init`.
        """

    def register_output(self, width: int, starts_block: bool) -> None:
        """Announce an output of ``width`` features.

        ``starts_block``: whether it is the embedding or the output of a summary: the layers that
        are registered after it cannot read earlier outputs.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method register_output")

    def register_input(self) -> int:
        """Announce a layer that reads the outputs registered so far; return its input width."""
        raise NotImplementedError(f"{type(self).__name__} has no method register_input")

    def register_top_input(self) -> int:
        """Announce that ``top_input`` will be called; return the width of its result."""
        return self.register_input()

    def append(self, outputs: Any, output: Any, layer_input: Any = None) -> Any:
        """Return the outputs so far (None at the start) with one more output (..., D).

        ``layer_input`` is the input that ``forward`` made for the layer; None for the embedding and
        for the first output of a block. The old outputs must not be used again.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method append")

    def forward(self, outputs: Any) -> Any:
        """Return the input of the next layer: (..., D), or ``LayerInputs``."""
        raise NotImplementedError(f"{type(self).__name__} has no method forward")

    def top_input(self, outputs: Any) -> Any:
        """Return the top input (..., D)."""
        return self(outputs)


class SourcesConnection(Connection):
    """Base class of the connections that combine the outputs of several layers.

    An output that is not as wide as the embedding is projected to the width of the embedding. The
    stack cannot have summary layers.
    """

    def __init__(self, config: ConnectConfig, name: str):
        super().__init__(config, name)
        self.map = nn.ModuleList()
        reserve(self, SourcesConnection, "map")

    def register_output(self, width: int, starts_block: bool) -> None:
        """Raise ConfigError if a summary makes the output."""
        if starts_block:
            if self.map:
                raise ConfigError(
                    f"{class_name(self)} ({self.name}) cannot have summary layers: remove the "
                    "method summary of its config, or make it a direct subclass of Connection"
                )
            self.width = width
            reserve(self, SourcesConnection, "width")
        self.map.append(projection_or_identity(width, self.width))

    @property
    def num_outputs(self) -> int:
        """Number of outputs registered so far: in ``register_input``, those below the layer."""
        return len(self.map)

    def append(self, outputs: Any, output: Tensor, layer_input: Any = None) -> Any:
        """Return the tuple of the outputs so far with one more output, in the common width."""
        outputs = outputs or ()
        return (*outputs, self.project(len(outputs), output))

    def project(self, i: int, output: Tensor) -> Tensor:
        """Return output ``i`` in the common width, (..., its width) -> (..., D)."""
        return self.map[i](output)
