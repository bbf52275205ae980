"""The Transformer (Vaswani et al. 2017) with configurable connections, fusions and attention."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fusetk.errors import ConfigError
from fusetk.fusion.base import share_layer_embedding
from fusetk.models import steps
from fusetk.models.connect import PlannedModule
from fusetk.models.initialise import INITIALISERS
from fusetk.models.memory import build_memory_attention
from fusetk.models.seq2seq import Memory, ModelConfig, Seq2Seq, State
from fusetk.models.stack import DecoderConfig, Layer, Stack, StackConfig, attends_to_output
from fusetk.nn.attention import CrossAttention, SelfAttention, cache_mask
from fusetk.nn.cache import Cache
from fusetk.nn.dropout import Dropout
from fusetk.nn.feedforward import Activation, FeedForward
from fusetk.nn.output import OutputProjection
from fusetk.nn.positions import Learned, Sinusoidal


class BlockConfig(ModelConfig):
    """Sizes and options of Transformer layers."""

    heads: int = Field(8, ge=1)
    """Number of attention heads; `width` must be a multiple of it."""
    ffn: int = Field(2048, ge=1)
    """Hidden units of the feed-forward layers."""
    norm: Literal["post", "pre"] = "post"
    """Layer normalisation after each residual sum (`post`, as in the original paper), or before
    each sub-layer and once at the end (`pre`)."""
    activation: Activation = "relu"
    """Activation of the feed-forward layers."""
    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    """Position embeddings: sines and cosines, for sentences of any length (Vaswani et al. 2017), a
    learned vector for each position (Gehring et al. 2017), or none."""
    max_positions: int = Field(1024, ge=1)
    """Length of the longest sentence with learned positions, in tokens with EOS."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout on the output of each sub-layer, before the residual sum."""
    embedding_dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout on the sum of token and position embedding; by default the value of `dropout`."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on attention weights."""
    attention_bias: bool = True
    """Add biases in the projections of attention; tensor2tensor has no such biases."""
    activation_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout in the feed-forward layers, after the activation."""
    tie: Literal["none", "target", "all"] = "none"
    """Share the output matrix with the target embedding, or with both embeddings (`all` needs one
    joint vocabulary)."""
    output_bias: bool = True
    """Add a bias for each entry of the target vocabulary."""
    init: Literal["xavier", "mlrf"] = "xavier"
    """Initial weights: Xavier uniform, as in fairseq, or U(+-1/sqrt(fan_in)), as in MLRF section
    4.2."""

    def check_heads(self, name: str, side: StackConfig) -> None:
        """Raise ValueError if the width of a layer of ``side`` is not a multiple of the heads."""
        for i in range(side.layers):
            width = side.connect.width(i, side.layers, self.width)
            if width % self.heads:
                key = "width" if width == self.width else f"{name}.connect: growth"
                raise ValueError(f"{key} {width} is not a multiple of heads {self.heads}")


class TransformerConfig(BlockConfig):
    """Sizes and options of a Transformer."""

    kind: str = "transformer"
    encoder: StackConfig = StackConfig(layers=6)
    """Depth, connection and fusion of the encoder."""
    decoder: DecoderConfig = DecoderConfig(layers=6)
    """Depth, connection, fusion and attention of the decoder."""
    context_gate: Literal["none", "scalar", "vector"] = "none"
    """Combine the results of self-attention and of attention to the source by a gate with one
    number for each position (`scalar`) or for each feature (`vector`) (Tu et al. 2017)."""

    @model_validator(mode="after")
    def _sides_fit_together(self) -> "TransformerConfig":
        self.check_heads("encoder", self.encoder)
        self.check_heads("decoder", self.decoder)
        attends_to_output(self.encoder, self.decoder)
        return self


class Residual(nn.Module):
    """The residual connection of a sub-layer f.

    Post-norm: LayerNorm(x + dropout(f(x))). Pre-norm: x + dropout(f(LayerNorm(x))).
    """

    def __init__(self, config: BlockConfig, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def before(self, x: Tensor) -> Tensor:
        """Return the input of the sub-layer."""
        return self.norm(x) if self.pre else x

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the output y of a sub-layer that read ``before(x)``."""
        x = x + self.dropout(y)
        return x if self.pre else self.norm(x)


