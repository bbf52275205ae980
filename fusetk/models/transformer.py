"""The Transformer (Vaswani et al. 2017) with configurable connections, fusions and attention.

Code other than its ``forward`` may compute a layer. A table in ``CONTRIBUTING.md``
("Which code computes a layer") names the code for each situation.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import model_validator
from torch import Tensor, nn

from fusetk.fusion.base import share_layer_embedding
from fusetk.models import cpu_inference
from fusetk.models.attend import attended_sources_class, build_attended_sources
from fusetk.models.block_model import BlockModel
from fusetk.models.connect import PlannedModule
from fusetk.models.residual import Residual, ResidualBuilder, Stream, residual_class
from fusetk.models.seq2seq import Memory, State
from fusetk.models.stack import Layer, Stack, check_attention
from fusetk.models.transformer_layer import (
    BlockConfig,
    BlockDecoderConfig,
    BlockStackConfig,
    DecoderLayer,
    TransformerLayer,
    build_residuals,
    build_summary_layer,
    final_norm,
    layer_options,
)
from fusetk.nn.attention import CrossAttention, SelfAttention, cache_mask, no_slots
from fusetk.nn.cache import Cache
from fusetk.nn.packed_layout import PackedLayout, PackedSides

# Code outside fusetk imports these names; see docs/extending.md.
__all__ = [
    "Transformer",
    "TransformerConfig",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
    "build_summary_layer",
]


class TransformerConfig(BlockConfig):
    """Sizes and options of a Transformer."""

    kind: str = "transformer"
    encoder: BlockStackConfig = BlockStackConfig(layers=6)
    """Depth, connection and fusion of the encoder."""
    decoder: BlockDecoderConfig = BlockDecoderConfig(layers=6)
    """Depth, connection, fusion and attention of the decoder."""
    context_gate: Literal["none", "scalar", "vector"] = "none"
    """Combine the results of self-attention and of attention to the source by a gate with one
    number for each position (`scalar`) or for each feature (`vector`) (Tu et al. 2017)."""

    @model_validator(mode="after")
    def _sides_fit_together(self) -> "TransformerConfig":
        self.check_side("encoder", self.encoder)
        self.check_side("decoder", self.decoder)
        check_attention(self.encoder, self.decoder)
        attention = residual_class(self.decoder.residual).attention_class
        if self.context_gate != "none" and attention is not SelfAttention:
            raise ValueError(
                f"context_gate: {self.context_gate} reads the output of the usual self-attention, "
                f"which decoder.residual: {self.decoder.residual.kind} replaces: remove one of the "
                "two options"
            )
        return self


class ContextGate(nn.Module):
    """(1 - g) t + g s with the gate g = sigmoid(W_t t + W_s s + b) (Tu et al. 2017).

    t is the result of self-attention, and s is the result of attention to the source. He et al.
    2018, section 5.4, use the gate in the Transformer. Our choice is that the gate precedes the
    residual sum.
    """

    def __init__(self, width: int, gates: int):
        """``gates`` is 1 or the width."""
        super().__init__()
        self.map = nn.Linear(2 * width, gates)

    def forward(self, target: Tensor, source: Tensor) -> Tensor:
        """t (..., D), s (..., D) -> (..., D)."""
        return torch.lerp(target, source, torch.sigmoid(self.map(torch.cat((target, source), -1))))


class TransformerEncoderLayer(TransformerLayer):
    """Self-attention and a feed-forward network.

    The context is the source mask (B, 1, 1, S), or the layout of packed sentences.
    """

    def __init__(
        self,
        config: TransformerConfig,
        name: str,
        input_width: int,
        width: int,
        residuals: ResidualBuilder,
    ):
        attention_residual, ffn_residual = residuals.layer(width, 2)
        super().__init__(
            *(config, name, input_width, width, attention_residual, ffn_residual),
            self_attention=config.encoder.self_attention,
        )

    def forward(self, x: Stream, context: Tensor | PackedLayout) -> tuple[Stream, None]:
        """(B, S, input width) -> (B, S, D), or a stream of such tensors to a stream."""
        if (
            type(self) is TransformerEncoderLayer
            and isinstance(context, Tensor)
            and cpu_inference.encoder_layer_is_usable(self, x)
        ):
            return cpu_inference.run_encoder_layer(self, x, context.flatten(1)), None
        x, stream = self.attention_residual.before(self.input_projection(x))
        y = self.attention(x, context)
        return self.feed_forward(self.attention_residual.after(stream, y)), None


class DecoderContext(NamedTuple):
    """The context of a decoder layer."""

    cache: Cache
    """Self-attention keys and values of the earlier target tokens (B, slots, 2 * g * d), for g
    heads of keys and values with d features. Without ``kv_heads`` this is (B, slots, 2D)."""
    visible: Tensor | PackedLayout | None
    """Which cache slots each new position attends to (see ``cache_mask``), or the layout of packed
    sentences."""
    keys_values: Tensor
    """Keys and values of the layer's n sources (B, n * S, 2D)."""
    source_mask: Tensor | PackedSides
    """(B, S), or the layouts of packed sentences."""
    start: int
    """Position of the first new token."""


