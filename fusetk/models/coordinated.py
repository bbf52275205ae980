"""Layer-wise coordination (He et al. 2018): one stack for both languages, in which each layer of the target reads that of the source."""

from typing import Any, Literal

import torch
from pydantic import model_validator
from torch import Tensor, nn

from fusetk.fusion.base import FusionConfig
from fusetk.models.initialise import INITIALISERS
from fusetk.models.seq2seq import Memory, Seq2Seq, State
from fusetk.models.stack import Layer, Stack, StackConfig
from fusetk.models.transformer import (
    BlockConfig,
    Embedding,
    Residual,
    Summary,
    TransformerLayer,
    check_tying,
)
from fusetk.nn.attention import CrossAttention, KeysValues, cache_mask
from fusetk.nn.cache import Cache
from fusetk.nn.output import OutputProjection


class CoordinatedConfig(BlockConfig):
    """Sizes and choices of a coordinated model."""

    kind: str = "coordinated"
    stack: StackConfig = StackConfig(layers=14)
    """Depth and wiring, of both languages; a fusion stands on top of the target's side."""
    share_weights: bool = True
    """Source and target go through the same layers, or each through layers of its own."""
    mixed_attention: bool = True
    """The target attends to the source and to itself in one softmax, or in two sub-layers."""
    cross_weights: Literal["shared", "own"] = "shared"
    """In two sub-layers, attention to the source has the maps of self-attention, as the parameters that the paper counts have it
    (Table 3), or its own."""
    language_embedding: bool = True
    """A learned vector at each position that says which language it is of."""

    @model_validator(mode="after")
    def _sites_fit(self) -> "CoordinatedConfig":
        self.check_heads("stack", self.stack)
        if self.mixed_attention and self.cross_weights == "own":
            raise ValueError(
                "cross_weights: own has no use with mixed_attention: true, which has one attention for both"
            )
        return self


