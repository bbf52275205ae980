"""Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2)."""

import math
import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk import trace
from fusetk.nn.cache import Cache
from fusetk.nn.dropout import Dropout
from fusetk.nn.precision import product_dtype

# Greatest number of keys for which plain products replace torch's fused kernel on CPU, by the type of the products and by whether
# they need gradients. The results differ in rounding only. ``fusetk.machine`` measures the numbers on the machine at hand.
plain_up_to: dict[tuple[torch.dtype, bool], int] = {(torch.bfloat16, True): sys.maxsize}


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    name: str,
    scale: float | None = None,
    sources: int = 1,
) -> Tensor:
    """softmax(q k^T scale) v, scale 1 / sqrt(d) if not given: (B, H, T, d), (B, H, S, d), (B, H, S, d) -> (B, H, T, d).

    ``mask`` is True where a query may look, and broadcasts to (B, H, T, S). With an active trace listener the weights are
    materialised and recorded under ``name``. Otherwise torch's fused kernel computes the result; on CPU plain products do it
    for up to ``plain_up_to`` keys, where they are faster.

    With n > 1 ``sources``, keys and values are concatenated along positions, (B, H, n * S, d). Each source has a softmax of its
    own, and the n results are summed. On CPU one product with all keys and one with all values is faster than the fused kernel;
    on other devices each source is a head of the kernel. The recorded weights are (B, n * H, T, S).
    """
    cpu, wanted = q.device.type == "cpu", trace.wanted(name)
    plain = wanted or (
        cpu
        and (sources > 1 or k.shape[-2] <= plain_up_to.get((product_dtype(q), q.requires_grad), 0))
    )
    if not plain and sources == 1:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale
        )
    if not plain:
        return attend_as_heads(q, k, v, mask, dropout, scale, sources)
    scores = (
        q * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    ) @ k.mT  # (B, H, T, n * S)
    scores = scores.unflatten(-1, (sources, -1))
    if mask is not None:
        scores = scores.masked_fill(~mask.unsqueeze(-2), -math.inf)
    weights = scores.softmax(-1)
    if wanted:
        trace.record(name, weights.permute(0, 3, 1, 2, 4).flatten(1, 2))
    return F.dropout(weights.flatten(-2), dropout) @ v


def attend_as_heads(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    scale: float | None,
    sources: int,
) -> Tensor:
    """``attend`` to several sources with the fused kernel, for which each source of a head is a head."""
    k, v = (t.unflatten(2, (sources, -1)).flatten(1, 2) for t in (k, v))  # (B, H * n, S, d)
    found = F.scaled_dot_product_attention(
        q.repeat_interleave(sources, 1), k, v, attn_mask=mask, dropout_p=dropout, scale=scale
    )
    return found.unflatten(1, (-1, sources)).sum(2)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, H * d) -> (B, H, T, d), without a copy."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, H, T, d) -> (B, T, H * d)."""
    return x.transpose(1, 2).flatten(2)


def cache_mask(
    ancestors: Tensor, sentences: int, past: int, length: int
) -> tuple[Tensor, Tensor | None]:
    """Where the next ``length`` tokens of each hypothesis go, behind ``past`` slots of its sentence, and which slots they see.

    ``ancestors`` (B * K, t) are the slots of each hypothesis' tokens so far. Returns the same with the new ones
    (B * K, t + T), and a mask (B, 1, K * T, past + K * T), None when every slot is seen.
    """
    rows, steps = ancestors.shape
    width = rows // sentences
    new = torch.arange(past, past + width * length, device=ancestors.device).view(width, length)
    grown = torch.cat((ancestors, new.repeat(sentences, 1)), dim=1)
    if width == 1 and past == steps:  # there was never a second hypothesis
        return grown, causal_mask(length, past, ancestors.device)
    seen = torch.zeros(
        rows, length, past + width * length, dtype=torch.bool, device=ancestors.device
    )
    for i in range(length):
        seen[:, i].scatter_(1, grown[:, : steps + i + 1], True)
    return grown, seen.view(sentences, 1, width * length, -1)


def causal_mask(length: int, past: int, device: torch.device) -> Tensor | None:
    """(length, past + length), True where a query may look: at itself and before. None when there is nothing to hide."""
    if length == 1:
        return None
    return torch.ones(length, past + length, dtype=torch.bool, device=device).tril(past)


class KeysValues(nn.Linear):
    """The part of a ``SelfAttention``'s projection that makes keys and values, where there are no queries."""


