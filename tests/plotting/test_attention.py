import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fusetk import trace
from fusetk.data.vocab import BOS, EOS
from fusetk.errors import DataError
from fusetk.plotting.attention import Words, columns, panels, record

LAYERS, HEADS = 2, 3
SITES = (("encoder", "self"), ("decoder", "self"), ("decoder", "cross"))
WORDS = Words(["ein", "Hund", "schläft"], ["a", "dog"])


class Fake(nn.Module):
    """Records the weights that a Transformer would: each head of each layer looks at one place, and says what it was fed."""

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


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    return record(Fake(), [10, 11, 12], [20, 21])  # type: ignore[arg-type]


def test_the_forced_pass(weights: dict[str, np.ndarray]) -> None:
    model = Fake().train()
    record(model, [10, 11, 12], [20, 21])  # type: ignore[arg-type]
    assert model.fed == ([[10, 11, 12, EOS]], [[BOS, 20, 21]])
    assert model.training  # as it was
    assert set(weights) == {f"{side}.layer{n}.{kind}" for n in (1, 2) for side, kind in SITES}
    assert weights["decoder.layer1.cross"].shape == (HEADS, 3, 4)
    assert weights["encoder.layer2.self"].shape == (HEADS, 4, 4)
    assert all(found.dtype == np.float32 for found in weights.values())


def test_nobody_listens_afterwards() -> None:
    record(Fake(), [10], [20])  # type: ignore[arg-type]
    assert not trace.wanted("decoder.layer1.cross")


def test_cross_attention_has_the_predicted_words_as_rows(weights: dict[str, np.ndarray]) -> None:
    found = panels(weights, WORDS)
    assert [panel.name for panel in found] == ["decoder.layer1.cross", "decoder.layer2.cross"]
    assert found[0].x == ["ein", "Hund", "schläft", "</s>"]
    assert found[0].y == ["a", "dog", "</s>"]
    assert "layer 1" in found[0].title and "mean of 3 heads" in found[0].title
    np.testing.assert_allclose(
        found[0].matrix, np.tile([0, 1 / 3, 1 / 3, 1 / 3], (3, 1)), rtol=1e-6
    )
    for panel in found:
        np.testing.assert_allclose(panel.matrix.sum(1), 1, rtol=1e-6)


def test_self_attention_has_the_words_that_are_read(weights: dict[str, np.ndarray]) -> None:
    found = {panel.name: panel for panel in panels(weights, WORDS, "self", layer=2)}
    assert list(found) == ["encoder.layer2.self", "decoder.layer2.self"]
    assert (
        found["encoder.layer2.self"].x
        == found["encoder.layer2.self"].y
        == ["ein", "Hund", "schläft", "</s>"]
    )
    assert found["decoder.layer2.self"].x == found["decoder.layer2.self"].y == ["<s>", "a", "dog"]
    assert [panel.name for panel in panels(weights, WORDS, "encoder-self", layer=1)] == [
        "encoder.layer1.self"
    ]
    assert [panel.name for panel in panels(weights, WORDS, "decoder-self", layer=1)] == [
        "decoder.layer1.self"
    ]


# Mixed attention -----------------------------------------------------------------------------------------------------


@pytest.fixture
def mixed() -> dict[str, np.ndarray]:
    """Of 3 heads, 3 rows and 4 + 3 columns: a row spreads over the source and what is read by then, each head in its own way."""
    draw = np.random.default_rng(1)
    weights = draw.random((HEADS, 3, 7)) * np.hstack([np.ones((3, 4)), np.tri(3)])
    return {
        "encoder.layer1.self": np.full((HEADS, 4, 4), 0.25),
        "decoder.layer1.mixed": weights / weights.sum(-1, keepdims=True),
    }


def test_mixed_attention_has_source_and_target_side_by_side(mixed: dict[str, np.ndarray]) -> None:
    [panel] = panels(mixed, WORDS, "mixed")
    assert panel.x == ["ein", "Hund", "schläft", "</s>", "<s>", "a", "dog"] and panel.cut == 4
    assert panel.y == ["a", "dog", "</s>"]
    np.testing.assert_allclose(panel.matrix, mixed["decoder.layer1.mixed"].mean(0))
    names = [one.name for one in panels(mixed, WORDS, "mixed", head="all")]
    assert names == [f"decoder.layer1.mixed.head{n}" for n in (1, 2, 3)]
    assert all(one.cut == 0 for one in panels(mixed, WORDS, "encoder-self"))


def test_mixed_attention_is_recorded_of_a_coordinated_model() -> None:
    from fusetk.models import MODELS

    kind = MODELS["coordinated"]
    sizes = {"kind": "coordinated", "width": 16, "heads": 4, "ffn": 16, "stack": {"layers": 2}}
    torch.manual_seed(1)
    for mixes, there in ((True, {"mixed"}), (False, {"self", "cross"})):
        model = kind(kind.Config.model_validate({**sizes, "mixed_attention": mixes}), 12, 12)
        found = record(model, [4, 5, 6], [7, 8])
        assert {name.split(".")[2] for name in found if name.startswith("decoder")} == there
        for what in there if mixes else ("self", "cross"):
            for panel in panels(found, WORDS, what, head="all"):
                np.testing.assert_allclose(panel.matrix.sum(1), 1, rtol=1e-5)
                if panel.name.startswith("decoder") and what != "cross":  # nobody looks ahead
                    assert (
                        np.triu(panel.matrix[:, panel.cut :], 1).max()
                        == 0
                        < panel.matrix[:, panel.cut :].max()
                    )


