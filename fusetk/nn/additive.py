"""Multi-head additive attention (Bahdanau et al. 2015; with heads as in Meng and Zhang 2019)."""

import math

import torch
from torch import Tensor, nn

from fusetk.nn.parameter import unset_parameter


class AdditiveAttention(nn.Module):
    """Attention in which head i scores a source position by v . tanh((W s + U h)_i).

    s is the query and h is the source state of the position. (x)_i is the part of x for head i; it
    has D / H features, like v. All heads share v, and there are no biases, as in the code of Meng
    and Zhang 2019. Each head reads its own part of the features of the values. With n > 1 sources,
    the softmax is computed for each source, and the n contexts are summed.
    """

    def __init__(self, width: int, heads: int, sources: int = 1):
        super().__init__()
        self.heads = heads
        self.sources = sources
        self.query = unset_parameter(width, width)
        self.vector = unset_parameter(width // heads)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the contexts (B * K, C) and the attention weights (B * K, n * S, H).

        ``queries`` (B * K, D) and ``keys`` (B, n * S, D) are already projected. ``values`` are
        (B, n * S, C) for n sources, ``mask`` is (B, S).
        """
        q = queries.reshape(len(keys), -1, 1, queries.shape[-1])  # (B, K, 1, D)
        energies = torch.tanh((q + keys[:, None]).to(self.vector.dtype))
        scores = energies.unflatten(-1, (self.heads, -1)) @ self.vector  # (B, K, n * S, H)
        scores = scores.unflatten(2, (self.sources, -1))
        scores = scores.masked_fill(~mask[:, None, None, :, None], -math.inf)
        weights = scores.softmax(3).flatten(2, 3)
        by_head = values.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, n * S, C / H)
        contexts = weights.permute(0, 3, 1, 2).to(values.dtype) @ by_head
        return contexts.transpose(1, 2).reshape(len(queries), -1), weights.flatten(0, 1)
