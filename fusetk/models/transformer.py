"""The Transformer (Vaswani et al. 2017) with open sites for connection, fusion and attention."""

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fusetk.errors import ConfigError
from fusetk.models.initialise import INITIALISERS
from fusetk.models.seq2seq import Memory, ModelConfig, Seq2Seq, State
from fusetk.models.stack import DecoderConfig, StackConfig, build_attend, build_stack
from fusetk.nn.attention import CrossAttention, SelfAttention, slots_seen
from fusetk.nn.cache import Cache
from fusetk.nn.dropout import Dropout
from fusetk.nn.feedforward import Activation, FeedForward
from fusetk.nn.output import Output
from fusetk.nn.positions import Learned, Sinusoidal


class TransformerConfig(ModelConfig):
    """Sizes and choices of a Transformer."""

    kind: str = "transformer"
    heads: int = Field(8, ge=1)
    """Attention heads; `width` is a multiple."""
    ffn: int = Field(2048, ge=1)
    """Hidden units of the feed-forward layers."""
    encoder: StackConfig = StackConfig(layers=6)
    """Depth and wiring of the source's side."""
    decoder: DecoderConfig = DecoderConfig(layers=6)
    """Depth and wiring of the target's side."""
    norm: Literal["post", "pre"] = "post"
    """Layer normalisation after each residual sum (the original), or before each sub-layer and once at the end."""
    activation: Activation = "relu"
    """Of the feed-forward layers."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """Sines and cosines, for sentences of any length (Vaswani et al. 2017); or a learned vector each (Gehring et al. 2017)."""
    max_positions: int = Field(1024, ge=1)
    """Longest sentence with learned positions, in tokens, the end mark counted."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """On each sub-layer's output, before the residual sum."""
    embedding_dropout: float | None = Field(None, ge=0, lt=1)
    """On the sum of embedding and position; as `dropout` if not given."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """On attention weights."""
    activation_dropout: float = Field(0.0, ge=0, lt=1)
    """Inside the feed-forward layers, after the activation."""
    tie: Literal["none", "target", "all"] = "none"
    """Share the output matrix with the target embedding, or with both embeddings (one joint vocabulary)."""
    output_bias: bool = True
    """A bias for each word of the target vocabulary."""
    init: Literal["xavier", "mlrf"] = "xavier"
    """Xavier uniform, as fairseq and tensor2tensor; or U(+-1/sqrt(fan_in)), as MLRF section 4.2 has it."""

    @model_validator(mode="after")
    def _heads_fit(self) -> "TransformerConfig":
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is no multiple of heads {self.heads}")
        return self


def _feed_forward(config: TransformerConfig) -> FeedForward:
    return FeedForward(config.width, config.ffn, config.width, config.activation, config.activation_dropout)


class Residual(nn.Module):
    """LayerNorm(x + f(x)), or with ``pre`` norm x + f(LayerNorm(x)); dropout on what f returns."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.dropout = Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def before(self, x: Tensor) -> Tensor:
        """What the sub-layer reads."""
        return self.norm(x) if self.pre else x

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        """What stands after a sub-layer that read ``before(x)`` and returned ``y``."""
        x = x + self.dropout(y)
        return x if self.pre else self.norm(x)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, config: TransformerConfig, name: str):
        super().__init__()
        self.attention = SelfAttention(config.width, config.heads, config.attention_dropout, f"{name}.self")
        self.attention_residual = Residual(config)
        self.ffn = _feed_forward(config)
        self.ffn_residual = Residual(config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, S, D), mask (B, S) -> (B, S, D)."""
        residual = self.attention_residual
        x = residual.after(x, self.attention(residual.before(x), mask[:, None, None, :]))
        residual = self.ffn_residual
        return residual.after(x, self.ffn(residual.before(x)))


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, feed-forward."""

    def __init__(self, config: TransformerConfig, memory_width: int, name: str):
        super().__init__()
        self.attention = SelfAttention(config.width, config.heads, config.attention_dropout, f"{name}.self")
        self.attention_residual = Residual(config)
        self.cross = CrossAttention(config.width, memory_width, config.heads, config.attention_dropout, f"{name}.cross")
        self.cross_residual = Residual(config)
        self.ffn = _feed_forward(config)
        self.ffn_residual = Residual(config)

    def forward(self, x: Tensor, cache: Cache, seen: Tensor | None, keys_values: Tensor, mask: Tensor) -> tuple[Tensor, Cache]:
        """x (B * K, T, D), cache (B, n, 2D), the slots seen, source keys and values (B, S, 2D), mask (B, S) -> x and the grown cache."""
        residual = self.attention_residual
        y, cache = self.attention.step(residual.before(x), cache, seen)
        x = residual.after(x, y)
        residual = self.cross_residual
        x = residual.after(x, self.cross(residual.before(x), keys_values, mask))
        residual = self.ffn_residual
        return residual.after(x, self.ffn(residual.before(x))), cache


