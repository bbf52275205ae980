import random

import numpy as np
import pytest

from fusetk.data.vocab import EOS
from fusetk.evaluation import forward_trace
from fusetk.evaluation.layer_shares import find_fusions, mean_shares, trace_fusions
from fusetk.plotting.corpus import PARTS, CorpusMeans, parts
from fusetk.plotting.fusion import row_lengths
from tests.plotting.models import SIZE, stack, transformer

choose = random.Random(3)
PAIRS = [
    ([choose.randrange(4, SIZE) for _ in range(choose.randint(1, 9))] for _ in range(2))
    for _ in range(25)
]
PAIRS = [([*source, EOS], target) for source, target in PAIRS]


def test_parts_of_a_sentence() -> None:
    lengths = np.arange(1, 40)
    by_length = parts(lengths, 40)
    for length, row in zip(lengths, by_length, strict=True):
        assert (row[length:] == -1).all() and row[0] == 0 and (row[length - 1] == 6 or length == 1)
        inner = row[1 : length - 1]
        assert (np.diff(inner) >= 0).all() and ((inner >= 1) & (inner <= 5)).all()
        counts = np.bincount(inner, minlength=6)[1:]
        assert (
            counts.sum() == max(0, length - 2) and counts.max() - counts.min() <= 1
        )  # five parts of equal size
    assert by_length[6, :7].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert len(PARTS) == 7


@pytest.mark.parametrize("encoder, decoder", [("linear", "attention"), ("ffn", "tree")])
def test_means_equal_those_of_single_sentences(
    monkeypatch: pytest.MonkeyPatch, encoder: str, decoder: str
) -> None:
    model = transformer(stack(encoder, 4), stack(decoder, 4))
    chosen = find_fusions(model)
    monkeypatch.setattr(forward_trace, "TOKENS", 60)
    means = CorpusMeans(model, chosen)
    means.add(PAIRS[:10])
    means.add(PAIRS[10:])
    assert means.sentences == len(PAIRS)
    by_name = {panel.name: panel for panel in means.panels()}
    positions: list[list[np.ndarray]] = [[], []]  # by side, (H, L) of every position
    inside: list[list[int]] = [[], []]
    for pair in PAIRS:
        for side, traced in enumerate(trace_fusions(model, [pair], chosen)):
            positions[side] += list(traced.weights[0])
            inside[side] += parts(traced.lengths, traced.weights.shape[1])[0].tolist()
    for side, name in enumerate(("encoder", "decoder")):
        every, part = np.array(positions[side]), np.array(inside[side])
        hops = f"{name}.fuse.hops.mean" in by_name
        mean = by_name[f"{name}.fuse.{'hops' if hops else 'contribution'}.mean"]
        np.testing.assert_allclose(mean.matrix, every.mean(0).T, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(mean.matrix.sum(0), 1, rtol=1e-5)
        for h in range(every.shape[1]):
            panel = by_name[
                f"{name}.fuse.hop{h + 1}.parts" if hops else f"{name}.fuse.contribution.parts"
            ]
            assert panel.x == PARTS and panel.y[0] in ("l0", "l1") and panel.up
            expected = np.stack([every[part == i, h].mean(0) for i in range(len(PARTS))], 1)
            np.testing.assert_allclose(panel.matrix, expected, rtol=1e-4, atol=1e-6)
        shares = mean_shares(model, PAIRS)[f"{name}.fuse"]
        assert list(shares) == list(mean.y)
        np.testing.assert_allclose(list(shares.values()), mean.matrix.mean(1), rtol=1e-4, atol=1e-6)
    assert sum(row_lengths(list(by_name.values()))) == len(by_name)
    assert ("encoder.fuse.weights" in by_name) == (encoder == "linear")


def test_one_hop_or_their_mean() -> None:
    model = transformer(stack("last"), stack({"kind": "attention", "hops": 3}))
    means = CorpusMeans(model, find_fusions(model))
    means.add(PAIRS[:3])
    assert [panel.name for panel in means.panels(2)] == [
        "decoder.fuse.hops.mean",
        "decoder.fuse.hop2.parts",
    ]
    every = {panel.name: panel.matrix for panel in means.panels()}
    [_, mean] = means.panels("mean")
    np.testing.assert_allclose(
        mean.matrix, np.mean([every[f"decoder.fuse.hop{h}.parts"] for h in (1, 2, 3)], 0)
    )


def test_parts_without_positions_are_empty() -> None:
    model = transformer(stack("average"), stack("last"))
    means = CorpusMeans(model, find_fusions(model))
    means.add([([4, EOS], [4])])  # a first and a last position
    panel = means.panels()[0]
    assert np.isnan(panel.matrix).all(0).tolist() == [False, *[True] * 5, False]