class TransformerLayer(Layer):
    """Self-attention and a feed-forward network, common to the layers of both sides.

    A layer may be narrower than the model (``connect: dense``). Its input is projected to its own
    width, and its feed-forward layer is narrower in proportion.
    """

    def __init__(self, config: BlockConfig, name: str, input_width: int, width: int):
        super().__init__()
        self.width = width
        # The projection of the input; it has this name in checkpoints.
        self.read = nn.Identity() if input_width == width else nn.Linear(input_width, width)
        self.attention = SelfAttention(
            width, config.heads, config.attention_dropout, f"{name}.self", config.attention_bias
        )
        self.attention_residual = Residual(config, width)
        hidden = max(1, config.ffn * width // config.width)
        self.ffn = FeedForward(width, hidden, width, config.activation, config.activation_dropout)
        self.ffn_residual = Residual(config, width)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Apply the feed-forward sub-layer with its residual connection: (B, T, D) -> (B, T, D)."""
        residual = self.ffn_residual
        return residual.after(x, self.ffn(residual.before(x)))


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
    """Self-attention and a feed-forward network. The context is the source mask (B, S)."""

    def forward(self, x: Tensor, context: Tensor) -> tuple[Tensor, None]:
        """(B, S, input width) -> (B, S, D)."""
        if steps.encoder_layer_is_usable(self, x):
            return steps.encoder_layer(self, x, context), None
        x = self.read(x)
        residual = self.attention_residual
        y = self.attention(residual.before(x), context[:, None, None, :])
        return self.feed_forward(residual.after(x, y)), None


class DecoderContext(NamedTuple):
    """The context of a decoder layer."""

    cache: Cache
    """Self-attention keys and values of the earlier target tokens (B, slots, 2D)."""
    visible: Tensor | None
    """Which cache slots each new position attends to; see ``cache_mask``."""
    keys_values: Tensor
    """Keys and values of the layer's n sources (B, n * S, 2D)."""
    source_mask: Tensor
    """(B, S)."""


class TransformerDecoderLayer(TransformerLayer):
    """Causal self-attention, attention to the source, and a feed-forward network."""

    def __init__(
        self,
        config: TransformerConfig,
        name: str,
        input_width: int,
        width: int,
        source_widths: Sequence[int],
    ):
        super().__init__(config, name, input_width, width)
        self.cross = CrossAttention(
            width,
            source_widths,
            config.heads,
            config.attention_dropout,
            f"{name}.cross",
            config.attention_bias,
        )
        self.cross_residual = Residual(config, width)
        self.gate = None
        if config.context_gate != "none":
            self.gate = ContextGate(width, 1 if config.context_gate == "scalar" else width)

    def forward(
        self, x: Tensor, context: DecoderContext | steps.StepContext
    ) -> tuple[Tensor, Cache | tuple[Tensor, ...]]:
        """(B * K, T, input width) -> (B * K, T, D), and the extended cache."""
        if isinstance(context, steps.StepContext):
            return steps.decoder_layer(self, x, context)
        x = self.read(x)
        residual = self.attention_residual
        y, cache = self.attention.step(residual.before(x), context.cache, context.visible)
        x = residual.after(x, y)
        residual = self.cross_residual
        z = self.cross(residual.before(x), context.keys_values, context.source_mask)
        x = residual.after(x, z if self.gate is None else self.gate(y, z))
        return self.feed_forward(x), cache


class SummaryLayer(Layer):
    """Projection of all features below to the usual width, with layer normalisation.

    The layer ignores its context.
    """

    def __init__(self, input_width: int, width: int):
        super().__init__()
        self.width = width
        self.map = nn.Linear(input_width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, context: Any) -> tuple[Tensor, None]:
        return self.norm(self.map(x)), None


def build_summary_layer(planned: PlannedModule, name: str, input_width: int) -> SummaryLayer:
    """Build a summary layer for a ``Stack``."""
    return SummaryLayer(input_width, planned.width)


class TransformerEmbedding(nn.Module):
    """Token embeddings times sqrt(D), plus positions, plus a language vector, with dropout."""

    def __init__(
        self,
        config: BlockConfig,
        vocabulary: int,
        tied: nn.Embedding | None = None,
        language: bool = False,
    ):
        """``tied``: token embeddings to share.

        ``language``: whether to add one learned vector to all positions.
        """
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, config.width) if tied is None else tied
        self.positions: Sinusoidal | Learned | None = None
        if config.positions == "learned":
            self.positions = Learned(config.width, config.max_positions)
        elif config.positions == "sinusoidal":
            self.positions = Sinusoidal(config.width)
        self.language = nn.Embedding(1, config.width) if language else None
        rate = config.dropout if config.embedding_dropout is None else config.embedding_dropout
        self.dropout = Dropout(rate)
        self.scale = config.width**0.5

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """Ids (B, T) of positions start .. start + T - 1 -> (B, T, D)."""
        x = self.tokens(ids) * self.scale
        if self.positions is not None:
            x = x + self.positions(start, ids.shape[1])
        if self.language is not None:
            x = x + self.language.weight
        return self.dropout(x)

    @property
    def max_positions(self) -> int | None:
        """Length of the longest sentence, in tokens with EOS; None: no limit."""
        return None if self.positions is None else self.positions.max_positions


