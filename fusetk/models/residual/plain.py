"""The usual residual sum (He et al. 2016)."""

from torch import Tensor

from fusetk.models.residual.base import Residual


class PlainResidual(Residual):
    """Post-norm: LayerNorm(x + dropout(f(x))). Pre-norm: x + dropout(f(LayerNorm(x)))."""

    def after(self, stream: Tensor, y: Tensor) -> Tensor:
        return self.normed_output(stream + self.dropout(y))
