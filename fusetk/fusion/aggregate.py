"""Two layers into one: the aggregations of RTAL section 4.2, nodes of the iterative and the tree fusion."""

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fusetk import trace
from fusetk.fusion.base import LayerFusionConfig
from fusetk.nn.dropout import Dropout
from fusetk.nn.feedforward import FeedForward


class AggregateConfig(LayerFusionConfig):
    """Options of the fusions that aggregate two by two."""

    embedding: bool = False
    """The word embedding is fused too, as layer 0."""
    aggregation: Literal["mean", "concat-ffn", "ewp-ffn"] = "ewp-ffn"
    """How two become one (RTAL Equations 7, 8, and 9 with 10)."""
    hidden: int | None = Field(None, ge=1)
    """Hidden units of each feed-forward network; 4 times the width if not given."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """On what each of these networks returns (RTAL: "dropout [is] also employed")."""
    norm: bool = False
    """Layer normalisation of the result."""

    @model_validator(mode="after")
    def _nothing_without_effect(self) -> "AggregateConfig":
        if self.aggregation == "mean" and (self.hidden is not None or self.dropout):
            raise ValueError("hidden and dropout are of networks, and aggregation: mean has none")
        return self


class Mean(nn.Module):
    """AGG(a, b) = 0.5 (a + b) (RTAL Equation 7)."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return 0.5 * (a + b)


class ConcatFFN(nn.Module):
    """AGG(a, b) = FFN([a; b]): 2d -> hidden -> d (RTAL Equation 8)."""

    def __init__(self, width: int, hidden: int | None, dropout: float):
        super().__init__()
        self.ffn = FeedForward(2 * width, hidden or 4 * width, width)
        self.dropout = Dropout(dropout)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.dropout(self.ffn(torch.cat((a, b), -1)))


class Refine(nn.Module):
    """FFN(LN(s)) + s, d -> hidden -> d (RTAL Equation 10)."""

    def __init__(self, width: int, hidden: int | None, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.ffn = FeedForward(width, hidden or 4 * width, width)
        self.dropout = Dropout(dropout)

    def forward(self, s: Tensor) -> Tensor:
        return self.dropout(self.ffn(self.norm(s))) + s


class EWP(nn.Module):
    """s = beta (a + b), AGG(a, b) = FFN(LN(s)) + s, beta a trained number (RTAL Equations 9 and 10)."""

    def __init__(self, width: int, hidden: int | None, dropout: float):
        super().__init__()
        self.beta = nn.Parameter(torch.ones(()))
        self.refine = Refine(width, hidden, dropout)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.refine((a + b) * self.beta)


def aggregation(config: AggregateConfig, width: int) -> nn.Module:
    """One node: (..., D), (..., D) -> (..., D)."""
    if config.aggregation == "mean":
        return Mean()
    return {"concat-ffn": ConcatFFN, "ewp-ffn": EWP}[config.aggregation](
        width, config.hidden, config.dropout
    )


def show_betas(nodes: nn.ModuleList, name: str) -> None:
    """Record the trained numbers of EWP nodes (nodes,), in their order, as ``name``."""
    found: list[Tensor] = [node.beta for node in nodes if isinstance(node, EWP)]
    if found and trace.wanted(name):
        trace.record(name, torch.stack(found))
