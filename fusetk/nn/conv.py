"""Convolutions over positions."""

import torch
from torch import Tensor
from torch.nn import functional as F

from fusetk.nn.dropout import Dropout
from fusetk.nn.weightnorm import NormedLinear


class GatedConvolution(NormedLinear):
    """GLU(W [x_t; ...; x_{t+k-1}] + b), weight-normalised, with dropout on x (Gehring et al. 2017, section 3.2).

    The k taps stand side by side, so that a layer is one matrix product, over a sentence as over one step of decoding.
    """

    def __init__(self, width: int, out: int, kernel: int, dropout: float):
        super().__init__(kernel * width, 2 * out, std=(4 * (1 - dropout) / (kernel * width)) ** 0.5)
        self.width, self.kernel = width, kernel
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x with what stands around it (B, T + k - 1, D) -> (B, T, out)."""
        x = self.dropout(x)
        length = x.shape[1] - self.kernel + 1
        taps = (
            x
            if self.kernel == 1
            else torch.cat([x[:, i : i + length] for i in range(self.kernel)], -1)
        )
        return F.glu(super().forward(taps), -1)
