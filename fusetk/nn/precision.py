"""In which precision a tensor takes part in matrix products."""

import torch
from torch import Tensor


def product_dtype(x: Tensor) -> torch.dtype:
    """The type of autocast where that is on, otherwise that of ``x``."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
