"""Weighted sums of layers or of streams at each position."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fusetk.nn.fused import streams as fused_streams
from fusetk.nn.precision import product_dtype, without_autocast


def weighted_sum(weights: Sequence[Tensor] | Tensor, layers: Sequence[Tensor]) -> Tensor:
    """Return sum_l w_l h_l for L layers (..., D) and L weights, which may broadcast."""
    total = layers[0] * weights[0]
    for i in range(1, len(layers)):
        total = torch.addcmul(total, layers[i], weights[i])
    return total


def weighted_sums(weights: Tensor, layers: Tensor) -> Tensor:
    """Return weighted sums of layers: (m, n) or (..., m, n), (..., n, D) -> (..., m, D).

    The product has the type of ``layers``, even with autocast: rounding them would change the
    residual sum of a model. It keeps no copy of the layers for the backward pass.
    """
    weights = weights.to(layers.dtype)
    if (
        fused_streams.usable(layers)
        and layers.stride(-1) == 1
        and weights.shape[-1] == layers.shape[-2]
    ):
        return fused_streams.weighted_sums(weights, layers)
    # A product with one matrix for all positions would copy the layers to one matrix.
    weights = weights.expand(*layers.shape[:-2], *weights.shape[-2:])
    if product_dtype(layers) == layers.dtype:
        return weights @ layers
    with without_autocast(layers):
        return weights @ layers


def add_weighted_sums(weights: Tensor, layers: Tensor, write: Tensor, y: Tensor) -> Tensor:
    """Return ``weighted_sums`` plus the product of y (..., D) and each of ``write`` (..., m).

    The result has the shape (..., m, D) and the type of ``layers``.
    """
    if (
        fused_streams.usable(layers, y)
        and y.shape == (*layers.shape[:-2], layers.shape[-1])
        and weights.shape[-2:] == (write.shape[-1], layers.shape[-2])
    ):
        weights, write = weights.to(layers.dtype), write.to(layers.dtype)
        return fused_streams.weighted_sums(weights, layers, write, y)
    return weighted_sums(weights, layers) + write.unsqueeze(-1) * y.unsqueeze(-2)
