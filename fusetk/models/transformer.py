"""The Transformer (Vaswani et al. 2017) with configurable connections, fusions and attention.

Code other than its ``forward`` may compute a layer. A table in ``CONTRIBUTING.md``
("Which code computes a layer") names the code for each situation.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fusetk.config import component, refuse_values
from fusetk.errors import ConfigError
from fusetk.fusion.base import share_layer_embedding
from fusetk.models import cpu_inference
from fusetk.models.attend import attended_sources_class, build_attended_sources
from fusetk.models.connect import PlannedModule
from fusetk.models.initialise import INITIALISERS, initialise_parts
from fusetk.models.residual import (
    RESIDUALS,
    Norm,
    Residual,
    ResidualBuilder,
    ResidualConfig,
    Stream,
    residual_class,
)
from fusetk.models.self_attention import (
    AnySelfAttentionConfig,
    AttentionOptions,
    CustomSelfAttention,
    SelfAttentionConfig,
    self_attention_class,
)
from fusetk.models.seq2seq import Memory, ModelConfig, Seq2Seq, State, check_tying
from fusetk.models.stack import DecoderConfig, Layer, Stack, StackConfig, check_attention
from fusetk.nn.attention import CrossAttention, SelfAttention, cache_mask, no_slots
from fusetk.nn.cache import Cache
from fusetk.nn.dropout import Dropout
from fusetk.nn.feedforward import Activation, FeedForward, GatedFeedForward
from fusetk.nn.grouped_attention import GroupedSelfAttention
from fusetk.nn.norm import Normalization, build_norm
from fusetk.nn.output import OutputProjection
from fusetk.nn.packed_layout import PackedLayout, PackedSides
from fusetk.nn.positions import Learned, Sinusoidal
from fusetk.nn.projection import projection_or_identity


class BlockStackConfig(StackConfig):
    """A side of a model whose layers have sub-layers."""

    layers_have_separate_inputs: ClassVar[bool] = True

    residual: Annotated[ResidualConfig, component(RESIDUALS, "a residual connection", Residual)] = (
        ResidualConfig(kind="plain")
    )
    """The input of a sub-layer, and the way its output is joined to the outputs of the sub-layers
    below. `plain`: the usual residual sum."""
    self_attention: AnySelfAttentionConfig = SelfAttentionConfig()
    """Self-attention. `plain`: the usual one. The other kinds are classes outside fusetk, for
    `kind: transformer` only."""
    ffn_growth: float = Field(0.0, ge=0, lt=1)
    """Share of hidden units that the feed-forward layers move from the lower to the higher layers.
    The lowest layer has 1 - `ffn_growth` times `ffn` hidden units, the highest 1 + `ffn_growth`
    times, and the numbers between grow linearly, rounded to integers. Their sum stays the same.
    MUDDFormer (Xiao et al. 2025, Equation 9) has 0.5."""

    @model_validator(mode="after")
    def _every_option_has_an_effect(self) -> "BlockStackConfig":
        if self.ffn_growth and self.layers == 1:
            raise ValueError("ffn_growth has no effect on a stack of one layer: remove it")
        if residual_class(self.residual).spans_layers and self.connect.kind != "last":
            raise ValueError(
                f"residual: {self.residual.kind} also connects the layers, so connect: "
                f"{self.connect.kind} would have no effect: remove one of the two options"
            )
        self._check_self_attention()
        return self

    def _check_self_attention(self) -> None:
        """Raise ValueError if the residual connection needs another class of self-attention."""
        required = residual_class(self.residual).attention_class
        kind = self.self_attention.kind
        if kind == "plain":
            if issubclass(required, CustomSelfAttention):
                raise ValueError(
                    f"the attention_class of residual: {self.residual.kind} is a "
                    "CustomSelfAttention: remove the attribute, and name the class in the key "
                    "self_attention"
                )
        elif not issubclass(self_attention_class(self.self_attention), required):
            raise ValueError(
                f"residual: {self.residual.kind} needs its own self-attention, which "
                f"self_attention: {kind} replaces: remove one of the two options"
            )


class BlockDecoderConfig(DecoderConfig, BlockStackConfig):
    """The decoder's side."""


