"""The number type of matrix products."""

import torch
from torch import Tensor


def product_dtype(x: Tensor) -> torch.dtype:
    """Return autocast's type if autocast is enabled on the device of ``x``, else its own type."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
