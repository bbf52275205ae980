"""What each layer of a stack reads from the layers below it."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from fusetk.config import Kind
from fusetk.fusion.linear import Weights


class Connection(nn.Module):
    """What each layer of a stack reads from the layers below it."""

    Config: type[Kind] = Kind

    def __init__(self, config: Kind, layers: int, width: int, name: str):
        """``layers`` in the stack, each (and the embedding) of the same ``width``; ``name`` for ``fusetk.trace``."""
        super().__init__()

    def keep(self, output: Tensor, layer: int) -> Tensor:
        """What higher layers will read of the ``output`` (B, T, D) of ``layer`` (0: the embedding): made once, not once a reader."""
        return output

    def forward(self, kept: Sequence[Tensor]) -> Tensor:
        """What was kept of the embedding and of the layers so far -> what the next layer reads (B, T, D)."""
        raise NotImplementedError


class Last(Connection):
    """The residual stack: a layer reads the one below it."""

    def forward(self, kept: Sequence[Tensor]) -> Tensor:
        return kept[-1]


class LinearConfig(Kind):
    """A learned combination of all that is below."""

    kind: str = "linear"
    normalize: Literal["none", "softmax"] = "none"
    """The weights as they are, 1/n at first, or made to sum to 1."""
    norm_layers: bool = True
    """Layer normalisation of every layer before it is weighted (Wang et al. 2019, Equation 6: for pre-norm layers)."""
    norm: bool = False
    """Layer normalisation of the combination (Wang et al. 2019, Equation 7: for post-norm layers)."""


class Linear(Connection):
    """Dynamic linear combination of layers: layer l reads sum_k w_lk LN(y_k) over the embedding and the layers below (Wang et al. 2019).

    ``fuse: linear`` with the same options is its last step, what the stack hands on.
    """

    Config = LinearConfig

    def __init__(self, config: LinearConfig, layers: int, width: int, name: str):
        super().__init__(config, layers, width, name)
        self.norm_layers = nn.ModuleList(nn.LayerNorm(width) if config.norm_layers else nn.Identity() for _ in range(layers))
        self.combine = nn.ModuleList(Weights(i + 1, config.normalize, f"{name}.layer{i + 1}") for i in range(layers))
        if config.normalize == "softmax":  # where there is but one layer to read, there is nothing to choose
            self.combine[0] = Last(config, 1, width, name)
        self.norm = nn.ModuleList(nn.LayerNorm(width) if config.norm else nn.Identity() for _ in range(layers))

    def keep(self, output: Tensor, layer: int) -> Tensor:
        kept: Tensor = self.norm_layers[layer](output)
        return kept

    def forward(self, kept: Sequence[Tensor]) -> Tensor:
        i = len(kept) - 1
        read: Tensor = self.norm[i](self.combine[i](kept))
        return read


CONNECTIONS: dict[str, type[Connection]] = {"last": Last, "linear": Linear}
