"""Multiway dynamic dense connections (MUDDFormer, Xiao et al. 2025)."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk import trace
from fusetk.models.connect.base import ConnectConfig, LayerInputs, SourcesConnection
from fusetk.nn.combine import weighted_sums
from fusetk.nn.feature_buffer import FeatureBuffer
from fusetk.nn.norm import RMS_EPSILON


class MuddConfig(ConnectConfig):
    """Sums of all layers below, with weights that are computed at each position."""

    kind: str = "mudd"
    streams: Literal[1, 4] = 4
    """Number of sums that a layer reads. With 4, the queries, the keys, the values and the residual
    sum each read their own sum; only `transformer` supports this. With 1, they read the same
    sum."""

    def check_inputs(self, inputs: int) -> None:
        self.check_two_inputs(inputs)

    @property
    def separate_inputs(self) -> bool:
        return self.streams == 4

    @property
    def separate_inputs_advice(self) -> str:
        return f"{super().separate_inputs_advice}, or streams: 1"


class DepthAggregate(nn.Module):
    """The sums that one layer reads (MUDDFormer, Equation 6).

    stream c = sum_j A_cj X_j with A = GELU(RMSNorm(X_i) W1) W2 + a. X_0 .. X_i are the embedding
    and the outputs of the layers below. The norm has no gain. At first W2 = 0 and each a is 1 for
    X_i and 0 for the others: every stream is X_i. The hidden layer has C (i + 1) units for C
    streams; the authors' JAX code has four times as many in the last sum of a stack.
    """

    def __init__(self, width: int, sources: int, streams: int, names: list[str]):
        super().__init__()
        self.width = width
        self.names = names
        self.shape = (streams, sources)
        hidden = streams * sources
        self.w1 = nn.Parameter(torch.empty(width, hidden).normal_(std=width**-0.5))
        self.w2 = nn.Parameter(torch.zeros(hidden, streams * sources))
        static = torch.zeros(streams, sources)
        static[:, -1] = 1.0
        self.static = nn.Parameter(static)

    def forward(self, buffer: FeatureBuffer) -> tuple[Tensor, ...]:
        """Return the streams, each (..., D)."""
        layers = buffer.layers(self.width)
        normed = F.rms_norm(layers[..., -1, :], (self.width,), eps=RMS_EPSILON)
        weights = (F.gelu(normed @ self.w1) @ self.w2).unflatten(-1, self.shape) + self.static
        for name, weight in zip(self.names, weights.unbind(-2), strict=True):
            trace.record(name, weight)
        return weighted_sums(weights, layers).unbind(-2)


class MuddConnection(SourcesConnection):
    """Sums for each layer (MUDDFormer, Equation 6). One more sum makes the output of the stack.

    Each sum of the lowest layer is the embedding times a number for each position. In the authors'
    PyTorch code, the lowest layer has no sums: it reads the embedding, with one norm for queries,
    keys and values.
    """

    Config = MuddConfig

    def __init__(self, config: MuddConfig, name: str):
        super().__init__(config, name)
        self.streams = config.streams
        self.aggregate = nn.ModuleList()

    def register_input(self) -> int:
        return self._add(self.streams)

    def register_top_input(self) -> int:
        return self._add(1)

    def _add(self, streams: int) -> int:
        name = f"{self.name}.layer{self.num_outputs}"
        names = [name] if streams == 1 else [f"{name}.{what}" for what in LayerInputs._fields]
        self.aggregate.append(DepthAggregate(self.width, self.num_outputs, streams, names))
        return self.width

    def append(
        self, outputs: FeatureBuffer | None, output: Tensor, layer_input: Any = None
    ) -> FeatureBuffer:
        if outputs is None:
            outputs = FeatureBuffer.empty(output, len(self.aggregate) * self.width)
        return outputs.append(self.project(self._count(outputs), output))

    def forward(self, outputs: FeatureBuffer) -> Tensor | LayerInputs:
        streams = self._streams(outputs)
        return LayerInputs(*streams) if self.streams == 4 else streams[0]

    def top_input(self, outputs: FeatureBuffer) -> Tensor:
        return self._streams(outputs)[0]

    def _streams(self, outputs: FeatureBuffer) -> tuple[Tensor, ...]:
        return self.aggregate[self._count(outputs) - 1](outputs)

    def _count(self, outputs: FeatureBuffer) -> int:
        """Return the number of outputs in the buffer."""
        return 0 if outputs.features is None else outputs.features.shape[-1] // self.width
