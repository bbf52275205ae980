"""Dropout, with a fast mask on CPU."""

import math
from collections.abc import Sequence

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
        self.usual = rate
        self.override(None)

    def override(self, rate: float | None) -> None:
        """Drop out at another rate than the usual one, unless that is 0; None is the usual one."""
        self.rate = self.usual if rate is None or not self.usual else rate
        self.steps = round(self.rate * 65536)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.steps:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.rate)
        return x * self.keep(self.words(x.shape, x.device), x.dtype)

    def words(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """A random number in [-32768, 32767], int16, for each element."""
        count = math.prod(shape)
        drawn = torch.empty((count + 3) // 4, dtype=torch.int64, device=device).random_(
            -(2**63), None
        )
        return drawn.view(torch.int16)[:count].view(*shape)

    def keep(self, words: Tensor, dtype: torch.dtype) -> Tensor:
        """What elements are multiplied by: 0 where the number is below ``threshold``, otherwise ``scale``."""
        kept = torch.empty(words.shape, dtype=dtype, device=words.device)
        torch.ge(words, self.threshold, out=kept)  # 0 or 1
        return kept.mul_(self.scale)

    @property
    def threshold(self) -> int:
        return self.steps - 32768

    @property
    def scale(self) -> float:
        return 65536 / (65536 - self.steps)

    @property
    def now(self) -> float:
        """The rate, 0 in evaluation: for kernels that drop out by themselves."""
        return self.rate if self.training else 0.0

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
