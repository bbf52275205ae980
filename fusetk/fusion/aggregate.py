"""Aggregation of two layers into one (RTAL section 4.2): the nodes of iterative and tree fusion."""

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fusetk import trace
from fusetk.fusion.base import LayerFusionConfig
from fusetk.nn.dropout import Dropout
from fusetk.nn.feedforward import FeedForward


class AggregateConfig(LayerFusionConfig):
    """Options of the fusions that aggregate two layers at a time."""

    embedding: bool = False
    """Fuse the word embedding too, as layer 0."""
    aggregation: Literal["mean", "concat-ffn", "ewp-ffn"] = "ewp-ffn"
    """How two layers become one (RTAL Equation 7, Equation 8, or Equations 9 and 10)."""
    hidden: int | None = Field(None, ge=1)
    """Hidden units of each feed-forward network; by default 4 times the width."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the output of each feed-forward network. RTAL section 4.2.3 names dropout for
    `ewp-ffn`, without its rate and place; this place is our reading."""
    beta: Literal["scalar", "vector"] = "scalar"
    """beta of `ewp-ffn`: one learned number, or one for each feature. RTAL gives neither the shape
    nor the first value; one number, at first 1, is our reading."""
    norm: bool = False
    """Apply layer normalisation to the result."""

    @model_validator(mode="after")
    def _every_option_has_an_effect(self) -> "AggregateConfig":
        if self.aggregation == "mean" and (self.hidden is not None or self.dropout):
            raise ValueError(
                "hidden and dropout are options of a feed-forward network, and aggregation: mean "
                "has none; remove them"
            )
        if self.aggregation != "ewp-ffn" and self.beta != "scalar":
            raise ValueError(
                f"beta is an option of aggregation: ewp-ffn, and aggregation: {self.aggregation} "
                "has none; remove it"
            )
        return self


class MeanAggregation(nn.Module):
    """AGG(a, b) = 0.5 (a + b) (RTAL Equation 7)."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return 0.5 * (a + b)


class ConcatAggregation(nn.Module):
    """AGG(a, b) = FFN([a; b]), 2D -> hidden -> D (RTAL Equation 8)."""

    def __init__(self, width: int, hidden: int | None, dropout: float):
        super().__init__()
        self.ffn = FeedForward(2 * width, hidden or 4 * width, width)
        self.dropout = Dropout(dropout)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.dropout(self.ffn(torch.cat((a, b), -1)))


class ResidualFFN(nn.Module):
    """FFN(LN(s)) + s, D -> hidden -> D (RTAL Equation 10)."""

    def __init__(self, width: int, hidden: int | None, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.ffn = FeedForward(width, hidden or 4 * width, width)
        self.dropout = Dropout(dropout)

    def forward(self, s: Tensor) -> Tensor:
        return self.dropout(self.ffn(self.norm(s))) + s


class EWPAggregation(nn.Module):
    """s = beta (a + b), AGG(a, b) = FFN(LN(s)) + s, with a learned number or vector beta.

    These are RTAL Equations 9 and 10. The paper's name is EWP.
    """

    def __init__(
        self, width: int, hidden: int | None, dropout: float, beta: Literal["scalar", "vector"]
    ):
        super().__init__()
        self.beta = nn.Parameter(torch.ones(() if beta == "scalar" else width))
        self.refine = ResidualFFN(width, hidden, dropout)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.refine((a + b) * self.beta)


def build_aggregation(config: AggregateConfig, width: int) -> nn.Module:
    """Build one node: (..., D), (..., D) -> (..., D)."""
    if config.aggregation == "mean":
        return MeanAggregation()
    if config.aggregation == "concat-ffn":
        return ConcatAggregation(width, config.hidden, config.dropout)
    return EWPAggregation(width, config.hidden, config.dropout, config.beta)


def record_betas(nodes: nn.ModuleList, name: str) -> None:
    """Record the betas of all ``EWPAggregation`` nodes as ``name``: (nodes,), in their order.

    A vector is recorded as its mean.
    """
    betas: list[Tensor] = [node.beta.mean() for node in nodes if isinstance(node, EWPAggregation)]
    if betas and trace.is_listening_for(name):
        trace.record(name, torch.stack(betas))
