"""Options of fusions: the added highest layer, shared layer embeddings, and refused options."""

from typing import Any

import pytest
import torch

from fusetk.errors import ConfigError
from fusetk.fusion import FUSIONS
from fusetk.fusion.base import LayerFusion, share_layer_embedding
from fusetk.models.stack import StackConfig
from fusetk.nn.feedforward import FeedForward
from tests.contracts.systems import ATTENTION, build


def fusion(kind: str, layers: int, width: int = 8, **options: Any) -> Any:
    config = FUSIONS[kind].Config.model_validate({"kind": kind, **options})
    return FUSIONS[kind](config, [width] * (layers + 1), width, "side.fuse")


def count_parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("norm_layers", [True, False])
@pytest.mark.parametrize("kind", [k for k in FUSIONS if issubclass(FUSIONS[k], LayerFusion)])
def test_the_highest_layer_can_be_added(kind: str, norm_layers: bool) -> None:
    options = {"norm_layers": norm_layers, "norm": False}
    without = fusion(kind, 4, **options)
    with_top = fusion(kind, 4, **options, add_top=True)
    with_top.load_state_dict(without.state_dict())
    history = list(torch.randn(5, 2, 3, 8).unbind())
    top = without.layers(history)[-1]
    torch.testing.assert_close(with_top(history), without(history) + top)


def test_both_sides_share_one_layer_embedding() -> None:
    """MLRF section 3.2. The parameters of a model with two such fusions include it once."""
    sides = {side: {"fuse": {"kind": "attention", **ATTENTION}} for side in ("encoder", "decoder")}
    both = build("transformer", **sides)
    encoder_only = build("transformer", encoder=sides["encoder"])
    plain = build("transformer")
    one_fusion = count_parameters(encoder_only) - count_parameters(plain)
    table = both.encoder.fuse.layer_embedding
    assert table is both.decoder.fuse.layer_embedding
    assert 2 * one_fusion - table.weight.numel() == count_parameters(both) - count_parameters(plain)


def test_a_shared_layer_embedding_has_one_row_for_each_layer_index() -> None:
    """Layer 1 has the same row in a deep stack with the embedding and a shallow one without."""
    deep, shallow = fusion("ffn", 5), fusion("ffn", 2, embedding=False)
    share_layer_embedding(deep, shallow)
    table = deep.layer_embedding.weight
    assert table.shape == (6, 8)
    layers = [torch.zeros(1, 8)] * 6
    for layer, embedded in zip(range(6), deep.layers(layers), strict=True):
        assert torch.equal(embedded[0], table[layer])
    for layer, embedded in zip((1, 2), shallow.layers(layers[:3]), strict=True):
        assert torch.equal(embedded[0], table[layer])


def test_fusions_of_different_layers_share_no_layer_embedding() -> None:
    """A shared one would have rows that no fusion reads."""
    low, high = fusion("ffn", 2), fusion("tree", 8, leaves=2)
    tables = (low.layer_embedding, high.layer_embedding)
    share_layer_embedding(low, high)
    assert (low.layer_embedding, high.layer_embedding) == tables
    share_layer_embedding(low, fusion("ffn", 3))
    assert low.layer_embedding is not tables[0]


def test_fusions_of_different_widths_share_no_layer_embedding() -> None:
    wide, narrow = fusion("ffn", 3, width=12), fusion("ffn", 3)
    share_layer_embedding(wide, narrow)
    assert wide.layer_embedding.weight.shape == (4, 12)
    assert narrow.layer_embedding.weight.shape == (4, 8)


def test_a_side_without_layer_embedding_shares_none() -> None:
    with_one, without = fusion("ffn", 3), fusion("ffn", 3, layer_embedding=False)
    table = with_one.layer_embedding
    share_layer_embedding(with_one, without)
    assert with_one.layer_embedding is table and without.layer_embedding is None


@pytest.mark.parametrize(
    "fuse",
    [
        {"kind": "tree"},
        {"kind": "iterative", "aggregation": "concat-ffn"},
        {"kind": "linear", "aggregation": "ewp-ffn"},
    ],
)
def test_hidden_layers_are_four_times_as_wide_by_default(fuse: Any) -> None:
    modules = fusion(layers=4, **fuse).modules()
    networks = [module for module in modules if isinstance(module, FeedForward)]
    assert {network.hidden.out_features for network in networks} == {4 * 8}


def test_initial_layer_embeddings_are_uniform_between_minus_and_plus_a_tenth() -> None:
    """MLRF section 4.2, with both initialisations of the other weights."""
    for init in ("xavier", "mlrf"):
        model = build(
            "transformer", scale=1.0, init=init, decoder={"fuse": {"kind": "ffn", "hidden": 4}}
        )
        weight = model.decoder.fuse.layer_embedding.weight.detach()
        assert weight.abs().max() <= 0.1 and float(weight.std()) == pytest.approx(
            0.2 / 12**0.5, rel=0.4
        )


