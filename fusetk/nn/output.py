"""The output projection: from features to logits over the vocabulary."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk.nn.parameter import unset_parameter

# Logits are computed in pieces of rows that fit into a processor's cache. But each piece reads the
# matrix, and in training it also adds to the gradient of the matrix. So a piece has at least
# MIN_ROWS rows, or MAX_PIECE numbers if these rows have more.
PIECE = 1 << 21  # numbers: 8 MB in float32
MIN_ROWS = 512
MAX_PIECE = 1 << 24  # numbers: 64 MB in float32
PIECE_GPU = 1 << 27


def rows_in_piece(vocabulary: int, device: torch.device) -> int:
    """Return the number of rows of logits (rows, V) to compute at a time, at least 1."""
    if device.type == "cpu":
        rows = max(PIECE // vocabulary, min(MIN_ROWS, MAX_PIECE // vocabulary))
    else:
        rows = PIECE_GPU // vocabulary
    return max(1, rows)


def log_normalizer(logits: Tensor) -> Tensor:
    """Return the logarithm of the sum of the exponentials of logits: (..., V) -> (..., 1).

    It is NaN if a logit is NaN or inf, or if all logits are -inf: then there are no probabilities.
    """
    log_z = logits.logsumexp(-1, keepdim=True)
    return log_z.masked_fill(log_z.isinf(), math.nan)


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
