"""ConvS2S (Gehring et al. 2017), the backbone of DenseNMT (Shen et al. 2018), with open sites for connection, fusion and attention."""

from typing import Any

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk.models.seq2seq import Memory, ModelConfig, Seq2Seq, State
from fusetk.models.stack import (
    DecoderConfig,
    Layer,
    Stack,
    StackConfig,
    attends_to_top,
    build_attend,
)
from fusetk.nn.attention import scaled_dot_product
from fusetk.nn.conv import GatedConvolution
from fusetk.nn.dropout import Dropout
from fusetk.nn.positions import Learned
from fusetk.nn.weightnorm import NormedLinear

HALF = 0.5**0.5  # keeps the variance of a sum of two (Gehring et al. 2017, section 3.4)


class ConvEncoderConfig(StackConfig):
    """The source's side."""

    widths: PositiveInt | list[PositiveInt] | None = None
    """Features of the layers, one number or one for each; the model's `width` if not given. `connect: dense` has its `growth`
    instead: of `widths` it takes the first, for the embedding and for summaries that are added, those of layers that are summaries,
    and the last, for a fusion."""
    kernels: PositiveInt | list[PositiveInt] = 3
    """Positions that a layer sees, one number or one for each."""

    @model_validator(mode="after")
    def _as_many_as_layers(self) -> Any:
        for name in ("widths", "kernels"):
            found = getattr(self, name)
            if isinstance(found, list) and len(found) != self.layers:
                raise ValueError(
                    f"{name} names {len(found)} numbers for {self.layers} layers: one number, or one for each layer"
                )
        return self

    def all_widths(self, usual: int) -> list[int]:
        """Features of the embedding as the lowest layer reads it, and of each layer."""
        found = (
            self.widths if isinstance(self.widths, list) else [self.widths or usual] * self.layers
        )
        return [found[0], *found]

    def kernel(self, layer: int) -> int:
        """Positions that a layer sees."""
        return self.kernels if isinstance(self.kernels, int) else self.kernels[layer]


class ConvDecoderConfig(ConvEncoderConfig, DecoderConfig):
    """The target's side."""


class ConvConfig(ModelConfig):
    """Sizes and choices of a convolutional model."""

    kind: str = "conv"
    width: int = Field(512, ge=1)
    """Features of what is read of words, and of attention."""
    embedding: int | None = Field(None, ge=1)
    """Features of word and position embeddings, mapped to `width` where that is another number; as `width` if not given."""
    output_embedding: int | None = Field(None, ge=1)
    """Features of what is compared with the words at the end; as `embedding` if not given."""
    encoder: ConvEncoderConfig = ConvEncoderConfig(layers=4)
    """Depth and wiring of the source's side."""
    decoder: ConvDecoderConfig = ConvDecoderConfig(layers=4)
    """Depth and wiring of the target's side."""
    max_positions: int = Field(1024, ge=1)
    """Longest sentence, in tokens, the end mark counted."""
    dropout: float = Field(0.2, ge=0, lt=1)
    """On embeddings, on what convolutions read, and on what is compared with the words at the end."""
    scale_encoder_gradient: bool | None = None
    """Scale gradients that reach the encoder by 1 / (2 * attention layers) (Gehring et al. 2017,
    section 3.4). DenseNMT's paper does not say which of its models do so. If not given: where all
    decoder layers attend to one source (`attend: top` and `dense-concat`), as in the code of
    DenseNMT's authors."""

    @model_validator(mode="after")
    def _sites_fit(self) -> "ConvConfig":
        attends_to_top(self.encoder, self.decoder)
        return self


class Embedding(nn.Module):
    """Words plus learned positions, mapped to the width where theirs is another, with dropout."""

    def __init__(self, config: ConvConfig, vocabulary: int):
        super().__init__()
        size = config.embedding or config.width
        self.tokens = nn.Embedding(vocabulary, size)
        nn.init.normal_(self.tokens.weight, std=0.1)
        self.map = nn.Identity() if size == config.width else linear(size, config.width, 0.0)
        self.positions = Learned(size, config.max_positions)
        nn.init.normal_(self.positions.weight, std=0.1)
        self.dropout = Dropout(config.dropout)

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """Ids (B, T) of positions start .. start + T - 1 -> (B, T, E)."""
        return self.dropout(self.map(self.tokens(ids) + self.positions(start, ids.shape[1])))


