"""Attention residuals: attention over the outputs of the sub-layers below (Kimi Team 2026)."""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from fusetk import trace
from fusetk.models.residual.base import (
    Norm,
    Residual,
    ResidualConfig,
    StreamEnds,
    SubLayer,
    require_norm,
)
from fusetk.nn.combine import weighted_sums
from fusetk.nn.feature_buffer import FeatureBuffer
from fusetk.nn.fused import streams as fused_streams
from fusetk.nn.norm import inverse_rms


class AttentionResidualConfig(ResidualConfig):
    """Attention over the outputs of the sub-layers below, instead of a residual sum."""

    kind: str = "attention-residual"
    block: int = Field(1, ge=1)
    """Number of sub-layers whose outputs are summed to one source. 1: each output is a source
    (full attention residuals). An encoder layer has two sub-layers and a decoder layer has
    three."""

    def check(self, norm: Norm, layers: int) -> None:
        require_norm(self, norm, "pre", "there is no residual sum that could be normalised")


class DepthSources(NamedTuple):
    """The sources of the next sub-layer: embedding, complete blocks, and a partial block."""

    blocks: FeatureBuffer
    """The embedding and the sum of each complete block, (..., n * D)."""
    scales: Tensor
    """1 / RMS of each of them (..., n)."""
    partial: Tensor | None
    """Sum of the outputs of the current block (..., D); None at its start."""
    sublayers: int
    """Number of sub-layers in the partial block."""


class DepthQuery(nn.Module):
    """One learned query over the sources, with the gain of the norm of the keys.

    The weights are the softmax of q . RMSNorm(v_i) over the sources v_i. They are equal at first.
    """

    def __init__(self, width: int, name: str):
        """``name`` is that of the recorded weights."""
        super().__init__()
        self.width = width
        self.name = name
        self.query = nn.Parameter(torch.zeros(width))
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, stream: DepthSources) -> Tensor:
        """Return the weighted sum of the sources (..., D)."""
        layers = stream.blocks.layers(self.width)
        query = self.query * self.gain
        partial, scales = stream.partial, stream.scales
        tensors = (layers, query, scales, *(() if partial is None else (partial,)))
        if fused_streams.usable(*tensors) and not trace.is_listening_for(self.name):
            if partial is not None:
                scales = torch.cat((scales, inverse_rms(partial)), -1)
            return fused_streams.depth_attention(layers, partial, scales, query)
        scores = weighted_sums(query.unsqueeze(0), layers.mT).squeeze(-2) * scales
        if partial is None:
            weights = scores.softmax(-1)
            trace.record(self.name, weights)
            return weighted_sums(weights.unsqueeze(-2), layers).squeeze(-2)
        score = (partial * query).sum(-1, keepdim=True) * inverse_rms(partial)
        weights = torch.cat((scores, score), -1).softmax(-1)
        trace.record(self.name, weights)
        complete = weighted_sums(weights[..., None, :-1], layers).squeeze(-2)
        return torch.addcmul(complete, weights[..., -1:], partial)


class AttentionEnds(StreamEnds):
    """The embedding as the first source, and one more query over all sources."""

    def open(self, x: Tensor) -> DepthSources:
        blocks = 1 + self.sublayers // self.config.block
        buffer = FeatureBuffer.empty(x, blocks * x.shape[-1]).append(x)
        return DepthSources(buffer, inverse_rms(x), None, 0)

    def state(self, stream: DepthSources) -> Tensor:
        total = stream.blocks.layers(self.width).sum(-2)
        return total if stream.partial is None else total + stream.partial

    def readout(self) -> nn.Module:
        return DepthQuery(self.width, f"{self.name}.output")


class AttentionResidual(Residual):
    """Attention residuals, full or in blocks (Kimi Team 2026, Equations 2 to 6).

    Sub-layer l reads h_l = sum_i a_i v_i, where v_0 is the embedding and the other v_i are outputs
    of sub-layers, or sums of them in a block. a is the softmax of q_l . RMSNorm(v_i), with one
    query q_l for each sub-layer, 0 at first. There is no other residual sum. One more query makes
    the output of the stack; for the full form this is our reading, since the paper describes it for
    blocks.

    A new model computes the function of the plain pre-norm model up to the epsilon of its norms:
    h_l is the mean of the sources, which is the residual sum divided by their number. With ``fuse``
    and ``attend``, the state after a layer is the sum of its sources.
    """

    Config = AttentionResidualConfig
    Ends = AttentionEnds
    spans_layers = True

    def __init__(self, config: AttentionResidualConfig, sublayer: SubLayer):
        super().__init__(config, sublayer)
        self.block = config.block
        self.depth = DepthQuery(sublayer.width, f"{self.name}.sources")

    def before(self, stream: DepthSources) -> tuple[Tensor, DepthSources]:
        return self.normed_input(self.depth(stream)), stream

    def after(self, stream: DepthSources, y: Tensor) -> DepthSources:
        blocks, scales, partial, sublayers = stream
        y = self.dropout(y).to(blocks.buffer.dtype)  # float32 also in mixed precision
        partial = y if partial is None else partial + y
        if sublayers + 1 < self.block:
            return DepthSources(blocks, scales, partial, sublayers + 1)
        scales = torch.cat((scales, inverse_rms(partial)), -1)
        return DepthSources(blocks.append(partial), scales, None, 0)
