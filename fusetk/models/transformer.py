"""The Transformer (Vaswani et al. 2017) with open sites for connection, fusion and attention."""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fusetk.errors import ConfigError
from fusetk.models.initialise import INITIALISERS
from fusetk.models.seq2seq import Memory, ModelConfig, Seq2Seq, State
from fusetk.models.stack import (
    DecoderConfig,
    Layer,
    Stack,
    StackConfig,
    attends_to_top,
    build_attend,
)
from fusetk.nn.attention import CrossAttention, SelfAttention, cache_mask
from fusetk.nn.cache import Cache
from fusetk.nn.dropout import Dropout
from fusetk.nn.feedforward import Activation, FeedForward
from fusetk.nn.output import OutputProjection
from fusetk.nn.positions import Learned, Sinusoidal


class BlockConfig(ModelConfig):
    """Sizes and choices of the Transformer's layers."""

    heads: int = Field(8, ge=1)
    """Attention heads; `width` is a multiple."""
    ffn: int = Field(2048, ge=1)
    """Hidden units of the feed-forward layers."""
    norm: Literal["post", "pre"] = "post"
    """Layer normalisation after each residual sum (the original), or before each sub-layer and once at the end."""
    activation: Activation = "relu"
    """Of the feed-forward layers."""
    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    """Sines and cosines, for sentences of any length (Vaswani et al. 2017); or a learned vector each (Gehring et al. 2017)."""
    max_positions: int = Field(1024, ge=1)
    """Longest sentence with learned positions, in tokens, the end mark counted."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """On each sub-layer's output, before the residual sum."""
    embedding_dropout: float | None = Field(None, ge=0, lt=1)
    """On the sum of embedding and position; as `dropout` if not given."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """On attention weights."""
    attention_bias: bool = True
    """Biases in the maps of attention; tensor2tensor has none."""
    activation_dropout: float = Field(0.0, ge=0, lt=1)
    """Inside the feed-forward layers, after the activation."""
    tie: Literal["none", "target", "all"] = "none"
    """Share the output matrix with the target embedding, or with both embeddings (one joint vocabulary)."""
    output_bias: bool = True
    """A bias for each word of the target vocabulary."""
    init: Literal["xavier", "mlrf"] = "xavier"
    """Xavier uniform, as fairseq; or U(+-1/sqrt(fan_in)), as MLRF section 4.2 has it."""

    def check_heads(self, name: str, side: StackConfig) -> None:
        """Raise ValueError where a layer of a side cannot be split into heads."""
        for i in range(side.layers):
            width = side.connect.width(i, side.layers, self.width)
            if width % self.heads:
                what = (
                    f"width {width}" if width == self.width else f"{name}.connect: growth {width}"
                )
                raise ValueError(f"{what} is no multiple of heads {self.heads}")


class TransformerConfig(BlockConfig):
    """Sizes and choices of a Transformer."""

    kind: str = "transformer"
    encoder: StackConfig = StackConfig(layers=6)
    """Depth and wiring of the source's side."""
    decoder: DecoderConfig = DecoderConfig(layers=6)
    """Depth and wiring of the target's side."""
    context_gate: Literal["none", "scalar", "vector"] = "none"
    """Weigh what attention to the source and what self-attention found by a gate, one number a position or one for each feature
    (Tu et al. 2017)."""

    @model_validator(mode="after")
    def _sites_fit(self) -> "TransformerConfig":
        self.check_heads("encoder", self.encoder)
        self.check_heads("decoder", self.decoder)
        attends_to_top(self.encoder, self.decoder)
        return self