class TransformerDecoderLayer(DecoderLayer):
    """Causal self-attention, attention to the source, and a feed-forward network."""

    cross: CrossAttention
    cross_residual: Residual

    def __init__(
        self,
        config: TransformerConfig,
        name: str,
        input_width: int,
        width: int,
        source_widths: Sequence[int],
        residuals: ResidualBuilder,
    ):
        attention_residual, cross_residual, ffn_residual = residuals.layer(width, 3)
        super().__init__(
            *(config, name, input_width, width, attention_residual, ffn_residual),
            self_attention=config.decoder.self_attention,
        )
        self.source_name = f"{name}.cross"
        self.cross = CrossAttention(
            width,
            source_widths,
            config.heads,
            config.attention_dropout,
            self.source_name,
            config.attention_bias,
        )
        self.cross_residual = cross_residual
        self.gate = None
        if config.context_gate != "none":
            self.gate = ContextGate(width, 1 if config.context_gate == "scalar" else width)

    def sublayers(self) -> list[tuple[Residual, nn.Module]]:
        return [*super().sublayers(), (self.cross_residual, self.cross)]

    @property
    def source_maps(self) -> list[Callable[[Tensor], Tensor]]:
        return list(self.cross.project)

    def forward(
        self, x: Stream, context: DecoderContext | cpu_inference.StepContext
    ) -> tuple[Stream, Cache | tuple[Tensor, ...]]:
        """(B * K, T, input width) -> (B * K, T, D), and the extended cache.

        With a ``StepContext``: (R, 1, input width) -> (R, 1, D), and the projections (R_t, 3D) of
        each step. The input and the output may be streams of such tensors.
        """
        if isinstance(context, cpu_inference.StepContext):
            return cpu_inference.run_decoder_layer(self, x, context)
        x, stream = self.attention_residual.before(self.input_projection(x))
        y, cache = self.attention.step(x, context.cache, context.visible, start=context.start)
        stream = self.attention_residual.after(stream, y)
        x, stream = self.cross_residual.before(stream)
        z = self.cross(x, context.keys_values, context.source_mask)
        if self.gate is not None:
            z = self.gate(y, z)
        return self.feed_forward(self.cross_residual.after(stream, z)), cache


def _empty_caches(keys_values: Sequence[Tensor]) -> tuple[Cache, ...]:
    """Return an empty cache (B, 0, 2D) for each decoder layer.

    With ``kv_heads``, the cache has another width after the first tokens.
    """
    return tuple(Cache(tensor[:, :0], 0) for tensor in keys_values)


