"""Linear maps between widths."""

from torch import nn


def projection_or_identity(width: int, out_width: int) -> nn.Linear | nn.Identity:
    """Return a linear map (..., width) -> (..., out_width); the identity if both are equal."""
    return nn.Identity() if width == out_width else nn.Linear(width, out_width)
