"""Linear combination of the layers: learned scalar weights, or a matrix for each layer."""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fusetk import trace
from fusetk.fusion.aggregate import Refine
from fusetk.fusion.base import LayerFusion, LayerFusionConfig


class LinearConfig(LayerFusionConfig):
    """A learned combination of the layers."""

    kind: str = "linear"
    weights: Literal["scalar", "matrix"] = "scalar"
    """One number for each layer (Wang et al. 2019), 1/L at first; or a matrix for each layer (Dou et al. 2018)."""
    normalize: Literal["none", "softmax"] = "none"
    """Scalar weights as they are, or made to sum to 1."""
    norm_layers: bool = False
    """Layer normalisation of every layer before it is weighted (Wang et al. 2019, pre-norm)."""
    aggregation: Literal["none", "ewp-ffn"] = "none"
    """Refine the combination s to FFN(LN(s)) + s (RTAL Equation 10), as RTAL's Table 5 does by our reading."""
    hidden: int | None = Field(None, ge=1)
    """Hidden units of that network; 4 times the width if not given."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """On what that network returns."""

    @model_validator(mode="after")
    def _nothing_without_effect(self) -> "LinearConfig":
        if self.weights == "matrix" and self.normalize != "none":
            raise ValueError("normalize is of scalar weights; matrices have none")
        if self.aggregation == "none" and (self.hidden is not None or self.dropout):
            raise ValueError(
                "hidden and dropout are of the network that aggregation: ewp-ffn has; here there is none"
            )
        return self


class Weights(nn.Module):
    """sum_l w_l h_l with learned numbers w (Wang et al. 2019; "scalar mix" of Peters et al. 2018 when normalised)."""

    def __init__(self, layers: int, normalize: Literal["none", "softmax"], name: str):
        super().__init__()
        self.name, self.normalize = name, normalize
        self.weight = nn.Parameter(
            torch.full((layers,), 1 / layers) if normalize == "none" else torch.zeros(layers)
        )

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """L layers (..., D) -> (..., D)."""
        w = self.weight if self.normalize == "none" else self.weight.softmax(0)
        trace.record(self.name, w)
        total = layers[0] * w[0]
        for i in range(1, len(layers)):
            total = torch.addcmul(total, layers[i], w[i])
        return total


class Matrices(nn.Module):
    """sum_l W_l h_l with learned matrices (Dou et al. 2018, "linear combination"): one product over the concatenation."""

    def __init__(self, layers: int, width: int):
        super().__init__()
        self.weight = nn.Linear(layers * width, width, bias=False)

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """L layers (..., D) -> (..., D)."""
        return self.weight(torch.cat(list(layers), -1))


class Linear(LayerFusion):
    """phi(Z) = sum_l w_l z^l, or sum_l W_l z^l."""

    Config = LinearConfig

    def __init__(self, config: LinearConfig, widths: Sequence[int], width: int, name: str):
        super().__init__(config, widths, width, name)
        self.norm_layers = nn.ModuleList(
            nn.LayerNorm(width) if config.norm_layers else nn.Identity() for _ in range(self.depth)
        )
        matrices = config.weights == "matrix"
        self.combine = (
            Matrices(self.depth, width)
            if matrices
            else Weights(self.depth, config.normalize, f"{name}.weights")
        )
        refine = config.aggregation == "ewp-ffn"
        self.refine = Refine(width, config.hidden, config.dropout) if refine else nn.Identity()

    def fuse(self, layers: list[Tensor]) -> Tensor:
        return self.refine(
            self.combine(
                [norm(layer) for norm, layer in zip(self.norm_layers, layers, strict=True)]
            )
        )
