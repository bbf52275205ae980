"""The verification of models with classes outside fusetk."""

import copy
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk.cli.main import main
from fusetk.errors import ConfigError
from fusetk.fusion.base import Fusion, FusionConfig, LayerFusion
from fusetk.models.attend import AttendedSources
from fusetk.models.connect.base import SourcesConnection
from fusetk.models.connect.cross import CrossConnection
from fusetk.models.residual import StreamEnds
from fusetk.models.residual.base import SubLayer
from fusetk.models.residual.plain import PlainResidual
from fusetk.models.seq2seq import Memory, Seq2Seq, State
from fusetk.models.transformer import Transformer, TransformerDecoderLayer, TransformerEncoderLayer
from fusetk.nn.dropout import Dropout
from fusetk.nn.output import OutputProjection
from fusetk.nn.packed_attention import packed_attention
from fusetk.nn.packed_layout import AttentionLayout, PackedLayout
from fusetk.nn.parameter import unset_parameter
from fusetk.training.verify import verify
from fusetk.training.verify_construction import check_construction
from tests.contracts.systems import SOURCE_SIZE, SYSTEMS, TARGET_SIZE

NAMES = sorted(SYSTEMS)
VERIFIED = NAMES[::3]  # the other systems take half a minute


@pytest.mark.parametrize("name", VERIFIED)
def test_systems_keep_the_rules(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(NAMES) - set(VERIFIED)))
def test_the_other_systems_keep_the_rules(name: str) -> None:
    check(name)


def check(name: str) -> None:
    model = SYSTEMS[name]().train()
    before = torch.get_rng_state()
    verify(model, SOURCE_SIZE, TARGET_SIZE, ["a:B"])
    assert model.training and torch.equal(before, torch.get_rng_state())


class Plain(Fusion):
    """The highest layer."""

    def __init__(self, config: FusionConfig, widths: Sequence[int], width: int, name: str):
        super().__init__(config, widths, width, name)
        self.passes = 0

    def forward(self, history: Sequence[Tensor]) -> Any:
        return history[-1]


class MeanOfPositions(Plain):
    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[-1] + history[-1].mean(1, keepdim=True)


class SumOfPasses(Plain):
    def forward(self, history: Sequence[Tensor]) -> Tensor:
        self.passes += 1
        return history[-1] * self.passes


class EarlierPositions(Plain):
    def forward(self, history: Sequence[Tensor]) -> Tensor:
        """(1, N, D) or (B, T, D): the sum of all positions up to each one."""
        return history[-1].cumsum(-2)


class EarlierSentences(Plain):
    def forward(self, history: Sequence[Tensor]) -> Tensor:
        """In packed sentences (1, N, D), positions read those of other sentences."""
        x = history[-1]
        return x + x.mean(1, keepdim=True) if len(x) == 1 and x.shape[1] > 8 else x


class MeanOfSentences(Plain):
    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[-1] + history[-1].mean(0, keepdim=True)


class PackedOnly(Plain):
    """Computes another function of the packed sentences of a batch."""

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[-1] * (2 if history[-1].shape[:2] == (1, 17) else 1)


class InPlace(Plain):
    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[0].add_(history[-1])


class ListOfModules(Plain):
    def __init__(self, *options: Any):
        super().__init__(*options)
        self.maps = {"a": [nn.Linear(16, 16)]}


class WeightAsAttribute(Plain):
    def __init__(self, *options: Any):
        super().__init__(*options)
        self.scale = torch.ones(16, requires_grad=True)


class ForwardOnly(LayerFusion):
    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[-1]


class OwnNorm(LayerFusion):
    """Its norm is applied twice: by the class and by LayerFusion."""

    def __init__(self, config: Any, widths: Sequence[int], width: int, name: str):
        super().__init__(config, widths, width, name)
        self.norm = nn.LayerNorm(width)

    def fuse(self, layers: list[Tensor]) -> Tensor:
        normed: Tensor = self.norm(layers[-1])
        return normed


class OwnName(Plain):
    def __init__(self, *options: Any):
        super().__init__(*options)
        self.name = "decoder.fuse of mine"


class HiddenModules(LayerFusion):
    """Modules with the name of a method."""

    def __init__(self, config: Any, widths: Sequence[int], width: int, name: str):
        super().__init__(config, widths, width, name)
        self.layers = nn.ModuleList()  # type: ignore[assignment]


class ModuleInProperty(LayerFusion):
    """A property returns the module of its name."""

    def __init__(self, config: Any, widths: Sequence[int], width: int, name: str):
        super().__init__(config, widths, width, name)
        self._modules["map"] = nn.Linear(width, width)

    @property
    def map(self) -> nn.Module | None:
        return self._modules["map"]

    def fuse(self, layers: list[Tensor]) -> Tensor:
        assert self.map
        mapped: Tensor = self.map(layers[-1])
        return mapped


