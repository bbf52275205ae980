"""Depth-weighted averages (DenseFormer, Pagliardini et al. 2024)."""

import torch
from pydantic import Field
from torch import Tensor, nn

from fusetk import trace
from fusetk.errors import quantity
from fusetk.models.connect.base import ConnectConfig, SourcesConnection
from fusetk.nn.combine import weighted_sum


class DepthWeightedConfig(ConnectConfig):
    """A learned weighted sum of layers, which is at first the layer below."""

    kind: str = "depth-weighted"
    dilation: int = Field(1, ge=1)
    """Read only every k-th output below a layer, beginning with the nearest one."""
    period: int = Field(1, ge=1)
    """Sum outputs after every p-th layer only. The other layers read the layer below. The paper
    recommends a period of one more than the dilation."""

    def check_inputs(self, inputs: int) -> None:
        self.check_two_inputs(inputs)
        sums = inputs - 1  # the input of the lowest layer is the embedding
        if self.period > sums:
            raise ValueError(
                f"period {self.period} has no effect, because this stack has only "
                f"{quantity(sums, 'input')} that could be a sum (one of each layer above the "
                f"lowest one, and the output with fuse: last): give at most {sums}"
            )
        highest = sums // self.period * self.period  # outputs below the highest sum
        if self.dilation > highest:
            raise ValueError(
                f"dilation {self.dilation} has no effect, because each sum would have only the "
                f"layer below it: give at most {highest}"
            )


class DepthWeightedConnection(SourcesConnection):
    """Y_i = sum_{j=0..i} a_ij X_j (DenseFormer, section 3).

    X_0 is the embedding and X_i is the output of layer i for the input Y_{i-1}, with Y_0 = X_0. The
    numbers a_ij are not constrained. At first a_ii = 1 and the others are 0, so a new model
    computes the same function as one with ``connect: last``. With ``fuse: last`` the output of the
    stack of L layers is Y_L. Then a stack has L(L+3)/2 numbers.
    """

    Config = DepthWeightedConfig

    def __init__(self, config: DepthWeightedConfig, name: str):
        super().__init__(config, name)
        self.dilation = config.dilation
        self.period = config.period
        self.weights = nn.ParameterDict()

    def register_input(self) -> int:
        i = self.num_outputs - 1
        if i and i % self.period == 0:
            weight = torch.zeros(i // self.dilation + 1)
            weight[-1] = 1.0
            self.weights[str(i)] = nn.Parameter(weight)
        return self.width

    def forward(self, outputs: tuple[Tensor, ...]) -> Tensor:
        i = len(outputs) - 1
        if str(i) not in self.weights:
            return outputs[i]
        weight = self.weights[str(i)]
        selected = slice(i % self.dilation, None, self.dilation)
        trace.record_selected(f"{self.name}.layer{i + 1}", weight, selected, i + 1)
        return weighted_sum(weight, outputs[selected])