def linear(width: int, out: int, dropout: float) -> NormedLinear:
    """A map of something that was dropped out at this rate."""
    return NormedLinear(width, out, std=((1 - dropout) / width) ** 0.5)


class ConvLayer(Layer):
    """Convolution, and the sum with what was read: (GLU(conv(x)) + x) sqrt(1/2); without the sum where the connection is dense."""

    def __init__(
        self,
        read: int,
        width: int,
        kernel: int,
        dropout: float,
        residual: bool,
        always_map: bool = False,
    ):
        """What was read is mapped before the sum where it has another width, or ``always_map``."""
        super().__init__()
        self.width, self.residual = width, residual
        self.conv = GatedConvolution(read, width, kernel, dropout)
        self.through = (
            linear(read, width, 0.0)
            if residual and (always_map or read != width)
            else nn.Identity()
        )

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """What the layer makes, ``y``, and what it read, ``x``, where that is added."""
        return (self.through(x) + y) * HALF if self.residual else y


class EncoderLayer(ConvLayer):
    """Sees as many positions before as after it; of an even number, one fewer before. Summaries of the encoder are such layers, too."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, S, what is read), mask (B, S) -> (B, S, D)."""
        before = (self.conv.kernel - 1) // 2
        around = F.pad(x * mask[..., None], (0, 0, before, self.conv.kernel - 1 - before))
        return self.add(x, self.conv(around))


