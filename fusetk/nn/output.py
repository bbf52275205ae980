"""The output projection: from features to logits over the vocabulary."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk.nn.parameter import unset_parameter

PIECE = 1 << 21  # numbers computed at a time: 8 MB in float32, which fits into a processor's cache
PIECE_GPU = 1 << 27


def rows_in_piece(vocabulary: int, device: torch.device) -> int:
    """Return the number of rows of logits (rows, V) to compute at a time, at least 1."""
    piece = PIECE if device.type == "cpu" else PIECE_GPU
    return max(1, piece // vocabulary)


class OutputProjection(nn.Module):
    """Linear map from features (..., D) to logits (..., V).

    The matrix can be shared with an embedding (``tied``). Otherwise the model initialises it. This
    is not an ``nn.Linear``: the loss reads ``weight`` and ``bias`` itself, so that the logits are
    in memory only once.
    """

    def __init__(self, width: int, vocabulary: int, bias: bool = True, tied: Tensor | None = None):
        super().__init__()
        self.weight = unset_parameter(vocabulary, width) if tied is None else tied
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None

    @property
    def out_features(self) -> int:
        return len(self.weight)

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)
