"""What each layer of a stack reads from the layers below it."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from fusetk.config import ComponentConfig
from fusetk.fusion.linear import Weights
from fusetk.nn.precision import product_dtype


class ConnectConfig(ComponentConfig):
    """Options of a connection; each connection has a subclass of its own."""

    def check(self, layers: int) -> None:
        """Raise ValueError, in a sentence for the user, when a stack of ``layers`` layers cannot be wired so."""

    def width(self, layer: int, layers: int, usual: int) -> int:
        """How wide layer ``layer`` (0 is the lowest) of so many is, in a backbone in which it is usually ``usual`` wide."""
        return usual

    def summary(self, layer: int, layers: int) -> Literal["no", "in-place", "added"]:
        """Whether layer ``layer`` of so many sums up all that is below, or a layer that is added behind it does: what is below is not
        seen by the layers above.
        """
        return "no"


class Connection(nn.Module):
    """What each layer of a stack reads from the layers below it.

    It is told of the stack in the order in which the stack works: ``add`` for each output that will be read (the
    embedding first), ``reader`` for each reader. While the stack runs, ``keep`` collects the outputs and ``forward`` makes
    of them what the next reader reads. What is kept belongs to the pass: nothing stays on the module.
    """

    Config: type[ConnectConfig] = ConnectConfig
    residual = True  # layers add what they read to what they make

    def __init__(self, config: ConnectConfig, name: str):
        """``name`` for ``fusetk.trace``."""
        super().__init__()
        self.name = name

    def add(self, width: int, first: bool) -> None:
        """An output of this width will be kept; ``first``: nothing before it is seen any more."""
        raise NotImplementedError

    def reader(self) -> int:
        """What was added so far will be read by one more reader; returns the width that it reads."""
        raise NotImplementedError

    def keep(self, kept: Any, output: Tensor) -> Any:
        """``kept`` (None: nothing yet) and one more output (B, T, D): made once, not once a reader. ``kept`` itself may be used up."""
        raise NotImplementedError

    def forward(self, kept: Any) -> Tensor:
        """What the next reader reads (B, T, D)."""
        raise NotImplementedError


class Last(Connection):
    """The residual stack: a layer reads the one below it."""

    def add(self, width: int, first: bool) -> None:
        self.width = width

    def reader(self) -> int:
        return self.width

    def keep(self, kept: Any, output: Tensor) -> Any:
        return output

    def forward(self, kept: Any) -> Tensor:
        found: Tensor = kept
        return found


class LinearConfig(ConnectConfig):
    """A learned combination of all that is below."""

    kind: str = "linear"
    normalize: Literal["none", "softmax"] = "none"
    """The weights as they are, 1/n at first, or made to sum to 1."""
    norm_layers: bool = True
    """Layer normalisation of every layer before it is weighted (Wang et al. 2019, section 3, for pre-norm layers)."""
    norm: bool = False
    """Layer normalisation of the combination (Wang et al. 2019, section 3, for post-norm layers)."""


class Linear(Connection):
    """Dynamic linear combination of layers: layer l reads sum_k w_lk LN(y_k) over the embedding and the layers below, and so
    does what comes after the stack (Wang et al. 2019). What has another width than the embedding is mapped to that.
    """

    Config = LinearConfig

    def __init__(self, config: LinearConfig, name: str):
        super().__init__(config, name)
        self.config = config
        self.map, self.norm_layers, self.combine, self.norm = (nn.ModuleList() for _ in range(4))

    def add(self, width: int, first: bool) -> None:
        if first:
            self.width = width
        self.map.append(nn.Identity() if width == self.width else nn.Linear(width, self.width))
        self.norm_layers.append(
            nn.LayerNorm(self.width) if self.config.norm_layers else nn.Identity()
        )

    def reader(self) -> int:
        normalize, readers = self.config.normalize, len(self.combine) + 1
        # Where there is but one layer to read, weights that sum to 1 have nothing to choose.
        alone = normalize == "softmax" and len(self.norm_layers) == 1
        self.combine.append(
            _Only()
            if alone
            else Weights(len(self.norm_layers), normalize, f"{self.name}.layer{readers}")
        )
        self.norm.append(nn.LayerNorm(self.width) if self.config.norm else nn.Identity())
        return self.width

    def keep(self, kept: Any, output: Tensor) -> Any:
        kept = kept or ()
        i = len(kept)
        return (*kept, self.norm_layers[i](self.map[i](output)))

    def forward(self, kept: Sequence[Tensor]) -> Tensor:
        i = len(kept) - 1
        read: Tensor = self.norm[i](self.combine[i](kept))
        return read


class _Only(nn.Module):
    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        return layers[0]


class DenseConfig(ConnectConfig):
    """The concatenation of all that is below."""

    kind: str = "dense"
    growth: PositiveInt | list[PositiveInt] = 128
    """Features that a layer adds; one number, or one for each layer (that of a summary is not used). A decoder layer of the `conv`
    backbone adds twice as many: what it convolves and what it attends to."""
    summary_every: int | None = Field(None, ge=1)
    """Every so many layers, but not at the end, all features are summed up in a layer of full width, and the layers above it
    look back no further (DenseNMT: none with 4 layers, 6 with 8 layers)."""
    summary_layer: Literal["in-place", "added"] = "in-place"
    """A summary is every so-many-th layer itself, with all that such a layer does, as in the authors' code, or a simpler layer that
    is added behind it, as the text can be read."""

    def check(self, layers: int) -> None:
        if self.summary_layer == "added" and all(
            self.summary(i, layers) == "no" for i in range(layers)
        ):
            raise ValueError(
                "summary_layer: added has no use without a summary: set summary_every to fewer layers than the stack has"
            )
        if isinstance(self.growth, list) and len(self.growth) != layers:
            raise ValueError(
                f"growth names {len(self.growth)} widths for a stack of {layers} layers: one number, or one for each layer"
            )

    def width(self, layer: int, layers: int, usual: int) -> int:
        if self.summary(layer, layers) == "in-place":
            return usual
        return self.growth if isinstance(self.growth, int) else self.growth[layer]

    def summary(self, layer: int, layers: int) -> Literal["no", "in-place", "added"]:
        here = (
            self.summary_every is not None
            and layer + 1 < layers
            and (layer + 1) % self.summary_every == 0
        )
        return self.summary_layer if here else "no"


class Dense(Connection):
    """h_{l+1} = H([h_l, ..., h_0]) (DenseNMT, section 3.1; the order in the concatenation is ours, from below).

    All features of a block stand in one buffer. Each is written once, and a layer reads the first so many columns of it:
    no concatenation copies what was there before.
    """

    Config = DenseConfig
    residual = False

    def __init__(self, config: DenseConfig, name: str):
        super().__init__(config, name)
        self.features, self.most = 0, 0  # of the block that is being built, and of the largest

    def add(self, width: int, first: bool) -> None:
        self.features = width if first else self.features + width
        self.most = max(self.most, self.features)

    def reader(self) -> int:
        return self.features

    def keep(self, kept: Any, output: Tensor) -> Any:
        if kept is None:
            kept = (
                [output.new_empty(*output.shape[:-1], self.most, dtype=product_dtype(output))],
                None,
            )
        [buffer], read = kept
        return [buffer], _Append.apply([buffer], read, output)

    def forward(self, kept: Any) -> Tensor:
        read: Tensor = kept[1]
        return read


class _Append(torch.autograd.Function):
    """Write ``new`` behind the columns ``read`` of a buffer; returns both as one view of it.

    The columns that were there are not written again, so what readers saved of them for their gradients stays as it was:
    ``data`` says that to autograd, which would count any write to the buffer as a change of all of it.
    """

    @staticmethod
    def forward(ctx: Any, buffers: list[Tensor], read: Tensor | None, new: Tensor) -> Tensor:
        start = 0 if read is None else read.shape[-1]
        ctx.start, ctx.dtype = start, new.dtype
        found = buffers[0].data[..., : start + new.shape[-1]]
        found[..., start:] = new
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, Tensor]:
        [grad] = grads
        return (
            None,
            grad[..., : ctx.start] if ctx.start else None,
            grad[..., ctx.start :].to(ctx.dtype),
        )


CONNECTIONS: dict[str, type[Connection]] = {"last": Last, "linear": Linear, "dense": Dense}
