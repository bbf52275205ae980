"""The map from features to the vocabulary."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PIECE = 1 << 21  # logits at once: 8 MB in float32, small enough for a processor's cache
PIECE_GPU = 1 << 27


class OutputProjection(nn.Module):
    """Features (..., D) to unnormalised log-probabilities (..., V); the matrix may be an embedding's.

    Not an ``nn.Linear``: the loss reads ``weight`` and ``bias`` itself, so as to hold the logits only once.
    """

    def __init__(self, width: int, vocabulary: int, bias: bool = True, tied: Tensor | None = None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width)) if tied is None else tied
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)