class CoordinatedLayer(TransformerLayer):
    """A layer for both languages, or for one.

    What the target attends to of the source is this layer's keys and values, or with ``cross_weights: own`` what they are made of.
    """

    def __init__(
        self, config: CoordinatedConfig, layer: int, read: int, width: int, target: bool = True
    ):
        """``layer`` counts from 0, the lowest; without ``target`` the layer is the source's alone."""
        super().__init__(config, f"decoder.layer{layer + 1}", read, width)
        self.layer, self.mixed, self.own = (
            layer,
            config.mixed_attention,
            config.cross_weights == "own",
        )
        self.cross_residual = Residual(config, width) if target and not self.mixed else None
        self.cross = None
        if target and self.own:
            dropout, bias = config.attention_dropout, config.attention_bias
            self.cross = CrossAttention(
                width, [width], config.heads, dropout, self._name("cross"), bias
            )

    def _name(self, what: str, side: str = "decoder") -> str:
        return f"{side}.layer{self.layer + 1}.{what}"

    def source(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Source positions (B, S, what is read), mask (B, S) -> (B, S, D), and what the target attends to (B, S, 2D or D)."""
        x = self.read(x)
        residual = self.attention_residual
        before = residual.before(x)
        y, keys_values = self.attention.source(
            before, mask[:, None, None, :], self._name("self", "encoder")
        )
        x = residual.after(x, y)
        residual = self.ffn_residual
        return residual.after(x, self.ffn(residual.before(x))), before if self.own else keys_values

    def attended(self, x: Tensor) -> Tensor:
        """What the target attends to, alone: all that is wanted of the highest layer."""
        before = self.attention_residual.before(self.read(x))
        return before if self.own else self.attention.keys_values(before)

    def forward(
        self, x: Tensor, cache: Cache, seen: Tensor | None, keys_values: Tensor | None, mask: Tensor
    ) -> tuple[Tensor, Cache]:
        """Target positions (B * K, T, what is read), the cache (B, n, 2D), the slots that are seen; without mixed attention, the
        source's keys and values (B, S, 2D) and mask (B, S) -> (B * K, T, D) and the grown cache.

        With mixed attention (Equation 3) the cache begins with the source's keys and values.
        """
        x = self.read(x)
        residual = self.attention_residual
        y, cache = self.attention.step(
            residual.before(x), cache, seen, self._name("mixed" if self.mixed else "self")
        )
        x = residual.after(x, y)
        if self.cross_residual is not None and keys_values is not None:
            residual = self.cross_residual
            before = residual.before(x)
            if self.cross is not None:
                y = self.cross(before, keys_values, mask)
            else:
                y = self.attention.across(
                    before, keys_values, mask[:, None, None, :], self._name("cross")
                )
            x = residual.after(x, y)
        residual = self.ffn_residual
        return residual.after(x, self.ffn(residual.before(x))), cache


class Highest(Layer):
    """The source's highest layer where it is not the target's too: nothing is read of it but what the target attends to."""

    def __init__(self, config: CoordinatedConfig, read: int, width: int):
        super().__init__()
        self.width = width
        self.read = nn.Identity() if read == width else nn.Linear(read, width)
        self.norm = nn.LayerNorm(width) if config.norm == "pre" else nn.Identity()
        self.project = (
            nn.Identity()
            if config.cross_weights == "own"
            else KeysValues(width, 2 * width, config.attention_bias)
        )

    def attended(self, x: Tensor) -> Tensor:
        """(B, S, what is read) -> (B, S, 2D or D)."""
        found: Tensor = self.project(self.norm(self.read(x)))
        return found


class Coordinated(Seq2Seq):
    """Source and target side by side: in layer i, source positions attend to the source below layer i, and target positions to the
    source and the earlier target below layer i.

    The source never sees the target, so it is encoded once: what stays of it are each layer's keys and values.
    """

    Config = CoordinatedConfig

    def __init__(self, config: CoordinatedConfig, source_size: int, target_size: int):
        """Vocabulary sizes count the special tokens. Raises ConfigError when they forbid the tying that is asked for."""
        super().__init__()
        check_tying(config.tie, source_size, target_size)
        width, depth, own = config.width, config.stack.layers, not config.share_weights
        tied = config.tie == "all"
        self.source = Embedding(config, source_size, language=config.language_embedding)
        self.target = Embedding(
            config, target_size, self.source.tokens if tied else None, config.language_embedding
        )
        self.stack = Stack(
            config.stack,
            [width] * (depth + 1),
            "decoder",
            layer=lambda i, name, read, width, residual: CoordinatedLayer(config, i, read, width),
            summary=lambda i, name, read: Summary(read, config.width),
        )
        self.source_stack = None
        if own:
            self.source_stack = Stack(
                config.stack.model_copy(update={"fuse": FusionConfig(kind="last")}),
                [width] * (depth + 1),
                "encoder",
                layer=lambda i, name, read, width, residual: (
                    CoordinatedLayer(config, i, read, width, target=False)
                    if i + 1 < depth
                    else Highest(config, read, width)
                ),
                summary=lambda i, name, read: Summary(read, config.width),
                hands_on=False,
            )
        self.mixed = config.mixed_attention
        self.norm = nn.LayerNorm(self.stack.out_width) if config.norm == "pre" else nn.Identity()
        self.to_output = (
            nn.Identity()
            if self.stack.out_width == width
            else nn.Linear(self.stack.out_width, width)
        )
        self.output = OutputProjection(
            width,
            target_size,
            config.output_bias,
            None if config.tie == "none" else self.target.tokens.weight,
        )
        self.max_positions = self.source.max_positions
        INITIALISERS[config.init](self)

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        stack = self.source_stack or self.stack
        found: dict[int, Tensor] = {}

        def run(i: int, x: Tensor) -> Tensor:
            if i in stack.summaries:
                summed: Tensor = stack.layers[i](x)
                return summed
            layer: Any = stack.layers[i]
            if i + 1 == len(stack.layers):
                kept = layer.attended(x)
            else:
                x, kept = layer.source(x, src_mask)
            found.setdefault(stack.places[i], kept)  # once, where the layer is recomputed
            return x

        history, top = stack(self.source(src), run, below_top=True)
        return Memory(history, top, src_mask, attended=tuple(found[n] for n in sorted(found)))

    def start(self, memory: Memory) -> State:
        layers = [layer for layer in self.stack.layers if isinstance(layer, CoordinatedLayer)]
        keys_values = tuple(
            source if layer.cross is None else layer.cross.keys_values([source])
            for layer, source in zip(layers, memory.attended, strict=True)
        )
        length = memory.mask.shape[1] if self.mixed else 0
        caches = tuple(Cache(found[:, :length], length) for found in keys_values)
        ancestors = torch.empty(len(memory.mask), 0, dtype=torch.int64, device=memory.mask.device)
        return State((() if self.mixed else keys_values, memory.mask, caches), ancestors, 0)

    def decode(self, tgt_in: Tensor, state: State) -> tuple[Tensor, State]:
        keys_values, mask, caches = state.fixed
        before = mask.shape[1] if self.mixed else 0  # slots of the source
        past = caches[0].length - before
        ancestors, seen = cache_mask(state.moving, len(mask), past, tgt_in.shape[1])
        if self.mixed:
            seen = with_source(seen, mask, past, tgt_in.numel() // len(mask))
        stack, grown = self.stack, list(caches)

        def run(i: int, x: Tensor) -> Tensor:
            if i in stack.summaries:
                summed: Tensor = stack.layers[i](x)
                return summed
            n = stack.places[i]
            x, cache = stack.layers[i](
                x, caches[n], seen, None if self.mixed else keys_values[n], mask
            )
            if not stack.recomputes:
                grown[n] = cache
            return x

        _, top = stack(self.target(tgt_in, state.step), run)
        features = self.to_output(self.norm(top))
        return features, State(
            (keys_values, mask, tuple(grown)), ancestors, state.step + tgt_in.shape[1]
        )


def with_source(seen: Tensor | None, mask: Tensor, past: int, new: int) -> Tensor:
    """Equation 3's mask: real source positions (B, S), and the slots of the target that each of ``new`` positions sees, so far
    ``past`` (None: all) -> (B, 1, new, S + past + new).
    """
    if seen is None:
        seen = mask.new_ones(new, past + new)
    return torch.cat(
        (mask[:, None, None, :].expand(-1, 1, new, -1), seen.expand(len(mask), 1, -1, -1)), -1
    )
