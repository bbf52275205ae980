"""Alignments from attention weights."""

import numpy as np
import pytest
import torch

from fusetk.decoding.alignment import AttentionHeads, attention, hard, parse, pharaoh, soft
from fusetk.errors import ConfigError

WEIGHTS = np.array(
    [[0.1, 0.7, 0.2], [0.25, 0.05, 0.7], [0.3, 0.3, 0.4]], np.float32
)  # two tokens and EOS on both sides


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("mean", (None, None)),
        ("3", (3, None)),
        (" -1 ", (-1, None)),
        ("3.2", (3, 2)),
        ("mean.2", (None, 2)),
        ("-2.mean", (-2, None)),
        ("2.-1", (2, -1)),
    ],
)
def test_a_choice_of_attention_is_parsed(text: str, wanted: tuple[int | None, int | None]) -> None:
    assert parse(text) == AttentionHeads(*wanted)


@pytest.mark.parametrize(
    "text", ["", "0", "1.0", "all", "3.", ".2", "3.2.1", "top", "1,2", "--1", "٣", "12345"]
)
def test_other_text_is_not_a_choice_of_attention(text: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"is not a choice of attention: give mean, a layer .* or a layer and a head",
    ):
        parse(text)


def drawn(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)).softmax(-1)


FOUND = {
    "decoder.layer1.cross": [drawn(2, 3, 8, 5)],
    "decoder.layer3.cross": [drawn(2, 3, 8, 5) ** 2],
    "decoder.layer3.self": [drawn(2, 3, 8, 8)],
}


@pytest.mark.parametrize(
    "which, layers, heads",
    [
        (AttentionHeads(), (1, 3), (0, 1, 2)),
        (AttentionHeads(3), (3,), (0, 1, 2)),
        (AttentionHeads(-1, 2), (3,), (1,)),
        (AttentionHeads(-2, -1), (1,), (2,)),
        (AttentionHeads(None, 3), (1, 3), (2,)),
    ],
)
def test_layers_and_heads(
    which: AttentionHeads, layers: tuple[int, ...], heads: tuple[int, ...]
) -> None:
    chosen = torch.stack(
        [FOUND[f"decoder.layer{layer}.cross"][0][:, head] for layer in layers for head in heads]
    ).mean(0)
    expected = chosen.view(4, 4, 5)  # two hypotheses of two sentences, four positions each
    torch.testing.assert_close(
        attention(FOUND, which, 4, 5), expected / expected.sum(-1, keepdim=True)
    )


@pytest.mark.parametrize(
    "which, said",
    [
        (AttentionHeads(2), "attention to the source has no layer 2; this model has layers 1, 3"),
        (AttentionHeads(-3), "no layer -3"),
        (
            AttentionHeads(1, 4),
            "the source has no head 4; this model has heads 1 to 3",
        ),
        (AttentionHeads(None, -4), "no head -4"),
    ],
)
def test_missing_layers_and_heads(which: AttentionHeads, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        attention(FOUND, which, 4, 5)


def test_mixed_attention_is_weighted_by_its_share_for_the_source() -> None:
    heads = torch.tensor(
        [[0.01, 0.03, 0.96], [0.6, 0.2, 0.2]]
    )  # two source positions, then the target
    weights = attention({"decoder.layer1.mixed": [heads.view(1, 2, 1, 3)]}, AttentionHeads(), 1, 2)
    torch.testing.assert_close(weights, torch.tensor([[[0.61, 0.23]]]) / 0.84)
    weights = attention(
        {"decoder.layer1.mixed": [heads.view(1, 2, 1, 3).bfloat16()]}, AttentionHeads(1, 1), 1, 2
    )
    torch.testing.assert_close(weights, torch.tensor([[[0.25, 0.75]]]), atol=5e-3, rtol=0)
    nothing = attention(
        {"decoder.layer1.mixed": [torch.tensor([0.0, 0.0, 1.0]).view(1, 1, 1, 3)]},
        AttentionHeads(),
        1,
        2,
    )
    assert nothing.tolist() == [[[0.0, 0.0]]]


def test_eos_is_not_aligned() -> None:
    assert hard(WEIGHTS) == [(1, 0), (0, 1)]  # although the second token attends to EOS
    assert hard(WEIGHTS[2:]) == hard(WEIGHTS[:, 2:]) == []
    assert hard(np.full((3, 4), 0.25)) == [(0, 0), (0, 1)]  # the first of equals


def test_an_alignment_is_written_as_pairs_or_as_weights() -> None:
    assert pharaoh(hard(WEIGHTS)) == "0-1 1-0" and pharaoh([]) == ""
    assert soft(WEIGHTS) == "0.1,0.7,0.2 0.25,0.05,0.7 0.3,0.3,0.4"
    rows = [
        list(map(float, row.split(",")))
        for row in soft(np.full((2, 3), 1 / 3, np.float32)).split(" ")
    ]
    np.testing.assert_allclose(rows, 1 / 3, atol=1e-6)