class BlockConfig(ModelConfig):
    """Sizes and options of Transformer layers."""

    heads: int = Field(8, ge=1)
    """Number of attention heads; `width` must be a multiple of it."""
    ffn: int = Field(2048, ge=1)
    """Hidden units of the feed-forward layers."""
    norm: Norm = "post"
    """Layer normalisation after each residual sum (`post`, as in the original paper), before each
    sub-layer and once at the end (`pre`), or nowhere (`none`, for `residual: rezero`)."""
    normalization: Normalization = "layer"
    """Norm of the sub-layers and of the output: layer normalisation, or RMSNorm, which does not
    subtract the mean and has no bias (Zhang and Sennrich 2019). Fusions and connections have layer
    normalisation with either value. With `norm: none`, `rms` is an error."""
    activation: Activation | Literal["swiglu"] = "relu"
    """Activation of the feed-forward layers. `swiglu` multiplies the activation by a second linear
    map (Shazeer 2020): with 2/3 of the hidden units a layer has the same number of parameters."""
    positions: Literal["sinusoidal", "learned", "rotary", "none"] = "sinusoidal"
    """Position embeddings: sines and cosines, for sentences of any length (Vaswani et al. 2017), a
    learned vector for each position (Gehring et al. 2017), or none. `rotary`: none, but queries and
    keys of self-attention are rotated by their positions (Su et al. 2021)."""
    kv_heads: int | None = Field(None, ge=1)
    """Number of heads of the keys and values of self-attention, a divisor of `heads`. Groups of
    heads share them (Ainslie et al. 2023), so that the caches of the decoder are smaller on a GPU;
    the kernels for decoding on CPU copy them for each head. By default, as many as `heads`."""
    max_positions: int = Field(1024, ge=1)
    """Length of the longest sentence with `positions: learned`, in tokens with EOS. The key has no
    effect with other positions."""
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
    init: Literal["xavier", "tensor2tensor", "mlrf"] = "xavier"
    """Initial weights. `xavier`: uniform (Glorot and Bengio 2010), as in fairseq, where queries,
    keys and values are one matrix. `tensor2tensor`: the same with a matrix for each of the three.
    `mlrf`: U(+-1/sqrt(fan_in)), as in MLRF section 4.2."""

    @model_validator(mode="after")
    def _every_option_has_an_effect(self) -> "BlockConfig":
        if self.norm == "none":
            refuse_values(self, ["normalization"], "with norm: none", "choose another norm")
        return self

    def check_side(self, name: str, side: BlockStackConfig) -> None:
        """Raise ValueError if the options of the stack ``name`` do not fit those of the model."""
        for i in range(side.layers):
            width = side.connect.width(i, side.layers, self.width)
            if width % self.heads:
                key = "width" if width == self.width else f"{name}.connect: growth"
                raise ValueError(f"{key} {width} is not a multiple of heads {self.heads}")
            if self.positions == "rotary" and width // self.heads % 2:
                raise ValueError(
                    f"positions: rotary needs heads of even width, but a layer of width {width} "
                    f"has heads of {width // self.heads} features: change width or heads"
                )
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        try:
            side.residual.check(self.norm, side.layers)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error


Options = TypeVar("Options", bound=BlockConfig)


def layer_options(config: Options, side: BlockStackConfig, layer: int) -> Options:
    """Return the options of layer ``layer`` (0 is the lowest) of a stack: ``ffn`` may differ."""
    if not side.ffn_growth:
        return config
    place = (2 * layer - (side.layers - 1)) / (side.layers - 1)  # from -1 to 1
    ffn = max(1, round(config.ffn * (1 + side.ffn_growth * place)))
    return config.model_copy(update={"ffn": ffn})


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


def build_self_attention(
    config: BlockConfig,
    name: str,
    width: int,
    required: type[SelfAttention],
    self_attention: SelfAttentionConfig | None,
) -> SelfAttention:
    """Build the self-attention of a layer; ``name`` is that of the recorded weights.

    ``required`` is the class that the residual connection requires. Raises ConfigError if the
    options need a subclass of ``GroupedSelfAttention``, and ``required`` is another class.
    """
    rotary = config.positions == "rotary"
    needs_groups = rotary or config.kv_heads not in (None, config.heads)
    if needs_groups and required is SelfAttention:
        required = GroupedSelfAttention
    options = width, config.heads, config.attention_dropout, name, config.attention_bias
    if self_attention is not None and self_attention.kind != "plain":
        custom = self_attention_class(self_attention)
        return custom(self_attention, AttentionOptions(*options, config.kv_heads, rotary))
    if issubclass(required, GroupedSelfAttention):
        return required(*options, groups=config.kv_heads, rotary=rotary)
    if needs_groups:
        key = "positions: rotary" if rotary else f"kv_heads: {config.kv_heads}"
        raise ConfigError(
            f"model.{key} needs a subclass of fusetk.nn.grouped_attention:GroupedSelfAttention, "
            f"and {required.__module__}:{required.__qualname__}, the attention_class of a residual "
            "connection, is not one: change the class, or remove the key"
        )
    return required(*options)


def _empty_caches(keys_values: Sequence[Tensor]) -> tuple[Cache, ...]:
    """Return an empty cache for each decoder layer, as wide as its source keys and values."""
    return tuple(Cache(tensor[:, :0], 0) for tensor in keys_values)


def final_norm(config: BlockConfig, width: int) -> nn.Module:
    """Return the norm of the result of a stack; the identity if the model is not pre-norm.

    The layers of a pre-norm model do not normalise their output.
    """
    return build_norm(config.normalization, width) if config.norm == "pre" else nn.Identity()


def build_residuals(
    config: BlockConfig, side: BlockStackConfig, name: str, depths: Mapping[str, int]
) -> ResidualBuilder:
    """Return the builder of the residual connections of the stack ``name``.

    ``depths`` has the number of layers of each stack of the model.
    """
    return ResidualBuilder(
        side.residual,
        name,
        depths,
        config.width,
        config.norm,
        config.dropout,
        config.normalization,
        side.connect.separate_inputs,
    )


