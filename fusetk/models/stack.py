"""A stack of layers: the layers, the connection between them, and the fusion of their outputs."""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fusetk.config import ComponentConfig, Config, component
from fusetk.errors import ConfigError, class_name
from fusetk.fusion import AnyFusionConfig, build_fusion, fusion_class
from fusetk.fusion.base import FusionConfig
from fusetk.models.attend import AnyAttendConfig, attended_sources_class
from fusetk.models.connect import (
    CONNECTIONS,
    ConnectConfig,
    Connection,
    LayerInputs,
    PlannedModule,
    build_connection,
)
from fusetk.models.residual import Residual, Stream, StreamEnds
from fusetk.nn import additional_loss
from fusetk.nn.shape_check import check_shape

T = TypeVar("T")

MOST_LAYERS = 10_000  # a larger number is a mistake, and loops over the layers would not end


class StackConfig(Config):
    """One side of a model: its depth, its connection and its fusion."""

    layers_have_separate_inputs: ClassVar[bool] = False
    """Whether the layers can read ``LayerInputs``; `coordinated` has a check of its own."""

    layers: int = Field(ge=1, le=MOST_LAYERS)
    """Number of layers."""
    connect: Annotated[ConnectConfig, component(CONNECTIONS, "a connection", Connection)] = (
        ConnectConfig(kind="last")
    )
    """How the input of a layer is made from the outputs of the layers below it."""
    fuse: AnyFusionConfig = FusionConfig(kind="last")
    """How the outputs of the layers become the output of the stack. `last`: no fusion. With
    `connect: last` the output is that of the highest layer; with another `connect`, `connect` is
    applied once more above the highest layer."""
    checkpoint: bool = False
    """Save only the input of each layer and compute the layer again in the backward pass (gradient
    checkpointing). This needs less memory and more time."""

    @model_validator(mode="after")
    def _depth_suits_connection_and_fusion(self) -> "StackConfig":
        self.connect.check(self.layers)
        self.connect.check_inputs(self.layers + fusion_class(self.fuse).reads_top_input)
        if self.connect.separate_inputs and not self.layers_have_separate_inputs:
            raise ValueError(separate_inputs_error(self.connect))
        summarised = self.connect.summarised_layers(self.layers)
        try:
            self.fuse.check(self.layers - summarised)
        except ValueError as error:
            if not summarised:
                raise
            raise ValueError(
                f"the summaries of connect: {self.connect.kind} hide {summarised} of the "
                f"{self.layers} layers, so {error}"
            ) from error
        return self


def separate_inputs_error(connect: ConnectConfig) -> str:
    """Return the message for layers that cannot read ``LayerInputs``."""
    return (
        f"connect: {connect.kind} makes separate queries, keys and values, which only the layers "
        f"of kind: transformer read: {connect.separate_inputs_advice}"
    )


class DecoderConfig(StackConfig):
    """The decoder's side."""

    attend: AnyAttendConfig = ComponentConfig(kind="top")
    """Which encoder layers each decoder layer attends to. `top`: the output of the encoder."""


class Layer(nn.Module):
    """A layer of a stack, or a summary layer."""

    width: int
    """Features of its output."""

    def forward(self, x: Stream, context: Any) -> tuple[Stream | None, Any]:
        """Return the layer's output (B, T, width) for its input x (B, T, D), and a state.

        Input and output are streams if the residual connections of the sub-layers need more than
        one tensor (``fusetk.models.residual``). ``context`` has the other inputs of the layer, such
        as masks, caches and the source. The state is read by the next call or by the other side of
        the model, for example the extended cache. The backbone chooses the types of the context and
        of the state; both may be None. A highest layer returns None for its output if the model
        uses only its state.
        """
        raise NotImplementedError

    def sublayers(self) -> list[tuple[Residual, nn.Module]]:
        """Return the sub-layers with their residual connections, which may scale their weights."""
        return []


class StreamStates(Sequence[Tensor]):
    """The state of each stream, (..., D). Each read computes the state. Few models read states."""

    def __init__(self, streams: Iterable[Stream], ends: StreamEnds):
        self._streams = tuple(streams)
        self._ends = ends

    def __len__(self) -> int:
        return len(self._streams)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(map(self._ends.state, self._streams[index]))
        return self._ends.state(self._streams[index])


