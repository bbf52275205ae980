"""Layer-wise coordination (He et al. 2018).

One stack serves both languages. Layer i of the target reads layer i - 1 of source and target.
Attention divides by the square root of a head's width, as in Vaswani et al. 2017. The paper divides
by the square root of the model's width (Equations 1 and 3). Position encodings are those of Vaswani
et al. 2017, too. The paper prints other exponents for the cosines (section 3).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from pydantic import model_validator
from torch import Tensor, nn

from fusetk.fusion.base import FusionConfig
from fusetk.models import cpu_inference
from fusetk.models.block_model import BlockModel
from fusetk.models.connect import PlannedModule
from fusetk.models.residual import Residual, ResidualBuilder, Stream, residual_class
from fusetk.models.seq2seq import Memory, State
from fusetk.models.stack import Layer, Stack, separate_inputs_error
from fusetk.models.transformer_layer import (
    BlockConfig,
    BlockStackConfig,
    DecoderLayer,
    build_residuals,
    build_summary_layer,
    final_norm,
    layer_options,
)
from fusetk.nn import additional_loss
from fusetk.nn.attention import CrossAttention, KeysValues, SelfAttention, cache_mask, no_slots
from fusetk.nn.cache import Cache
from fusetk.nn.packed_layout import PackedLayout, PackedSides
from fusetk.nn.projection import projection_or_identity


class CoordinatedConfig(BlockConfig):
    """Sizes and options of a coordinated model."""

    kind: str = "coordinated"
    stack: BlockStackConfig = BlockStackConfig(layers=14)
    """Depth and connection for both languages; the fusion is that of the target side."""
    share_weights: bool = True
    """Use the same layers for source and target. With `false` each side has its own layers."""
    mixed_attention: bool = True
    """Let the target attend to the source and to itself in one softmax. With `false` it does so in
    two sub-layers."""
    cross_weights: Literal["shared", "own"] = "shared"
    """Projections of attention to the source, if it is a sub-layer: those of self-attention
    (`shared`), as the parameter counts in the paper imply (Table 3), or its own."""
    source_maps: Literal["source", "target"] = "source"
    """Projections of the source keys and values that the target attends to, with `share_weights:
    false`: those of the source layer, or those of the target layer. The paper does not say which.
    The numbers of parameters do not decide it: they differ only in the highest source layer, which
    needs no projections with `target`. With `norm: pre`, the norm before the projections is that of
    the source layer."""
    language_embedding: bool = True
    """Add to each position a learned vector for its language."""

    @model_validator(mode="after")
    def _options_fit_together(self) -> "CoordinatedConfig":
        self.check_side("stack", self.stack)
        if self.stack.connect.separate_inputs:
            raise ValueError(f"stack.{separate_inputs_error(self.stack.connect)}")
        if residual_class(self.stack.residual).attention_class is not SelfAttention:
            raise ValueError(
                f"stack.residual: {self.stack.residual.kind} needs a self-attention that only "
                "kind: transformer has: choose another residual connection"
            )
        if self.stack.self_attention.kind != "plain":
            raise ValueError(
                f"stack.self_attention: {self.stack.self_attention.kind} is an option of kind: "
                "transformer, since here self-attention also reads the source: remove it"
            )
        if self.positions == "rotary" or self.kv_heads is not None:
            raise ValueError(
                "positions: rotary and kv_heads are options of kind: transformer, since here the "
                "attention to the source has the weights of self-attention: remove them"
            )
        if self.mixed_attention and self.cross_weights == "own":
            raise ValueError(
                "cross_weights: own has no effect with mixed_attention: true, which has one "
                "attention for both: remove one of the two options"
            )
        if self.source_maps == "target" and (self.share_weights or self.cross_weights == "own"):
            reason = (
                "share_weights: true, where both sides have the same projections"
                if self.share_weights
                else "cross_weights: own, whose projections are the target's"
            )
            raise ValueError(f"source_maps: target has no effect with {reason}: remove it")
        return self

    @property
    def target_projects_source(self) -> bool:
        """Whether a target layer computes the source keys and values that it attends to."""
        return self.cross_weights == "own" or self.source_maps == "target"


class SourceContext(NamedTuple):
    """The context of a layer that runs over the source."""

    mask: Tensor | PackedLayout
    """(B, 1, 1, S), or the layout of packed sentences."""
    is_top: bool
    """Whether this is the highest layer, which computes only the tensor that the target attends
    to."""


class TargetContext(NamedTuple):
    """The context of a layer that runs over the target."""

    cache: Cache
    """Self-attention keys and values of the earlier target tokens (B, slots, 2D). With mixed
    attention (Equation 3) the keys and values of the source precede them."""
    visible: Tensor | PackedLayout | PackedSides | None
    """Which cache slots each new position attends to (see ``cache_mask``), or the layouts of packed
    sentences: of both sides with mixed attention."""
    keys_values: Tensor | None
    """The source keys and values (B, S, 2D); None with mixed attention."""
    source_mask: Tensor | PackedSides
    """(B, S), or the layouts of packed sentences."""


class CoordinatedLayer(DecoderLayer):
    """A layer for both languages, or for one of them.

    The target attends to the source keys and values of the same layer. With ``cross_weights: own``
    or ``source_maps: target`` it computes them from the inputs of the source layer, which are
    normalised with ``norm: pre``.
    """

    def __init__(
        self,
        config: CoordinatedConfig,
        layer: int,
        input_width: int,
        width: int,
        residuals: ResidualBuilder,
        target: bool = True,
    ):
        """``layer`` 0 is the lowest. ``target=False``: the layer serves the source only."""
        separate = target and not config.mixed_attention
        attention_residual, *cross_residual, ffn_residual = residuals.layer(width, 2 + separate)
        name = f"decoder.layer{layer + 1}"
        super().__init__(config, name, input_width, width, attention_residual, ffn_residual)
        # Names of recorded weights: of attention to the source, and of attention in the source.
        self.source_name = f"{name}.mixed" if config.mixed_attention else f"{name}.cross"
        self.encoder_name = f"encoder.layer{layer + 1}.self"
        self.mixed = config.mixed_attention
        self.target_projects_source = config.target_projects_source
        self.cross_residual = cross_residual[0] if separate else None
        self.gate = None
        self.cross = None
        if target and config.cross_weights == "own":
            self.cross = CrossAttention(
                width,
                [width],
                config.heads,
                config.attention_dropout,
                f"{name}.cross",
                config.attention_bias,
            )

    def sublayers(self) -> list[tuple[Residual, nn.Module]]:
        if self.cross_residual is None:
            return super().sublayers()
        # Shared attention to the source has the weights of self-attention.
        return [*super().sublayers(), (self.cross_residual, self.cross or nn.Identity())]

    def forward(
        self, x: Stream, context: SourceContext | TargetContext | cpu_inference.StepContext
    ) -> tuple[Stream | None, Tensor | Cache | tuple[Tensor, ...]]:
        """Run over the source or the target, as ``context`` says.

        Source: x (B, S, input width) -> (B, S, D), or None for the highest layer, and the tensor
        that the target attends to: keys and values (B, S, 2D), or the tensor from which the target
        computes them (B, S, D). Target: x (B * K, T, input width) -> (B * K, T, D), and the
        extended cache. Target with a ``StepContext``: x (R, 1, input width) -> (R, 1, D), and the
        projections (R_t, 3D) of each step. Input and output may be streams of such tensors.
        """
        if isinstance(context, cpu_inference.StepContext):
            return cpu_inference.run_decoder_layer(self, x, context)
        x = self.input_projection(x)
        if isinstance(context, SourceContext):
            return self._source(x, context)
        return self._target(x, context)

    def _source(self, stream: Stream, context: SourceContext) -> tuple[Stream | None, Tensor]:
        x, stream = self.attention_residual.before(stream)
        if context.is_top:
            return None, x if self.target_projects_source else self.attention.keys_values(x)
        y, keys_values = self.attention.with_keys_values(x, context.mask, self.encoder_name)
        output = self.feed_forward(self.attention_residual.after(stream, y))
        return output, x if self.target_projects_source else keys_values

    @property
    def source_maps(self) -> list[Callable[[Tensor], Tensor]]:
        return [self.source_keys_values]

    def source_keys_values(self, source: Tensor) -> Tensor:
        """Return the keys and values (..., 2D) for the tensor that the source layer returned."""
        if self.cross is not None:
            return self.cross.keys_values([source])
        return self.attention.keys_values(source) if self.target_projects_source else source

    def _target(self, stream: Stream, context: TargetContext) -> tuple[Stream, Cache]:
        name = self.source_name if self.mixed else self.attention.name
        x, stream = self.attention_residual.before(stream)
        y, cache = self.attention.step(x, context.cache, context.visible, name)
        stream = self.attention_residual.after(stream, y)
        if self.cross_residual is not None and context.keys_values is not None:
            x, stream = self.cross_residual.before(stream)
            y = self._attend_source(x, context.keys_values, context.source_mask)
            stream = self.cross_residual.after(stream, y)
        return self.feed_forward(stream), cache

    def _attend_source(self, x: Tensor, keys_values: Tensor, mask: Tensor | PackedSides) -> Tensor:
        if self.cross is not None:
            return self.cross(x, keys_values, mask)
        if isinstance(mask, Tensor):
            mask = mask[:, None, None, :]
        return self.attention.across(x, keys_values, mask, self.source_name)


class TopSourceLayer(Layer):
    """The highest source layer if the sides have separate layers.

    No other layer reads its output, so it computes only the tensor that the target attends to.
    """

    def __init__(
        self,
        config: CoordinatedConfig,
        input_width: int,
        width: int,
        readout: nn.Module,
        residual: Residual,
    ):
        """``readout`` maps the stream of residual connections to a tensor.

        ``residual`` determines the scale of the initial weights; the layer does not run it.
        """
        super().__init__()
        self.width = width
        # The tuple keeps its parameters out of the model.
        self._residual = (residual,)
        self.readout = readout
        # The map of the input to the width of the layer; it has this name in checkpoints.
        self.read = projection_or_identity(input_width, width)
        self.norm = final_norm(config, width)
        self.project: nn.Module = nn.Identity()
        if not config.target_projects_source:
            self.project = KeysValues(width, 2 * width, config.attention_bias)

    def sublayers(self) -> list[tuple[Residual, nn.Module]]:
        return [(self._residual[0], self.project)]

    def forward(self, x: Stream, context: SourceContext) -> tuple[None, Tensor]:
        """(B, S, input width) -> None, and the tensor that the target attends to.

        The tensor is that of ``CoordinatedLayer.forward`` (B, S, 2D or D).
        """
        return None, self.project(self.norm(self.read(self.readout(x))))


def build_source_stack(config: CoordinatedConfig) -> Stack:
    """Build separate layers for the source, without a fusion."""
    depth = config.stack.layers
    residuals = build_residuals(config, config.stack, "encoder", {"encoder": depth})

    def build_layer(planned: PlannedModule, name: str, input_width: int) -> Layer:
        if planned.layer + 1 == depth:
            readout = residuals.ends.readout()
            [residual] = residuals.layer(planned.width, 1)
            return TopSourceLayer(config, input_width, planned.width, readout, residual)
        options = layer_options(config, config.stack, planned.layer)
        return CoordinatedLayer(
            options, planned.layer, input_width, planned.width, residuals, target=False
        )

    return Stack(
        config.stack.model_copy(update={"fuse": FusionConfig(kind="last")}),
        [config.width] * (depth + 1),
        "encoder",
        layer=build_layer,
        summary=build_summary_layer,
        ends=residuals.ends,
        uses_output=False,
    )


class Coordinated(BlockModel):
    """One stack for source and target, or two stacks of the same depth (He et al. 2018).

    In layer i, source positions attend to the source positions of the layer below. Target positions
    attend to the source positions and, up to their own, to the target positions of the layer below.
    The source does not depend on the target, so it is encoded once; decoding needs only the keys
    and values of each source layer.
    """

    Config = CoordinatedConfig
    packs = True

    def __init__(self, config: CoordinatedConfig, source_size: int, target_size: int):
        """Vocabulary sizes include the special tokens.

        Raises ConfigError if they do not allow ``tie``.
        """
        super().__init__(config, source_size, target_size, config.language_embedding)
        depth = config.stack.layers
        residuals = build_residuals(config, config.stack, "decoder", {"decoder": depth})
        self.stack = Stack(
            config.stack,
            [config.width] * (depth + 1),
            "decoder",
            layer=lambda planned, name, input_width: CoordinatedLayer(
                layer_options(config, config.stack, planned.layer),
                planned.layer,
                input_width,
                planned.width,
                residuals,
            ),
            summary=build_summary_layer,
            ends=residuals.ends,
        )
        self.source_stack = None if config.share_weights else build_source_stack(config)
        self.mixed = config.mixed_attention
        self.norm = final_norm(config, self.stack.out_width)
        self._build_output(self.stack.out_width, target_size)

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        history, output, layer_sources = self._run_source(
            self.source(src), src_mask[:, None, None, :]
        )
        return Memory(history, output, src_mask, layer_sources=layer_sources)

    def _run_source(
        self, embedding: Tensor, mask: Tensor | PackedLayout
    ) -> tuple[Sequence[Tensor], Tensor, tuple[Tensor, ...]]:
        """Return the history, the output, and the tensor that each target layer attends to."""
        stack = self.source_stack or self.stack
        top = len(stack.layers) - 1
        contexts = [SourceContext(mask, is_top=i == top) for i in range(len(stack.layers))]
        with additional_loss.reading_source():
            result = stack(embedding, contexts)
        return result.history, result.output, result.layer_states

    def start(self, memory: Memory) -> State:
        return cpu_inference.start(
            self._target_layers(),
            CoordinatedLayer,
            [[source] for source in memory.layer_sources],
            memory.mask,
            partial(self._start_with_caches, memory.layer_sources, memory.mask),
        )

    def _start_with_caches(self, layer_sources: Sequence[Tensor], mask: Tensor) -> State:
        """Return the first state of the code that reads any number of tokens at once."""
        keys_values = self._keys_values(layer_sources)
        caches = self._first_caches(keys_values)
        per_sentence = (() if self.mixed else tuple(keys_values), mask, caches)
        return State(per_sentence, no_slots(mask), 0)

    def _target_layers(self) -> list[CoordinatedLayer]:
        """Return the layers for the target without added summary layers."""
        return [layer for layer in self.stack.layers if isinstance(layer, CoordinatedLayer)]

    def _keys_values(self, layer_sources: Sequence[Tensor]) -> list[Tensor]:
        """Return the source keys and values of each layer (B, S, 2D)."""
        return [
            layer.source_keys_values(source)
            for layer, source in zip(self._target_layers(), layer_sources, strict=True)
        ]

    def _first_caches(self, keys_values: Sequence[Tensor]) -> tuple[Cache, ...]:
        """Return empty caches, or with mixed attention caches that begin with the source."""
        length = keys_values[0].shape[1] if self.mixed else 0
        return tuple(Cache(tensor[:, :length], length) for tensor in keys_values)

    def decode(self, tgt_in: Tensor, state: State) -> tuple[Tensor, State]:
        state = cpu_inference.restarted_if_better(state, self._target_layers, tgt_in)
        if isinstance(state.per_hypothesis, cpu_inference.Hypotheses):
            output, state = cpu_inference.decode_in_steps(self.stack, self.target, tgt_in, state)
            return self._features(output), state
        keys_values, mask, caches = state.per_sentence
        source_slots = mask.shape[1] if self.mixed else 0
        past = caches[0].length - source_slots
        slots, visible = cache_mask(state.per_hypothesis, len(mask), past, tgt_in.shape[1])
        if self.mixed:
            visible = with_source(visible, mask, past, tgt_in.numel() // len(mask))
        result = self.stack(
            self.target(tgt_in, state.step),
            self._target_contexts(caches, visible, keys_values, mask),
            keep_states=not self.stack.recomputes,
        )
        step = state.step + tgt_in.shape[1]
        new = State((keys_values, mask, result.layer_states), slots, step)
        return self._features(result.output), new

    def decode_packed(
        self, src: Tensor, source_layout: PackedLayout, tgt_in: Tensor, target_layout: PackedLayout
    ) -> Tensor:
        embedding = self.source(src, layout=source_layout)
        _, _, layer_sources = self._run_source(embedding, source_layout)
        keys_values = self._keys_values(layer_sources)
        sides = PackedSides(target_layout, source_layout)
        contexts = self._target_contexts(
            self._first_caches(keys_values),
            sides if self.mixed else target_layout,
            () if self.mixed else keys_values,
            sides,
        )
        _, output, _ = self.stack(
            self.target(tgt_in, layout=target_layout), contexts, keep_states=False
        )
        return self._features(output)

    def _features(self, output: Tensor) -> Tensor:
        """Return the input (..., D) of the output projection for the result of the stack."""
        return self.to_output(self.norm(output))

    def _target_contexts(
        self,
        caches: Sequence[Cache],
        visible: Tensor | PackedLayout | PackedSides | None,
        keys_values: Sequence[Tensor],
        mask: Tensor | PackedSides,
    ) -> list[TargetContext | None]:
        sources: Sequence[Tensor | None] = keys_values or [None] * len(caches)
        return self.stack.per_module(
            TargetContext(cache, visible, source, mask)
            for cache, source in zip(caches, sources, strict=True)
        )

    def layers(self) -> list[nn.Module]:
        if self.source_stack is None:
            return list(self.stack.layers)
        return [*self.stack.layers, *self.source_stack.layers]


def with_source(visible: Tensor | None, mask: Tensor, past: int, new: int) -> Tensor:
    """Return the mask of Equation 3 (B, 1, new, S + past + new).

    It joins the source mask (B, S) and ``visible``, the mask of the target slots that each of the
    ``new`` positions attends to. None means all ``past`` + ``new`` slots.
    """
    if visible is None:
        visible = mask.new_ones(new, past + new)
    source = mask[:, None, None, :].expand(-1, 1, new, -1)
    return torch.cat((source, visible.expand(len(mask), 1, -1, -1)), -1)
