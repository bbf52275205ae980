"""Dropout, with a fast mask on CPU."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Module):
    """Zero each element with probability ``rate`` in training and scale the rest by 1 / (1 - rate).

    On CPU torch draws one float a mask element, in one thread, which costs more than the layer around it. Here four
    elements share a 64-bit draw, so the rate is rounded to a multiple of 2^-16 (and the scale is that of the rounded rate).
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate
        self.steps = round(rate * 65536)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.steps:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.rate)
        return x * self._mask(x)

    def _mask(self, x: Tensor) -> Tensor:
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        uniform = words.view(torch.int16)[: x.numel()].view(x.shape)  # in [-32768, 32767]
        kept = torch.empty(x.shape, dtype=x.dtype)
        torch.ge(uniform, self.steps - 32768, out=kept)  # 0 or 1
        return kept.mul_(65536 / (65536 - self.steps))

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
