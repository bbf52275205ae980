"""ConvS2S (Gehring et al. 2017), the backbone of DenseNMT (Shen et al. 2018).

Connections, fusions and attention are configurable.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from fusetk import trace
from fusetk.errors import quantity
from fusetk.fusion.base import share_layer_embedding
from fusetk.models.attend import attended_sources_class, build_attended_sources
from fusetk.models.connect import PlannedModule
from fusetk.models.initialise import initialise_parts
from fusetk.models.seq2seq import Memory, ModelConfig, Seq2Seq, State
from fusetk.models.stack import DecoderConfig, Layer, Stack, StackConfig, check_attention
from fusetk.nn.attention import scaled_dot_product
from fusetk.nn.conv import GatedConvolution
from fusetk.nn.dropout import Dropout
from fusetk.nn.fused import convolution as fused_convolution
from fusetk.nn.positions import Learned
from fusetk.nn.weightnorm import NormedLinear

# A sum of two values times this number has their variance (Gehring et al. 2017, section 3.4).
SQRT_HALF = 0.5**0.5


class ConvEncoderConfig(StackConfig):
    """The encoder's side."""

    widths: PositiveInt | list[PositiveInt] | None = None
    """Features of the layers: one number, or one for each layer; by default the model's `width`.
    With `connect: dense` the width of the layers is `growth` instead. The first number is then used
    for the embedding and for added summary layers, the last number for a fusion, and the number of
    an in-place summary for that layer; the others are not used."""
    kernels: PositiveInt | list[PositiveInt] = 3
    """Positions that a layer reads: one number, or one for each layer."""

    @model_validator(mode="after")
    def _lists_have_a_number_for_each_layer(self) -> Any:
        for name in ("widths", "kernels"):
            numbers = getattr(self, name)
            if isinstance(numbers, list) and len(numbers) != self.layers:
                raise ValueError(
                    f"{name} lists {quantity(len(numbers), 'number')} for a stack of "
                    f"{quantity(self.layers, 'layer')}: give one number, or one for each layer"
                )
        return self

    def all_widths(self, default: int) -> list[int]:
        """Return the width of the lowest layer's input, then of each layer."""
        if isinstance(self.widths, list):
            widths: list[int] = list(self.widths)
        else:
            widths = [self.widths or default] * self.layers
        return [widths[0], *widths]

    def kernel(self, layer: int) -> int:
        """Return the number of positions that a layer reads."""
        return self.kernels if isinstance(self.kernels, int) else self.kernels[layer]


class ConvDecoderConfig(ConvEncoderConfig, DecoderConfig):
    """The decoder's side."""


class ConvConfig(ModelConfig):
    """Sizes and options of a convolutional model."""

    kind: str = "conv"
    width: int = Field(512, ge=1)
    """Features of the projected embeddings, which the layers read, and of attention."""
    embedding: int | None = Field(None, ge=1)
    """Features of token and position embeddings; by default `width`. Embeddings of another width
    are projected to `width`."""
    separate_maps: bool = False
    """Project token and position embeddings by maps of their own, as the authors of DenseNMT do in
    their code. The paper projects "each word back to the original embedding dimension" (section
    "Model and architect design"); our reading is one map of the sum. True is an error if the
    embeddings have the width of the model, since they are not projected then."""
    output_embedding: int | None = Field(None, ge=1)
    """Features of the input of the output projection; by default `embedding`."""
    encoder: ConvEncoderConfig = ConvEncoderConfig(layers=4)
    """Depth, connection and fusion of the encoder."""
    decoder: ConvDecoderConfig = ConvDecoderConfig(layers=4)
    """Depth, connection, fusion and attention of the decoder."""
    max_positions: int = Field(1024, ge=1)
    """Length of the longest sentence, in tokens with EOS."""
    dropout: float = Field(0.2, ge=0, lt=1)
    """Dropout on embeddings, on the inputs of convolutions, and on the input of the output
    projection."""
    scale_encoder_gradient: bool | None = None
    """Scale the gradients of the encoder by 1 / (2 * attention layers), but not those of the
    embeddings. Gehring et al. 2017, section 3.4, divide them by the number of attention layers. The
    factor 2 is that of their code, which also scales the gradient that reaches the embeddings
    through the encoder. DenseNMT's paper does not say which of its models use this scale. The
    default is that of the authors' code: true if all decoder layers attend to one source (`attend:
    top` and `dense-concat`, and each `attend` with one decoder layer except `dense-sum`)."""

    @model_validator(mode="after")
    def _options_fit_together(self) -> "ConvConfig":
        if self.separate_maps and self.embedding in (None, self.width):
            raise ValueError(
                f"separate_maps: true needs embeddings that are projected, and these have the "
                f"model's width of {self.width}: set `embedding` to another number, or remove "
                "separate_maps"
            )
        check_attention(self.encoder, self.decoder)
        return self


