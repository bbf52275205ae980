from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fusetk import trace
from fusetk.data.vocab import BOS, EOS
from fusetk.errors import DataError
from fusetk.evaluation.layer_shares import find_fusions, trace_fusions
from fusetk.plotting import connect
from fusetk.plotting.attention import TokenPair
from fusetk.plotting.fusion import HOPS, panels, row_lengths
from tests.plotting.models import stack, transformer

TOKENS = TokenPair(["ein", "Hund", "schläft"], ["a", "dog"])
PAIR = [4, 5, 6, EOS], [7, 8]


def drawn(
    encoder: str | dict[str, Any],
    decoder: str | dict[str, Any],
    sides: Sequence[str] = ("encoder", "decoder"),
    hop: int | str = "all",
) -> dict[str, Any]:
    model = transformer(stack(encoder), stack(decoder, 5))
    traces = trace_fusions(model, [PAIR], find_fusions(model, sides))
    return {panel.name: panel for panel in panels(traces, TOKENS, hop)}


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
            torch.tensor([PAIR[0]]),
            torch.ones(1, 4, dtype=torch.bool),
            torch.tensor([[BOS, *PAIR[1]]]),
        )
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
    [mean] = drawn(options, options, ["decoder"], hop="mean").values()
    expected = np.mean([every[f"decoder.fuse.hop{h}"].matrix for h in (1, 2, 3)], 0)
    np.testing.assert_allclose(mean.matrix, expected, rtol=1e-6)
    with pytest.raises(DataError, match="--head 4 is out of range: the decoder fusion has 3 hops"):
        drawn("ffn", options, hop=4)
    with pytest.raises(DataError, match="no fusion of this model has hops"):
        drawn("ffn", "average", hop=1)


def test_a_hop_that_one_side_has_is_drawn_for_this_side() -> None:
    few, many = {"kind": "attention", "hops": 1}, {"kind": "attention", "hops": 3}
    assert list(drawn(few, many, hop=3)) == ["decoder.fuse.hop3"]
    with pytest.raises(DataError, match=r"the encoder fusion has 1 hop and .* has 3 hops"):
        drawn(few, many, hop=4)


@pytest.mark.parametrize(
    "options, learned, labels",
    [
        ({"kind": "linear"}, "weights", ["l0", "l1", "l2", "l3", "l4", "l5"]),
        ({"kind": "iterative"}, "betas", ["n1", "n2", "n3", "root"]),
        ({"kind": "tree"}, "betas", ["n1", "n2", "root"]),
        ({"kind": "tree", "beta": "vector"}, "betas", ["n1", "n2", "root"]),
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
        values = [
            p.detach().mean()[None] if name.endswith("beta") else p.detach()
            for name, p in fusion.named_parameters()
            if name.endswith("beta") or name == "combine.weight"
        ]
        np.testing.assert_allclose(panel.matrix[:, 0], torch.cat(values), rtol=1e-6)


def test_each_side_starts_a_row() -> None:
    assert row_lengths(list(drawn("linear", "ffn").values())) == [3, 2]
    lengths = row_lengths(list(drawn("linear", {"kind": "attention", "hops": 5}).values()))
    assert lengths[0] == 3 and sum(lengths[1:]) == 5


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