class SameValues(LayerFusion):
    """Sets attributes of its base class to the values that they have."""

    def __init__(self, config: Any, widths: Sequence[int], width: int, name: str):
        super().__init__(config, widths, width, name)
        self.name = "".join(name)
        self.num_fused = len(list(widths))

    def fuse(self, layers: list[Tensor]) -> Tensor:
        return layers[-1]


class PairEnds(StreamEnds):
    def open(self, x: Tensor) -> Any:
        return x, x


class TwoTensors(PlainResidual):
    Ends = PairEnds


class PrivateList(Plain):
    def __init__(self, *options: Any):
        super().__init__(*options)
        self._maps = [nn.Linear(16, 16)]


class ZeroGate(Plain):
    """Initially the highest layer. The gate hides that positions are mixed."""

    def __init__(self, *options: Any):
        super().__init__(*options)
        self.gate = nn.Parameter(torch.zeros(16))

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[-1] + self.gate * history[-1].mean(1, keepdim=True)


class RootOfWeights(Plain):
    """Noise makes the result NaN, which is not a mistake."""

    def __init__(self, *options: Any):
        super().__init__(*options)
        self.gate = nn.Parameter(torch.full((16,), 1e-3))

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[-1] * self.gate.sqrt()


class AlwaysDropout(Plain):
    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return F.dropout(history[-1], 0.5)


class OtherHypotheses(Plain):
    """In search with two hypotheses, each reads the other one."""

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        x = history[-1]
        return x + x.mean(0, keepdim=True) if x.shape[:2] == (6, 1) else x


class SharedModule(Plain):
    """A module that is also registered elsewhere, and values without weights."""

    def __init__(self, *options: Any):
        super().__init__(*options)
        self.map = nn.Linear(16, 16)
        self.order = [self.map, self.map.weight]
        self.constants = {"a": torch.tensor(1.0), "b": 1, "c": nn.ReLU()}


class Shorter(Plain):
    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[-1][:, 1:]


class Pair(Plain):
    def forward(self, history: Sequence[Tensor]) -> Any:
        return history[-1], None


class Failing(Plain):
    def forward(self, history: Sequence[Tensor]) -> Any:
        return history["top"]  # type: ignore[call-overload]


class NotFinite(Plain):
    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[-1] / 0 * 0


class UnsetWeight(LayerFusion):
    def __init__(self, config: Any, widths: Sequence[int], width: int, name: str):
        super().__init__(config, widths, width, name)
        self.scale = unset_parameter(width)

    def fuse(self, layers: list[Tensor]) -> Tensor:
        return layers[-1] * self.scale


class AverageConnection(SourcesConnection):
    """The mean of the outputs, (B, 1, D) instead of (B, T, D)."""

    def register_input(self) -> int:
        return self.width

    def forward(self, outputs: Any) -> Tensor:
        return torch.stack(outputs).mean(0).mean(1, keepdim=True)


class OwnMaps(AverageConnection):
    """Its list of maps replaces the list of the projections of the base class."""

    def __init__(self, config: Any, name: str):
        super().__init__(config, name)
        self.map = nn.ModuleList()

    def register_input(self) -> int:
        self.map.append(nn.Linear(self.width, self.width))
        return self.width

    def forward(self, outputs: Any) -> Any:
        return self.map[len(outputs) - 1](outputs[-1])


class LaterOutputs(AverageConnection):
    """Mixes positions above the lowest layer only."""

    def forward(self, outputs: Any) -> Tensor:
        x: Tensor = outputs[-1]
        return x if len(outputs) == 1 else x.roll(-1, 1)


class OwnCrossConnection(CrossConnection):
    """Keeps its outputs in another form than a list."""


class InPlaceConnection(AverageConnection):
    def forward(self, outputs: Any) -> Any:
        return outputs[-1].add_(outputs[0])


class NoWidth(AverageConnection):
    def register_input(self) -> Any:
        pass


class InPlaceResidual(PlainResidual):
    def after(self, stream: Tensor, y: Tensor) -> Tensor:
        return super().after(stream.add_(1), y)


class OwnResidualNorm(PlainResidual):
    def __init__(self, config: Any, sublayer: SubLayer):
        super().__init__(config, sublayer)
        self.norm = nn.Linear(sublayer.width, sublayer.width)


class MeanResidual(PlainResidual):
    def before(self, stream: Tensor) -> Any:
        return stream - stream.mean(1, keepdim=True), stream


class Narrow(PlainResidual):
    def after(self, stream: Tensor, y: Tensor) -> Tensor:
        return super().after(stream, y)[..., 1:]


class NoStream(PlainResidual):
    def before(self, stream: Tensor) -> Any:
        return stream


class NoList(AttendedSources):
    reads_output = True

    @property
    def widths(self) -> Sequence[int]:
        return [self.output_width]

    def sources(self, memory: Memory) -> Any:
        return memory.output


class LaterSource(NoList):
    def sources(self, memory: Memory) -> list[Tensor]:
        return [memory.output.cumsum(1).roll(-1, 1)]


