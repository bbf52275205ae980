import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fusetk import trace
from fusetk.data.bpe import BPE
from fusetk.data.pipeline import SIDES, Pipeline, Text
from fusetk.data.vocab import BOS, EOS, Vocabulary
from fusetk.errors import DataError, Diverged
from fusetk.models import MODELS
from fusetk.plotting.attention import TokenPair, columns, panels, record

LAYERS, HEADS = 2, 3
SITES = (("encoder", "self"), ("decoder", "self"), ("decoder", "cross"))
TOKENS = TokenPair(["ein", "Hund", "schläft"], ["a", "dog"], [(0, "a"), (1, "dog")])


class Fake(nn.Module):
    """Records weights like a Transformer: each head of each layer attends to one position.

    It stores its inputs in ``fed``.
    """

    max_positions = None

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.fed: tuple[list[list[int]], list[list[int]]] | None = None

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        assert src_mask.all() and not self.training and not torch.is_grad_enabled()
        self.fed = src.tolist(), tgt_in.tolist()
        sizes = {"encoder": src.shape[1], "decoder": tgt_in.shape[1]}
        for layer in range(1, LAYERS + 1):
            for side, rows in sizes.items():
                self._record(f"{side}.layer{layer}.self", rows, rows, layer)
            self._record(f"decoder.layer{layer}.cross", sizes["decoder"], sizes["encoder"], layer)
        trace.record("decoder.fuse.hop_weights", torch.zeros(1, 2, 2))
        return torch.zeros(1)

    def _record(self, name: str, rows: int, width: int, layer: int) -> None:
        weights = torch.zeros(1, HEADS, rows, width)
        for head in range(HEADS):
            weights[:, head, :, (layer + head) % width] = 1
        trace.record(name, weights.bfloat16())


def test_a_model_that_has_diverged_is_refused() -> None:
    class Diverging(Fake):
        def _record(self, name: str, rows: int, width: int, layer: int) -> None:
            trace.record(name, torch.full((1, HEADS, rows, width), torch.nan))

    with pytest.raises(Diverged, match="NaN attention weights"):
        record(Diverging(), ([10, EOS], [20]))  # type: ignore[arg-type]


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    return record(Fake(), ([10, 11, 12, EOS], [20, 21]))  # type: ignore[arg-type]


def test_forced_decoding_records_all_attention(weights: dict[str, np.ndarray]) -> None:
    model = Fake().train()
    record(model, ([10, 11, 12, EOS], [20, 21]))  # type: ignore[arg-type]
    assert model.fed == ([[10, 11, 12, EOS]], [[BOS, 20, 21]])
    assert model.training  # restored
    assert set(weights) == {f"{side}.layer{n}.{kind}" for n in (1, 2) for side, kind in SITES}
    assert weights["decoder.layer1.cross"].shape == (HEADS, 3, 4)
    assert weights["encoder.layer2.self"].shape == (HEADS, 4, 4)
    assert all(matrix.dtype == np.float32 for matrix in weights.values())


def test_the_listener_is_removed() -> None:
    record(Fake(), ([10, EOS], [20]))  # type: ignore[arg-type]
    assert not trace.is_listening_for("decoder.layer1.cross")


def test_rows_of_cross_attention_are_the_predicted_tokens(weights: dict[str, np.ndarray]) -> None:
    drawn = panels(weights, TOKENS)
    assert [panel.name for panel in drawn] == ["decoder.layer1.cross", "decoder.layer2.cross"]
    assert drawn[0].x == ["ein", "Hund", "schläft", "</s>"]
    assert drawn[0].y == ["a", "dog", "</s>"]
    assert "layer 1" in drawn[0].title and "mean of 3 heads" in drawn[0].title
    np.testing.assert_allclose(
        drawn[0].matrix, np.tile([0, 1 / 3, 1 / 3, 1 / 3], (3, 1)), rtol=1e-6
    )
    for panel in drawn:
        np.testing.assert_allclose(panel.matrix.sum(1), 1, rtol=1e-6)


def test_rows_of_self_attention_are_the_input_tokens(weights: dict[str, np.ndarray]) -> None:
    drawn = {panel.name: panel for panel in panels(weights, TOKENS, "self", layer=2)}
    assert list(drawn) == ["encoder.layer2.self", "decoder.layer2.self"]
    assert (
        drawn["encoder.layer2.self"].x
        == drawn["encoder.layer2.self"].y
        == ["ein", "Hund", "schläft", "</s>"]
    )
    assert drawn["decoder.layer2.self"].x == drawn["decoder.layer2.self"].y == ["<s>", "a", "dog"]
    assert [panel.name for panel in panels(weights, TOKENS, "encoder-self", layer=1)] == [
        "encoder.layer1.self"
    ]
    assert [panel.name for panel in panels(weights, TOKENS, "decoder-self", layer=1)] == [
        "decoder.layer1.self"
    ]


