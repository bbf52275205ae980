"""Deep cross-attention (DeepCrossAttention, Heddes et al. 2025)."""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from fusetk import trace
from fusetk.models.connect.base import ConnectConfig, LayerInputs, SourcesConnection
from fusetk.nn.combine import weighted_sum
from fusetk.nn.fused import streams as fused_streams


class CrossConnectionConfig(ConnectConfig):
    """Sums of all layers below for queries, keys and values, with weights for each feature."""

    kind: str = "cross"
    last: int | None = Field(None, ge=1)
    """Number k of the highest layers that are read one by one. The layers below them are read as
    one sum, and the embedding separately (k-DCA in the paper). By default, every layer is read. A
    number without an effect in a stack is refused."""
    initial_std: float = Field(1e-3, gt=0, le=1000)
    """The initial vectors w are normal. Their standard deviation is this number divided by the
    square root of the width. The paper begins with w = 0, but PyTorch's ReLU has no gradient at
    0."""

    @property
    def separate_inputs(self) -> bool:
        return True

    def check_inputs(self, inputs: int) -> None:
        self.check_two_inputs(inputs)
        # The last input reads the embedding, a sum of at least two layers, and ``last`` layers.
        most = inputs - 3
        if self.last is not None and self.last > most:
            advice = f"give at most {most}, or remove last" if most > 0 else "remove last"
            raise ValueError(
                f"last: {self.last} has no effect, because no input would read a sum of two or "
                f"more layers: {advice}"
            )


class CrossSources(NamedTuple):
    """The sources of the next layer."""

    sources: tuple[Tensor, ...]
    """The embedding, the sum of the layers between (if there is one), and the nearest layers, each
    (..., D). The source of a layer is the difference between its output and its input."""
    layers: int
    """Number of layers in the sources."""


class CrossMix(nn.Module):
    """A generalised residual network, GRN-v3: sum_i g_i * (b_i + ReLU(w . g_i)).

    g_i are the sources (..., D), b_i is a vector and w . g_i is one number. At first b_i = 1, so
    the result is the usual residual sum. The module computes several such sums.
    """

    def __init__(self, width: int, sources: int, names: list[str], std: float, merged: int = 1):
        """The second source is the sum of ``merged`` layers, which share its weights."""
        super().__init__()
        self.names = names
        self.merged = merged
        self.static = nn.Parameter(torch.ones(len(names), sources, width))
        self.dynamic = nn.Parameter(torch.empty(len(names), width).normal_(std=std * width**-0.5))

    def forward(self, sources: tuple[Tensor, ...]) -> list[Tensor]:
        """Return the sums, each (..., D)."""
        if (
            fused_streams.usable(*sources, self.static, self.dynamic)
            and all(source.shape == sources[0].shape for source in sources)
            and self.static.shape[1:] == (len(sources), sources[0].shape[-1])
            and not any(trace.is_listening_for(name) for name in self.names)
        ):
            return fused_streams.feature_sums(sources, self.static, self.dynamic)
        # (..., number of sums) for each source
        scores = [(source @ self.dynamic.mT).relu() for source in sources]
        mixes = []
        for k, name in enumerate(self.names):
            if trace.is_listening_for(name):
                dynamic = torch.stack([score[..., k] for score in scores], -1)
                weights = self.static[k].mean(-1) + dynamic
                if self.merged > 1:
                    middle = weights[..., 1:2].repeat_interleave(self.merged, -1)
                    weights = torch.cat((weights[..., :1], middle, weights[..., 2:]), -1)
                trace.record(name, weights)
            factors = [self.static[k, i] + s[..., k : k + 1] for i, s in enumerate(scores)]
            mixes.append(weighted_sum(factors, sources))
        return mixes


class CrossConnection(SourcesConnection):
    """Three sums for the queries, keys and values of each layer (GRN-v3, DeepCrossAttention).

    The sum of the queries is also the residual input of self-attention, as in a public
    reimplementation (lucidrains/deep-cross-attention). A last sum makes the output of the stack.
    The differences of the layers add up to the output of the highest layer, so a new model computes
    nearly the same function as with ``connect: last``.
    """

    Config = CrossConnectionConfig

    def __init__(self, config: CrossConnectionConfig, name: str):
        super().__init__(config, name)
        self.last = config.last
        self.std = config.initial_std
        self.mix = nn.ModuleList()

    def register_input(self) -> int:
        name = f"{self.name}.layer{self.num_outputs}"
        return self._add([f"{name}.{what}" for what in ("query", "key", "value")])

    def register_top_input(self) -> int:
        return self._add([f"{self.name}.layer{self.num_outputs}"])

    def _add(self, names: list[str]) -> int:
        sources = self.num_outputs if self.last is None else min(self.num_outputs, self.last + 2)
        merged = 1 + self.num_outputs - sources
        self.mix.append(CrossMix(self.width, sources, names, self.std, merged))
        return self.width

    def append(
        self,
        outputs: CrossSources | None,
        output: Tensor,
        layer_input: LayerInputs | None = None,
    ) -> CrossSources:
        if outputs is None or layer_input is None:
            return CrossSources((self.project(0, output),), 0)
        sources, layers = outputs
        new = (*sources, self.project(layers + 1, output) - layer_input.residual)
        if self.last is not None and len(new) > self.last + 2:
            new = (new[0], new[1] + new[2], *new[3:])
        return CrossSources(new, layers + 1)

    def forward(self, outputs: CrossSources) -> LayerInputs:
        query, key, value = self.mix[outputs.layers](outputs.sources)
        return LayerInputs(query, key, value, query)

    def top_input(self, outputs: CrossSources) -> Tensor:
        [mix] = self.mix[outputs.layers](outputs.sources)
        return mix
