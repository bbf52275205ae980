"""The usual residual sum (He et al. 2016)."""

import torch
from torch import Tensor, nn

from fusetk.models.residual.base import Residual
from fusetk.nn.fused import transformer as kernels


class PlainResidual(Residual):
    """Post-norm: LayerNorm(x + dropout(f(x))). Pre-norm: x + dropout(f(LayerNorm(x)))."""

    def after(self, stream: Tensor, y: Tensor) -> Tensor:
        norm = None if self.pre else self.norm
        parameters = [] if norm is None else norm.parameters()
        if (
            isinstance(norm, nn.LayerNorm | None)
            and stream.dtype == torch.float32
            and kernels.usable(stream, parameters)
        ):
            return kernels.residual(stream, y, self.dropout.draw(), norm)
        return self.normed_output(stream + self.dropout(y))
