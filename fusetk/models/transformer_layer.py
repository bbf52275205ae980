"""Layers of self-attention and feed-forward networks, for ``transformer`` and ``coordinated``.

The module has their config, their base classes, and functions that build their parts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, model_validator
from torch import Tensor, nn

from fusetk.config import component, refuse_values
from fusetk.errors import ConfigError
from fusetk.models.connect import PlannedModule
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
from fusetk.models.seq2seq import ModelConfig
from fusetk.models.stack import DecoderConfig, Layer, StackConfig
from fusetk.nn.attention import CrossAttention, SelfAttention
from fusetk.nn.feedforward import Activation, FeedForward, GatedFeedForward
from fusetk.nn.grouped_attention import GroupedSelfAttention
from fusetk.nn.norm import Normalization, build_norm
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
    moved = round(config.ffn * side.ffn_growth * place)
    most = config.ffn - 1  # each layer keeps one hidden unit
    ffn = config.ffn + max(-most, min(moved, most))
    return config.model_copy(update={"ffn": ffn})


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


class DecoderLayer(TransformerLayer):
    """A layer that reads the target and attends to the source.

    The kernels for inference read its attributes (``fusetk.models.cpu_inference``).
    """

    cross: CrossAttention | None
    """None: attention to the source has the maps of self-attention."""
    cross_residual: Residual | None
    """None: attention to source and target is one sub-layer."""
    gate: nn.Module | None
    """Combination of the results of self-attention and of attention to the source."""
    source_name: str
    """Name of the recorded weights of attention to the source."""

    @property
    def source_maps(self) -> Sequence[Callable[[Tensor], Tensor]]:
        """The maps of the layer's sources to keys and values: (..., width) -> (..., 2D)."""
        raise NotImplementedError


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