# Mixed attention ----------------------------------------------------------------------------------


@pytest.fixture
def mixed() -> dict[str, np.ndarray]:
    """Weights of 3 heads, 3 rows and 4 + 3 columns.

    Each row attends to the source and to the target prefix, with different weights for each head.
    """
    draw = np.random.default_rng(1)
    weights = draw.random((HEADS, 3, 7)) * np.hstack([np.ones((3, 4)), np.tri(3)])
    return {
        "encoder.layer1.self": np.full((HEADS, 4, 4), 0.25),
        "decoder.layer1.mixed": weights / weights.sum(-1, keepdims=True),
    }


def test_columns_of_mixed_attention_are_source_and_target(mixed: dict[str, np.ndarray]) -> None:
    [panel] = panels(mixed, TOKENS, "mixed")
    assert panel.x == ["ein", "Hund", "schläft", "</s>", "<s>", "a", "dog"] and panel.cut == 4
    assert panel.y == ["a", "dog", "</s>"]
    np.testing.assert_allclose(panel.matrix, mixed["decoder.layer1.mixed"].mean(0))
    names = [panel.name for panel in panels(mixed, TOKENS, "mixed", head="all")]
    assert names == [f"decoder.layer1.mixed.head{n}" for n in (1, 2, 3)]
    assert all(panel.cut == 0 for panel in panels(mixed, TOKENS, "encoder-self"))


def test_mixed_attention_of_a_coordinated_model_is_recorded() -> None:
    kind = MODELS["coordinated"]
    sizes = {"kind": "coordinated", "width": 16, "heads": 4, "ffn": 16, "stack": {"layers": 2}}
    torch.manual_seed(1)
    for mixes, kinds in ((True, {"mixed"}), (False, {"self", "cross"})):
        model = kind(kind.Config.model_validate({**sizes, "mixed_attention": mixes}), 12, 12)
        weights = record(model, ([4, 5, 6, EOS], [7, 8]))
        assert {name.split(".")[2] for name in weights if name.startswith("decoder")} == kinds
        for what in kinds if mixes else ("self", "cross"):
            for panel in panels(weights, TOKENS, what, head="all"):
                np.testing.assert_allclose(panel.matrix.sum(1), 1, rtol=1e-5)
                if panel.name.startswith("decoder") and what != "cross":
                    target = panel.matrix[:, panel.cut :]
                    assert np.triu(target, 1).max() == 0 < target.max(), "no future token"


@pytest.mark.parametrize("what", ["cross", "self", "decoder-self"])
def test_a_decoder_with_mixed_attention_has_no_other_attention(
    mixed: dict[str, np.ndarray], what: str
) -> None:
    with pytest.raises(DataError, match=r"in its decoder.*choose --what mixed( or encoder-self)?$"):
        panels(mixed, TOKENS, what)
    assert len(panels(mixed, TOKENS, "encoder-self")) == 1


def test_the_error_about_mixed_attention_lists_the_choices(weights: dict[str, np.ndarray]) -> None:
    with pytest.raises(
        DataError,
        match=r"no mixed attention in its decoder: "
        r"choose --what cross, self, encoder-self, decoder-self$",
    ):
        panels(weights, TOKENS, "mixed")


# One step -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "row"), [(1, 0), ("a", 0), (2, 1), ("dog", 1), (3, 2), ("</s>", 2)]
)
def test_a_step_is_one_row_without_future_columns(
    mixed: dict[str, np.ndarray], step: int | str, row: int
) -> None:
    full = mixed["decoder.layer1.mixed"]
    [panel] = panels(mixed, TOKENS, "mixed", step=step)
    assert (
        panel.x == ["ein", "Hund", "schläft", "</s>", "<s>", "a", "dog"][: 5 + row]
        and panel.cut == 4
    )
    assert panel.y == [["a", "dog", "</s>"][row]] and panel.name == "decoder.layer1.mixed"
    np.testing.assert_allclose(panel.matrix, full.mean(0)[[row], : 5 + row])
    np.testing.assert_allclose(panel.matrix.sum(), 1)  # no weight is missing
    [panel] = panels(mixed, TOKENS, "mixed", head=2, step=step)
    np.testing.assert_array_equal(panel.matrix, full[1, [row], : 5 + row])
    assert panel.name == "decoder.layer1.mixed.head2"