class InPlaceSource(NoList):
    def sources(self, memory: Memory) -> list[Tensor]:
        return [memory.history[-1].add_(memory.history[0])]


class WidthsMethod(NoList):
    def widths(self) -> Any:  # type: ignore[override]
        return [self.output_width]


class TooMany(NoList):
    def sources(self, memory: Memory) -> list[Tensor]:
        return [memory.output] * 2


class UndeclaredOutput(NoList):
    reads_output = False

    def sources(self, memory: Memory) -> list[Tensor]:
        return [memory.output]


class StoredLayers(Plain):
    """Keeps the layers of a pass, which another thread would replace."""

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        self.layers = list(history)
        return self.layers[-1]


class CountedPasses(Plain):
    """Counts the passes in training. Checkpoints do not have the number."""

    passes = 0

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        if self.training:
            self.passes += 1
        return history[-1] * min(1.0, self.passes / 20)


class OtherRandomNumbers(Plain):
    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[random.randrange(2) if self.training else 0]


class Scaled(LayerFusion):
    def fuse(self, layers: list[Tensor]) -> Tensor:
        return layers[-1].mul_(2)


class ReplacedBuffer(Plain):
    mean: Tensor

    def __init__(self, *options: Any):
        super().__init__(*options)
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * history[-1].detach().mean((0, 1))
        return history[-1]


class Unused(Plain):
    def __init__(self, *options: Any):
        super().__init__(*options)
        self.map = nn.Linear(16, 16)

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[-1]


class StoredConstant(Plain):
    """Keeps a tensor that every pass has."""

    def __init__(self, *options: Any):
        super().__init__(*options)
        self.cached: Tensor | None = None

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        if self.cached is None:
            self.cached = torch.full((16,), 2.0)
        return history[-1] * self.cached


class PlainTensor(Plain):
    def __init__(self, *options: Any):
        super().__init__(*options)
        self.factors = [torch.randn(16)]


class Array(Plain):
    def __init__(self, *options: Any):
        super().__init__(*options)
        self.factors = {"a": np.ones(16)}


class ArrayScalar(Plain):
    """Counts its passes in training with a number of NumPy."""

    count = np.float32(0)

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        if self.training:
            self.count = np.float32(self.count + 1)
        return history[-1]


class Complex(Plain):
    def __init__(self, *options: Any):
        super().__init__(*options)
        self.factor = nn.Parameter(torch.ones(16, dtype=torch.complex64))

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return (history[-1] * self.factor).real


class Integers(Plain):
    def __init__(self, *options: Any):
        super().__init__(*options)
        self.order = nn.Parameter(torch.arange(16), requires_grad=False)


class Detached(Plain):
    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[-1].detach() + 0 * history[0]


class DetachedSum(LayerFusion):
    """Its normalisation gets a gradient, the layers do not."""

    def fuse(self, layers: list[Tensor]) -> Tensor:
        return sum(layers, layers[0]).detach()


class MeanInTraining(Plain):
    """Reads later words and other sentences, in training only."""

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        x = history[-1]
        return x + x.mean(-2, keepdim=True) if self.training else x


class BatchNormed(Plain):
    def __init__(self, *options: Any):
        super().__init__(*options)
        self.normalise = nn.BatchNorm1d(16)

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        normed: Tensor = self.normalise(history[-1].flatten(0, -2))
        return normed.view(history[-1].shape)


class OwnGenerator(Plain):
    def __init__(self, *options: Any):
        super().__init__(*options)
        self.numbers = torch.Generator().manual_seed(1)

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        if not self.training:
            return history[-1]
        return history[-1] * torch.rand(16, generator=self.numbers)


class Counter:
    value = 0


class CountsInObject(Plain):
    def __init__(self, *options: Any):
        super().__init__(*options)
        self.counter = Counter()

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        if not self.training:
            return history[-1]
        self.counter.value += 1
        return history[-1] * (1 + self.counter.value % 7)


class GrowingBuffer(Plain):
    numbers: Tensor

    def __init__(self, *options: Any):
        super().__init__(*options)
        self.register_buffer("numbers", torch.zeros(1))

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        if self.training:
            self.numbers = torch.cat((self.numbers, self.numbers[:1]))
        return history[-1]


class LateModule(Plain):
    map: nn.Module

    def forward(self, history: Sequence[Tensor]) -> Any:
        if not hasattr(self, "map"):
            self.map = nn.Linear(16, 16)
        return self.map(history[-1])


class SharedMemory(Plain):
    """A buffer that is a view of another one, and a buffer whose transposed view is copied."""

    def __init__(self, *options: Any):
        super().__init__(*options)
        self.register_buffer("matrix", torch.ones(2, 3))
        self.register_buffer("transposed", self.matrix.T)
        self.register_buffer("row", self.matrix[1])

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[-1]