class SelfAttention(nn.Module):
    """Every position attends to the positions of its own sentence; queries, keys and values come from one product."""

    def __init__(self, width: int, heads: int, dropout: float, name: str, bias: bool = True):
        super().__init__()
        self.heads, self.dropout, self.name = heads, Dropout(dropout), name
        self.project = nn.Linear(width, 3 * width, bias)
        self.out = nn.Linear(width, width, bias)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, D), mask broadcast to (B, H, T, T) -> (B, T, D)."""
        return self.source(x, mask, self.name)[0]

    def source(self, x: Tensor, mask: Tensor | None, name: str) -> tuple[Tensor, Tensor]:
        """The same, recorded under ``name``, and the keys and values (B, T, 2D), for others to attend to."""
        q, keys_values = self.project(x).split((x.shape[-1], 2 * x.shape[-1]), dim=-1)
        return self._mix(q, keys_values, mask, name), keys_values

    def step(
        self, x: Tensor, cache: Cache, mask: Tensor | None, name: str | None = None
    ) -> tuple[Tensor, Cache]:
        """x (B * K, T, D), the keys and values of earlier tokens in n slots (B, n, 2D), and which of the slots, and of
        the K * T new ones, a position sees (B, 1, K * T, n + K * T), None for all. Returns (B * K, T, D) and the cache, grown.
        """
        sentences = len(cache.buffer)
        q, new = (
            self.project(x)
            .reshape(sentences, -1, 3 * x.shape[-1])
            .split((x.shape[-1], 2 * x.shape[-1]), dim=-1)
        )
        cache = cache.append(new)
        return self._mix(q, cache.read(), mask, name or self.name).reshape(x.shape), cache

    def keys_values(self, x: Tensor) -> Tensor:
        """Keys and values alone, (B, S, D) -> (B, S, 2D)."""
        bias = self.project.bias
        return F.linear(
            x, self.project.weight[x.shape[-1] :], None if bias is None else bias[x.shape[-1] :]
        )

    def across(self, x: Tensor, keys_values: Tensor, mask: Tensor | None, name: str) -> Tensor:
        """Attention of x (B * K, T, D) to other positions, (B, S, 2D), by the same maps."""
        bias = self.project.bias
        q = F.linear(
            x, self.project.weight[: x.shape[-1]], None if bias is None else bias[: x.shape[-1]]
        )
        return self._mix(
            q.reshape(len(keys_values), -1, x.shape[-1]), keys_values, mask, name
        ).reshape(x.shape)

    def _mix(self, q: Tensor, keys_values: Tensor, mask: Tensor | None, name: str) -> Tensor:
        q, k, v = (split_heads(t, self.heads) for t in (q, *keys_values.chunk(2, dim=-1)))
        return self.out(join_heads(attend(q, k, v, mask, self.dropout.now, name)))


class CrossAttention(nn.Module):
    """Target positions attend to source positions; keys and values are projected once a sentence.

    Of several sources, each has keys and values of its own and is attended to alone, with the same queries; what was found
    is summed and scaled by sqrt(1/n) (DenseNMT's DenseAtt-2, with many heads).
    """

    def __init__(
        self,
        width: int,
        memory_widths: Sequence[int],
        heads: int,
        dropout: float,
        name: str,
        bias: bool = True,
    ):
        super().__init__()
        self.heads, self.dropout, self.name = heads, Dropout(dropout), name
        self.query = nn.Linear(width, width, bias)
        self.project = nn.ModuleList(
            nn.Linear(memory_width, 2 * width, bias) for memory_width in memory_widths
        )
        self.out = nn.Linear(width, width, bias)

    def keys_values(self, sources: Sequence[Tensor]) -> Tensor:
        """n sources (B, S, D_j) -> the keys and values of one after the other (B, n * S, 2D)."""
        found = [project(source) for project, source in zip(self.project, sources, strict=True)]
        return found[0] if len(found) == 1 else torch.cat(found, 1)

    def forward(self, x: Tensor, keys_values: Tensor, mask: Tensor) -> Tensor:
        """x (B * K, T, D), hypotheses of a sentence together; keys and values (B, n * S, 2D); mask (B, S) -> (B * K, T, D).

        The K hypotheses of a sentence are K * T queries to its one copy of keys and values.
        """
        sources = len(self.project)
        q = split_heads(self.query(x).reshape(len(mask), -1, x.shape[-1]), self.heads)
        k, v = (split_heads(t, self.heads) for t in keys_values.chunk(2, dim=-1))
        mixed = attend(
            q, k, v, mask[:, None, None, :], self.dropout.now, self.name, sources=sources
        )
        if sources > 1:
            mixed = mixed * sources**-0.5
        return self.out(join_heads(mixed).reshape(x.shape))