class Embedding(nn.Module):
    """Token embeddings times sqrt(D), plus positions, with dropout."""

    def __init__(self, config: TransformerConfig, vocabulary: int, tied: nn.Embedding | None = None):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, config.width) if tied is None else tied
        self.positions = Sinusoidal(config.width) if config.positions == "sinusoidal" else Learned(config.width, config.max_positions)
        self.dropout = Dropout(config.dropout if config.embedding_dropout is None else config.embedding_dropout)
        self.scale = config.width**0.5

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """Ids (B, T) of positions start .. start + T - 1 -> (B, T, D)."""
        return self.dropout(self.tokens(ids) * self.scale + self.positions(start, ids.shape[1]))


class Transformer(Seq2Seq):
    """Encoder and decoder of self-attention layers."""

    Config = TransformerConfig

    def __init__(self, config: TransformerConfig, source_size: int, target_size: int):
        """Vocabulary sizes count the special tokens. Raises ConfigError when they forbid the tying that is asked for."""
        super().__init__()
        if config.tie == "all" and source_size != target_size:
            raise ConfigError(
                f"model.tie: all needs one vocabulary for both sides, there are {source_size} source and {target_size} target "
                "entries: set data.vocabulary.joint, or tie: target"
            )
        width = config.width
        self.source = Embedding(config, source_size)
        self.target = Embedding(config, target_size, self.source.tokens if config.tie == "all" else None)
        self.encoder = build_stack(config.encoder, width, "encoder", lambda i, name: EncoderLayer(config, name))
        self.attend = build_attend(config.decoder, [width] * (config.encoder.layers + 1), self.encoder.fuse.out_width)
        self.decoder = build_stack(
            config.decoder, width, "decoder", lambda i, name: DecoderLayer(config, self.attend.width(i), name), self.encoder
        )
        norms = [nn.LayerNorm(width) if config.norm == "pre" else nn.Identity() for _ in range(2)]
        self.encoder_norm, self.decoder_norm = norms
        self.output = Output(width, target_size, config.output_bias, None if config.tie == "none" else self.target.tokens.weight)
        self.max_positions = self.source.positions.max_positions
        INITIALISERS[config.init](self)

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        layers = self.encoder.layers
        history, top = self.encoder(self.source(src), lambda i, x: layers[i](x, src_mask))
        return Memory(history, self.encoder_norm(top), src_mask)

    def start(self, memory: Memory) -> State:
        crosses = [layer.cross for layer in self.decoder.layers]
        keys_values = tuple(cross.keys_values(self.attend(memory, i)) for i, cross in enumerate(crosses))  # type: ignore[operator,union-attr]
        empty = Cache(keys_values[0][:, :0], 0)
        ancestors = torch.empty(len(memory.mask), 0, dtype=torch.int64, device=memory.mask.device)
        return State((keys_values, memory.mask, (empty,) * len(crosses)), ancestors, 0)

    def decode(self, tgt_in: Tensor, state: State) -> tuple[Tensor, State]:
        keys_values, mask, caches = state.fixed
        caches = list(caches)
        ancestors, seen = slots_seen(state.moving, len(mask), caches[0].length, tgt_in.shape[1])
        layers = self.decoder.layers

        def run(i: int, x: Tensor) -> Tensor:
            x, caches[i] = layers[i](x, caches[i], seen, keys_values[i], mask)
            return x

        _, top = self.decoder(self.target(tgt_in, state.step), run)
        return self.decoder_norm(top), State((keys_values, mask, tuple(caches)), ancestors, state.step + tgt_in.shape[1])
