"""Hyper-connections: several residual streams (Zhu et al. 2025)."""

from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk import trace
from fusetk.models.residual.base import (
    Norm,
    Residual,
    ResidualConfig,
    StreamEnds,
    SubLayer,
    require_norm,
)
from fusetk.nn.combine import add_weighted_sums, weighted_sums
from fusetk.nn.fused import streams as fused_streams
from fusetk.nn.norm import EPSILON


class HyperConfig(ResidualConfig):
    """Several residual streams with learned weights between them."""

    kind: str = "hyper"
    streams: int = Field(4, ge=1)
    """Number of streams."""
    weights: Literal["dynamic", "static"] = "dynamic"
    """Compute the weights at each position, or learn one number for each of them."""

    def check(self, norm: Norm, layers: int) -> None:
        reason = "the final norm of a pre-norm stack removes the scale of the sum of the streams"
        require_norm(self, norm, "pre", reason)


class CopiedStreams(StreamEnds):
    """n copies of the stack's input (..., n, D) at the bottom."""

    def open(self, x: Tensor) -> Tensor:
        # The kernels read contiguous streams, so each of them would make a copy.
        copies = (*x.shape[:-1], self.config.streams, x.shape[-1])
        return x.unsqueeze(-2).expand(copies).contiguous()


class HyperEnds(CopiedStreams):
    """Copies of the input at the bottom, and the sum of the streams at the top."""

    def state(self, stream: Tensor) -> Tensor:
        return stream.sum(-2)


class WeightedStreams(NamedTuple):
    """The streams before a sub-layer, and the weights with which its output is written."""

    streams: Tensor
    """(..., n, D)."""
    write: Tensor
    """Weight of the output in each stream (..., n)."""
    mix: Tensor
    """Weights of the old streams in each new stream (..., n new, n old)."""


class MixedStreams(Residual):
    """A connection that reads n streams, mixes them, and writes the sub-layer's output to them."""

    spans_layers = True

    def weights(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weights for the streams (..., n, D).

        They are the weights to read the input (..., n), to write the output (..., n), and to mix
        the streams (..., n new, n old).
        """
        raise NotImplementedError(f"{type(self).__name__} has no method weights")

    def before(self, stream: Tensor) -> tuple[Tensor, WeightedStreams]:
        weights = self.weights(stream)
        for part, values in zip(("read", "write", "mix"), weights, strict=True):
            trace.record(self.name, values, part)
        read, write, mix = weights
        x = weighted_sums(read.unsqueeze(-2), stream).squeeze(-2)
        return self.normed_input(x), WeightedStreams(stream, write, mix)

    def after(self, stream: WeightedStreams, y: Tensor) -> Tensor:
        return add_weighted_sums(stream.mix, stream.streams, stream.write, self.dropout(y))


class HyperResidual(MixedStreams):
    """Hyper-connections with n streams H (..., n, D) (Zhu et al. 2025, Equations 2 and 10 to 14).

    The sub-layer reads A_m^T H, and its output y changes the streams to A_r^T H + B^T y. With
    ``weights: static``, A_m, A_r and B are learned numbers. With ``dynamic``, s tanh(norm(H) W) is
    added to them, with a matrix W (D, n + 2) that is 0 at first. The norm is a layer normalisation
    of each stream without parameters, and s has one number for A_m and A_r and one for B, 0.01 at
    first. A new model computes the function of the plain pre-norm model, up to the epsilon of the
    layer normalisation: B is 1, A_r is the identity, and sub-layer k reads stream k mod n. The
    output of a layer is the sum of the streams, n times that of the plain model. So the functions
    differ with ``fuse: attention``, ``aggregation: ewp-ffn`` or ``layer_embedding: true``, and with
    ``init: mlrf`` also with ``fuse: ffn`` or ``aggregation: concat-ffn``, unless the fusion has
    ``norm_layers: true``.

    The paper also rescales the initial weights of output matrices by sqrt(n). Its text does not say
    in which direction, so this is omitted. The paper excludes A_m, A_r and B from weight decay;
    here, an optimiser with weight decay applies it to all parameters.
    """

    Config: type[ResidualConfig] = HyperConfig
    Ends: type[StreamEnds] = HyperEnds

    def __init__(self, config: HyperConfig, sublayer: SubLayer):
        super().__init__(config, sublayer)
        n = config.streams
        self.read = nn.Parameter(F.one_hot(torch.tensor(sublayer.below % n), n).float())
        self.write = nn.Parameter(torch.ones(n))
        self.mix = nn.Parameter(torch.eye(n))  # (old, new)
        self.dynamic = config.weights == "dynamic"
        if self.dynamic:
            self.project = nn.Parameter(torch.zeros(sublayer.width, n + 2))
            self.input_scale = nn.Parameter(torch.tensor(0.01))
            self.output_scale = nn.Parameter(torch.tensor(0.01))

    def weights(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return A_m (..., n), B (..., n) and A_r^T (..., n new, n old) for (..., n, D)."""
        if not self.dynamic:
            return self.read, self.write, self.mix.mT
        n = streams.shape[-2]
        read, write, mix = self._products(streams).tanh().split((1, 1, n), -1)
        return (
            self.read + self.input_scale * read.squeeze(-1),
            self.write + self.output_scale * write.squeeze(-1),
            (self.mix + self.input_scale * mix).mT,
        )

    def _products(self, streams: Tensor) -> Tensor:
        """Return norm(H) W (..., n, n + 2) without keeping norm(H) for the backward pass."""
        if fused_streams.usable(streams, self.project):
            return fused_streams.normed_products(streams, self.project, EPSILON, centred=True)
        variance, mean = torch.var_mean(streams, -1, correction=0, keepdim=True)
        projected = streams @ self.project - mean * self.project.sum(0)
        return (variance + EPSILON).rsqrt() * projected