@pytest.mark.parametrize("what", ["cross", "self", "decoder-self"])
def test_a_model_with_mixed_attention_has_no_other_in_its_decoder(
    mixed: dict[str, np.ndarray], what: str
) -> None:
    with pytest.raises(DataError, match=r"in its decoder.*choose --what mixed( or encoder-self)?$"):
        panels(mixed, WORDS, what)
    assert len(panels(mixed, WORDS, "encoder-self")) == 1


def test_a_model_without_mixed_attention_says_what_it_has(weights: dict[str, np.ndarray]) -> None:
    with pytest.raises(
        DataError,
        match=r"no mixed attention in its decoder: choose --what cross, self, encoder-self, decoder-self$",
    ):
        panels(weights, WORDS, "mixed")


# One step ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "row"), [(1, 0), ("a", 0), (2, 1), ("dog", 1), (3, 2), ("</s>", 2)]
)
def test_a_step_is_a_row_up_to_what_is_read(
    mixed: dict[str, np.ndarray], step: int | str, row: int
) -> None:
    full = mixed["decoder.layer1.mixed"]
    [panel] = panels(mixed, WORDS, "mixed", step=step)
    assert (
        panel.x == ["ein", "Hund", "schläft", "</s>", "<s>", "a", "dog"][: 5 + row]
        and panel.cut == 4
    )
    assert panel.y == [["a", "dog", "</s>"][row]] and panel.name == "decoder.layer1.mixed"
    np.testing.assert_allclose(panel.matrix, full.mean(0)[[row], : 5 + row])
    np.testing.assert_allclose(panel.matrix.sum(), 1)  # no weight was left out
    [panel] = panels(mixed, WORDS, "mixed", head=2, step=step)
    np.testing.assert_array_equal(panel.matrix, full[1, [row], : 5 + row])
    assert panel.name == "decoder.layer1.mixed.head2"


def test_of_all_heads_a_step_is_one_panel_a_layer(weights: dict[str, np.ndarray]) -> None:
    found = panels(weights, WORDS, "cross", head="all", step="dog")
    assert [panel.name for panel in found] == [
        f"decoder.layer{n}.cross.heads" for n in (1, 2)
    ] and columns(found) == 1
    for panel in found:
        assert (
            panel.y == ["head 1", "head 2", "head 3"]
            and panel.axes == ("source", "head")
            and "step 2: dog" in panel.title
        )
        np.testing.assert_array_equal(
            panel.matrix, weights[panel.name.removesuffix(".heads")][:, 1]
        )


def test_a_step_of_self_attention_is_of_the_decoder_alone(weights: dict[str, np.ndarray]) -> None:
    found = panels(weights, WORDS, "self", step=2)
    assert [panel.name for panel in found] == ["decoder.layer1.self", "decoder.layer2.self"]
    assert found[0].x == ["<s>", "a"] and found[0].y == ["dog"]
    np.testing.assert_array_equal(found[0].matrix, weights["decoder.layer1.self"].mean(0)[[1], :2])


def test_a_word_is_whole_and_its_first_subword_counts() -> None:
    words = Words(["x"], ["some", "some@@", "thing", "ha@@", "pp@@", "ened", "some@@", "thing"])
    assert [words.row(step) for step in ("some", "something", "happened", "</s>", 4)] == [
        0,
        1,
        3,
        8,
        3,
    ]
    for step, said in (
        ("thing", "no word 'thing': it has some something happened something </s>"),
        (0, "no step 0: there are 9"),
    ):
        with pytest.raises(DataError, match=said):
            words.row(step)
    with pytest.raises(DataError, match="no step 10: there are 9"):
        words.row(10)


def test_one_head_and_all_heads(weights: dict[str, np.ndarray]) -> None:
    [one] = panels(weights, WORDS, layer=2, head=1)
    assert one.matrix[:, 2].tolist() == [1, 1, 1]  # layer 2, head 1: (2 + 0) % 4
    assert one.name == "decoder.layer2.cross.head1"
    every = panels(weights, WORDS, head="all")
    assert len(every) == LAYERS * HEADS and columns(every) == HEADS
    np.testing.assert_array_equal(every[3].matrix, one.matrix)
    assert columns(panels(weights, WORDS)) == 1


def test_layers_are_in_order_of_their_numbers() -> None:
    names = [f"decoder.layer{n}.cross" for n in (10, 2, 1)]
    found = panels({name: np.full((1, 3, 4), 0.25) for name in names}, WORDS)
    assert [panel.name for panel in found] == names[::-1]


@pytest.mark.parametrize(
    "layer, head, said",
    [
        (3, "mean", "no layer 3.*1 to 2"),
        (0, "mean", "no layer 0"),
        (1, 4, "no head 4.*are 3"),
        (1, 0, "no head 0"),
    ],
)
def test_out_of_range(
    weights: dict[str, np.ndarray], layer: int, head: int | str, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        panels(weights, WORDS, layer=layer, head=head)


def test_a_model_without_that_attention(weights: dict[str, np.ndarray]) -> None:
    only = {name: found for name, found in weights.items() if "cross" in name}
    with pytest.raises(DataError, match="no self-attention in its encoder"):
        panels(only, WORDS, "self")
    with pytest.raises(DataError, match="no attention to draw"):
        panels({}, WORDS)


def test_longer_than_the_positions() -> None:
    model = Fake()
    model.max_positions = 4  # type: ignore[assignment]
    record(model, [10, 11, 12], [20])  # type: ignore[arg-type]
    with pytest.raises(DataError, match="4 tokens"):
        record(model, [10, 11, 12, 13], [20])  # type: ignore[arg-type]
