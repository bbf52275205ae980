"""Normalisation of the features of each position."""

from typing import Literal

from torch import Tensor, nn

Normalization = Literal["layer", "rms"]

EPSILON = 1e-5
RMS_EPSILON = 1e-6
"""The epsilon of ``inverse_rms`` and of RMSNorm without parameters."""


def build_norm(normalization: Normalization, width: int) -> nn.LayerNorm | nn.RMSNorm:
    """Return layer normalisation (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019).

    RMSNorm divides the features by their root mean square and has a gain but no bias.
    """
    norm = nn.LayerNorm if normalization == "layer" else nn.RMSNorm
    return norm(width, eps=EPSILON)


def inverse_rms(x: Tensor) -> Tensor:
    """Return 1 / RMS of the features, (..., D) -> (..., 1)."""
    return (x.square().mean(-1, keepdim=True) + RMS_EPSILON).rsqrt()