class TransformerLayer(Layer):
    """Self-attention and a feed-forward network, common to the layers of both sides.

    A layer may be narrower than the model (``connect: dense``). Its input is projected to its own
    width, and its feed-forward layer is narrower in proportion.
    """

    def __init__(
        self,
        config: BlockConfig,
        name: str,
        input_width: int,
        width: int,
        attention_residual: Residual,
        ffn_residual: Residual,
        self_attention: SelfAttentionConfig | None = None,
    ):
        super().__init__()
        self.width = width
        # The module of ``input_projection``; it has this name in checkpoints.
        self.read = projection_or_identity(input_width, width)
        self.attention = build_self_attention(
            config, f"{name}.self", width, attention_residual.attention_class, self_attention
        )
        self.attention_residual = attention_residual
        hidden = max(1, config.ffn * width // config.width)
        self.ffn: FeedForward | GatedFeedForward
        if config.activation == "swiglu":
            self.ffn = GatedFeedForward(width, hidden, width, config.activation_dropout)
        else:
            self.ffn = FeedForward(
                width, hidden, width, config.activation, config.activation_dropout
            )
        self.ffn_residual = ffn_residual

    @property
    def input_projection(self) -> nn.Module:
        """The map of the input to the width of the layer; the identity for equal widths."""
        return self.read

    def sublayers(self) -> list[tuple[Residual, nn.Module]]:
        return [(self.attention_residual, self.attention), (self.ffn_residual, self.ffn)]

    def feed_forward(self, stream: Stream) -> Stream:
        """Apply the feed-forward sub-layer with its residual connection."""
        x, stream = self.ffn_residual.before(stream)
        return self.ffn_residual.after(stream, self.ffn(x))


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
    """Self-attention keys and values of the earlier target tokens (B, slots, 2D)."""
    visible: Tensor | PackedLayout | None
    """Which cache slots each new position attends to (see ``cache_mask``), or the layout of packed
    sentences."""
    keys_values: Tensor
    """Keys and values of the layer's n sources (B, n * S, 2D)."""
    source_mask: Tensor | PackedSides
    """(B, S), or the layouts of packed sentences."""
    start: int
    """Position of the first new token."""


class TransformerDecoderLayer(TransformerLayer):
    """Causal self-attention, attention to the source, and a feed-forward network."""

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
        self.cross = CrossAttention(
            width,
            source_widths,
            config.heads,
            config.attention_dropout,
            f"{name}.cross",
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

    @property
    def source_name(self) -> str:
        """The name of the recorded weights of attention to the source."""
        return self.cross.name

    def forward(
        self, x: Stream, context: DecoderContext | cpu_inference.StepContext
    ) -> tuple[Stream, Cache | tuple[Tensor, ...]]:
        """(B * K, T, input width) -> (B * K, T, D), and the extended cache.

        The input and the output may be streams of such tensors.
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

    def forward(self, ids: Tensor, start: int = 0, layout: PackedLayout | None = None) -> Tensor:
        """Ids (B, T) of positions start .. start + T - 1 -> (B, T, D).

        With ``layout``, the result is packed: (1, N, D).
        """
        x = self.tokens(ids if layout is None else layout.pack(ids)) * self.scale
        if self.positions is not None:
            vectors = self.positions(start, ids.shape[1])
            if layout is not None:
                # The gradient of vectors[layout.positions] depends on the order of the threads.
                vectors = vectors.index_select(0, layout.positions)
            x = x + vectors
        if self.language is not None:
            x = x + self.language.weight
        return self.dropout(x)

    @property
    def max_positions(self) -> int | None:
        """Length of the longest sentence, in tokens with EOS; None: no limit."""
        return None if self.positions is None else self.positions.max_positions


class Transformer(Seq2Seq):
    """Encoder and decoder of self-attention layers (Vaswani et al. 2017)."""

    Config = TransformerConfig
    encoder_layer_class: ClassVar[type[TransformerEncoderLayer]] = TransformerEncoderLayer
    decoder_layer_class: ClassVar[type[TransformerDecoderLayer]] = TransformerDecoderLayer
    packs = True
    converts_maps = True

    def __init__(self, config: TransformerConfig, source_size: int, target_size: int):
        """Vocabulary sizes include the special tokens.

        Raises ConfigError if they do not allow ``tie``.
        """
        super().__init__()
        self.config = config
        check_tying(config.tie, source_size, target_size)
        width = config.width
        self.source = TransformerEmbedding(config, source_size)
        tied = self.source.tokens if config.tie == "all" else None
        self.target = TransformerEmbedding(config, target_size, tied)
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
        out_width = self.decoder.out_width
        self.decoder_norm = final_norm(config, out_width)
        self.to_output = projection_or_identity(out_width, width)
        matrix = None if config.tie == "none" else self.target.tokens.weight
        self.output = OutputProjection(width, target_size, config.output_bias, matrix)
        self.max_positions = self.source.max_positions
        INITIALISERS[config.init](self)
        initialise_parts(self)

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

    def _decoder_layers(self) -> list["TransformerDecoderLayer"]:
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