class UnsavedBuffer(Plain):
    count: Tensor

    def __init__(self, *options: Any):
        super().__init__(*options)
        self.register_buffer("count", torch.zeros(()), persistent=False)

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        if self.training:
            self.count += 1
        return history[-1]


class CountsAlways(Plain):
    count: Tensor

    def __init__(self, *options: Any):
        super().__init__(*options)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        self.count += 1
        return history[-1]


class MovingMean(Plain):
    """Subtracts a moving mean that also changes in evaluation. The logits hardly differ."""

    mean: Tensor
    rate = 1e-5

    def __init__(self, *options: Any):
        super().__init__(*options)
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        self.mean.lerp_(history[-1].detach().flatten(0, -2).mean(0), self.rate)
        return history[-1] - self.mean


class FastMovingMean(MovingMean):
    rate = 1e-3


class NormalisesAlways(BatchNormed):
    """Changes the buffers of a module of PyTorch in evaluation."""

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        batch = history[-1].flatten(0, -2)
        mean, variance = self.normalise.running_mean, self.normalise.running_var
        normed = F.batch_norm(batch, mean, variance, training=True, momentum=1e-6)
        return 1e-6 * normed.view(history[-1].shape) + history[-1]


class InfiniteGradient(Plain):
    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[-1] + (0 * history[-1]).sqrt()


class HalfOfPositions(NoList):
    def sources(self, memory: Memory) -> list[Tensor]:
        return [memory.output[:, ::2]]


class Unpadded(TransformerEncoderLayer):
    """A convolution over positions, which reads the padding and other packed sentences."""

    def __init__(self, *options: Any):
        super().__init__(*options)
        self.mix = nn.Conv1d(self.width, self.width, 3, padding=1)

    def forward(self, x: Tensor, context: Any) -> tuple[Tensor, None]:
        return super().forward(self.mix(x.mT).mT, context)


class Packed(TransformerEncoderLayer):
    """Computes another function of packed sentences."""

    def forward(self, x: Tensor, context: Any) -> tuple[Tensor, None]:
        return super().forward(x * 2 if isinstance(context, PackedLayout) else x, context)


class LaterPositions(TransformerDecoderLayer):
    def forward(self, x: Tensor, context: Any) -> Any:
        return super().forward(x.roll(-1, 1), context)


class OwnLayers(Transformer):
    layer: Callable[..., Any]

    def encoder_layer(self, config, residuals, planned, name, input_width):
        if issubclass(self.layer, TransformerEncoderLayer):
            return self.layer(config, name, input_width, planned.width, residuals)
        return super().encoder_layer(config, residuals, planned, name, input_width)

    def decoder_layer(self, config, residuals, planned, name, input_width):
        if issubclass(self.layer, TransformerDecoderLayer):
            widths = self.attend.widths
            return self.layer(config, name, input_width, planned.width, widths, residuals)
        return super().decoder_layer(config, residuals, planned, name, input_width)


class OnlyOutputLayer(TransformerDecoderLayer):
    def forward(self, x: Tensor, context: Any) -> Any:
        return super().forward(x, context)[0]


class OnlyOutput(Transformer):
    decoder_layer_class = OnlyOutputLayer


class Empty(Transformer):
    def __init__(self, config: Any, source_size: int, target_size: int):
        nn.Module.__init__(self)


class OnlyFeatures(Transformer):
    def decode(self, tgt_in: Tensor, state: State) -> Any:
        return super().decode(tgt_in, state)[0]


class LogitsAsFeatures(Transformer):
    def decode(self, tgt_in: Tensor, state: State) -> Any:
        features, state = super().decode(tgt_in, state)
        return self.output(features), state


class ScaledProjection(OutputProjection):
    def forward(self, features: Tensor) -> Tensor:
        return 0.5 * super().forward(features)


class ScaledOutput(Transformer):
    def __init__(self, config: Any, source_size: int, target_size: int):
        super().__init__(config, source_size, target_size)
        self.output.__class__ = ScaledProjection


class WrongPlace(Transformer):
    """Keeps the words of each hypothesis in the state of its sentence."""

    def start(self, memory: Memory) -> State:
        state = super().start(memory)
        return state._replace(per_sentence=(state.per_sentence, torch.zeros(len(memory.mask), 1)))

    def decode(self, tgt_in: Tensor, state: State) -> Any:
        inner, words = state.per_sentence
        features, after = super().decode(tgt_in, state._replace(per_sentence=inner))
        words = words + tgt_in[:, :1]
        return features, after._replace(per_sentence=(after.per_sentence, words))


class UnpaddedLayers(OwnLayers):
    packs = True
    layer = Unpadded


class PackedLayers(OwnLayers):
    packs = True
    layer = Packed


class LaterLayers(OwnLayers):
    packs = False
    layer = LaterPositions