def check_tying(tie: str, source_size: int, target_size: int) -> None:
    """Raise ConfigError if the vocabulary sizes do not allow ``tie``."""
    if tie == "all" and source_size != target_size:
        raise ConfigError(
            "model.tie: all needs one vocabulary for both sides, and there are "
            f"{source_size} source and {target_size} target entries: "
            "set data.vocabulary.joint, or tie: target"
        )


class Transformer(Seq2Seq):
    """Encoder and decoder of self-attention layers."""

    Config = TransformerConfig

    def __init__(self, config: TransformerConfig, source_size: int, target_size: int):
        """Vocabulary sizes include the special tokens.

        Raises ConfigError if they do not allow ``tie``.
        """
        super().__init__()
        check_tying(config.tie, source_size, target_size)
        width = config.width
        self.source = TransformerEmbedding(config, source_size)
        tied = self.source.tokens if config.tie == "all" else None
        self.target = TransformerEmbedding(config, target_size, tied)
        self.encoder = Stack(
            config.encoder,
            [width] * (config.encoder.layers + 1),
            "encoder",
            layer=lambda planned, name, input_width: TransformerEncoderLayer(
                config, name, input_width, planned.width
            ),
            summary=build_summary_layer,
            uses_output=attends_to_output(config.encoder, config.decoder),
        )
        self.attend = build_memory_attention(
            config.decoder.attend, self.encoder.history_widths, self.encoder.out_width
        )
        self.decoder = Stack(
            config.decoder,
            [width] * (config.decoder.layers + 1),
            "decoder",
            layer=lambda planned, name, input_width: TransformerDecoderLayer(
                config, name, input_width, planned.width, self._source_widths(planned.layer)
            ),
            summary=build_summary_layer,
        )
        share_layer_embedding(self.encoder.fuse, self.decoder.fuse)
        # Layers of a pre-norm model do not normalise their output, so it is normalised here.
        pre = config.norm == "pre"
        self.source_norms = nn.ModuleList(
            nn.LayerNorm(source_width) if pre else nn.Identity()
            for source_width in self.attend.widths
        )
        out_width = self.decoder.out_width
        self.decoder_norm = nn.LayerNorm(out_width) if pre else nn.Identity()
        self.to_output = nn.Identity() if out_width == width else nn.Linear(out_width, width)
        matrix = None if config.tie == "none" else self.target.tokens.weight
        self.output = OutputProjection(width, target_size, config.output_bias, matrix)
        self.max_positions = self.source.max_positions
        INITIALISERS[config.init](self)

    def _source_widths(self, layer: int) -> Sequence[int]:
        """Return the widths of the sources that a decoder layer attends to."""
        return self.attend.widths[self.attend.sources_of(layer)]

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        contexts = [src_mask] * len(self.encoder.layers)
        history, output, _ = self.encoder(self.source(src), contexts)
        return Memory(history, output, src_mask)

    def start(self, memory: Memory) -> State:
        sources = [
            norm(source)
            for norm, source in zip(self.source_norms, self.attend.sources(memory), strict=True)
        ]
        layers = [
            layer for layer in self.decoder.layers if isinstance(layer, TransformerDecoderLayer)
        ]
        keys_values = tuple(
            steps.keys_values(layer.cross, sources[self.attend.sources_of(i)], memory.mask)
            for i, layer in enumerate(layers)
        )
        if steps.usable(self, keys_values[0]):
            return State(None, steps.start(keys_values, memory.mask), 0)
        return self._start_with_caches(keys_values, memory.mask)

    def _start_with_caches(self, keys_values: tuple[Tensor, ...], mask: Tensor) -> State:
        """Return the first state of the code that reads any number of tokens at once."""
        caches = tuple(Cache(tensor[:, :0], 0) for tensor in keys_values)
        # The cache slots of each hypothesis; see ``cache_mask``.
        slots = torch.empty(len(mask), 0, dtype=torch.int64, device=mask.device)
        return State((keys_values, mask, caches), slots, 0)

    def decode(self, tgt_in: Tensor, state: State) -> tuple[Tensor, State]:
        hypotheses = state.per_hypothesis
        if isinstance(hypotheses, steps.Hypotheses):
            if not (hypotheses.unchanged and steps.needs_caches(self.decoder, tgt_in)):
                return self._decode_in_steps(tgt_in, hypotheses, state.step)
            state = self._start_with_caches(hypotheses.shared.keys_values, hypotheses.shared.mask)
        keys_values, mask, caches = state.per_sentence
        slots, visible = cache_mask(
            state.per_hypothesis, len(mask), caches[0].length, tgt_in.shape[1]
        )
        contexts = self.decoder.per_module(
            DecoderContext(cache, visible, source, mask)
            for cache, source in zip(caches, keys_values, strict=True)
        )
        # Recomputed layers keep no caches: these would take the memory that recomputation saves.
        _, output, states = self.decoder(
            self.target(tgt_in, state.step), contexts, keep_states=not self.decoder.recomputes
        )
        caches = tuple(cache for cache in states if cache is not None)
        features = self.to_output(self.decoder_norm(output))
        step = state.step + tgt_in.shape[1]
        return features, State((keys_values, mask, caches), slots, step)

    def _decode_in_steps(
        self, tgt_in: Tensor, hypotheses: steps.Hypotheses, step: int
    ) -> tuple[Tensor, State]:
        """Read target tokens (R, T) one by one with the kernels for inference."""
        features = []
        for tokens in tgt_in.split(1, dim=1):
            hypotheses = hypotheses.extended()
            contexts = self.decoder.per_module(hypotheses.contexts())
            _, output, projections = self.decoder(self.target(tokens, step), contexts)
            hypotheses = hypotheses.with_steps(item for item in projections if item is not None)
            features.append(self.to_output(self.decoder_norm(output)))
            step += 1
        return torch.cat(features, 1), State(None, hypotheses, step)

    def layers(self) -> list[nn.Module]:
        return [*self.encoder.layers, *self.decoder.layers]
