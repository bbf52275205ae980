"""Dynamic linear combination of layers (Wang et al. 2019)."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from fusetk.fusion.linear import ScalarMix
from fusetk.models.connect.base import ConnectConfig, SourcesConnection


class LinearConnectionConfig(ConnectConfig):
    """A learned linear combination of all layers below."""

    kind: str = "linear"
    normalize: Literal["none", "softmax"] = "none"
    """Use the weights unchanged, initially 1/n, or normalise them with a softmax so that they sum
    to 1."""
    norm_layers: bool = True
    """Apply layer normalisation to every layer before it is weighted (Wang et al. 2019, section 3,
    for pre-norm layers)."""
    norm: bool = False
    """Apply layer normalisation to the combination (Wang et al. 2019, section 3, for post-norm
    layers)."""

    def check_inputs(self, inputs: int) -> None:
        self.check_two_inputs(inputs)


class LinearConnection(SourcesConnection):
    """Dynamic linear combination of layers (Wang et al. 2019).

    Layer l reads sum_k w_lk LN(y_k), where y_k are the embedding and the outputs of the layers
    below. With ``fuse: last`` the output of the stack is one more combination. The authors' code
    does not normalise the embedding. With ``norm``, it does not normalise the input of the first
    layer either.
    """

    Config = LinearConnectionConfig

    def __init__(self, config: LinearConnectionConfig, name: str):
        super().__init__(config, name)
        self.norm_layers = nn.ModuleList()
        self.combine = nn.ModuleList()
        self.norm = nn.ModuleList()

    def register_output(self, width: int, starts_block: bool) -> None:
        super().register_output(width, starts_block)
        norm_layers = self.config.norm_layers
        self.norm_layers.append(nn.LayerNorm(self.width) if norm_layers else nn.Identity())

    def register_input(self) -> int:
        normalize = self.config.normalize
        outputs = self.num_outputs  # the input of layer n reads the embedding and n - 1 layers
        if normalize == "softmax" and outputs == 1:  # the weight would always be 1
            self.combine.append(SingleInput())
        else:
            self.combine.append(ScalarMix(outputs, normalize, f"{self.name}.layer{outputs}"))
        self.norm.append(nn.LayerNorm(self.width) if self.config.norm else nn.Identity())
        return self.width

    def project(self, i: int, output: Tensor) -> Tensor:
        return self.norm_layers[i](super().project(i, output))

    def forward(self, outputs: tuple[Tensor, ...]) -> Tensor:
        i = len(outputs) - 1
        return self.norm[i](self.combine[i](outputs))


class SingleInput(nn.Module):
    """The combination of one layer with weight 1."""

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        return layers[0]
