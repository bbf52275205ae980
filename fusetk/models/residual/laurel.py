"""Learned augmented residual layers (LAuReL, Menghani et al. 2025)."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fusetk import trace
from fusetk.models.residual.base import Residual, ResidualConfig, Stream, StreamEnds, SubLayer
from fusetk.nn.combine import weighted_sum

States = tuple[Tensor, ...]


class LaurelWeightsConfig(ResidualConfig):
    """A residual sum with two learned numbers."""

    kind: str = "laurel-weights"
    normalize: Literal["softmax", "sigmoid"] = "softmax"
    """Function that makes a and b from learned numbers, which are 0 at first."""


class LaurelWeightsResidual(Residual):
    """a f(x) + b x with two numbers (LAuReL-RW)."""

    Config = LaurelWeightsConfig

    def __init__(self, config: LaurelWeightsConfig, sublayer: SubLayer):
        super().__init__(config, sublayer)
        self.normalize = config.normalize
        self.weight = nn.Parameter(torch.zeros(2))

    def after(self, stream: Tensor, y: Tensor) -> Tensor:
        softmax = self.normalize == "softmax"
        a, b = (self.weight.softmax(0) if softmax else self.weight.sigmoid()).unbind()
        trace.record(self.name, a, "write")
        trace.record(self.name, b, "mix")
        return self.normed_output(a * self.dropout(y) + b * stream)


class LaurelLowRankConfig(ResidualConfig):
    """A residual sum with a low-rank map of the state."""

    kind: str = "laurel-low-rank"
    rank: int = Field(16, ge=1)
    """Rank of the map B A."""


class LowRankMap(nn.Module):
    """x -> B A x with a random A (r, D) and B = 0 (D, r) at first."""

    def __init__(self, width: int, rank: int):
        super().__init__()
        self.a = nn.Parameter(torch.empty(rank, width).normal_(std=width**-0.5))
        self.b = nn.Parameter(torch.zeros(width, rank))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return (x @ self.a.mT) @ self.b.mT


class LaurelLowRankResidual(Residual):
    """f(x) + x + B A x (LAuReL-LR).

    At first B = 0, so a new model computes the usual residual sum.
    """

    Config = LaurelLowRankConfig

    def __init__(self, config: LaurelLowRankConfig, sublayer: SubLayer):
        super().__init__(config, sublayer)
        self.map = LowRankMap(sublayer.width, config.rank)

    def after(self, stream: Tensor, y: Tensor) -> Tensor:
        return self.normed_output(stream + self.dropout(y) + self.map(stream))


class LaurelPreviousConfig(LaurelLowRankConfig):
    """A residual sum with a low-rank map of the latest states."""

    kind: str = "laurel-previous"
    states: int = Field(3, ge=1)
    """Number of states in the sum. The state before this sub-layer is one of them."""


class LaurelPreviousEnds(StreamEnds):
    """The ends of a stream that has the latest states, the newest one first."""

    def open(self, x: Tensor) -> Stream:
        return (x,)

    def state(self, stream: States) -> Tensor:
        return stream[0]


class LaurelPreviousResidual(Residual):
    """f(x_i) + x_i + B A sum_j g_j x_(i-j) (LAuReL-PA).

    x_i is the state before sub-layer i, and j is 0 .. ``states`` - 1 as far as there are
    sub-layers. Our reading of the paper's sum is that it includes j = 0. At first g_j = 1 and B =
    0.
    """

    Config = LaurelPreviousConfig
    Ends = LaurelPreviousEnds
    spans_layers = True

    def __init__(self, config: LaurelPreviousConfig, sublayer: SubLayer):
        super().__init__(config, sublayer)
        self.map = LowRankMap(sublayer.width, config.rank)
        self.states = config.states
        self.factors = nn.Parameter(torch.ones(min(config.states, sublayer.below + 1)))

    def before(self, stream: States) -> tuple[Tensor, States]:
        return self.normed_input(stream[0]), stream

    def after(self, stream: States, y: Tensor) -> States:
        x = stream[0]
        total = weighted_sum(self.factors, stream[: len(self.factors)])
        new = x + self.dropout(y) + self.map(total)
        return (self.normed_output(new), *stream[: self.states - 1])
