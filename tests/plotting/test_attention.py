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
    np.testing.assert_allclose(found[0].matrix, np.tile([0, 1 / 3, 1 / 3, 1 / 3], (3, 1)), rtol=1e-6)
    for panel in found:
        np.testing.assert_allclose(panel.matrix.sum(1), 1, rtol=1e-6)


def test_self_attention_has_the_words_that_are_read(weights: dict[str, np.ndarray]) -> None:
    found = {panel.name: panel for panel in panels(weights, WORDS, "self", layer=2)}
    assert list(found) == ["encoder.layer2.self", "decoder.layer2.self"]
    assert found["encoder.layer2.self"].x == found["encoder.layer2.self"].y == ["ein", "Hund", "schläft", "</s>"]
    assert found["decoder.layer2.self"].x == found["decoder.layer2.self"].y == ["<s>", "a", "dog"]
    assert [panel.name for panel in panels(weights, WORDS, "encoder-self", layer=1)] == ["encoder.layer1.self"]
    assert [panel.name for panel in panels(weights, WORDS, "decoder-self", layer=1)] == ["decoder.layer1.self"]


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
    "layer, head, said", [(3, "mean", "no layer 3.*1 to 2"), (0, "mean", "no layer 0"), (1, 4, "no head 4.*are 3"), (1, 0, "no head 0")]
)
def test_out_of_range(weights: dict[str, np.ndarray], layer: int, head: int | str, said: str) -> None:
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
