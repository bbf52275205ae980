"""Dropout, with a fast mask on CPU."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk.nn.dropout_mask import DropoutMask, in_units, scale, threshold


class Dropout(nn.Module):
    """Dropout, which changes its input in training only.

    An element becomes 0 with probability ``rate``. Otherwise it is multiplied by 1 / (1 - rate).

    On CPU, PyTorch draws one float for each element in one thread. This can take longer than the
    layer itself. Here a seed is drawn, and a ``DropoutMask`` follows from it. Therefore the rate is
    rounded to a multiple of 2^-16, and the scale is computed from the rounded rate.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.base_rate = rate
        self.set_rate(None)

    def set_rate(self, rate: float | None) -> None:
        """Replace the rate; None restores ``base_rate``. A base rate of 0 is never replaced."""
        self.rate = self.base_rate if rate is None or not self.base_rate else rate
        self.units = in_units(self.rate)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.units:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.rate)
        return x * self.factors(self.random_bits(x.shape, x.device), x.dtype)

    def draw(self) -> DropoutMask | None:
        """Draw the mask of one call on CPU; None if this call drops nothing."""
        return DropoutMask.draw(self.units) if self.training and self.units else None

    def random_bits(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """Draw a random int16 in [-32768, 32767] for each element."""
        if device.type == "cpu":
            return DropoutMask.draw(self.units).random_bits(shape)
        count = math.prod(shape)
        words = torch.empty((count + 3) // 4, dtype=torch.int64, device=device)
        words.random_(-(2**63), None)
        return words.view(torch.int16)[:count].view(*shape)

    def factors(self, random_bits: Tensor, dtype: torch.dtype) -> Tensor:
        """Return each element's factor: 0 if its bits are below the threshold, else the scale."""
        factors = torch.empty(random_bits.shape, dtype=dtype, device=random_bits.device)
        torch.ge(random_bits, threshold(self.units), out=factors)  # 0 or 1
        return factors.mul_(scale(self.units))

    @property
    def active_rate(self) -> float:
        """The rate in training, 0 in evaluation, for kernels that apply dropout themselves."""
        return self.rate if self.training else 0.0

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