def _scale_gradient(x: Tensor, scale: float) -> Tensor:
    """Return x. The gradient that x receives through the result is multiplied by ``scale``."""
    if x.requires_grad and scale != 1:
        x = x.view_as(x)
        x.register_hook(lambda grad: grad * scale)
    return x


class ConvEmbedding(nn.Module):
    """Token plus learned position embeddings, projected to the model's width, with dropout."""

    def __init__(self, config: ConvConfig, vocabulary: int):
        super().__init__()
        size = config.embedding or config.width
        self.tokens = nn.Embedding(vocabulary, size)
        nn.init.normal_(self.tokens.weight, std=0.1)
        projects = size != config.width
        dropout = config.dropout
        self.map = normed_linear(size, config.width, dropout) if projects else nn.Identity()
        self.positions = Learned(size, config.max_positions)
        nn.init.normal_(self.positions.weight, std=0.1)
        separate = config.separate_maps
        self.position_map = normed_linear(size, config.width, dropout) if separate else None
        self.dropout = Dropout(dropout)

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """Ids (B, T) of positions start .. start + T - 1 -> (B, T, width of the model)."""
        tokens, positions = self.tokens(ids), self.positions(start, ids.shape[1])
        if self.position_map is not None:
            return self.dropout(self.map(tokens) + self.position_map(positions))
        return self.dropout(self.map(tokens + positions))


def normed_linear(width: int, out_width: int, dropout: float = 0.0) -> NormedLinear:
    """Build a linear map with weight normalisation.

    The scale of the initial weights depends on a dropout rate. In DenseNMT's code this is the rate
    of the model for most maps, even if their input has no dropout.
    """
    return NormedLinear(width, out_width, std=((1 - dropout) / width) ** 0.5)