class StackOutput(NamedTuple):
    """The result of one pass through a stack."""

    history: Sequence[Tensor]
    """The embedding (or the output of the last summary layer, if there is one), and the outputs of
    the layers above it."""
    output: Tensor
    """The fused layers. If the highest layer has no output: the last item of the history."""
    states: tuple[Any, ...]
    """The state of each module of ``layers``."""

    @property
    def layer_states(self) -> tuple[Any, ...]:
        """The states that are not None, in the order of the layers."""
        return tuple(state for state in self.states if state is not None)


LayerFactory = Callable[[PlannedModule, str, int], Layer]
"""Function ``(planned, name, input_width)`` that builds one module; ``name`` is the prefix of the
tensors that the module records with ``fusetk.trace``."""


class Stack(nn.Module):
    """Layers that a connection feeds, and a fusion of their outputs."""

    def __init__(
        self,
        config: StackConfig,
        widths: Sequence[int],
        name: str,
        layer: LayerFactory,
        summary: LayerFactory,
        ends: StreamEnds | None = None,
        uses_output: bool = True,
    ):
        """``widths`` are the widths that the backbone gives to the embedding and to each layer.

        ``name`` is the side, "encoder" or "decoder". ``layer`` builds a layer. ``summary`` builds a
        summary layer that the connection adds. ``ends`` are the ends of the stream that flows
        through the layers, by default those of a tensor. ``uses_output``: whether the model uses
        the output of the stack and not only its history and states.
        """
        super().__init__()
        self.layers = nn.ModuleList()  # the layers and the added summary layers
        self.connect = build_connection(config.connect, f"{name}.connect")
        self.plan = config.connect.plan(widths, self.connect.adds_input)
        self.gradient_checkpointing = config.checkpoint
        self.ends = ends or StreamEnds(None, f"{name}.residual", widths[0])
        self.uses_top_input = uses_output and fusion_class(config.fuse).reads_top_input
        self.history_widths = [widths[0]]
        self.has_plain_stream = type(self.ends) is StreamEnds  # whether the stream is one tensor
        self.input_widths: list[int] = []  # input width of each module of ``layers``
        self.output_widths: list[int] = []
        self.name = name
        self.labels: list[str] = []  # of each module of ``layers``: layer1, summary1, ...

        self.connect.register_output(widths[0], starts_block=True)
        summaries = 0
        for i, planned in enumerate(self.plan):
            summaries += planned.is_added
            label = f"summary{summaries}" if planned.is_added else f"layer{planned.layer + 1}"
            self.labels.append(label)
            build = summary if planned.is_added else layer
            self.input_widths.append(self._registered_width(self.connect.register_input))
            module = build(planned, f"{name}.{label}", self.input_widths[i])
            self.output_widths.append(module.width)
            self.layers.append(module)
            if planned.is_summary:
                self.history_widths = []
            self.history_widths.append(module.width)
            if self._feeds_connection(i):
                self.connect.register_output(module.width, planned.is_summary)

        widths_to_fuse = self.history_widths
        if self.uses_top_input:
            widths_to_fuse = [self._registered_width(self.connect.register_top_input)]
        self.readout = self.ends.readout() if self.uses_top_input else nn.Identity()
        self.fuse = build_fusion(config.fuse, widths_to_fuse, widths[-1], f"{name}.fuse")
        self.out_width = self.fuse.out_width

    def _registered_width(self, register: Callable[[], int]) -> int:
        """Return the width of an input of the connection.

        Raises ConfigError if ``register`` does not return a positive int.
        """
        width: Any = register()
        if isinstance(width, int) and width > 0:
            return width
        raise ConfigError(
            f"{class_name(self.connect)}.{register.__name__} ({self.connect.name}) returned "
            f"{width!r}: return the width of the input that forward makes"
        )

    def _feeds_connection(self, i: int) -> bool:
        """Whether the connection reads the output of module ``i`` of ``layers``."""
        return self.uses_top_input or i + 1 < len(self.plan)

    @property
    def depth(self) -> int:
        """The number of layers, without added summary layers."""
        return sum(not planned.is_added for planned in self.plan)

    @property
    def recomputes(self) -> bool:
        """Whether layers are computed again in the backward pass."""
        return self.gradient_checkpointing and self.training

    def per_module(self, values: Iterable[T]) -> list[T | None]:
        """Return one item for each module of ``layers``: None for an added summary layer.

        The items of the other modules are ``values``, which has one value for each layer.
        """
        remaining = iter(values)
        return [None if planned.is_added else next(remaining) for planned in self.plan]

    def forward(
        self, embedding: Tensor, contexts: Sequence[Any], keep_states: bool = True
    ) -> StackOutput:
        """Run all layers; ``contexts`` has one context for each module of ``layers``.

        With ``keep_states=False`` the states are None, so that they take no memory. Raises
        ConfigError if a connection, a layer or a fusion returns a tensor of a wrong shape.
        """
        positions = embedding.shape[:-1]
        stream = self.ends.open(embedding)
        history = [stream]
        outputs = self.connect.append(None, stream)
        states = []
        for i, (layer, context) in enumerate(zip(self.layers, contexts, strict=True)):
            layer_input = self.connect(outputs)
            if self.has_plain_stream:
                self._check_input(layer_input, positions, self.input_widths[i])
            if self.recomputes:
                output, state = checkpoint(
                    *(layer, layer_input, context),
                    use_reentrant=False,
                    context_fn=additional_loss.recomputation,
                )
            else:
                output, state = layer(layer_input, context)
            states.append(state if keep_states else None)
            if output is None:
                break
            if self.has_plain_stream:
                check_shape(output, positions, self.output_widths[i], layer)
            if self.plan[i].is_summary:
                history = []
                outputs = layer_input = None  # frees memory: the layers above cannot read them
            history.append(output)
            if self._feeds_connection(i):
                outputs = self.connect.append(outputs, output, layer_input)
        tensors: Sequence[Tensor] = tuple(history)
        if not self.has_plain_stream:
            tensors = StreamStates(history, self.ends)
        if output is None:
            return StackOutput(tensors, tensors[-1], tuple(states))
        top_input = [self.readout(self.connect.top_input(outputs))] if self.uses_top_input else None
        fused = self.fuse(top_input or tuple(tensors))
        check_shape(fused, positions, self.out_width, self.fuse)
        return StackOutput(tensors, fused, tuple(states))

    def _check_input(self, layer_input: Any, positions: Sequence[int], width: int) -> None:
        """Raise ConfigError if the connection made an input of a wrong shape for a layer."""
        for part in layer_input if isinstance(layer_input, LayerInputs) else [layer_input]:
            check_shape(part, positions, width, self.connect)


def stacks_of(model: nn.Module) -> list[Stack]:
    """Return the stacks of a model; a recurrent model has none."""
    return [module for module in model.modules() if isinstance(module, Stack)]


def check_attention(encoder: StackConfig, decoder: DecoderConfig) -> None:
    """Raise ValueError, with a message for the user, if the two sides do not fit together."""
    attend = attended_sources_class(decoder.attend)
    kind = decoder.attend.kind
    if attend.layer_by_layer:
        if encoder.layers != decoder.layers:
            raise ValueError(
                f"decoder.attend: {kind} needs as many encoder layers as decoder layers, but there "
                f"are {encoder.layers} and {decoder.layers}: give both the same number"
            )
        if encoder.connect.summarised_layers(encoder.layers):
            raise ValueError(
                f"decoder.attend: {kind} needs every encoder layer, and the summaries of "
                "encoder.connect hide some of them: remove one of the two options"
            )
    if attend.reads_output:
        return
    if encoder.fuse.kind != "last":
        raise ValueError(
            f"decoder.attend: {kind} reads the layers of the encoder, so nothing would read the "
            f"result of encoder.fuse: {encoder.fuse.kind}: remove one of the two options"
        )
    encoder.connect.check_inputs(encoder.layers)  # nothing reads the top input
