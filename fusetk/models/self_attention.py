"""Self-attention classes outside fusetk, which the config key `self_attention` names.

The name of a class is ``package.module:Name``. Models build the usual attention (``plain``) as a
``fusetk.nn.attention.SelfAttention``, which has kernels. Symbols in shapes: H heads with d
features, T queries, S keys.
"""

import math
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fusetk import trace
from fusetk.config import ComponentConfig, component, resolve
from fusetk.nn.attention import causal_mask
from fusetk.nn.cache import Cache
from fusetk.nn.grouped_attention import GroupedSelfAttention
from fusetk.nn.heads import join_heads, split_heads
from fusetk.nn.nested import map_tensors
from fusetk.nn.packed_layout import PackedLayout, PackedSides
from fusetk.nn.shape_check import check_shape


class SelfAttentionConfig(ComponentConfig):
    """Options of a self-attention."""

    kind: str = "plain"


class AttentionOptions(NamedTuple):
    """The options of the self-attention of one layer."""

    width: int
    """Features of its input and of its output."""
    heads: int
    dropout: float
    """Rate of dropout on attention weights."""
    name: str
    """Name of the recorded attention weights."""
    bias: bool
    """Whether the projections have biases."""
    groups: int | None
    """Number of heads of the keys and values; None: as many as ``heads``."""
    rotary: bool
    """Whether queries and keys are rotated by their positions."""


class CustomSelfAttention(GroupedSelfAttention):
    """Softmax of the scaled dot products of queries and keys (Vaswani et al. 2017).

    A self-attention outside fusetk is a subclass that overrides ``scores`` or ``attend``. Training
    and search call the methods of such a subclass, and never a kernel.
    """

    Config: type[SelfAttentionConfig] = SelfAttentionConfig
    config: Any
    """The options, an object of the class ``Config``."""

    def __init__(self, config: SelfAttentionConfig, options: AttentionOptions):
        super().__init__(*options)
        self.config = config

    def initialise(self) -> None:
        """Change the initial weights, if they must differ from those of the model's `init`.

        Models call it once, after `init`.
        """

    def scores(
        self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        """Return the scores (B, H, T, S); ``attend`` computes their softmax.

        q is (B, H, T, d), and k is (B, H, S, d). The positions (T,) and (S,) of the tokens are
        counted from 0.
        """
        return (q / math.sqrt(q.shape[-1])) @ k.mT

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible: Tensor,
        query_positions: Tensor,
        key_positions: Tensor,
    ) -> Tensor:
        """Return the contexts (B, H, T, d), from which ``out`` computes the output.

        q is (B, H, T, d); k and v are (B, H, S, d). ``visible`` broadcasts to (B, H, T, S) and is
        True at the keys that a query may read. The positions are as in ``scores``. In search, the
        queries are the new tokens of all hypotheses of a sentence, the keys are all their tokens,
        and a query may read those of its own hypothesis.
        """
        scores = self.scores(q, k, query_positions, key_positions)
        check_shape(scores, q.shape[:-1], k.shape[-2], self)
        weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
        trace.record(self.name, weights)
        return F.dropout(weights, self.dropout.active_rate).to(v.dtype) @ v

    def forward(self, x: Any, mask: Tensor | PackedLayout | None) -> Tensor:
        if isinstance(mask, PackedLayout):
            return mask.pack(self(map_tensors(mask.unpack, x), mask.mask[:, None, None]))
        q, k, v = self._projections(x, 0)
        positions = torch.arange(q.shape[1], device=q.device)
        return self._attended(q, torch.cat((k, v), -1), mask, positions, positions)

    def step(
        self,
        x: Any,
        cache: Cache,
        mask: Tensor | PackedLayout | PackedSides | None,
        name: str | None = None,
        start: int = 0,
    ) -> tuple[Tensor, Cache]:
        assert not isinstance(mask, PackedSides), "coordinated has no custom self-attention"
        if isinstance(mask, PackedLayout):
            padded = map_tensors(mask.unpack, x)
            visible = causal_mask(mask.length, 0, mask.places.device)
            empty = Cache(cache.buffer.new_empty(mask.sentences, 0, 0), 0)
            return mask.pack(self.step(padded, empty, visible)[0]), cache
        q, k, v = self._projections(x, start)
        sentences = len(cache.buffer)
        positions = torch.arange(start, start + q.shape[1], device=q.device)
        positions = positions.repeat(len(q) // sentences)
        keys_values = torch.cat((k, v), -1)
        cache = cache.append(keys_values.reshape(sentences, -1, 2 * self.keys_width), positions)
        assert cache.positions is not None
        queries = q.reshape(sentences, -1, self.width)
        y = self._attended(queries, cache.read(), mask, positions, cache.positions)
        return y.reshape(q.shape), cache

    def _attended(
        self,
        q: Tensor,
        keys_values: Tensor,
        visible: Tensor | None,
        query_positions: Tensor,
        key_positions: Tensor,
    ) -> Tensor:
        """(B, T, D), (B, S, 2 groups d) -> (B, T, D)."""
        if self.groups != self.heads:
            keys_values = self._shared(keys_values)
        if visible is None:
            visible = torch.ones(1, 1, dtype=torch.bool, device=q.device)
        q, k, v = (split_heads(t, self.heads) for t in (q, *keys_values.chunk(2, -1)))
        contexts = self.attend(q, k, v, visible, query_positions, key_positions)
        check_shape(contexts, q.shape[:-1], q.shape[-1], self)
        return self.out(join_heads(contexts))


SELF_ATTENTION_KINDS: dict[str, type[CustomSelfAttention]] = {"plain": CustomSelfAttention}

AnySelfAttentionConfig = Annotated[
    SelfAttentionConfig,
    component(SELF_ATTENTION_KINDS, "a self-attention", CustomSelfAttention),
]
"""Type of a config key that chooses a self-attention."""


def self_attention_class(config: SelfAttentionConfig) -> type[CustomSelfAttention]:
    """Return the class that ``config.kind`` names. Raises ValueError if no class has this name."""
    return resolve(config.kind, SELF_ATTENTION_KINDS, CustomSelfAttention)