def test_a_step_of_all_heads_is_one_panel_for_each_layer(weights: dict[str, np.ndarray]) -> None:
    drawn = panels(weights, TOKENS, "cross", head="all", step="dog")
    assert [panel.name for panel in drawn] == [
        f"decoder.layer{n}.cross.heads" for n in (1, 2)
    ] and columns(drawn) == 1
    for panel in drawn:
        assert (
            panel.y == ["head 1", "head 2", "head 3"]
            and panel.axes == ("source", "head")
            and "step 2: dog" in panel.title
        )
        np.testing.assert_array_equal(
            panel.matrix, weights[panel.name.removesuffix(".heads")][:, 1]
        )


def test_a_step_of_self_attention_draws_only_the_decoder(weights: dict[str, np.ndarray]) -> None:
    drawn = panels(weights, TOKENS, "self", step=2)
    assert [panel.name for panel in drawn] == ["decoder.layer1.self", "decoder.layer2.self"]
    assert drawn[0].x == ["<s>", "a"] and drawn[0].y == ["dog"]
    np.testing.assert_array_equal(drawn[0].matrix, weights["decoder.layer1.self"].mean(0)[[1], :2])


def test_a_word_step_is_the_row_of_its_first_subword() -> None:
    subwords = ["some", "some@@", "thing", "ha@@", "pp@@", "ened", "some@@", "thing"]
    text = Text([], "xx", "yy")
    vocabularies = (Vocabulary([]), Vocabulary([]))
    pipeline = Pipeline(text, dict.fromkeys(SIDES, BPE(["a b"])), vocabularies)
    words = TokenPair(["x"], subwords, pipeline.target_words(subwords))
    assert [words.row(step) for step in ("some", "something", "happened", "</s>", 4)] == [
        0,
        1,
        3,
        8,
        3,
    ]
    for step, said in (
        ("thing", "does not contain 'thing': it is some something happened something </s>"),
        (0, "--step 0 is out of range: the translation has 9 tokens"),
    ):
        with pytest.raises(DataError, match=said):
            words.row(step)
    with pytest.raises(DataError, match="--step 10 is out of range: the translation has 9"):
        words.row(10)


def test_one_head_and_all_heads(weights: dict[str, np.ndarray]) -> None:
    [panel] = panels(weights, TOKENS, layer=2, head=1)
    assert panel.matrix[:, 2].tolist() == [1, 1, 1]  # layer 2, head 1: (2 + 0) % 4
    assert panel.name == "decoder.layer2.cross.head1"
    every = panels(weights, TOKENS, head="all")
    assert len(every) == LAYERS * HEADS and columns(every) == HEADS
    np.testing.assert_array_equal(every[3].matrix, panel.matrix)
    assert columns(panels(weights, TOKENS)) == 1


def test_layers_are_sorted_by_number() -> None:
    names = [f"decoder.layer{n}.cross" for n in (10, 2, 1)]
    drawn = panels({name: np.full((1, 3, 4), 0.25) for name in names}, TOKENS)
    assert [panel.name for panel in drawn] == names[::-1]


@pytest.mark.parametrize(
    "layer, head, said",
    [
        (3, "mean", "--layer 3 is out of range.*1 to 2"),
        (0, "mean", "--layer 0 is out of range"),
        (1, 4, "--head 4 is out of range: choose a head from 1 to 3"),
        (1, 0, "--head 0 is out of range"),
    ],
)
def test_a_layer_or_head_that_is_out_of_range_is_refused(
    weights: dict[str, np.ndarray], layer: int, head: int | str, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        panels(weights, TOKENS, layer=layer, head=head)


def test_attention_that_a_model_does_not_have_is_refused(weights: dict[str, np.ndarray]) -> None:
    only = {name: matrix for name, matrix in weights.items() if "cross" in name}
    with pytest.raises(DataError, match="no self-attention in its encoder"):
        panels(only, TOKENS, "self")
    with pytest.raises(DataError, match="no attention to draw"):
        panels({}, TOKENS)


def test_a_sentence_longer_than_the_positions_is_refused() -> None:
    model = Fake()
    model.max_positions = 4  # type: ignore[assignment]
    record(model, ([10, 11, 12, EOS], [20]))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="4 tokens"):
        record(model, ([10, 11, 12, 13, EOS], [20]))  # type: ignore[arg-type]
