"""Multi-head additive attention (Bahdanau et al. 2015, with heads as Meng and Zhang 2019 have it)."""

import math

import torch
from torch import Tensor, nn


class AdditiveAttention(nn.Module):
    """Each head scores a source position by v . tanh(W s + U h), all heads with one v; values are the annotations themselves, each
    head having its part of their features.

    Of several sources, each has a softmax of its own, and what is found is added up.
    """

    def __init__(self, width: int, heads: int, sources: int = 1):
        super().__init__()
        self.heads, self.sources = heads, sources
        self.query = nn.Parameter(torch.empty(width, width))
        self.vector = nn.Parameter(torch.empty(width // heads))

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mapped queries (B * K, D), keys (B, n * S, D) and values (B, n * S, C) of n sources, mask (B, S): what is found (B * K, C)
        and the weights (B * K, n * S, H).
        """
        q = queries.reshape(len(keys), -1, 1, queries.shape[-1])  # (B, K, 1, D)
        scores = (
            torch.tanh((q + keys[:, None]).to(self.vector.dtype)).unflatten(-1, (self.heads, -1))
            @ self.vector
        )  # (B, K, n * S, H)
        scores = scores.unflatten(2, (self.sources, -1)).masked_fill(
            ~mask[:, None, None, :, None], -math.inf
        )
        weights = scores.softmax(3).flatten(2, 3)
        by_head = values.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, n * S, C / H)
        found = weights.permute(0, 3, 1, 2).to(values.dtype) @ by_head
        return found.transpose(1, 2).reshape(len(queries), -1), weights.flatten(0, 1)
