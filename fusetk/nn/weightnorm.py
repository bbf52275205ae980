"""Linear maps with weight normalisation."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class NormedLinear(nn.Module):
    """x W^T + b, with w = g v / |v| for each row of W (Salimans and Kingma 2016): (..., in) -> (..., out)."""

    def __init__(self, width: int, out: int, std: float, bias: bool = True):
        """Rows begin N(0, std), their lengths as they fall; the bias begins at 0."""
        super().__init__()
        self.v = nn.Parameter(torch.empty(out, width).normal_(std=std))
        self.g = nn.Parameter(self.v.detach().norm(dim=1))
        self.bias = nn.Parameter(torch.zeros(out)) if bias else None
        self._made: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """W (out, in). In evaluation, without gradients, it is made once; training again, or another type or device, forgets it."""
        if self.training or torch.is_grad_enabled():
            return self._weight()
        made = self._made
        if made is None:
            made = self._made = self._weight()
        return made

    def train(self, mode: bool = True) -> "NormedLinear":
        self._made = None
        super().train(mode)
        return self

    def _apply(self, *given: Any, **named: Any) -> "NormedLinear":  # what to() and its like come to
        self._made = None
        super()._apply(*given, **named)
        return self

    def _weight(self) -> Tensor:
        made: Tensor = torch._weight_norm(
            self.v, self.g[:, None], 0
        )  # one pass, and one for both gradients
        return made

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)