def refusal(site: str, kind: type | str) -> str:
    """Return the error about a small Transformer with the class ``kind`` at ``site``."""
    name = kind if isinstance(kind, str) else f"{__name__}:{kind.__name__}"
    config: dict[str, Any] = {"width": 16, "heads": 2, "ffn": 16, "dropout": 0.1}
    sides: dict[str, Any] = {"encoder": {"layers": 2}, "decoder": {"layers": 2}}
    if site == "kind":
        config["kind"] = name
    else:
        side, _, key = site.partition(".")
        sides[side][key] = {"kind": name}
    with pytest.raises(ConfigError) as caught:
        verify(built({**config, **sides}), 20, 20, [name])
    assert name in str(caught.value) or site in str(caught.value)
    return str(caught.value)


def built(options: dict[str, Any]) -> Seq2Seq:
    config_class = Transformer.Config
    name = options.pop("kind", "transformer")
    cls = Transformer if name == "transformer" else globals()[name.partition(":")[2]]
    torch.manual_seed(1)
    model: Seq2Seq = cls(config_class.model_validate(options), 20, 20)
    return model


@pytest.mark.parametrize(
    ("site", "kind", "error"),
    [
        ("encoder.fuse", MeanOfPositions, r"^encoder.fuse \(\S+:MeanOfPositions\) reads other pos"),
        ("decoder.fuse", MeanOfPositions, r"^decoder.fuse \(\S+:MeanOfPositions\) reads other pos"),
        ("decoder.fuse", SumOfPasses, "two equal passes"),
        ("decoder.fuse", EarlierPositions, "EarlierPositions.* must depend only on position t of"),
        ("decoder.fuse", EarlierSentences, "EarlierSentences.* reads other positions"),
        ("encoder.fuse", MeanOfSentences, "MeanOfSentences.* reads other sentences or hypotheses"),
        ("decoder.fuse", PackedOnly, r"packed sentences .* as padded ones\. The logits differ"),
        ("encoder.connect", LaterOutputs, r"^encoder.connect \(\S+:LaterOutputs\) reads other pos"),
        ("decoder.residual", MeanResidual, r"^decoder.residual.sublayer1 \(\S+\) reads other pos"),
        ("decoder.attend", LaterSource, r"^decoder.attend \(\S+:LaterSource\) reads other pos"),
        ("decoder.fuse", Shorter, r"Shorter \(decoder.fuse\) returned the shape \(3, 6, 16\)"),
        (
            "decoder.fuse",
            ListOfModules,
            "ListOfModules.maps has weights that are not registered",
        ),
        (
            "encoder.fuse",
            WeightAsAttribute,
            "AsAttribute.scale has weights that are not registered",
        ),
        ("decoder.fuse", PrivateList, "PrivateList._maps has weights"),
        ("encoder.fuse", ZeroGate, "ZeroGate.* reads other positions"),
        ("decoder.fuse", ZeroGate, "ZeroGate.* reads other positions"),
        ("decoder.fuse", AlwaysDropout, "two equal passes"),
        ("decoder.fuse", OtherHypotheses, "must not read the other hypotheses"),
        ("encoder.fuse", ForwardOnly, "replaces forward of LayerFusion"),
        (
            "decoder.fuse",
            OwnNorm,
            r"OwnNorm\.norm replaces an attribute that LayerFusion reads: give yo",
        ),
        (
            "encoder.fuse",
            OwnName,
            r"OwnName\.name replaces an attribute that Fusion reads: give yo",
        ),
        (
            "encoder.fuse",
            HiddenModules,
            r"\.layers replaces an attribute that LayerFusion reads: give yo",
        ),
        (
            "decoder.connect",
            OwnMaps,
            r"\.map replaces an attribute that SourcesConnection reads: give yo",
        ),
        (
            "encoder.residual",
            OwnResidualNorm,
            r"Norm\.norm replaces an attribute that Residual reads: give yo",
        ),
        ("decoder.residual", TwoTensors, "set spans_layers = True"),
        ("encoder.fuse", Pair, r"Pair \(encoder.fuse\) returned the type tuple"),
        ("decoder.fuse", Failing, r"cannot compute: TypeError: .*test_verify.py, line \d+\)"),
        ("decoder.fuse", NotFinite, "not finite before any update: correct the initial weights"),
        ("decoder.fuse", UnsetWeight, "initial values of decoder.fuse.scale, which has NaN"),
        ("decoder.fuse", InPlace, "InPlace changes its input in place"),
        ("encoder.fuse", Scaled, "Scaled changes its input in place"),
        ("decoder.connect", NoWidth, r"NoWidth.register_input \(decoder.connect\) returned None"),
        ("decoder.attend", WidthsMethod, "WidthsMethod.widths is a method: make it a @property"),
        ("decoder.connect", InPlaceConnection, "InPlaceConnection changes its input in place"),
        ("encoder.residual", InPlaceResidual, "InPlaceResidual changes its input in place"),
        ("decoder.attend", InPlaceSource, "InPlaceSource changes its input in place"),
        ("encoder.fuse", OwnGenerator, "second training pass with the same random numbers"),
        ("decoder.fuse", CountsInObject, "second training pass with the same random numbers"),
        ("decoder.fuse", LateModule, "created decoder.fuse.map.weight, .*: create it in __init__"),
        ("decoder.fuse", GrowingBuffer, "buffer decoder.fuse.numbers changed during a pass"),
        (
            "encoder.fuse",
            SharedMemory,
            r"encoder.fuse.matrix and encoder.fuse.row share memory, so a checkpoint cannot hold",
        ),
        ("decoder.fuse", UnsavedBuffer, "buffer decoder.fuse.count changed .* persistent=False"),
        (
            "encoder.fuse",
            CountsAlways,
            r"buffer encoder.fuse.count of \S+CountsAlways changed during a pass in evaluation: ch",
        ),
        ("decoder.fuse", MovingMean, "fuse.mean of .* changed during a pass in evaluation"),
        ("decoder.fuse", FastMovingMean, "fuse.mean of .* changed during a pass in evaluation"),
        ("encoder.fuse", NormalisesAlways, "fuse.normalise.running_mean of .* in evaluation"),
        ("decoder.fuse", CountedPasses, "CountedPasses.passes changed during a pass in training"),
        ("encoder.fuse", OtherRandomNumbers, "random numbers of `random` or NumPy in training"),
        ("encoder.connect", AverageConnection, r"\(encoder.connect\) returned the shape \(3, 1"),
        ("decoder.connect", AverageConnection, r"\(decoder.connect\) returned the shape \(3, 1"),
        (
            "encoder.residual",
            Narrow,
            r"\(encoder.residual.sublayer1\) returned the shape \(1, 3, 15\)",
        ),
        (
            "decoder.residual",
            NoStream,
            r"NoStream.before \(decoder.residual.sublayer1\) returned a Tensor",
        ),
        (
            "decoder.attend",
            NoList,
            r"NoList.sources \(decoder.attend\) returned a Tensor inst",
        ),
        (
            "decoder.attend",
            HalfOfPositions,
            r"Positions \(decoder.attend\) returned the shape \(3, 4,",
        ),
        ("decoder.attend", UndeclaredOutput, "reads memory.output: set reads_output = True"),
        ("decoder.fuse", StoredLayers, "StoredLayers.layers changed during a pass"),
        ("decoder.fuse", PlainTensor, "PlainTensor.factors has a tensor that is not registered"),
        ("decoder.fuse", Array, r"Array\.factors has a NumPy array, which checkpoints do not have"),
        ("decoder.fuse", ArrayScalar, r"ArrayScalar\.count changed during a pass in training"),
        (
            "encoder.fuse",
            Complex,
            r"encoder.fuse.factor has numbers of the type torch.complex64, .*: make two real param",
        ),
        (
            "decoder.fuse",
            Integers,
            r"fuse.order has numbers of the type torch.int64, .*: use self.register_buffer",
        ),
        ("kind", Empty, "has no parameters"),
        (
            "kind",
            OnlyOutput,
            "OnlyOutputLayer.forward returned a Tensor; it must return the output",
        ),
        ("kind", UnpaddedLayers, "alone and in a batch"),
        ("kind", PackedLayers, r"packed sentences .*`packs = False` in the class of the model"),
        ("kind", LaterLayers, "token by token"),
        ("kind", OnlyFeatures, "OnlyFeatures.decode returned a Tensor; it must return the feat"),
        ("kind", LogitsAsFeatures, r"features of the shape \(3, 7, 20\) .* must have 16 features"),
        ("kind", ScaledOutput, "does not call `output`. Other operations belong in the method dec"),
        ("kind", WrongPlace, "failed in .*The rule: .*a hypothesis belong in state.per_hypothesis"),
    ],
)
def test_a_class_that_breaks_a_rule_is_refused(site: str, kind: type, error: str) -> None:
    assert re.search(error, refusal(site, kind))


