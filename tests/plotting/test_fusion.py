import copy
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fusetk import trace
from fusetk.errors import DataError
from fusetk.evaluation.layer_shares import (
    contributions,
    find_fusions,
    layer_names,
    trace_fusions,
)
from fusetk.fusion import FUSIONS
from fusetk.fusion.base import Fusion, FusionConfig, LayerFusion
from fusetk.fusion.linear import LinearFusion
from fusetk.plotting import connect
from fusetk.plotting.attention import TokenPair
from fusetk.plotting.fusion import HOPS, panels, row_lengths
from tests.plotting.models import stack, transformer

TOKENS = TokenPair(["ein", "Hund", "schläft"], ["a", "dog"])
PAIR = [4, 5, 6], [7, 8]
KINDS: list[dict[str, Any]] = [
    {"kind": "average"},
    {"kind": "ffn"},
    {"kind": "linear"},
    {"kind": "groups"},
    {"kind": "linear", "normalize": "softmax", "embedding": False},
    {"kind": "linear", "aggregation": "ewp-ffn"},
    {"kind": "linear", "weights": "matrix"},
    {"kind": "iterative", "embedding": True},
    {"kind": "iterative", "aggregation": "concat-ffn"},
    {"kind": "tree", "aggregation": "mean"},
    {"kind": "tree", "leaves": 2},
    {"kind": "attention"},
    {"kind": "attention", "feature_wise": True, "add_top": True},
]


def build(
    options: dict[str, Any], layers: int = 5, width: int = 8
) -> tuple[LayerFusion, list[Tensor]]:
    torch.manual_seed(2)
    kind = FUSIONS[options["kind"]]
    fusion = kind(
        kind.Config.model_validate(options), [width] * (layers + 1), width, "decoder.fuse"
    ).eval()
    assert isinstance(fusion, LayerFusion)
    for parameter in fusion.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.5)
    return fusion, [torch.randn(2, 3, width) for _ in range(layers + 1)]


def drawn(
    encoder: str | dict[str, Any],
    decoder: str | dict[str, Any],
    what: str = "fuse",
    hop: int | str = "all",
) -> dict[str, Any]:
    model = transformer(stack(encoder), stack(decoder, 5))
    traces = trace_fusions(model, [PAIR], find_fusions(model, what))
    return {panel.name: panel for panel in panels(traces, TOKENS, hop)}


