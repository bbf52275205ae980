"""Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2)."""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk import trace
from fusetk.nn.cache import Cache
from fusetk.nn.dropout import Dropout
from fusetk.nn.heads import join_heads, split_heads
from fusetk.nn.inference_linear import linear_part
from fusetk.nn.packed_attention import packed_attention
from fusetk.nn.packed_layout import AttentionLayout, PackedLayout, PackedSides
from fusetk.nn.precision import product_dtype

# Greatest length S for which plain matrix products replace PyTorch's fused kernel on CPU, for each
# type of the products, with and without gradients. The results differ in rounding only.
# ``fusetk.ways`` measures the lengths on the current machine.
plain_up_to: dict[tuple[torch.dtype, bool], int] = {(torch.bfloat16, True): sys.maxsize}


def scaled_dot_product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    name: str,
    scale: float | None = None,
    sources: int = 1,
) -> Tensor:
    """Return softmax(q k^T scale) v: (B, H, T, d), (B, H, S, d), (B, H, S, d) -> (B, H, T, d).

    ``scale`` is 1 / sqrt(d) by default. ``mask`` broadcasts to (B, H, T, S) and is True at the
    keys that a query can see. If a trace listener matches ``name``, the attention weights are
    computed explicitly and recorded. Otherwise PyTorch's fused kernel computes the result. On CPU,
    plain products replace the kernel up to ``plain_up_to`` keys, where they are faster.

    With n > 1 ``sources``, the keys and values of the sources are concatenated along positions,
    (B, H, n * S, d). The softmax is computed for each source, and the n contexts are summed. On
    CPU, one product with all keys and one with all values are faster than the fused kernel. On
    other devices the kernel treats each source as a head. The recorded weights have the shape
    (B, n * H, T, S).
    """
    traced = trace.is_listening_for(name)
    if not traced and not _plain_is_faster(q, k, sources):
        if sources > 1:
            return scaled_dot_product_as_heads(q, k, v, mask, dropout, scale, sources)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale
        )
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    scores = (q * scale) @ k.mT  # (B, H, T, n * S)
    scores = scores.unflatten(-1, (sources, -1))
    if mask is not None:
        scores = scores.masked_fill(~mask.unsqueeze(-2), -math.inf)
    weights = scores.softmax(-1)
    if traced:
        trace.record(name, weights.permute(0, 3, 1, 2, 4).flatten(1, 2))
    return F.dropout(weights.flatten(-2), dropout) @ v


def _plain_is_faster(q: Tensor, k: Tensor, sources: int) -> bool:
    """Whether plain products are faster than PyTorch's fused kernel; on CPU only."""
    if q.device.type != "cpu":
        return False
    return sources > 1 or k.shape[-2] <= plain_up_to.get((product_dtype(q), q.requires_grad), 0)


def scaled_dot_product_as_heads(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    scale: float | None,
    sources: int,
) -> Tensor:
    """Compute ``scaled_dot_product`` of several sources with the fused kernel.

    Each pair of a head and a source is a separate head of the kernel. The shapes are those of
    ``scaled_dot_product``.
    """
    k, v = (t.unflatten(2, (sources, -1)).flatten(1, 2) for t in (k, v))  # (B, H * n, S, d)
    contexts = F.scaled_dot_product_attention(
        q.repeat_interleave(sources, 1), k, v, attn_mask=mask, dropout_p=dropout, scale=scale
    )
    return contexts.unflatten(1, (-1, sources)).sum(2)


def no_slots(mask: Tensor) -> Tensor:
    """Return the cache slots (B, 0) of one empty hypothesis of each sentence; see ``cache_mask``.

    ``mask`` (B, S) is that of the source.
    """
    return torch.empty(len(mask), 0, dtype=torch.int64, device=mask.device)


def cache_mask(
    token_slots: Tensor, sentences: int, past: int, length: int
) -> tuple[Tensor, Tensor | None]:
    """Assign cache slots to the next T = ``length`` tokens of each hypothesis, and mask the slots.

    All hypotheses of a sentence share one cache, whose first ``past`` slots are filled.
    ``token_slots`` (B * K, t) are the slots of each hypothesis' earlier tokens. Returns the slots
    of the earlier and the new tokens (B * K, t + T), and a mask that broadcasts to
    (B, 1, K * T, past + K * T). It is True at the slots that a new token can see, and None if every
    slot is visible.
    """
    rows, steps = token_slots.shape
    hypotheses = rows // sentences
    new = hypotheses * length
    device = token_slots.device
    new_slots = torch.arange(past, past + new, device=device).view(hypotheses, length)
    all_slots = torch.cat((token_slots, new_slots.repeat(sentences, 1)), dim=1)
    if hypotheses == 1 and past == steps:  # each sentence has had one hypothesis in all steps
        return all_slots, causal_mask(length, past, device)
    visible = torch.zeros(rows, length, past + new, dtype=torch.bool, device=device)
    for i in range(length):
        visible[:, i].scatter_(1, all_slots[:, : steps + i + 1], True)
    return all_slots, visible.view(sentences, 1, new, -1)


