"""Pictures of connections: expanded weights, means over positions, and weights at each token."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fusetk import trace
from fusetk.data.vocab import EOS
from fusetk.errors import DataError, Diverged
from fusetk.evaluation import connection_weights
from fusetk.fusion.linear import ScalarMix
from fusetk.models.residual import RESIDUALS, ResidualBuilder
from fusetk.models.residual.laurel import LaurelWeightsResidual
from fusetk.models.residual.plain import PlainResidual
from fusetk.plotting import connect
from fusetk.plotting.attention import TokenPair
from fusetk.plotting.panel import Panel
from tests.plotting.models import transformer

SUBLAYERS = ["l1.self", "l1.ffn", "l2.self", "l2.ffn"]
PAIRS = [([4, 5, 6, EOS], [5, 4]), ([7, EOS], [6, 8, 9, 4]), ([5, 9, EOS], [4])]


def noisy(encoder: dict[str, Any], decoder: dict[str, Any], **more: Any) -> Any:
    """Build a model whose parameters of connections are random."""
    model = transformer({"layers": 2, **encoder}, {"layers": 2, **decoder}, **more)
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("connect", "residual", "readout", "attend.")):
            nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize(
    ("kind", "options"),
    [("hyper", {"streams": 3, "weights": "static"}), ("laurel-weights", {}), ("rezero", {})],
)
def test_expanded_weights_are_those_of_the_outputs(kind: str, options: dict[str, Any]) -> None:
    """The input of each sub-layer is the weighted sum of the outputs below it."""
    config = RESIDUALS[kind].Config.model_validate({"kind": kind, **options})
    residuals = ResidualBuilder(config, "encoder", {"encoder": 4}, 6, "none", 0.0)
    modules = [residuals.layer(6, 1)[0].double() for _ in range(4)]
    outputs = [torch.randn(6, dtype=torch.float64)]
    stream = residuals.ends.open(outputs[0])
    inputs: list[Tensor] = []
    recorded = []
    with torch.no_grad(), trace.listen() as tensors:
        for module in modules:
            for parameter in module.parameters():
                nn.init.normal_(parameter)
            x, stream = module.before(stream)
            inputs.append(x)
            outputs.append(torch.randn(6, dtype=torch.float64))
            stream = module.after(stream, outputs[-1])
            prefix = f"{module.name}."
            names = {name: values[-1].double().numpy() for name, values in tensors.items()}
            recorded.append(
                {n.removeprefix(prefix): v for n, v in names.items() if n.startswith(prefix)}
            )
    weights = connection_weights.expand_streams(recorded)
    assert [len(row) for row in weights] == [1, 2, 3, 4, 5]
    for row, x in zip(weights, inputs, strict=False):
        expected = sum(w * y for w, y in zip(row, outputs, strict=False))
        torch.testing.assert_close(x, expected)


SITES: list[tuple[dict[str, Any], list[str], list[str], list[str]]] = [
    (
        {"residual": {"kind": "attention-residual", "block": 2}},
        ["encoder.residual", "decoder.residual"],
        ["l1.self", "l1.cross", "l1.ffn", "l2.self", "l2.cross", "l2.ffn", "top"],
        ["l0", "b1", "b2", "b3"],
    ),
    (
        {"residual": "hyper"},
        ["encoder.residual", "decoder.residual"],
        ["l1.self", "l1.cross", "l1.ffn", "l2.self", "l2.cross", "l2.ffn", "top"],
        ["l0", "l1.self", "l1.cross", "l1.ffn", "l2.self", "l2.cross", "l2.ffn"],
    ),
    (
        {"connect": {"kind": "mudd", "streams": 1}},
        ["encoder.connect", "decoder.connect"],
        ["l1", "l2", "top"],
        ["l0", "l1", "l2"],
    ),
]


def test_layers_that_are_read_as_one_sum_share_their_weight() -> None:
    side = {"layers": 4, "connect": {"kind": "cross", "last": 1}}
    model = transformer(side, side, norm="pre")
    mix = model.decoder.connect.mix[3]  # of layer 4, which reads l0, l1 + l2, and l3
    with torch.no_grad():
        mix.static[:] = torch.tensor([10.0, 20.0, 30.0])[:, None]
        mix.dynamic.zero_()
    readings = {
        reading.name: reading for reading in connection_weights.trace_readings(model, PAIRS[:1])
    }
    reading = readings["decoder.connect.query"]
    assert list(reading.columns)[:4] == ["l0", "l1", "l2", "l3"]
    np.testing.assert_allclose(reading.weights[0][0][3][:4], [10, 20, 20, 30])


@pytest.mark.parametrize(("side", "names", "rows", "columns"), SITES, ids=str)
def test_means_and_deviations_over_a_text(
    side: dict[str, Any], names: list[str], rows: list[str], columns: list[str]
) -> None:
    model = noisy(side, side, norm="pre")
    assert connection_weights.needs_text(model)
    means = connect.ReadingMeans(model)
    means.add(PAIRS)
    drawn = {panel.name: panel for panel in means.panels()}
    expected_names = [f"{name}.{what}" for name in names for what in ("mean", "deviation")]
    assert list(drawn) == expected_names and means.sentences == len(PAIRS)
    measures = {(panel.measure, panel.name.partition(".")[0]) for panel in drawn.values()}
    assert len(measures) == len({measure for measure, _ in measures}), "stacks share a scale"
    panel = drawn[f"decoder.{names[0].partition('.')[2]}.mean"]
    assert (list(panel.y), list(panel.x)) == (rows, columns)
    # The same from single sentences, which have no padding.
    every = []
    for pair in PAIRS:
        traced = {
            reading.name: reading for reading in connection_weights.trace_readings(model, [pair])
        }
        every.append(traced[panel.name.removesuffix(".mean")].weights[0])
    positions = np.concatenate(every)
    assert len(positions) == sum(len(target) + 1 for _, target in PAIRS)
    np.testing.assert_allclose(panel.matrix, positions.mean(0), rtol=1e-4, atol=1e-6)
    deviation = drawn[panel.name.replace("mean", "deviation")]
    np.testing.assert_allclose(deviation.matrix, positions.std(0), rtol=1e-3, atol=1e-4)
    if side.get("residual", {}) != "hyper" and "residual" in side:
        np.testing.assert_allclose(np.nansum(panel.matrix, 1), 1, rtol=1e-5)


def test_weights_at_each_token() -> None:
    side = {"residual": "attention-residual"}
    model = noisy(side, side, norm="pre")
    tokens = TokenPair(["a", "b", "c"], ["x", "y"])
    panels = connect.position_panels(model, [([4, 5, 6, EOS], [5, 4])], tokens, 2)
    assert [panel.name for panel in panels] == [
        "encoder.residual.l1.ffn",
        "decoder.residual.l1.cross",
    ]
    for panel in panels:
        assert panel.y[0] == "l0" and len(panel.y) == 2
        np.testing.assert_allclose(panel.matrix.sum(0), 1, rtol=1e-5)
    with pytest.raises(DataError, match="give a row from 1 to"):
        connect.position_panels(model, [([4, EOS], [5])], tokens, 9)


def test_learned_weights_need_no_text() -> None:
    model = noisy(
        {"residual": "laurel-weights", "connect": "depth-weighted"}, {"attend": "transparent"}
    )
    assert not connection_weights.needs_text(model)
    panels = {panel.name: panel for panel in connect.panels(model)}
    assert list(panels) == ["encoder.connect", "decoder.attend", "encoder.residual"]
    np.testing.assert_allclose(panels["decoder.attend"].matrix.sum(1), 1, rtol=1e-6)
    assert list(panels["decoder.attend"].y) == ["l1", "l2"]
    assert list(panels["encoder.connect"].y) == ["l2"]
    # The connection makes the input of each layer.
    assert list(panels["encoder.residual"].x) == ["input", "self", "ffn"]
    assert list(panels["encoder.residual"].y) == ["l1.self", "l1.ffn", "l2.self", "l2.ffn"]
    assert not np.isfinite(panels["encoder.residual"].matrix[[0, 2], 1:]).any()


def test_the_output_of_a_fusion_is_not_that_of_the_stream() -> None:
    for fuse, rows in (("last", [*SUBLAYERS, "top"]), ("average", SUBLAYERS)):
        model = noisy({"residual": "laurel-weights", "fuse": fuse}, {})
        [panel] = connect.panels(model)
        assert list(panel.y) == rows


def test_a_model_that_has_diverged_is_refused() -> None:
    model = noisy({"residual": "laurel-weights"}, {"connect": "mudd"})
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, np.nan)
    with pytest.raises(Diverged, match="NaN weights of connections"):
        connect.panels(model)


def test_layers_above_a_summary_have_their_own_names() -> None:
    encoder = {"layers": 4, "connect": {"kind": "dense", "growth": 8, "summary_every": 2}}
    [panel] = connect.panels(noisy(encoder, {"attend": "transparent"}))
    assert list(panel.x) == ["sum", "l3", "l4"]


def test_a_model_without_weights_names_its_connections() -> None:
    dense = {"layers": 2, "connect": {"kind": "dense", "growth": 16}}
    with pytest.raises(DataError, match="connect: dense has no weights to draw"):
        connect.panels(transformer(dense, {"layers": 2}))
    with pytest.raises(DataError, match="reads the layer below it"):
        connect.panels(transformer({"layers": 2}, {"layers": 2}))


class Doubled(PlainResidual):
    """A residual connection outside fusetk, which records nothing."""


def test_the_error_about_an_outside_class_without_weights_names_the_page() -> None:
    model = noisy({"residual": f"{__name__}:Doubled"}, {})
    with pytest.raises(DataError, match=rf"{__name__}:Doubled has no weights.*docs/extending.md"):
        connect.panels(model)


def test_a_connection_without_a_record_is_named_beside_others() -> None:
    dense = {"layers": 2, "connect": {"kind": "dense", "growth": 16}}
    outside = {"residual": f"{__name__}:Doubled", "attend": "transparent"}
    model = noisy({**dense}, outside)
    assert connection_weights.undrawn(noisy({"connect": "linear"}, {"attend": "transparent"})) == []
    assert connection_weights.undrawn(noisy({"residual": "value-residual"}, {})) == []
    assert connection_weights.undrawn(model) == [
        "encoder.connect (dense) is not drawn: it recorded no weights",
        f"decoder.residual ({__name__}:Doubled) is not drawn: it recorded no weights; "
        "record them with trace.record, by the names in docs/extending.md",
    ]
    assert [message.split()[0] for message in connection_weights.undrawn(model, ["decoder"])] == [
        "decoder.residual"
    ]
    with pytest.raises(DataError, match="connections to draw: connect: dense has no weights"):
        connection_weights.undrawn(model, ["encoder"])


def test_a_record_of_another_shape_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = noisy({"residual": "laurel-weights"}, {})
    monkeypatch.setattr(
        LaurelWeightsResidual,
        "after",
        lambda self, stream, y: (trace.record(f"{self.name}.mix", torch.ones(3, 2)), stream + y)[1],
    )
    name = r"encoder\.residual\.sublayer1\.mix"
    with pytest.raises(DataError, match=rf"{name} has the shape \(3, 2\), .* need \(1, 1\)"):
        connect.panels(model)


def test_a_record_of_the_output_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def after(self: LaurelWeightsResidual, stream: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        trace.record("encoder.residual.output", torch.ones(1))
        return stream + y

    model = noisy({"residual": "laurel-weights"}, {})
    monkeypatch.setattr(LaurelWeightsResidual, "after", after)
    with pytest.raises(DataError, match="output was recorded, but no sub-layer was"):
        connect.panels(model)


def test_sources_of_some_sublayers_only_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def after(self: LaurelWeightsResidual, stream: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.name.endswith("1"):
            trace.record(f"{self.name}.sources", torch.ones(1))
        else:
            trace.record(f"{self.name}.write", torch.ones(1))
        return stream + y

    model = noisy({"residual": "laurel-weights"}, {})
    monkeypatch.setattr(LaurelWeightsResidual, "after", after)
    error = r"residual\.sublayer2 has no record of its sources, but encoder\.residual\.sublayer1 "
    with pytest.raises(DataError, match=error):
        connect.panels(model)


def test_a_connection_outside_may_read_every_source(monkeypatch: pytest.MonkeyPatch) -> None:
    model = noisy({"residual": "laurel-weights"}, {})

    def after(self: LaurelWeightsResidual, stream: Tensor, y: Tensor) -> Tensor:
        number = int(self.name.removeprefix("encoder.residual.sublayer"))
        trace.record(f"{self.name}.sources", torch.ones(number) / number)
        return stream + y

    monkeypatch.setattr(LaurelWeightsResidual, "after", after)
    readings = {
        reading.name: reading for reading in connection_weights.trace_readings(model, PAIRS[:1])
    }
    reading = readings["encoder.residual"]
    assert list(reading.columns) == ["l0", *list(reading.rows)[:-1]]
    assert not any(name.startswith("b") for name in reading.columns)


@pytest.mark.parametrize("shape", [(), (3, 1), (1, 3, 1, 1)])
def test_weights_with_a_wrong_number_of_dimensions_are_refused(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    message = rf"layer1.* was recorded with the shape {re.escape(str(shape))}; it must be \(n,\)"
    monkeypatch.setattr(
        ScalarMix,
        "forward",
        lambda self, layers: (trace.record(self.name, torch.ones(shape)), layers[-1])[1],
    )
    with pytest.raises(DataError, match=message):
        connect.panels(noisy({"connect": "linear"}, {}))
    monkeypatch.setattr(
        LaurelWeightsResidual,
        "after",
        lambda self, stream, y: (trace.record(self.name, torch.ones(shape)), stream + y)[1],
    )
    with pytest.raises(DataError, match=message.replace("layer1.*", "sublayer1")):
        connect.panels(noisy({"residual": "laurel-weights"}, {}))


def test_a_record_of_too_many_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = noisy({"connect": "linear"}, {})
    monkeypatch.setattr(
        ScalarMix,
        "forward",
        lambda self, layers: (trace.record(self.name, torch.ones(len(layers) + 1)), layers[-1])[1],
    )
    with pytest.raises(DataError, match=r"layer1 was recorded with 2 weights, but layer 1 reads"):
        connect.panels(model)


def test_a_record_of_an_unknown_name_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    model = noisy({"residual": "laurel-weights"}, {})
    monkeypatch.setattr(
        LaurelWeightsResidual,
        "after",
        lambda self, stream, y: (trace.record(f"{self.name}.alpha", torch.ones(())), stream + y)[1],
    )
    with pytest.raises(DataError, match="residual: laurel-weights has no weights to draw"):
        connect.panels(model)


def test_the_title_of_a_row_names_its_layer() -> None:
    side = {"layers": 4, "connect": {"kind": "cross", "last": 1}}
    tokens = TokenPair(["a"], ["x"])
    panels = connect.position_panels(
        transformer(side, side, norm="pre"), [([4, EOS], [5])], tokens, reader=4
    )
    assert [panel.title for panel in panels[:3]] == [
        f"encoder, layer 4, weights of the {what}" for what in ("queries", "keys", "values")
    ]
    side = {"layers": 2, "residual": "attention-residual"}
    model = transformer(side, side, norm="pre")
    titles = [connect.position_panels(model, [([4, EOS], [5])], tokens, n)[0].title for n in (2, 5)]
    assert titles == [
        "encoder, sub-layer l1.ffn, weights of the input",
        "encoder, output of the stack, weights of the input",
    ]


def test_a_side_with_several_panels_starts_a_row() -> None:
    def panels(*names: str) -> list[Panel]:
        return [Panel(name, name, np.eye(4), list("abcd"), list("abcd")) for name in names]

    both = ("encoder.residual", "decoder.residual")
    assert connect.row_lengths(panels(*both)) is None
    kinds = ("mean", "deviation")
    each = panels(*(f"{name}.{kind}" for name in both for kind in kinds))
    assert connect.row_lengths(each) == [2, 2]
    assert connect.row_lengths(each[:3]) == [2, 1]
