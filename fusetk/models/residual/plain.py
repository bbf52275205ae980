"""The usual residual sum (He et al. 2016)."""

import torch
from torch import Tensor, nn

from fusetk.models.residual.base import Residual, Stream
from fusetk.nn.exact import is_exactly
from fusetk.nn.fused import transformer as fused_transformer


class PlainResidual(Residual):
    """Post-norm: LayerNorm(x + dropout(f(x))). Pre-norm: x + dropout(f(LayerNorm(x)))."""

    def after(self, stream: Stream, y: Tensor) -> Stream:
        x: Tensor = stream
        norm = None if self.pre else self.norm
        parameters = [] if norm is None else list(norm.parameters())
        if (
            (norm is None or (is_exactly(norm, nn.LayerNorm) and len(parameters) == 2))
            and (norm is None or norm.normalized_shape == x.shape[-1:])
            and x.dtype == torch.float32
            and y.dtype in (torch.float32, torch.bfloat16)
            and x.shape == y.shape
            and fused_transformer.usable(x, parameters)
        ):
            return fused_transformer.residual(x, y, self.dropout.draw(), norm)
        return self.normed_output(x + self.dropout(y))