def causal_mask(length: int, past: int, device: torch.device) -> Tensor | None:
    """Return a mask (length, past + length), True at a query's own and at earlier positions.

    Returns None for a single query, which can see all positions.
    """
    if length == 1:
        return None
    return torch.ones(length, past + length, dtype=torch.bool, device=device).tril(past)


class KeysValues(nn.Linear):
    """The part of a ``SelfAttention``'s projection that computes keys and values only."""


class SelfAttention(nn.Module):
    """Attention of each position to the positions of its own sentence.

    One product computes queries, keys and values.
    """

    def __init__(self, width: int, heads: int, dropout: float, name: str, bias: bool = True):
        super().__init__()
        self.width = width
        self.keys_width = width  # fewer features than the queries if heads share keys
        self.heads = heads
        self.dropout = Dropout(dropout)
        self.name = name
        self.project = nn.Linear(width, 3 * width, bias)
        self.out = nn.Linear(width, width, bias)

    @property
    def projection_widths(self) -> list[int]:
        """Features of the queries, keys and values, the parts of the result of ``project``."""
        return [self.width, self.keys_width, self.keys_width]

    def forward(self, x: Tensor, mask: Tensor | PackedLayout | None) -> Tensor:
        """x (B, T, D), mask that broadcasts to (B, H, T, T) -> (B, T, D).

        For packed sentences, x is (1, N, D) and ``mask`` is their layout.
        """
        return self.with_keys_values(x, mask, self.name)[0]

    def with_keys_values(
        self, x: Tensor, mask: Tensor | PackedLayout | None, name: str
    ) -> tuple[Tensor, Tensor]:
        """Return the result of ``forward`` and the keys and values (B, T, 2D) or (1, N, 2D).

        The attention weights are recorded under ``name``.
        """
        if isinstance(mask, PackedLayout):
            projected = self.project(x)
            return self._packed(projected, mask, causal=False), projected[..., x.shape[-1] :]
        q, keys_values = self.project(x).split((x.shape[-1], 2 * x.shape[-1]), dim=-1)
        return self._mix(q, keys_values, mask, name), keys_values

    def step(
        self,
        x: Tensor,
        cache: Cache,
        mask: Tensor | PackedLayout | PackedSides | None,
        name: str | None = None,
        start: int = 0,
    ) -> tuple[Tensor, Cache]:
        """Return the result (B * K, T, D) and the cache with the new keys and values.

        ``x`` is (B * K, T, D). ``cache`` holds the keys and values of earlier tokens in n slots,
        (B, n, 2D). ``mask`` broadcasts to (B, 1, K * T, n + K * T) and is True at the old and new
        slots that a position can see. None means all slots. ``start`` is the position of the first
        new token; only subclasses read it.

        For packed sentences, x is (1, N, D), ``mask`` is their layout, and the cache does not
        change. It is empty, or with ``PackedSides`` it holds the keys and values of the source.
        """
        if isinstance(mask, PackedLayout):
            return self._packed(self.project(x), mask, causal=True), cache
        if isinstance(mask, PackedSides):
            return self._packed(
                self.project(x), mask.target, True, cache.read(), mask.source
            ), cache
        sentences = len(cache.buffer)
        width = x.shape[-1]
        projected = self.project(x).reshape(sentences, -1, 3 * width)
        q, new_keys_values = projected.split((width, 2 * width), dim=-1)
        cache = cache.append(new_keys_values)
        return self._mix(q, cache.read(), mask, name or self.name).reshape(x.shape), cache

    def single_step(self, x: Any, attend: Callable[[Tensor], Tensor], start: int) -> Any:
        """Return the result for one token of each of R hypotheses, x (R, 1, D) -> (R, 1, D).

        ``attend`` maps the queries, keys and values of these tokens (R, 3D) to the attention to all
        tokens of the hypotheses (R, D). ``start`` is as in ``step``.
        """
        return self.out(attend(self.project(x).flatten(0, 1)).view(x.shape))

    def keys_values(self, x: Tensor) -> Tensor:
        """Return the keys and values only, (B, S, D) -> (B, S, 2D)."""
        return linear_part(self.project, x, slice(self.width, None))

    def across(
        self, x: Tensor, keys_values: Tensor, mask: Tensor | PackedSides | None, name: str
    ) -> Tensor:
        """Attend from x (B * K, T, D) to ``keys_values`` (B, S, 2D) of other positions.

        The projections are the same as in self-attention. Returns (B * K, T, D). Packed sentences
        are (1, N, D) and (1, M, 2D), and ``mask`` is their layout.
        """
        q = linear_part(self.project, x, slice(self.width))
        if isinstance(mask, PackedSides):
            return self._packed(q, mask.target, False, keys_values, mask.source)
        q = q.reshape(len(keys_values), -1, self.width)
        return self._mix(q, keys_values, mask, name).reshape(x.shape)

    def _packed(
        self,
        projected: Tensor,
        queries: PackedLayout,
        causal: bool,
        keys_values: Tensor | None = None,
        source: PackedLayout | None = None,
    ) -> Tensor:
        own = projected.shape[-1] > self.width
        layout = AttentionLayout(self.width, self.heads, queries, own, causal, source)
        return self.out(packed_attention(layout, projected, keys_values, self.dropout))

    def _mix(self, q: Tensor, keys_values: Tensor, mask: Tensor | None, name: str) -> Tensor:
        q, k, v = (split_heads(t, self.heads) for t in (q, *keys_values.chunk(2, dim=-1)))
        contexts = scaled_dot_product(q, k, v, mask, self.dropout.active_rate, name)
        return self.out(join_heads(contexts))


