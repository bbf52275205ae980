"""Convolutions over positions."""

import torch
from torch import Tensor
from torch.nn import functional as F

from fusetk.nn.dropout import Dropout
from fusetk.nn.fused import convolution as fused_convolution
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

    def forward(
        self, x: Tensor, before: int = 0, earlier: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """x (B, T, D) -> (B, T, out). ``windows`` explains the arguments."""
        return self.map_windows(self.windows(x, before, earlier, mask))

    def causal(self, x: Tensor, earlier: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve each position with its k - 1 earlier positions.

        Also return the last k - 1 inputs, the ``earlier`` of the next call: x (B, T, D) and
        ``earlier`` (B, k - 1, D) -> (B, T, out), (B, k - 1, D).
        """
        length = x.shape[1]
        if length == 1:  # a step of decoding has one window, which is the whole input
            inputs = torch.cat((earlier, x), 1)
            return self.map_windows(self.dropout(inputs).flatten(1)[:, None]), inputs[:, 1:]
        y = self.forward(x, self.kernel - 1, earlier)
        if length < self.kernel:
            x = torch.cat((earlier, x), 1)
        return y, x[:, x.shape[1] - self.kernel + 1 :]

    def map_windows(self, windows: Tensor) -> Tensor:
        """Windows (B, T, k * D) -> (B, T, out)."""
        y = super().forward(windows)
        return fused_convolution.gated(y) if fused_convolution.usable(y) else F.glu(y, -1)

    def windows(
        self, x: Tensor, before: int, earlier: Tensor | None, mask: Tensor | None
    ) -> Tensor:
        """Return the k neighbours of each position, after dropout: (B, T, D) -> (B, T, k * D).

        The window of a position starts ``before`` positions earlier. The positions before x are
        ``earlier`` (B, before, D), or zeros. The positions after x are zeros. Zeros also replace x
        where ``mask`` (B, T) is False.
        """
        if (
            fused_convolution.usable(x)
            and (mask is None or (mask.dtype == torch.bool and mask.shape == x.shape[:2]))
            and (earlier is None or self._fits(earlier, x, before))
        ):
            dropout_mask = self.dropout.draw()
            return fused_convolution.windows(x, self.kernel, before, earlier, mask, dropout_mask)
        if mask is not None:
            x = x * mask[..., None]
        if earlier is None:
            earlier = x.new_zeros(len(x), before, self.width)
        after = x.new_zeros(len(x), self.kernel - 1 - before, self.width)
        padded = self.dropout(torch.cat((earlier, x, after), 1))
        return torch.cat([padded[:, i : i + x.shape[1]] for i in range(self.kernel)], -1)

    def _fits(self, earlier: Tensor, x: Tensor, before: int) -> bool:
        """Whether the kernels can read ``earlier`` for x (B, T, D)."""
        return not earlier.requires_grad and earlier.shape == (len(x), before, x.shape[2])