# Contributions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [{}, {"embedding": False}, {"normalize": "softmax"}, {"norm_layers": True}], ids=str
)
def test_the_share_in_a_sum_is_the_norm_of_the_weighted_layer(change: dict[str, Any]) -> None:
    fusion, history = build({"kind": "linear", **change})
    assert isinstance(fusion, LinearFusion)
    w = fusion.combine.weight.detach()
    w = w.softmax(0) if "normalize" in change else w
    assert "normalize" in change or (w < 0).any()
    layers = [
        norm(layer).detach()
        for norm, layer in zip(fusion.norm_layers, history[fusion.first :], strict=True)
    ]  # the identity in most cases
    lengths = torch.stack(
        [abs(weight) * layer.norm(dim=-1) for weight, layer in zip(w, layers, strict=True)], -1
    )
    torch.testing.assert_close(
        contributions(fusion, history),
        lengths / lengths.sum(-1, keepdim=True),
        rtol=1e-5,
        atol=1e-7,
    )


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_shares_are_gradient_times_input(options: dict[str, Any]) -> None:
    fusion, history = build(options)
    exact = copy.deepcopy(fusion).double()  # fused kernels cannot be differentiated twice
    layers = [layer.detach().double() for layer in fusion.layers(history)]
    norms = []
    for i in range(len(layers)):

        def by_one(layer: Tensor, i: int = i) -> Tensor:
            return exact.fuse_and_add([*layers[:i], layer, *layers[i + 1 :]])

        _, change = torch.autograd.functional.jvp(
            by_one, layers[i], layers[i]
        )  # by two backward passes, not forward mode
        norms.append(change.norm(dim=-1))
    expected = torch.stack(norms, -1).float()
    shares = contributions(fusion, history)
    torch.testing.assert_close(
        shares, expected / expected.sum(-1, keepdim=True), rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(shares.sum(-1), torch.ones(2, 3))
    assert not any(layer.requires_grad for layer in history) and shares.shape == (
        2,
        3,
        fusion.num_layers,
    )


def test_a_layer_that_is_not_used_has_no_share() -> None:
    class Lowest(Fusion):
        def forward(self, history: Sequence[Tensor]) -> Tensor:
            return torch.relu_(history[0] * 2)

    class Nothing(Fusion):
        def forward(self, history: Sequence[Tensor]) -> Tensor:
            return torch.zeros_like(history[0])

    history = [torch.rand(1, 2, 4) for _ in range(3)]
    for kind, expected in ((Lowest, [1.0, 0.0, 0.0]), (Nothing, [0.0, 0.0, 0.0])):
        fusion = kind(FusionConfig(kind="own"), [4] * 3, 4, "encoder.fuse")
        np.testing.assert_array_equal(contributions(fusion, history), [[expected, expected]])


def test_a_custom_fusion_can_use_torch_attention_and_several_widths() -> None:
    class Own(Fusion):
        def forward(self, history: Sequence[Tensor]) -> Tensor:
            z = torch.stack([layer[..., :4] for layer in history], -2)
            return torch.nn.functional.scaled_dot_product_attention(z[..., -1:, :], z, z).squeeze(
                -2
            )

    widths = [4, 6, 4]
    fusion = Own(FusionConfig(kind="own"), widths, 4, "decoder.fuse")
    shares = contributions(fusion, [torch.randn(2, 3, width) for width in widths])
    torch.testing.assert_close(shares.sum(-1), torch.ones(2, 3))


def test_contributions_hide_the_warning_about_torch_jit_script() -> None:
    class Own(Fusion):
        def forward(self, history: Sequence[Tensor]) -> Tensor:
            warnings.warn("`torch.jit.script` is deprecated. Please switch", FutureWarning, 2)
            return history[0]

    fusion = Own(FusionConfig(kind="own"), [4, 4], 4, "decoder.fuse")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        contributions(fusion, [torch.ones(1, 4)] * 2)


def test_a_fusion_without_forward_derivative_is_refused() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

    class Own(Fusion):
        def forward(self, history: Sequence[Tensor]) -> Tensor:
            doubled: Tensor = Twice.apply(history[0])
            return doubled

    with pytest.raises(
        DataError, match=r"decoder\.fuse: the contributions of its layers cannot be computed: .*jvp"
    ):
        contributions(
            Own(FusionConfig(kind="own"), [4, 4], 4, "decoder.fuse"), [torch.ones(1, 4)] * 2
        )


# Panels -------------------------------------------------------------------------------------------


def test_hops_are_drawn_over_the_input_tokens() -> None:
    by_name = drawn("last", {"kind": "attention", "hops": 3})
    assert list(by_name) == [f"decoder.fuse.hop{h}" for h in (1, 2, 3)]
    for panel in by_name.values():
        assert (
            panel.x == ["<s>", "a", "dog"]
            and panel.y == ["l0", "l1", "l2", "l3", "l4", "l5"]
            and panel.up
        )
        np.testing.assert_allclose(panel.matrix.sum(0), 1, rtol=1e-5)
    model = transformer(stack("last"), stack({"kind": "attention", "hops": 3}, 5)).eval()
    with torch.no_grad(), trace.listen("decoder.fuse.hops") as heard:
        model(
            torch.tensor([[4, 5, 6, 3]]),
            torch.ones(1, 4, dtype=torch.bool),
            torch.tensor([[2, 7, 8]]),
        )
    from fusetk.data.vocab import BOS, EOS

    assert (BOS, EOS) == (2, 3)
    for h, panel in enumerate(by_name.values()):
        np.testing.assert_allclose(
            panel.matrix, heard["decoder.fuse.hops"][0][0, :, h].T, rtol=1e-4, atol=1e-6
        )


def test_one_hop_and_their_mean() -> None:
    options = {"kind": "attention", "hops": 3, "embedding": False}
    every = drawn(options, options)
    [encoder_hop, decoder_hop] = drawn(options, options, hop=2).values()
    np.testing.assert_array_equal(encoder_hop.matrix, every["encoder.fuse.hop2"].matrix)
    assert (
        encoder_hop.x == ["ein", "Hund", "schläft", "</s>"]
        and encoder_hop.y == ["l1", "l2", "l3"]
        and decoder_hop.y[0] == "l1"
    )
    [mean] = drawn(options, options, "decoder-fuse", hop="mean").values()
    expected = np.mean([every[f"decoder.fuse.hop{h}"].matrix for h in (1, 2, 3)], 0)
    np.testing.assert_allclose(mean.matrix, expected, rtol=1e-6)
    with pytest.raises(DataError, match="--head 4 is out of range: the decoder fusion has 3 hops"):
        drawn("ffn", options, hop=4)
    with pytest.raises(DataError, match="no fusion of this model has hops"):
        drawn("ffn", "average", hop=1)


@pytest.mark.parametrize(
    "options, learned, labels",
    [
        ({"kind": "linear"}, "weights", ["l0", "l1", "l2", "l3", "l4", "l5"]),
        ({"kind": "iterative"}, "betas", ["n1", "n2", "n3", "root"]),
        ({"kind": "tree"}, "betas", ["n1", "n2", "root"]),
        ({"kind": "tree", "leaves": 2}, "betas", ["root"]),
        ({"kind": "ffn"}, None, []),
        ({"kind": "linear", "weights": "matrix"}, None, []),
        ({"kind": "tree", "aggregation": "mean"}, None, []),
    ],
    ids=str,
)
def test_shares_their_mean_and_learned_values(
    options: dict[str, Any], learned: str | None, labels: list[str]
) -> None:
    by_name = drawn("last", options)
    names = ["contribution", "contribution.mean", *([learned] if learned else [])]
    assert list(by_name) == [f"decoder.fuse.{name}" for name in names]
    share, mean = by_name["decoder.fuse.contribution"], by_name["decoder.fuse.contribution.mean"]
    assert "gradient times input" in share.title and "sums to 1" in share.measure
    np.testing.assert_allclose(share.matrix.sum(0), 1, rtol=1e-5)
    np.testing.assert_allclose(share.matrix.mean(1, keepdims=True), mean.matrix, rtol=1e-5)
    first = {"linear": 0, "ffn": 0, "iterative": 1, "tree": 4 if options.get("leaves") == 2 else 1}[
        options["kind"]
    ]
    assert share.y == mean.y == [f"l{i}" for i in range(first, 6)]
    if learned:
        panel = by_name[f"decoder.fuse.{learned}"]
        assert panel.y == labels and panel.measure not in (share.measure, HOPS)
        model = transformer(stack("last"), stack(options, 5))
        [fusion] = find_fusions(model)
        trained = [
            p
            for name, p in fusion.named_parameters()
            if name.endswith("beta") or name == "combine.weight"
        ]
        np.testing.assert_allclose(
            panel.matrix[:, 0], torch.cat([p.detach().flatten() for p in trained]), rtol=1e-6
        )


def test_each_side_starts_a_row() -> None:
    assert row_lengths(list(drawn("linear", "ffn").values())) == [3, 2]
    lengths = row_lengths(list(drawn("linear", {"kind": "attention", "hops": 5}).values()))
    assert lengths[0] == 3 and sum(lengths[1:]) == 5


def test_fusions_are_found_by_side() -> None:
    assert [
        fusion.name for fusion in find_fusions(transformer(stack("ffn"), stack("average")))
    ] == [
        "encoder.fuse",
        "decoder.fuse",
    ]
    model = transformer(stack("last"), stack("linear"))
    assert (
        [fusion.name for fusion in find_fusions(model)]
        == [fusion.name for fusion in find_fusions(model, "decoder-fuse")]
        == ["decoder.fuse"]
    )
    with pytest.raises(
        DataError, match="the encoder of this model does not fuse several layers, its decoder does"
    ):
        find_fusions(model, "encoder-fuse")
    one_layer = transformer(
        stack("last"), stack({"kind": "linear", "embedding": False, "norm": False}, 1)
    )
    for model in (transformer(stack("last"), stack("last")), one_layer):
        with pytest.raises(DataError, match="neither side"):
            find_fusions(model)


def test_a_fusion_inside_a_fusion_is_not_drawn() -> None:
    class Outer(Fusion):
        """A fusion whose child fuses the layers in the opposite order."""

        def __init__(self, child: Fusion):
            super().__init__(FusionConfig(kind="own"), [16] * 4, 16, child.name)
            self.child = child

        def forward(self, history: Sequence[Tensor]) -> Tensor:
            reverse: Tensor = self.child(list(history)[::-1])
            return reverse

    for name in ("decoder.fuse", "decoder.fuse.child"):
        model: Any = transformer(stack("last"), stack("linear"))
        model.decoder.fuse.name = name
        model.decoder.fuse = Outer(model.decoder.fuse)
        model.decoder.fuse.name = "decoder.fuse"
        assert find_fusions(model) == [model.decoder.fuse]


def test_the_model_is_restored() -> None:
    model = transformer(stack("linear"), stack("attention")).train()
    trace_fusions(model, [PAIR], find_fusions(model))
    assert model.training and not trace.is_recorded("decoder.fuse.hops")
    assert all(not module._forward_pre_hooks for module in model.modules())
    with pytest.raises(DataError, match="too long"):
        model.max_positions = 3
        trace_fusions(model, [PAIR], find_fusions(model))


def test_a_batch_equals_single_sentences() -> None:
    pairs = [([4, 5, 6, 7, 8], [9]), ([4], [5, 6, 7, 8]), ([9, 9], [])]
    for encoder, decoder in (("linear", "attention"), ("ffn", "tree"), ("iterative", "average")):
        model = transformer(stack(encoder, 4), stack(decoder, 4))
        together = trace_fusions(model, pairs, find_fusions(model))
        for i, pair in enumerate(pairs):
            for alone, batch in zip(
                trace_fusions(model, [pair], find_fusions(model)), together, strict=True
            ):
                length = alone.lengths[0]
                assert batch.lengths[i] == length == alone.weights.shape[1]
                np.testing.assert_allclose(
                    batch.weights[i, :length], alone.weights[0], rtol=1e-3, atol=1e-5
                )


def test_names_of_layers() -> None:
    assert layer_names(4) == layer_names(4, 3) == ["l0", "l1", "l2", "l3"]
    assert layer_names(3, 6) == ["sum", "l5", "l6"]  # a summary replaces the first four layers


# Connections --------------------------------------------------------------------------------------


def test_connections_are_drawn() -> None:
    model = transformer(stack("average", connect={"kind": "linear"}), stack("average", 4))
    [panel] = connect.panels(model)
    assert (panel.name, panel.x, panel.y) == (
        "encoder.connect",
        ["l0", "l1", "l2"],
        ["l1", "l2", "l3"],
    )
    assert (
        np.isnan(panel.matrix[np.triu_indices(3, 1)]).all()
        and np.isfinite(panel.matrix[np.tril_indices(3)]).all()
    )
    weights = [p.detach() for name, p in model.named_parameters() if "connect.combine" in name]
    for row, expected in zip(panel.matrix, weights, strict=True):
        np.testing.assert_array_equal(row[: len(expected)], expected)
    with pytest.raises(DataError, match="every layer of this model reads the layer below"):
        connect.panels(transformer(stack("linear"), stack("linear")))


def test_normalised_weights_have_no_row_for_the_first_layer() -> None:
    softmax = {"kind": "linear", "normalize": "softmax"}
    drawn_panels = connect.panels(
        transformer(stack("average", connect=softmax), stack("average", connect=softmax))
    )
    for panel in drawn_panels:
        assert panel.y == ["l2", "l3"]
        np.testing.assert_allclose(np.nansum(panel.matrix, 1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("hops", torch.ones(1, 3, 6) / 6, r"hops was recorded with the shape \(1, 3, 6\)"),
        ("hops", torch.ones(1, 3, 2, 6), "hops, whose sum over the layers must be 1, but it is 6"),
        ("hops", torch.tensor([1.0, 0.5]).view(1, 1, 2, 1) * torch.ones(1, 3, 2, 6) / 6, "is 0.5"),
        ("weights", torch.ones(2, 6), r"weights was recorded with the shape \(2, 6\)"),
    ],
)
def test_wrong_records_of_a_fusion_are_named(
    name: str, values: Tensor, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    average = FUSIONS["average"]

    def fuse(self: Any, layers: list[Tensor]) -> Tensor:
        trace.record(f"{self.name}.{name}", values)
        return layers[-1]

    monkeypatch.setattr(average, "fuse", fuse)
    model = transformer(stack("last"), stack("average", 5))
    with pytest.raises(DataError, match=message):
        trace_fusions(model, [PAIR], find_fusions(model))
