"""Residual connections: how a sub-layer is joined to the sub-layers below it.

To add a residual connection, write its file and add it to ``RESIDUALS``. A class outside fusetk is
named in the config as ``package.module:Name``.
"""

from collections.abc import Mapping
from functools import partial

from fusetk.config import resolve
from fusetk.models.residual.admin import AdminResidual
from fusetk.models.residual.attention import AttentionResidual
from fusetk.models.residual.base import (
    Norm,
    Residual,
    ResidualConfig,
    Stream,
    StreamEnds,
    SubLayer,
)
from fusetk.models.residual.deep_norm import DeepNormResidual
from fusetk.models.residual.hyper import HyperResidual
from fusetk.models.residual.laurel import (
    LaurelLowRankResidual,
    LaurelPreviousResidual,
    LaurelWeightsResidual,
)
from fusetk.models.residual.layer_scale import LayerScaleResidual
from fusetk.models.residual.manifold import ManifoldResidual
from fusetk.models.residual.plain import PlainResidual
from fusetk.models.residual.rezero import ReZeroResidual
from fusetk.models.residual.separate import SeparateResidual
from fusetk.models.residual.value import ValueResidual
from fusetk.nn.norm import Normalization

__all__ = [
    "RESIDUALS",
    "Norm",
    "Residual",
    "ResidualBuilder",
    "ResidualConfig",
    "Stream",
    "StreamEnds",
    "SubLayer",
    "residual_class",
]

RESIDUALS: dict[str, type[Residual]] = {
    "plain": PlainResidual,
    "hyper": HyperResidual,
    "manifold-hyper": ManifoldResidual,
    "attention-residual": AttentionResidual,
    "value-residual": ValueResidual,
    "laurel-weights": LaurelWeightsResidual,
    "laurel-low-rank": LaurelLowRankResidual,
    "laurel-previous": LaurelPreviousResidual,
    "rezero": ReZeroResidual,
    "layer-scale": LayerScaleResidual,
    "deep-norm": DeepNormResidual,
    "admin": AdminResidual,
}


def residual_class(config: ResidualConfig) -> type[Residual]:
    """Return the class that ``config.kind`` names. Raises ValueError if no class has this name."""
    return resolve(config.kind, RESIDUALS, Residual)


class ResidualBuilder:
    """Builder of the residual connections of one stack."""

    def __init__(
        self,
        config: ResidualConfig,
        side: str,
        depths: Mapping[str, int],
        width: int,
        norm: Norm,
        dropout: float,
        normalization: Normalization = "layer",
        separate_inputs: bool = False,
    ):
        """``side`` is "encoder" or "decoder"; ``depths`` has the number of layers of each stack.

        ``width`` is the width of the stack's input. ``separate_inputs``: whether the layers read
        ``LayerInputs``.
        """
        self.config = config
        self.cls = residual_class(config)
        self.side = side
        self.depth = depths[side]
        self.separate_inputs = separate_inputs
        self.sublayer = partial(
            SubLayer,
            norm=norm,
            normalization=normalization,
            dropout=dropout,
            side=side,
            layers=depths,
        )
        self.ends = self.cls.Ends(config, f"{side}.residual", width)

    def layer(self, width: int, sublayers: int) -> list[Residual]:
        """Build the connections of the sub-layers of the next layer, in the order of the data."""
        total = sublayers * self.depth
        residuals: list[Residual] = []
        for i in range(sublayers):
            below = self.ends.sublayers
            name = f"{self.side}.residual.sublayer{below + 1}"
            sublayer = self.sublayer(name=name, below=below, total=total, width=width)
            residual = self.cls(self.config, sublayer)
            if self.separate_inputs and i == 0:
                residual = SeparateResidual(residual, sublayer)
            residuals.append(residual)
            self.ends.sublayers += 1
        return residuals