def test_gradients_must_be_finite_and_reach_every_stack() -> None:
    for kind, error in (
        (Detached, r"no gradient reaches the layers of encoder"),
        (DetachedSum, r"no gradient reaches the layers of encoder"),
        (InfiniteGradient, r"the gradient of \S+ is not finite with the initial weights"),
    ):
        name = f"{__name__}:{kind.__name__}"
        model = built({"width": 16, "heads": 2, "decoder": {"layers": 2, "fuse": {"kind": name}}})
        with pytest.raises(ConfigError, match=error):
            verify(model, 20, 20, [name])


@pytest.mark.parametrize(
    "kind",
    [
        SharedModule,
        RootOfWeights,
        StoredConstant,
        ReplacedBuffer,
        SameValues,
        ModuleInProperty,
    ],
)
def test_other_classes_are_accepted_and_restored(kind: type) -> None:
    config = {"layers": 2, "fuse": {"kind": f"{__name__}:{kind.__name__}"}}
    model = built({"width": 16, "heads": 2, "decoder": config}).train()
    model.get_submodule("encoder").eval()
    before = copy.deepcopy(model.state_dict())
    verify(model, 20, 20, ["a:B"])
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert model.training and model.get_submodule("decoder").training
    assert not model.get_submodule("encoder").training


