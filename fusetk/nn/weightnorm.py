"""Linear maps with weight normalisation."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk.nn.derived import DerivedTensor


class NormedLinear(DerivedTensor):
    """x W^T + b, with w = g v / |v| for each row w of W (Salimans and Kingma 2016).

    The shapes are (..., width) -> (..., out).
    """

    def __init__(self, width: int, out: int, std: float):
        """Draw v from a normal distribution with standard deviation ``std``.

        g is initialised with the norms of the rows of v, so that W = v. The bias is 0.
        """
        super().__init__()
        self.v = nn.Parameter(torch.empty(out, width).normal_(std=std))
        self.g = nn.Parameter(self.v.detach().norm(dim=1))
        self.bias = nn.Parameter(torch.zeros(out))

    @property
    def weight(self) -> Tensor:
        """W (out, width)."""
        return self.derived

    @property
    def out_features(self) -> int:
        return len(self.v)

    def _derived_from(self) -> tuple[Tensor, Tensor]:
        parameters = self._parameters  # faster than the attributes
        return parameters["v"], parameters["g"]  # type: ignore[return-value]

    def _derive(self) -> Tensor:
        """Compute W in one pass; the backward pass computes both gradients in one pass."""
        return torch._weight_norm(self.v, self.g[:, None], 0)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)
