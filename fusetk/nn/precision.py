"""The number type of matrix products."""

import torch
from torch import Tensor


def product_dtype(x: Tensor) -> torch.dtype:
    """Return autocast's type if autocast is enabled on the device of ``x``, else its own type."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def combine(weights: Tensor, layers: Tensor) -> Tensor:
    """Return weighted sums of layers: (m, n) or (..., m, n), (..., n, D) -> (..., m, D).

    The product has the type of ``layers``, even with autocast: rounding them would change the
    residual sum of a model. It keeps no copy of the layers for the backward pass.
    """
    # A product with one matrix for all positions would copy the layers to one matrix.
    weights = weights.expand(*layers.shape[:-2], *weights.shape[-2:])
    if product_dtype(layers) == layers.dtype:
        return weights.to(layers.dtype) @ layers
    with torch.autocast(layers.device.type, enabled=False):
        return weights.to(layers.dtype) @ layers