def test_a_connection_may_store_other_outputs_than_a_list() -> None:
    name = f"{__name__}:{OwnCrossConnection.__name__}"
    stack = {"layers": 2, "connect": {"kind": name}}
    verify(built({"width": 16, "heads": 2, "encoder": stack}), 20, 20, [name])


@pytest.mark.parametrize("kind", [MeanInTraining, BatchNormed])
def test_passes_that_read_other_words_in_training_get_a_warning(kind: type) -> None:
    name = f"{__name__}:{kind.__name__}"
    fused = {"layers": 2, "fuse": {"kind": name}}
    decoder = verify(built({"width": 16, "heads": 2, "decoder": fused}), 20, 20, [name])
    [later, others] = [warning for warning in decoder if "which search does not have" in warning]
    assert "reads later target words" in later and "reads other sentences of the ba" in others
    encoder = verify(built({"width": 16, "heads": 2, "encoder": fused}), 20, 20, [name])
    assert [warning for warning in encoder if "which search does not have" in warning] == [others]


def test_unused_parameters_are_named() -> None:
    name = f"{__name__}:{Unused.__name__}"
    model = built({"width": 16, "heads": 2, "decoder": {"layers": 2, "fuse": {"kind": name}}})
    [warning] = verify(model, 20, 20, [name])
    assert "in a test pass: decoder.fuse.map.weight, decoder.fuse.map.bias; if" in warning


class RandomValues(Plain):
    """Values that ``generator`` draws, in the kind of attribute that ``place`` names."""

    generator: Any
    place: str

    def __init__(self, *options: Any):
        super().__init__(*options)
        values = torch.tensor(self.generator().random(16), dtype=torch.float32)
        if self.place == "number":
            self.number = float(values[0])
        elif self.place == "tensors":
            self.tensors = [torch.zeros(2), values]
        elif self.place == "buffer":
            self.register_buffer("buffer", values)
        elif self.place == "parameter":
            self.parameter = nn.Parameter(values)
        elif self.place == "array":
            self.array = values.numpy()
        elif values[0] < 0.5:
            self.module = nn.Linear(2, 2)