class ConvLayer(Layer):
    """A gated convolution with a residual connection: (GLU(conv(x)) + x) sqrt(1/2).

    Without ``adds_input`` (``connect: dense``) it is GLU(conv(x)) alone.
    """

    def __init__(
        self,
        config: ConvConfig,
        side: ConvEncoderConfig,
        planned: PlannedModule,
        name: str,
        input_width: int,
    ):
        """The residual sum projects x in added summary layers, and if x has another width.

        ``name`` is the prefix of the names of the tensors that the layer records.
        """
        super().__init__()
        width, dropout = planned.width, config.dropout
        self.name = name
        self.cross_name = f"{name}.cross"
        self.width = width
        self.adds_input = planned.adds_input
        self.conv = GatedConvolution(input_width, width, side.kernel(planned.layer), dropout)
        projects = self.adds_input and (planned.is_added or input_width != width)
        self.through = normed_linear(input_width, width, dropout) if projects else nn.Identity()

    def residual_sum(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the layer's output, given its input x and its result y."""
        return (self.through(x) + y) * SQRT_HALF if self.adds_input else y


class ConvEncoderLayer(ConvLayer):
    """A convolution over the positions on both sides of its own.

    With an even kernel it reads one position fewer before than after its own. The added summary
    layers of the encoder are also of this class. The context is the source mask (B, S).
    """

    def forward(self, x: Tensor, context: Tensor) -> tuple[Tensor, None]:
        """(B, S, input width) -> (B, S, D)."""
        y = self.conv(x, before=(self.conv.kernel - 1) // 2, mask=context)
        return self.residual_sum(x, y), None


class ConvDecoderContext(NamedTuple):
    """The context of a decoder layer with kernel k. E is the width of the model."""

    earlier: Tensor
    """The inputs of the layer at the k - 1 previous positions (B * K, k - 1, input width)."""
    target: Tensor
    """The target embeddings (B * K, T, E)."""
    keys: Tensor
    """Keys of n sources (B, n, S, E)."""
    values: Tensor
    """Values of n sources (B, n, S, E)."""
    source_mask: Tensor
    """(B, S)."""


class ConvDecoderSummary(ConvLayer):
    """A causal convolution without attention, the added summary layer of the decoder."""

    def forward(self, x: Tensor, context: ConvDecoderContext) -> tuple[Tensor, Tensor]:
        """(B * K, T, input width) -> (B * K, T, D), and the next ``earlier``."""
        y, earlier = self.conv.causal(x, context.earlier)
        return self.residual_sum(x, y), earlier


class ConvDecoderLayer(ConvLayer):
    """A causal convolution, then attention to the source.

    With ``connect: dense`` the output is the concatenation of the results of convolution and
    attention. The width of each is the growth.
    """

    def __init__(
        self,
        config: ConvConfig,
        side: ConvDecoderConfig,
        planned: PlannedModule,
        name: str,
        input_width: int,
    ):
        super().__init__(config, side, planned, name, input_width)
        width = planned.width
        self.width = width if self.adds_input else 2 * width
        self.query = normed_linear(width, config.width)
        self.out = normed_linear(config.width, width)

    def forward(self, x: Tensor, context: ConvDecoderContext) -> tuple[Tensor, Tensor]:
        """(B * K, T, input width) -> (B * K, T, D), and the next ``earlier``.

        With the convolution's result z and the target embeddings e, the query is
        q = (W z + e) sqrt(1/2), and the result of attention to n sources is
        a = sum_j softmax(q k_j^T) v_j sqrt(1/n) sqrt(S), where S counts the real source tokens and
        v_j = (k_j + e_src) sqrt(1/2) with the source embeddings e_src.
        The output is ((z + U a) sqrt(1/2) + x) sqrt(1/2) with a linear map U; in a layer without
        ``adds_input`` it is [z; U a].
        """
        z, earlier = self.conv.causal(x, context.earlier)
        a = self.out(self._attend(z, context))
        y = (z + a) * SQRT_HALF if self.adds_input else torch.cat((z, a), -1)
        return self.residual_sum(x, y), earlier

    def _attend(self, z: Tensor, context: ConvDecoderContext) -> Tensor:
        _, target, keys, values, mask = context
        sources = keys.shape[1]
        lengths = mask.sum(1)
        q = ((self.query(z) + target) * SQRT_HALF).reshape(len(mask), -1, target.shape[-1])
        can_attend = fused_convolution.can_attend(q, mask)
        if can_attend and not trace.is_listening_for(self.cross_name):
            attended = fused_convolution.attend(q, keys, values, lengths)
        else:
            k, v = (t.flatten(1, 2)[:, None] for t in (keys, values))
            attended = scaled_dot_product(
                q[:, None],
                k,
                v,
                mask[:, None, None, :],
                0.0,
                self.cross_name,
                scale=1.0,
                sources=sources,
            ).squeeze(1)
        scale = (lengths.to(target) / sources).sqrt()[:, None, None]
        return (attended * scale).reshape(target.shape)


class Conv(Seq2Seq):
    """Encoder and decoder of gated convolutions, with attention in every decoder layer.

    With dense connections it is DenseNMT, otherwise ConvS2S (Gehring et al. 2017). The linear
    maps of fusions have PyTorch's initial weights, because ConvS2S has no fusions.
    """

    Config = ConvConfig

    def __init__(self, config: ConvConfig, source_size: int, target_size: int):
        """Vocabulary sizes include the special tokens."""
        super().__init__()
        self.config = config
        dropout = config.dropout
        source_widths = config.encoder.all_widths(config.width)
        target_widths = config.decoder.all_widths(config.width)
        self.source = ConvEmbedding(config, source_size)
        self.target = ConvEmbedding(config, target_size)
        self.encoder_in = normed_linear(config.width, source_widths[0], dropout)
        self.decoder_in = normed_linear(config.width, target_widths[0], dropout)
        encoder_layer = partial(ConvEncoderLayer, config, config.encoder)
        self.encoder = Stack(
            config.encoder,
            source_widths,
            "encoder",
            layer=encoder_layer,
            summary=encoder_layer,
            uses_output=attended_sources_class(config.decoder.attend).reads_output,
        )
        self.attend = build_attended_sources(
            config.decoder.attend,
            self.encoder.history_widths,
            self.encoder.out_width,
            config.decoder.layers,
        )
        # Projections of the memory to keys. Checkpoints contain the name of this attribute.
        self.memory = nn.ModuleList(
            normed_linear(width, config.width) for width in self.attend.widths
        )
        self.decoder = Stack(
            config.decoder,
            target_widths,
            "decoder",
            layer=partial(ConvDecoderLayer, config, config.decoder),
            summary=partial(ConvDecoderSummary, config, config.decoder),
        )
        share_layer_embedding(self.encoder.fuse, self.decoder.fuse)
        size = config.output_embedding or config.embedding or config.width
        self.out = normed_linear(self.decoder.out_width, size)
        self.dropout = Dropout(dropout)
        self.output = normed_linear(size, target_size, dropout)
        self.max_positions = config.max_positions
        scaled = config.scale_encoder_gradient
        if scaled is None:
            scaled = len(self.attend.widths) == 1
        self.encoder_gradient_scale = 1 / (2 * config.decoder.layers) if scaled else 1.0
        initialise_parts(self)

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        embedding = self.source(src)
        contexts = [src_mask] * len(self.encoder.layers)
        inputs = _scale_gradient(embedding, 1 / self.encoder_gradient_scale)
        history, output, _ = self.encoder(self.encoder_in(inputs), contexts)
        return Memory(history, output, src_mask, embedding)

    def start(self, memory: Memory) -> State:
        assert memory.embedding is not None
        sources = self.attend.checked_sources(memory)
        keys = torch.stack(
            [project(source) for project, source in zip(self.memory, sources, strict=True)], 1
        )
        keys = _scale_gradient(keys, self.encoder_gradient_scale)
        values = (keys + memory.embedding[:, None]) * SQRT_HALF  # (B, n, S, E)
        earlier = tuple(
            keys.new_zeros(len(keys), layer.conv.kernel - 1, layer.conv.width)
            for layer in self.decoder.layers
            if isinstance(layer, ConvLayer)
        )
        return State((keys, values, memory.mask), earlier, 0)

    def decode(self, tgt_in: Tensor, state: State) -> tuple[Tensor, State]:
        keys, values, mask = state.per_sentence
        embedding = self.target(tgt_in, state.step)
        contexts = []
        for earlier, planned in zip(state.per_hypothesis, self.decoder.plan, strict=True):
            sources = self.attend.sources_of(planned.layer)
            contexts.append(
                ConvDecoderContext(earlier, embedding, keys[:, sources], values[:, sources], mask)
            )
        _, output, next_earlier = self.decoder(self.decoder_in(embedding), contexts)
        features = self.dropout(self.out(output))
        step = state.step + tgt_in.shape[1]
        return features, State((keys, values, mask), next_earlier, step)

    def layers(self) -> list[nn.Module]:
        return [*self.encoder.layers, *self.decoder.layers]
