"""Linear combination of the layers, with a learned number or a learned matrix for each layer."""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fusetk import trace
from fusetk.fusion.aggregate import ResidualFFN
from fusetk.fusion.base import LayerFusion, LayerFusionConfig
from fusetk.nn.combine import weighted_sum


class LinearFusionConfig(LayerFusionConfig):
    """A learned linear combination of the layers."""

    kind: str = "linear"
    weights: Literal["scalar", "matrix"] = "scalar"
    """One number for each of n fused layers, initially 1/n (Wang et al. 2019), or one matrix for
    each layer (Dou et al. 2018)."""
    normalize: Literal["none", "softmax"] = "none"
    """Use scalar weights unchanged, or normalise them with a softmax so that they sum to 1."""
    aggregation: Literal["none", "ewp-ffn"] = "none"
    """With `ewp-ffn`, refine the combination s to FFN(LN(s)) + s (RTAL Equation 10). This is our
    reading of RTAL Table 5."""
    hidden: int | None = Field(None, ge=1)
    """Hidden units of the feed-forward network of `ewp-ffn`; by default 4 times the width."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the output of the feed-forward network of `ewp-ffn`."""

    def check(self, layers: int) -> None:
        # The weight of one layer is always 1, or the closing norm removes it.
        removed = self.norm and self.weights == "scalar" and self.aggregation == "none"
        if self.normalize == "softmax" or removed:
            self.check_two_layers(layers)

    @model_validator(mode="after")
    def _every_option_has_an_effect(self) -> "LinearFusionConfig":
        if self.weights == "matrix" and self.normalize != "none":
            raise ValueError(
                "normalize applies to scalar weights, and weights: matrix has none; remove it"
            )
        if self.aggregation == "none" and (self.hidden is not None or self.dropout):
            raise ValueError(
                "hidden and dropout are options of the feed-forward network of "
                "aggregation: ewp-ffn, and aggregation: none has no such network; remove them"
            )
        return self


class ScalarMix(nn.Module):
    """sum_l w_l h_l with learned numbers w (Wang et al. 2019).

    With ``normalize="softmax"`` this is the "scalar mix" of Peters et al. 2018 without its factor
    gamma.
    """

    def __init__(self, layers: int, normalize: Literal["none", "softmax"], name: str):
        super().__init__()
        self.name = name
        self.normalize = normalize
        initial = torch.full((layers,), 1 / layers) if normalize == "none" else torch.zeros(layers)
        self.weight = nn.Parameter(initial)

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """L layers (..., D) -> (..., D)."""
        w = self.weight if self.normalize == "none" else self.weight.softmax(0)
        trace.record(self.name, w)
        return weighted_sum(w, layers)


class MatrixMix(nn.Module):
    """sum_l W_l h_l with learned matrices W (Dou et al. 2018, "linear combination").

    The sum is computed as one product with the concatenation of the layers.
    """

    def __init__(self, layers: int, width: int):
        super().__init__()
        self.weight = nn.Linear(layers * width, width, bias=False)

    def matrices(self) -> tuple[Tensor, ...]:
        """Return the weights W_l (D, D) of the layers, which are parts of one parameter."""
        return self.weight.weight.detach().split(self.weight.out_features, 1)

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """L layers (..., D) -> (..., D)."""
        return self.weight(torch.cat(list(layers), -1))


class LinearFusion(LayerFusion):
    """phi(Z) = sum_l w_l z^l, or sum_l W_l z^l."""

    Config = LinearFusionConfig

    def __init__(self, config: LinearFusionConfig, widths: Sequence[int], width: int, name: str):
        super().__init__(config, widths, width, name)
        self.combine: ScalarMix | MatrixMix
        if config.weights == "matrix":
            self.combine = MatrixMix(self.num_fused, width)
        else:
            self.combine = ScalarMix(self.num_fused, config.normalize, f"{name}.weights")
        self.refine: ResidualFFN | nn.Identity = nn.Identity()
        if config.aggregation == "ewp-ffn":
            self.refine = ResidualFFN(width, config.hidden, config.dropout)

    def fuse(self, layers: list[Tensor]) -> Tensor:
        return self.refine(self.combine(layers))
