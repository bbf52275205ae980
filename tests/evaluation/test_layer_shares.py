import copy
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fusetk import trace
from fusetk.data.vocab import EOS
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
from tests.contracts.systems import FUSES, variants
from tests.plotting.models import stack, transformer

PAIR = [4, 5, 6, EOS], [7, 8]
VARIANTS = [
    option
    for kind, fusion in FUSIONS.items()
    if issubclass(fusion, LayerFusion)
    for option in variants(kind, FUSES)
]
VARIANTS.append({"kind": "tree"})  # with four leaves


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


@pytest.mark.parametrize("options", VARIANTS, ids=str)
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
        fusion.num_fused,
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
        == [fusion.name for fusion in find_fusions(model, ["decoder"])]
        == ["decoder.fuse"]
    )
    with pytest.raises(
        DataError, match="the encoder of this model does not fuse several layers; its decoder does"
    ):
        find_fusions(model, ["encoder"])
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
    assert model.training and not trace.is_listening_for("decoder.fuse.hops")
    assert all(not module._forward_pre_hooks for module in model.modules())
    with pytest.raises(DataError, match="too long"):
        model.max_positions = 3
        trace_fusions(model, [PAIR], find_fusions(model))


def test_a_batch_equals_single_sentences() -> None:
    pairs = [([4, 5, 6, 7, 8, EOS], [9]), ([4, EOS], [5, 6, 7, 8]), ([9, 9, EOS], [])]
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


def test_a_layer_is_named_by_its_number() -> None:
    assert layer_names(4) == layer_names(4, 3) == ["l0", "l1", "l2", "l3"]
    assert layer_names(3, 6) == ["sum", "l5", "l6"]  # a summary replaces the first four layers


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("hops", torch.ones(1, 3, 6) / 6, r"hops was recorded with the shape \(1, 3, 6\)"),
        ("hops", torch.ones(1, 3, 2, 6), "hops, whose sum over the layers must be 1, but it is 6"),
        ("hops", torch.tensor([1.0, 0.5]).view(1, 1, 2, 1) * torch.ones(1, 3, 2, 6) / 6, "is 0.5"),
        ("hops", torch.ones(1, 3, 2, 5) / 5, "with 5 weights, and the fusion gets 6 layers: recor"),
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
