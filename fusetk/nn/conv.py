"""Convolutions over positions."""

import torch
from torch import Tensor
from torch.nn import functional as F

from fusetk.nn.dropout import Dropout
from fusetk.nn.weightnorm import NormedLinear


class GatedConvolution(NormedLinear):
    """GLU(W [x_t; ...; x_{t+k-1}] + b), weight-normalised (Gehring et al. 2017, section 3.2).

    Dropout is applied to x. The k neighbours are concatenated, so a layer is one matrix product,
    both for complete sentences and for one step of decoding.
    """

    def __init__(self, width: int, out: int, kernel: int, dropout: float):
        super().__init__(kernel * width, 2 * out, std=(4 * (1 - dropout) / (kernel * width)) ** 0.5)
        self.width = width
        self.kernel = kernel
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x with k - 1 padding or earlier positions (B, T + k - 1, D) -> (B, T, out)."""
        x = self.dropout(x)
        if self.kernel > 1:
            length = x.shape[1] - self.kernel + 1
            x = torch.cat([x[:, i : i + length] for i in range(self.kernel)], -1)
        return F.glu(super().forward(x), -1)