class DecoderSummary(ConvLayer):
    """Sees the positions up to its own."""

    def forward(self, x: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
        """x (B * K, T, what is read) and the k - 1 positions before it -> (B * K, T, D), and the last k - 1 positions read."""
        seen = torch.cat((window, x), 1)
        return self.add(x, self.conv(seen)), seen[:, x.shape[1] :]


class DecoderLayer(ConvLayer):
    """Sees the positions up to its own, and the source.

    Where the connection is dense, convolution and attention are two pieces of the output, each as wide as the growth.
    """

    def __init__(
        self, read: int, width: int, kernel: int, config: ConvConfig, residual: bool, name: str
    ):
        super().__init__(read, width, kernel, config.dropout, residual)
        self.width = width if residual else 2 * width
        self.query = linear(width, config.width, 0.0)
        self.out = linear(config.width, width, 0.0)
        self.name = name

    def forward(
        self, x: Tensor, window: Tensor, target: Tensor, keys: Tensor, values: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """x (B * K, T, what is read) and the k - 1 positions before it; words (B * K, T, E); keys and values of n sources
        (B, n, S, E), mask (B, S) -> (B * K, T, D), and the last k - 1 positions read.

        q = (W z + e_tgt) sqrt(1/2); a = sum_j softmax(q k_j^T) v_j sqrt(1/n) sqrt(S), S counting the real words.
        """
        seen = torch.cat((window, x), 1)
        z = self.conv(seen)
        sources = keys.shape[1]
        q = ((self.query(z) + target) * HALF).reshape(len(mask), 1, -1, target.shape[-1])
        k, v = (t.flatten(1, 2)[:, None] for t in (keys, values))
        found = scaled_dot_product(
            q, k, v, mask[:, None, None, :], 0.0, f"{self.name}.cross", scale=1.0, sources=sources
        )
        scale = (mask.sum(1).to(target) / sources).sqrt()[:, None, None, None]
        a = self.out((found * scale).reshape(target.shape))
        made = (z + a) * HALF if self.residual else torch.cat((z, a), -1)
        return self.add(x, made), seen[:, x.shape[1] :]


class Conv(Seq2Seq):
    """Encoder and decoder of gated convolutions, with attention in every decoder layer."""

    Config = ConvConfig

    def __init__(self, config: ConvConfig, source_size: int, target_size: int):
        """Vocabulary sizes count the special tokens."""
        super().__init__()
        source_widths, target_widths = (
            side.all_widths(config.width) for side in (config.encoder, config.decoder)
        )
        reads_top = attends_to_top(config.encoder, config.decoder)
        self.source, self.target = Embedding(config, source_size), Embedding(config, target_size)
        self.encoder_in = linear(config.width, source_widths[0], config.dropout)
        self.decoder_in = linear(config.width, target_widths[0], config.dropout)
        self.encoder = Stack(
            config.encoder,
            source_widths,
            "encoder",
            layer=lambda i, name, read, width, residual: EncoderLayer(
                read, width, config.encoder.kernel(i), config.dropout, residual
            ),
            summary=lambda i, name, read: EncoderLayer(
                read,
                source_widths[0],
                config.encoder.kernel(i),
                config.dropout,
                residual=True,
                always_map=True,
            ),
            hands_on=reads_top,
        )
        self.attend = build_attend(config.decoder, self.encoder)
        self.memory = nn.ModuleList(
            linear(width, config.width, 0.0) for width in self.attend.widths
        )
        self.decoder = Stack(
            config.decoder,
            target_widths,
            "decoder",
            other=self.encoder,
            layer=lambda i, name, read, width, residual: DecoderLayer(
                read, width, config.decoder.kernel(i), config, residual, name
            ),
            summary=lambda i, name, read: DecoderSummary(
                read,
                target_widths[0],
                config.decoder.kernel(i),
                config.dropout,
                residual=True,
                always_map=True,
            ),
        )
        size = config.output_embedding or config.embedding or config.width
        self.out = linear(self.decoder.out_width, size, 0.0)
        self.dropout = Dropout(config.dropout)
        self.output = linear(size, target_size, config.dropout)
        self.max_positions = config.max_positions
        one_source = len(self.attend.widths) == 1
        scaled = (
            one_source if config.scale_encoder_gradient is None else config.scale_encoder_gradient
        )
        self.encoder_gradient = 1 / (2 * config.decoder.layers) if scaled else 1.0

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        words = self.source(src)
        layers = self.encoder.layers
        history, top = self.encoder(self.encoder_in(words), lambda i, x: layers[i](x, src_mask))
        return Memory(history, top, src_mask, words)

    def start(self, memory: Memory) -> State:
        keys = torch.stack(
            [
                linear(source)
                for linear, source in zip(self.memory, self.attend.sources(memory), strict=True)
            ],
            1,
        )
        if keys.requires_grad and self.encoder_gradient != 1:
            keys.register_hook(lambda grad: grad * self.encoder_gradient)
        assert memory.embedded is not None
        values = (keys + memory.embedded[:, None]) * HALF  # (B, n, S, E)
        windows = tuple(
            keys.new_zeros(len(keys), conv.kernel - 1, conv.width) for conv in self._convolutions()
        )
        return State((keys, values, memory.mask), windows, 0)

    def decode(self, tgt_in: Tensor, state: State) -> tuple[Tensor, State]:
        keys, values, mask = state.fixed
        windows, stack = list(state.moving), self.decoder
        words = self.target(tgt_in, state.step)

        def run(i: int, x: Tensor) -> Tensor:
            if i in stack.summaries:
                x, windows[i] = stack.layers[i](x, state.moving[i])
            else:
                mine = self.attend.of(stack.places[i])
                x, windows[i] = stack.layers[i](
                    x, state.moving[i], words, keys[:, mine], values[:, mine], mask
                )
            return x

        _, top = stack(self.decoder_in(words), run)
        return self.dropout(self.out(top)), State(
            (keys, values, mask), tuple(windows), state.step + tgt_in.shape[1]
        )

    def _convolutions(self) -> list[GatedConvolution]:
        return [layer.conv for layer in self.decoder.layers if isinstance(layer, ConvLayer)]