class Transformer(BlockModel):
    """Encoder and decoder of self-attention layers (Vaswani et al. 2017)."""

    Config = TransformerConfig
    encoder_layer_class: ClassVar[type[TransformerEncoderLayer]] = TransformerEncoderLayer
    decoder_layer_class: ClassVar[type[TransformerDecoderLayer]] = TransformerDecoderLayer
    packs = True

    def __init__(self, config: TransformerConfig, source_size: int, target_size: int):
        """Vocabulary sizes include the special tokens.

        Raises ConfigError if they do not allow ``tie``.
        """
        super().__init__(config, source_size, target_size)
        width = config.width
        depths = {"encoder": config.encoder.layers, "decoder": config.decoder.layers}
        residuals = build_residuals(config, config.encoder, "encoder", depths)
        self.encoder = Stack(
            config.encoder,
            [width] * (config.encoder.layers + 1),
            "encoder",
            layer=partial(self.encoder_layer, config, residuals),
            summary=build_summary_layer,
            ends=residuals.ends,
            uses_output=attended_sources_class(config.decoder.attend).reads_output,
        )
        self.attend = build_attended_sources(
            config.decoder.attend,
            self.encoder.history_widths,
            self.encoder.out_width,
            config.decoder.layers,
        )
        target_residuals = build_residuals(config, config.decoder, "decoder", depths)
        self.decoder = Stack(
            config.decoder,
            [width] * (config.decoder.layers + 1),
            "decoder",
            layer=partial(self.decoder_layer, config, target_residuals),
            summary=build_summary_layer,
            ends=target_residuals.ends,
        )
        share_layer_embedding(self.encoder.fuse, self.decoder.fuse)
        self.source_norms = nn.ModuleList(
            final_norm(config, source_width) for source_width in self.attend.widths
        )
        self.decoder_norm = final_norm(config, self.decoder.out_width)
        self._build_output(self.decoder.out_width, target_size)

    def encoder_layer(
        self,
        config: TransformerConfig,
        residuals: ResidualBuilder,
        planned: PlannedModule,
        name: str,
        input_width: int,
    ) -> Layer:
        """Build an encoder layer. A subclass may return any ``Layer``."""
        options = layer_options(config, config.encoder, planned.layer)
        return self.encoder_layer_class(options, name, input_width, planned.width, residuals)

    def decoder_layer(
        self,
        config: TransformerConfig,
        residuals: ResidualBuilder,
        planned: PlannedModule,
        name: str,
        input_width: int,
    ) -> Layer:
        """Build a decoder layer, a ``TransformerDecoderLayer`` or a subclass of it."""
        source_widths = [self.attend.widths[i] for i in self.attend.indices_of(planned.layer)]
        options = layer_options(config, config.decoder, planned.layer)
        return self.decoder_layer_class(
            options, name, input_width, planned.width, source_widths, residuals
        )

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        contexts = [src_mask[:, None, None, :]] * len(self.encoder.layers)
        history, output, _ = self.encoder(self.source(src), contexts)
        return Memory(history, output, src_mask)

    def start(self, memory: Memory) -> State:
        sources = self._layer_sources(memory)
        return cpu_inference.start(
            self._decoder_layers(),
            TransformerDecoderLayer,
            sources,
            memory.mask,
            partial(self._start_with_caches, sources, memory.mask),
        )

    def _start_with_caches(self, sources: Sequence[Sequence[Tensor]], mask: Tensor) -> State:
        """Return the first state of the code that reads any number of tokens at once."""
        keys_values = self._keys_values(sources)
        return State((keys_values, mask, _empty_caches(keys_values)), no_slots(mask), 0)

    def _layer_sources(self, memory: Memory) -> list[list[Tensor]]:
        """Return the n sources (B, S, width) that each decoder layer reads."""
        sources = self.attend.checked_sources(memory)
        sources = [norm(x) for norm, x in zip(self.source_norms, sources, strict=True)]
        return [
            [sources[k] for k in self.attend.indices_of(i)]
            for i, _ in enumerate(self._decoder_layers())
        ]

    def _keys_values(self, sources: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
        """Return the source keys and values of each decoder layer (B, n * S, 2D)."""
        return tuple(
            layer.cross.keys_values(tensors)
            for layer, tensors in zip(self._decoder_layers(), sources, strict=True)
        )

    def _decoder_layers(self) -> list[TransformerDecoderLayer]:
        """Return the layers of the decoder without added summary layers."""
        return [
            layer for layer in self.decoder.layers if isinstance(layer, TransformerDecoderLayer)
        ]

    def decode(self, tgt_in: Tensor, state: State) -> tuple[Tensor, State]:
        state = cpu_inference.restarted_if_better(state, self._decoder_layers, tgt_in)
        if isinstance(state.per_hypothesis, cpu_inference.Hypotheses):
            output, state = cpu_inference.decode_in_steps(self.decoder, self.target, tgt_in, state)
            return self._features(output), state
        keys_values, mask, caches = state.per_sentence
        slots, visible = cache_mask(
            state.per_hypothesis, len(mask), caches[0].length, tgt_in.shape[1]
        )
        contexts = self.decoder.per_module(
            DecoderContext(cache, visible, source, mask, state.step)
            for cache, source in zip(caches, keys_values, strict=True)
        )
        # Recomputed layers keep no caches, which would take the memory that recomputation saves.
        result = self.decoder(
            self.target(tgt_in, state.step), contexts, keep_states=not self.decoder.recomputes
        )
        step = state.step + tgt_in.shape[1]
        new = State((keys_values, mask, result.layer_states), slots, step)
        return self._features(result.output), new

    def _features(self, output: Tensor) -> Tensor:
        """Return the input (..., D) of the output projection for the result of the decoder."""
        return self.to_output(self.decoder_norm(output))

    def decode_packed(
        self, src: Tensor, source_layout: PackedLayout, tgt_in: Tensor, target_layout: PackedLayout
    ) -> Tensor:
        contexts = [source_layout] * len(self.encoder.layers)
        history, output, _ = self.encoder(self.source(src, layout=source_layout), contexts)
        memory = Memory(history, output, source_layout.mask)
        keys_values = self._keys_values(self._layer_sources(memory))
        sides = PackedSides(target_layout, source_layout)
        decoder_contexts = self.decoder.per_module(
            DecoderContext(cache, target_layout, tensor, sides, 0)
            for cache, tensor in zip(_empty_caches(keys_values), keys_values, strict=True)
        )
        _, output, _ = self.decoder(
            self.target(tgt_in, layout=target_layout), decoder_contexts, keep_states=False
        )
        return self._features(output)

    def layers(self) -> list[nn.Module]:
        return [*self.encoder.layers, *self.decoder.layers]