class Residual(nn.Module):
    """LayerNorm(x + f(x)), or with ``pre`` norm x + f(LayerNorm(x)); dropout on what f returns."""

    def __init__(self, config: BlockConfig, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def before(self, x: Tensor) -> Tensor:
        """What the sub-layer reads."""
        return self.norm(x) if self.pre else x

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        """What stands after a sub-layer that read ``before(x)`` and returned ``y``."""
        x = x + self.dropout(y)
        return x if self.pre else self.norm(x)


class TransformerLayer(Layer):
    """What the layers of both sides have: self-attention and feed-forward, of any width, after a map of what is read to that width.

    The feed-forward layer has as many hidden units for each feature as in a layer of the usual width.
    """

    def __init__(self, config: BlockConfig, name: str, read: int, width: int):
        super().__init__()
        self.width = width
        self.read = nn.Identity() if read == width else nn.Linear(read, width)
        self.attention = SelfAttention(
            width, config.heads, config.attention_dropout, f"{name}.self", config.attention_bias
        )
        self.attention_residual = Residual(config, width)
        self.ffn = FeedForward(
            width,
            max(1, config.ffn * width // config.width),
            width,
            config.activation,
            config.activation_dropout,
        )
        self.ffn_residual = Residual(config, width)


class ContextGate(nn.Module):
    """(1 - g) t + g s with g = sigmoid(W_t t + W_s s + b), t what self-attention found and s what attention to the source found
    (Tu et al. 2017, brought to the Transformer by He et al. 2018, section 5.4; ours is that both are taken before the residual sum).
    """

    def __init__(self, width: int, gates: int):
        """``gates`` is 1, or the width."""
        super().__init__()
        self.map = nn.Linear(2 * width, gates)

    def forward(self, target: Tensor, source: Tensor) -> Tensor:
        """(..., D), (..., D) -> (..., D)."""
        return torch.lerp(target, source, torch.sigmoid(self.map(torch.cat((target, source), -1))))


class EncoderLayer(TransformerLayer):
    """Self-attention and feed-forward."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, S, what is read), mask (B, S) -> (B, S, D)."""
        x = self.read(x)
        residual = self.attention_residual
        x = residual.after(x, self.attention(residual.before(x), mask[:, None, None, :]))
        residual = self.ffn_residual
        return residual.after(x, self.ffn(residual.before(x)))


class DecoderLayer(TransformerLayer):
    """Causal self-attention, attention to the source, feed-forward."""

    def __init__(
        self,
        config: TransformerConfig,
        name: str,
        read: int,
        width: int,
        memory_widths: Sequence[int],
    ):
        super().__init__(config, name, read, width)
        self.cross = CrossAttention(
            width,
            memory_widths,
            config.heads,
            config.attention_dropout,
            f"{name}.cross",
            config.attention_bias,
        )
        self.cross_residual = Residual(config, width)
        gates = {"none": 0, "scalar": 1, "vector": width}[config.context_gate]
        self.gate = ContextGate(width, gates) if gates else None

    def forward(
        self, x: Tensor, cache: Cache, seen: Tensor | None, keys_values: Tensor, mask: Tensor
    ) -> tuple[Tensor, Cache]:
        """x (B * K, T, what is read), cache (B, n, 2D), the slots seen, keys and values of n sources (B, n * S, 2D),
        mask (B, S) -> x (B * K, T, D) and the grown cache.
        """
        x = self.read(x)
        residual = self.attention_residual
        y, cache = self.attention.step(residual.before(x), cache, seen)
        x = residual.after(x, y)
        residual = self.cross_residual
        found = self.cross(residual.before(x), keys_values, mask)
        x = residual.after(x, found if self.gate is None else self.gate(y, found))
        residual = self.ffn_residual
        return residual.after(x, self.ffn(residual.before(x))), cache


class Summary(Layer):
    """All features below, mapped to the usual width and normalised."""

    def __init__(self, read: int, width: int):
        super().__init__()
        self.width = width
        self.map = nn.Linear(read, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.map(x))


class Embedding(nn.Module):
    """Token embeddings times sqrt(D), plus positions, plus a vector for the language, with dropout."""

    def __init__(
        self,
        config: BlockConfig,
        vocabulary: int,
        tied: nn.Embedding | None = None,
        language: bool = False,
    ):
        """``tied`` are tokens that are shared; ``language``: a learned vector is added at every position."""
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, config.width) if tied is None else tied
        self.positions: Sinusoidal | Learned | None = None
        if config.positions != "none":
            learned = config.positions == "learned"
            self.positions = (
                Learned(config.width, config.max_positions) if learned else Sinusoidal(config.width)
            )
        self.language = nn.Embedding(1, config.width) if language else None
        self.dropout = Dropout(
            config.dropout if config.embedding_dropout is None else config.embedding_dropout
        )
        self.scale = config.width**0.5

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """Ids (B, T) of positions start .. start + T - 1 -> (B, T, D)."""
        found = self.tokens(ids) * self.scale
        if self.positions is not None:
            found = found + self.positions(start, ids.shape[1])
        if self.language is not None:
            found = found + self.language.weight
        return self.dropout(found)

    @property
    def max_positions(self) -> int | None:
        """Longest sentence, in tokens; None: no limit."""
        return None if self.positions is None else self.positions.max_positions


def check_tying(tie: str, source_size: int, target_size: int) -> None:
    """Raise ConfigError when the sizes of the vocabularies forbid the tying that is asked for."""
    if tie == "all" and source_size != target_size:
        raise ConfigError(
            f"model.tie: all needs one vocabulary for both sides, there are {source_size} source and {target_size} target "
            "entries: set data.vocabulary.joint, or tie: target"
        )


class Transformer(Seq2Seq):
    """Encoder and decoder of self-attention layers."""

    Config = TransformerConfig

    def __init__(self, config: TransformerConfig, source_size: int, target_size: int):
        """Vocabulary sizes count the special tokens. Raises ConfigError when they forbid the tying that is asked for."""
        super().__init__()
        check_tying(config.tie, source_size, target_size)
        width = config.width
        self.source = Embedding(config, source_size)
        self.target = Embedding(
            config, target_size, self.source.tokens if config.tie == "all" else None
        )
        self.encoder = Stack(
            config.encoder,
            [width] * (config.encoder.layers + 1),
            "encoder",
            layer=lambda i, name, read, width, residual: EncoderLayer(config, name, read, width),
            summary=lambda i, name, read: Summary(read, config.width),
            hands_on=attends_to_top(config.encoder, config.decoder),
        )
        self.attend = build_attend(config.decoder, self.encoder)
        self.decoder = Stack(
            config.decoder,
            [width] * (config.decoder.layers + 1),
            "decoder",
            layer=lambda i, name, read, width, residual: DecoderLayer(
                config, name, read, width, self._attended(i)
            ),
            summary=lambda i, name, read: Summary(read, config.width),
            other=self.encoder,
        )
        pre = (
            config.norm == "pre"
        )  # then what leaves a stack, or is attended to of its layers, was not normalised yet
        self.source_norms = nn.ModuleList(
            nn.LayerNorm(found) if pre else nn.Identity() for found in self.attend.widths
        )
        self.decoder_norm = nn.LayerNorm(self.decoder.out_width) if pre else nn.Identity()
        self.to_output = (
            nn.Identity()
            if self.decoder.out_width == width
            else nn.Linear(self.decoder.out_width, width)
        )
        self.output = OutputProjection(
            width,
            target_size,
            config.output_bias,
            None if config.tie == "none" else self.target.tokens.weight,
        )
        self.max_positions = self.source.max_positions
        INITIALISERS[config.init](self)

    def _attended(self, layer: int) -> Sequence[int]:
        """Widths of what a decoder layer attends to."""
        return self.attend.widths[self.attend.of(layer)]

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        stack = self.encoder

        def run(i: int, x: Tensor) -> Tensor:
            found: Tensor = (
                stack.layers[i](x) if i in stack.summaries else stack.layers[i](x, src_mask)
            )
            return found

        history, top = stack(self.source(src), run)
        return Memory(history, top, src_mask)

    def start(self, memory: Memory) -> State:
        sources = [
            norm(source)
            for norm, source in zip(self.source_norms, self.attend.sources(memory), strict=True)
        ]
        layers = [layer for layer in self.decoder.layers if isinstance(layer, DecoderLayer)]
        keys_values = tuple(
            layer.cross.keys_values(sources[self.attend.of(i)]) for i, layer in enumerate(layers)
        )
        empty = tuple(
            Cache(keys[:, :0, : 2 * layer.width], 0)
            for keys, layer in zip(keys_values, layers, strict=True)
        )
        ancestors = torch.empty(len(memory.mask), 0, dtype=torch.int64, device=memory.mask.device)
        return State((keys_values, memory.mask, empty), ancestors, 0)

    def decode(self, tgt_in: Tensor, state: State) -> tuple[Tensor, State]:
        keys_values, mask, caches = state.fixed
        ancestors, seen = cache_mask(state.moving, len(mask), caches[0].length, tgt_in.shape[1])
        stack, grown = self.decoder, list(caches)

        def run(i: int, x: Tensor) -> Tensor:
            if i in stack.summaries:
                summed: Tensor = stack.layers[i](x)
                return summed
            n = stack.places[i]
            x, cache = stack.layers[i](x, caches[n], seen, keys_values[n], mask)
            if not stack.recomputes:
                grown[n] = cache
            return x

        _, top = stack(self.target(tgt_in, state.step), run)
        features = self.to_output(self.decoder_norm(top))
        return features, State(
            (keys_values, mask, tuple(grown)), ancestors, state.step + tgt_in.shape[1]
        )