class CrossAttention(nn.Module):
    """Attention of target positions to source positions.

    Keys and values are computed once per sentence. With n > 1 sources, each source has its own keys
    and values and its own softmax; the queries are the same. The n contexts are summed and scaled
    by sqrt(1/n), as in the code of DenseNMT (DenseAtt-2), but with several heads.
    """

    def __init__(
        self,
        width: int,
        source_widths: Sequence[int],
        heads: int,
        dropout: float,
        name: str,
        bias: bool = True,
    ):
        super().__init__()
        self.heads = heads
        self.dropout = Dropout(dropout)
        self.name = name
        self.query = nn.Linear(width, width, bias)
        self.project = nn.ModuleList(
            nn.Linear(source_width, 2 * width, bias) for source_width in source_widths
        )
        self.out = nn.Linear(width, width, bias)

    def keys_values(self, sources: Sequence[Tensor]) -> Tensor:
        """n sources (B, S, D_j) -> their keys and values, concatenated: (B, n * S, 2D)."""
        parts = [project(source) for project, source in zip(self.project, sources, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def forward(self, x: Tensor, keys_values: Tensor, mask: Tensor | PackedSides) -> Tensor:
        """x (B * K, T, D), keys and values (B, n * S, 2D), mask (B, S) -> (B * K, T, D).

        ``x`` holds K consecutive hypotheses for each sentence. They are K * T queries to the
        sentence's single copy of keys and values. Packed sentences are (1, N, D) and (1, n * M,
        2D), and ``mask`` is their layout.
        """
        sources = len(self.project)
        if isinstance(mask, PackedSides):
            return self.out(self._packed_contexts(self.query(x), keys_values, mask))
        q = split_heads(self.query(x).reshape(len(mask), -1, x.shape[-1]), self.heads)
        k, v = (split_heads(t, self.heads) for t in keys_values.chunk(2, dim=-1))
        key_mask = mask[:, None, None, :]
        contexts = scaled_dot_product(
            q, k, v, key_mask, self.dropout.active_rate, self.name, sources=sources
        )
        if sources > 1:
            contexts = contexts * sources**-0.5
        return self.out(join_heads(contexts).reshape(x.shape))

    def _packed_contexts(self, q: Tensor, keys_values: Tensor, sides: PackedSides) -> Tensor:
        sources = len(self.project)
        layout = AttentionLayout(
            q.shape[-1], self.heads, sides.target, own=False, causal=False, source=sides.source
        )
        contexts = [
            packed_attention(layout, q, part, self.dropout)
            for part in keys_values.chunk(sources, 1)
        ]
        if sources == 1:
            return contexts[0]
        return torch.stack(contexts).sum(0) * sources**-0.5
