"""The usual residual sum (He et al. 2016)."""

from torch import Tensor

from fusetk.models.residual.base import Residual


class PlainResidual(Residual):
    """Post-norm: LayerNorm(x + dropout(f(x))). Pre-norm: x + dropout(f(LayerNorm(x)))."""

    def before(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        return (self.norm(stream) if self.pre_norm else stream), stream

    def after(self, stream: Tensor, y: Tensor) -> Tensor:
        x = stream + self.dropout(y)
        return x if self.pre_norm else self.norm(x)
