"""Attention heads as an axis of their own."""

from torch import Tensor


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, H * d) -> (B, H, T, d), without a copy."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, H, T, d) -> (B, T, H * d)."""
    return x.transpose(1, 2).flatten(2)