@pytest.mark.parametrize("place", ["number", "tensors", "buffer", "parameter", "array", "module"])
def test_the_seed_fixes_the_values_of_a_new_model(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    config = {"layers": 2, "fuse": {"kind": f"{__name__}:RandomValues"}}

    def build() -> Seq2Seq:
        return built({"width": 16, "heads": 2, "decoder": dict(config)})

    monkeypatch.setattr(RandomValues, "place", place, raising=False)
    monkeypatch.setattr(
        RandomValues, "generator", lambda self: np.random.default_rng(1), raising=False
    )
    model = build()
    check_construction(model, build)
    seeds = iter(range(2, 20))  # a generator without a seed also has another one in each model
    monkeypatch.setattr(RandomValues, "generator", lambda self: np.random.default_rng(next(seeds)))
    said = rf"{place}.* has another value after the model is built again with the same seed: draw"
    if place == "module":
        said = r"^only one of two models that are built with the same seed has \S*module\.\w+: draw"
    with pytest.raises(ConfigError, match=said):
        check_construction(model, build)


class OtherValues(Plain):
    """An integer and a buffer for intermediate results that differ between two models."""

    built = 0

    def __init__(self, *options: Any):
        super().__init__(*options)
        OtherValues.built += 1
        self.index = OtherValues.built
        scratch = torch.full((16,), float(self.index))
        self.register_buffer("scratch", scratch, persistent=False)


class SparseBuffers(Plain):
    """Multiplies by sparse matrices."""

    coordinates: Tensor
    rows: Tensor

    def __init__(self, *options: Any):
        super().__init__(*options)
        matrix = 2 * torch.eye(16)
        self.register_buffer("coordinates", matrix.to_sparse(), persistent=False)
        self.register_buffer("rows", matrix.to_sparse_csr(), persistent=False)

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        x = history[-1]
        product = self.rows @ (self.coordinates @ x.reshape(-1, x.shape[-1]).mT)
        return product.mT.reshape(x.shape)


@pytest.mark.parametrize("kind", [OtherValues, SparseBuffers])
def test_models_with_the_same_seed_may_differ_in_other_values(kind: type) -> None:
    fuse = {"kind": f"{__name__}:{kind.__name__}"}

    def build() -> Seq2Seq:
        return built({"width": 16, "heads": 2, "decoder": {"layers": 2, "fuse": dict(fuse)}})

    model = build()
    check_construction(model, build)
    verify(model, 20, 20, ["a:B"])


def test_values_that_cannot_be_compared_are_an_error() -> None:
    def fails() -> Seq2Seq:
        raise SystemExit(3)

    with pytest.raises(ConfigError, match="two models cannot be compared: SystemExit: 3"):
        check_construction(built({"width": 16, "heads": 2}), fails)


BROKEN = """
import numpy
import torch

from fusetk.fusion.base import Fusion


class Later(Fusion):
    def forward(self, history):
        return history[-1].roll(-1, 1)


class NoInit(Fusion):
    def __init__(self, config, widths, width, name):
        pass


class NaNInTraining(Fusion):
    def forward(self, history):
        return history[-1] / (0 if self.training else 1)


class Fails(Fusion):
    def __init__(self, config, widths, width, name):
        super().__init__(config, widths, width, name)
        self.missing = widths[100]


class Unseeded(NaNInTraining):
    def __init__(self, config, widths, width, name):
        super().__init__(config, widths, width, name)
        self.factor = float(numpy.random.default_rng().random())


class OfEarlierVersion(Fusion):
    def __init__(self, config, widths, width, name):
        super().__init__(config, widths, width, name)
        self.name = "mine"
        self.factors = numpy.ones(width)
        self.seed = float(numpy.random.default_rng().random())
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, history):
        self.passes += 1
        return history[-1]


class FewArguments(Fusion):
    def __init__(self, config):
        super().__init__(config, [], 1, "")
"""


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("Later", r"decoder.fuse \(broken_rule:Later\) reads other positions"),
        ("NaNInTraining", r"the gradient of \S+ is not finite with the initial weights"),
        ("Unseeded", r"broken_rule:Unseeded\.factor \(decoder\.fuse\) has another value after"),
        ("NoInit", "broken_rule:NoInit cannot be built: AttributeError.* call super"),
        ("Fails", r"cannot be built: IndexError: .*broken_rule.py, line \d+\)"),
        ("FewArguments", r"__init__\(\) takes 2 .* have the arguments of its base class"),
    ],
)
def test_training_refuses_a_class_that_is_wrong(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: str
) -> None:
    (tmp_path / "broken_rule.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    setting = f"model.decoder.fuse=broken_rule:{name}"
    described = CliRunner().invoke(main, ["describe", str(toy), "--set", setting])
    assert described.exit_code == 2 and re.search(error, described.stderr)
    run = tmp_path / "run"
    result = CliRunner().invoke(main, ["train", str(toy), "--set", setting, "-r", str(run)])
    assert result.exit_code != 0 and re.search(error, result.stderr)


def test_a_resumed_run_may_break_rules_that_an_earlier_version_did_not_check(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_rule.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["train", str(toy), "-r", str(tmp_path / "run")]
    words += ["--set", "model.decoder.fuse=broken_rule:OfEarlierVersion"]
    assert CliRunner().invoke(main, words).exit_code == 2
    with monkeypatch.context() as earlier:
        earlier.setattr("fusetk.train.check_construction", lambda *arguments: None)
        earlier.setattr("fusetk.train.verify", lambda *arguments: [])
        end = ["--set", "training.stages.0.end.updates=4"]
        result = CliRunner().invoke(main, [*words, *end])
        assert result.exit_code == 0, result.output
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    for warning in (
        r"OfEarlierVersion\.seed \(decoder\.fuse\) has another value",
        r"OfEarlierVersion\.name replaces an attribute that Fusion reads",
        r"OfEarlierVersion\.factors has a NumPy array",
        r"the buffer decoder\.fuse\.passes of \S+ changed during a pass in evaluation",
    ):
        assert re.search(rf"warning: \S*{warning}", result.output), warning


class DrawnSources(NoList):
    """The output of the encoder through a map of ones."""

    def __init__(self, *options: Any):
        super().__init__(*options)
        self.map = nn.Linear(self.output_width, self.output_width)

    def initialise(self) -> None:
        nn.init.ones_(self.map.weight)

    def sources(self, memory: Memory) -> list[Tensor]:
        return [self.map(memory.output)]


def test_an_attention_to_the_encoder_may_set_its_weights() -> None:
    kind = f"{__name__}:DrawnSources"
    model = built({"width": 16, "heads": 2, "decoder": {"layers": 2, "attend": {"kind": kind}}})
    verify(model, 20, 20, [kind])
    assert isinstance(model, Transformer) and isinstance(model.attend, DrawnSources)
    assert (model.attend.map.weight == 1).all() and model.attend.config.kind == kind


def test_a_wrong_number_of_rows_does_not_reach_the_kernel_of_attention() -> None:
    queries = PackedLayout.of(torch.arange(6), (2, 3))
    layout = AttentionLayout(8, 2, queries, own=True, causal=False)
    projected = torch.randn(1, 6, 24)
    assert packed_attention(layout, projected, None, Dropout(0.0)).shape == (1, 6, 8)
    with pytest.raises(ConfigError, match=r"received the shape \(1, 3, 24\) instead of \(1, 6, 24"):
        packed_attention(layout, projected[:, ::2], None, Dropout(0.0))
