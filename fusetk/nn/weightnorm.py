"""Linear maps with weight normalisation."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class NormedLinear(nn.Module):
    """x W^T + b, with w = g v / |v| for each row w of W (Salimans and Kingma 2016).

    The shapes are (..., width) -> (..., out).
    """

    def __init__(self, width: int, out: int, std: float, bias: bool = True):
        """Draw v from a normal distribution with standard deviation ``std``.

        g is initialised with the norms of the rows of v, so that W = v. The bias is 0.
        """
        super().__init__()
        self.v = nn.Parameter(torch.empty(out, width).normal_(std=std))
        self.g = nn.Parameter(self.v.detach().norm(dim=1))
        self.bias = nn.Parameter(torch.zeros(out)) if bias else None
        self._cached_weight: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """W (out, width). In evaluation without gradients it is computed once and cached.

        Changing the mode, the number type or the device, and `load_state_dict`, invalidate the
        cache.
        """
        if self.training or torch.is_grad_enabled():
            return self._weight()
        if self._cached_weight is None:
            self._cached_weight = self._weight()
        return self._cached_weight

    def train(self, mode: bool = True) -> "NormedLinear":
        self._cached_weight = None
        super().train(mode)
        return self

    def _apply(self, *args: Any, **kwargs: Any) -> "NormedLinear":  # to() and similar call it
        self._cached_weight = None
        super()._apply(*args, **kwargs)
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:  # load_state_dict calls it
        self._cached_weight = None
        super()._load_from_state_dict(*args, **kwargs)

    def _weight(self) -> Tensor:
        """Compute W in one pass; the backward pass computes both gradients in one pass."""
        return torch._weight_norm(self.v, self.g[:, None], 0)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)
