"""Dense connections (DenseNMT)."""

from typing import Any, Literal

from pydantic import Field, PositiveInt
from torch import Tensor

from fusetk.errors import quantity
from fusetk.models.connect.base import ConnectConfig, Connection, SummaryMode
from fusetk.nn.feature_buffer import FeatureBuffer
from fusetk.nn.precision import product_dtype


class DenseConnectionConfig(ConnectConfig):
    """The concatenation of all layers below."""

    kind: str = "dense"
    growth: PositiveInt | list[PositiveInt] = 128
    """Features of a layer's output: one number, or one for each layer (the number of an in-place
    summary is not used). A decoder layer of the `conv` backbone adds twice as many features: those
    of its convolution and those of its attention."""
    summary_every: int | None = Field(None, ge=1)
    """Number of layers after which a summary layer reads all features. Layers above a
    summary layer cannot read the layers below it. A stack does not end with a summary layer.
    (DenseNMT has no summary layers in stacks of 4 layers; in stacks of 8 layers the number is
    6.)"""
    summary_layer: Literal["in-place", "added"] = "in-place"
    """`in-place`: every layer whose number is a multiple of `summary_every` is itself a summary, as
    in the authors' code, except the highest layer (our choice). `added`: a simpler layer above it
    is the summary. This is another reading of the paper's text."""

    def check(self, layers: int) -> None:
        if self.summary_every is not None and self.summary_every >= layers:
            raise ValueError(
                f"summary_every: {self.summary_every} makes no summary in a stack of "
                f"{quantity(layers, 'layer')}: give less than the number of layers, or remove it"
            )
        if self.summary_layer == "added" and self.summary_every is None:
            raise ValueError(
                "summary_layer: added has no effect without a summary: set summary_every to less "
                "than the number of layers"
            )
        if isinstance(self.growth, list) and len(self.growth) != layers:
            raise ValueError(
                f"growth lists {quantity(len(self.growth), 'width')} for a stack of "
                f"{quantity(layers, 'layer')}: give one number, or one for each layer"
            )

    def check_inputs(self, inputs: int) -> None:
        self.check_two_inputs(inputs)

    def width(self, layer: int, layers: int, usual: int) -> int:
        if self.summary(layer, layers) == "in-place":
            return usual
        return self.growth if isinstance(self.growth, int) else self.growth[layer]

    def summary(self, layer: int, layers: int) -> SummaryMode:
        number = layer + 1
        if self.summary_every is None or number == layers or number % self.summary_every:
            return "no"
        return self.summary_layer


class DenseConnection(Connection):
    """h_{l+1} = H([h_l, ..., h_0]) (DenseNMT, section 3.1).

    Our concatenation is in the order from the embedding to the highest layer. All features between
    two summaries are in one buffer. Each feature is written once, and a layer reads the first
    columns of the buffer. Therefore no concatenation copies earlier features.
    """

    Config = DenseConnectionConfig
    adds_input = False

    def __init__(self, config: DenseConnectionConfig, name: str):
        super().__init__(config, name)
        self.features = 0  # number of features since the last summary
        self.max_features = 0

    def register_output(self, width: int, starts_block: bool) -> None:
        self.features = width if starts_block else self.features + width
        self.max_features = max(self.max_features, self.features)

    def register_input(self) -> int:
        return self.features

    def append(
        self, outputs: FeatureBuffer | None, output: Tensor, layer_input: Any = None
    ) -> FeatureBuffer:
        if outputs is None:
            outputs = FeatureBuffer.empty(output, self.max_features, product_dtype(output))
        return outputs.append(output)

    def forward(self, outputs: FeatureBuffer) -> Tensor:
        assert outputs.features is not None
        return outputs.features
