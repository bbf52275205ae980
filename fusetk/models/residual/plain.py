"""The usual residual sum (He et al. 2016)."""

import torch
from torch import Tensor, nn

from fusetk.models.residual.base import Residual
from fusetk.nn.fused import transformer as kernels


class PlainResidual(Residual):
    """Post-norm: LayerNorm(x + dropout(f(x))). Pre-norm: x + dropout(f(LayerNorm(x)))."""

    def after(self, stream: Tensor, y: Tensor) -> Tensor:
        norm = None if self.pre else self.norm
        # With autocast, the input of a projected layer is bf16, which the kernel does not read.
        is_float = stream.dtype == torch.float32
        if is_float and isinstance(norm, nn.LayerNorm | None) and kernels.usable(stream):
            return kernels.residual(stream, y, self.dropout.draw(), norm)
        return self.normed_output(stream + self.dropout(y))
