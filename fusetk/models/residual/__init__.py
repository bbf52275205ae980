"""Residual connections: how a sub-layer is joined to the sub-layers below it."""

from fusetk.models.residual.base import Residual, Stream, StreamEnds, SubLayer
from fusetk.models.residual.plain import PlainResidual

__all__ = ["Residual", "Residuals", "Stream", "StreamEnds", "SubLayer"]


class Residuals:
    """Builder of the residual connections of one stack."""

    def __init__(self, name: str, norm: str, dropout: float):
        """``name`` is the side, "encoder" or "decoder"; ``norm`` is "post" or "pre"."""
        self.name = name
        self.pre_norm = norm == "pre"
        self.dropout = dropout
        self.ends = StreamEnds()
        self._count = 0

    def layer(self, width: int, sublayers: int) -> list[Residual]:
        """Build the connections of the sub-layers of the next layer, in the order of the data."""
        residuals: list[Residual] = []
        for _ in range(sublayers):
            name = f"{self.name}.residual.sublayer{self._count + 1}"
            sublayer = SubLayer(name, self._count, width, self.pre_norm, self.dropout)
            residuals.append(PlainResidual(sublayer))
            self._count += 1
        return residuals