@pytest.mark.parametrize(
    "fuse", [{"kind": "tree"}, {"kind": "tree", "leaves": 8, "embedding": True}]
)
def test_a_tree_with_more_leaves_than_layers_is_refused(fuse: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="make the stack deeper, or give fewer leaves"):
        StackConfig.model_validate({"layers": 3, "fuse": fuse})


def test_the_embedding_of_a_tree_must_be_a_leaf() -> None:
    fuse = {"kind": "tree", "embedding": True}
    StackConfig.model_validate({"layers": 3, "fuse": fuse})
    with pytest.raises(ValueError, match="the embedding would not be a leaf"):
        StackConfig.model_validate({"layers": 4, "fuse": fuse})


def test_leaves_are_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="power of two"):
        FUSIONS["tree"].Config.model_validate({"kind": "tree", "leaves": 6})


def test_layers_below_a_summary_are_no_leaves() -> None:
    dense = {"kind": "dense", "growth": 8, "summary_every": 6}
    with pytest.raises(ValueError, match=r"hide 6 of the 8 layers, so .*this stack has 2"):
        StackConfig.model_validate({"layers": 8, "connect": dense, "fuse": "tree"})


def test_a_fusion_that_nothing_would_read_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing would read"):
        build("transformer", encoder={"fuse": "average"}, decoder={"attend": "dense-sum"})
    with pytest.raises(ValueError, match="nothing would read"):
        build("conv", encoder={"fuse": "average"}, decoder={"attend": "dense-concat"})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kind": "linear", "weights": "matrix", "normalize": "softmax"}, "normalize applies to"),
        ({"kind": "linear", "hidden": 5}, "hidden and dropout are options of"),
        ({"kind": "tree", "aggregation": "mean", "dropout": 0.1}, "hidden and dropout are options"),
        ({"kind": "tree", "aggregation": "concat-ffn", "beta": "vector"}, "beta is an option of"),
        ({"kind": "groups", "layer_embedding": True}, "groups reads only some layers"),
    ],
    ids=str,
)
def test_options_without_effect_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FUSIONS[options["kind"]].Config.model_validate(options)


@pytest.mark.parametrize("site", ["fuse", "connect"])
def test_a_plug_in_of_another_kind_is_refused(site: str) -> None:
    other = {
        "fuse": "fusetk.models.connect:DenseConnection",
        "connect": "fusetk.fusion.ffn:FFNFusion",
    }[site]
    with pytest.raises(ValueError, match="is not a subclass of"):
        StackConfig.model_validate({"layers": 2, site: other})


@pytest.mark.parametrize(
    "fuse",
    [
        {"kind": "average", "embedding": False},
        {"kind": "iterative"},
        {"kind": "attention", "embedding": False},
        {"kind": "linear", "embedding": False, "normalize": "softmax", "norm": False},
        {"kind": "linear", "embedding": False},
    ],
)
def test_a_fusion_of_one_layer_is_refused(fuse: dict[str, Any]) -> None:
    StackConfig.model_validate({"layers": 2, "fuse": fuse})
    with pytest.raises(ValueError, match="two layers or more"):
        StackConfig.model_validate({"layers": 1, "fuse": fuse})


def test_one_group_is_not_a_fusion() -> None:
    side = {"layers": 2, "fuse": {"kind": "groups", "groups": 1}}
    with pytest.raises(ValueError, match="groups: 1 selects only the highest layer"):
        StackConfig.model_validate(side)
    side["fuse"]["embedding"] = True
    StackConfig.model_validate(side)


@pytest.mark.parametrize(("layers", "said"), [(4, "4 layers"), (1, "1 layer")])
def test_summaries_above_the_highest_layer_are_refused(layers: int, said: str) -> None:
    connect = {"kind": "dense", "summary_every": layers}
    error = f"summary_every: {layers} makes no summary in a stack of {said}:"
    with pytest.raises(ValueError, match=error):
        StackConfig.model_validate({"layers": layers, "connect": connect})


@pytest.mark.parametrize(
    ("init", "bound"),
    [("xavier", (6 / 128) ** 0.5), ("tensor2tensor", (6 / 128) ** 0.5), ("mlrf", 64**-0.5)],
)
def test_each_matrix_of_a_linear_combination_is_initialised_as_one(init: str, bound: float) -> None:
    fuse = {"kind": "linear", "weights": "matrix"}
    encoder = {"layers": 3, "fuse": fuse}
    model = build("transformer", scale=1.0, width=64, heads=2, init=init, encoder=encoder)
    mix = model.encoder.fuse.combine
    assert len(mix.matrices()) == 4
    for matrix in mix.matrices():
        assert 0.95 * bound < matrix.abs().max() <= bound


def test_an_error_names_the_key_file_and_line(tmp_path) -> None:
    from fusetk import config, recipe

    path = tmp_path / "deep.yaml"
    path.write_text("model:\n  kind: transformer\n  decoder:\n    layers: 3\n    fuse: tree\n")
    with pytest.raises(
        ConfigError, match=r"model.decoder: fuse: tree has 4 leaves.*  \[\S*deep.yaml, line 5\]"
    ):
        config.parse(config.load(path), recipe.Recipe)
