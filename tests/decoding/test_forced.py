"""Forced decoding: scores do not depend on batches, and invalid input is refused."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from fusetk import trace
from fusetk.data.vocab import BOS, EOS, PAD
from fusetk.decoding import alignment, target_scores
from fusetk.decoding.alignment import AttentionHeads
from fusetk.decoding.beam import search
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.target_scores import pair_batches, score_targets
from fusetk.errors import ConfigError, DataError, Diverged
from tests.contracts.systems import build
from tests.decoding.fakes import Echo, batch, log_probabilities

DRAW = torch.Generator().manual_seed(3)


def ids(most: int) -> list[int]:
    """Return up to ``most`` random words."""
    return torch.randint(
        EOS + 1, 6, (int(torch.randint(most + 1, (), generator=DRAW)),), generator=DRAW
    ).tolist()


PAIRS = [([*ids(9), EOS], ids(7)) for _ in range(40)]


def flat(results: list[target_scores.TargetScores]) -> list[float]:
    return [score for result in results for score in result.scores]


def test_scores_are_those_of_the_plain_softmax() -> None:
    model = Echo()
    for (source, target), result in zip(PAIRS, score_targets([model], PAIRS), strict=True):
        assert len(result.scores) == len(target) + 1 and result.attention is None
        assert sum(result.scores) == pytest.approx(
            float(log_probabilities(model, source, [target])), abs=1e-4
        )
        logits = (
            model.output(model(*batch([source]), torch.tensor([[BOS, *target]])))[0]
            .detach()
            .double()
        )
        expected = logits.log_softmax(-1)[torch.arange(len(target) + 1), [*target, EOS]]
        assert result.scores == pytest.approx(expected.tolist(), abs=1e-4)


def test_sources_of_one_token_in_a_batch() -> None:
    pairs = [([EOS], [5, 4]), ([EOS], [4]), ([EOS], [5, 4])]
    model = build("transformer")
    alone = [flat(score_targets([model], [pair])) for pair in pairs]
    together = [result.scores for result in score_targets([model], pairs)]
    for expected, scores in zip(alone, together, strict=True):
        assert scores == pytest.approx(expected, abs=1e-5)


def test_scores_do_not_depend_on_batches_and_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    models, rows = [Echo(), Echo(seed=1)], []
    expected = flat(score_targets(models, PAIRS))
    assert flat(score_targets(models, PAIRS, batch_tokens=1)) == pytest.approx(expected, abs=1e-5)
    assert flat(score_targets(models, PAIRS[::-1])[::-1]) == pytest.approx(expected, abs=1e-5)
    monkeypatch.setattr("fusetk.decoding.target_scores.rows_in_piece", lambda *_: 5)
    for model in models:
        model.output.register_forward_hook(lambda module, read, logits: rows.append(logits.shape))
    assert flat(score_targets(models, PAIRS)) == pytest.approx(expected, abs=1e-5)
    assert max(rows) == (5, 6) and sum(count for count, _ in rows) == 2 * len(
        expected
    )  # without padding


@pytest.mark.parametrize("weights", [(), (1.0, 3.0, 4.0)])
@pytest.mark.parametrize("form", ["probability", "log"])
def test_an_ensemble_is_that_of_the_search(form: Any, weights: tuple[float, ...]) -> None:
    models = [Echo(), Echo(seed=1), Echo(seed=2)]
    sources = [[4, 5, 6, EOS], [7, EOS]]
    config = SearchConfig(
        beam=4, n_best=4, max_length_extra=3, ensemble=form, ensemble_weights=weights
    )
    hypotheses = search(models, *batch(sources), config)
    pairs = [
        (source, hypothesis.ids)
        for source, n_best in zip(sources, hypotheses, strict=True)
        for hypothesis in n_best
    ]
    scores = [hypothesis.score for n_best in hypotheses for hypothesis in n_best]
    together = score_targets(models, pairs, config.ensemble_mean)
    forced = [sum(result.scores) for result in together]
    assert forced == pytest.approx(scores, abs=1e-4)
    each = np.array([flat(score_targets([model], pairs)) for model in models])
    shares = np.array(weights or (1.0, 1.0, 1.0)) / sum(weights or (1, 1, 1))
    expected = shares @ each if form == "log" else np.log(shares @ np.exp(each))
    assert flat(together) == pytest.approx(expected.tolist(), abs=1e-4)


@torch.inference_mode()
def test_probabilities_of_a_bf16_model_are_float32() -> None:
    model = build("transformer", scale=1.0).to(torch.bfloat16)
    target = [4, 5, 4]
    logits = model.output(model(*batch([PAIRS[0][0]]), torch.tensor([[BOS, *target]])))[0]
    assert logits.dtype == torch.bfloat16
    expected = logits.double().log_softmax(-1)[torch.arange(4), [*target, EOS]]
    assert score_targets([model], [(PAIRS[0][0], target)])[0].scores == pytest.approx(
        expected.tolist(), abs=1e-6
    )


def test_attention_is_the_mean_over_models_and_recording_ends() -> None:
    models = [build("transformer"), build("conv", decoder={"layers": 1, "widths": 8, "kernels": 2})]
    which = AttentionHeads(1, None)
    each = [score_targets([model], PAIRS, attention=which) for model in models]
    for i, result in enumerate(score_targets(models, PAIRS, attention=which, batch_tokens=70)):
        source, target = PAIRS[i]
        assert result.attention is not None and result.attention.dtype == np.float32
        assert result.attention.shape == (len(target) + 1, len(source))
        np.testing.assert_allclose(result.attention.sum(1), 1, atol=1e-5)
        np.testing.assert_allclose(
            result.attention, np.mean([alone[i].attention for alone in each], 0), atol=1e-4
        )
    assert not trace.is_listening_for("decoder.layer1.cross")
    with pytest.raises(
        ConfigError, match=r"attention to the source has no layer 2; this model has layer 1$"
    ):
        score_targets(models, PAIRS, attention=AttentionHeads(2, None))
    with pytest.raises(ConfigError, match="no attention to the source"):
        score_targets([Echo()], PAIRS, attention=AttentionHeads())


def test_threads_do_not_see_each_other() -> None:
    model = build("transformer")
    orders = [PAIRS, PAIRS[::-1]] * 2
    all_expected = [score_targets([model], order, attention=AttentionHeads()) for order in orders]
    with ThreadPoolExecutor(4) as pool:
        threads = pool.map(
            lambda order: score_targets([model], order, attention=AttentionHeads()), orders
        )
        for results, expected in zip(threads, all_expected, strict=True):
            assert flat(results) == flat(expected)
            assert all(
                (a.attention == b.attention).all() for a, b in zip(results, expected, strict=True)
            )


def test_no_pairs_and_pairs_that_cannot_be_scored() -> None:
    assert score_targets([Echo()], []) == []
    short, long = build("transformer", positions="learned", max_positions=4), Echo()
    assert len(score_targets([short], [([4, 5, 6, EOS], [4, 5, 6])])[0].scores) == 4
    with pytest.raises(
        DataError,
        match="a source sentence of 4 tokens is too long: the model has 4 positions, one of them",
    ):
        score_targets([long, short], [([4, EOS], []), ([4, 5, 6, 7, EOS], [])])
    with pytest.raises(DataError, match="a target sentence of 5 tokens is too long"):
        score_targets([short], [([4, EOS], [4] * 5)])
    with torch.no_grad():
        long.recurrent[0, 0] = torch.nan
    with pytest.raises(Diverged, match="NaN"):
        score_targets([long], [([4, EOS], [4, 5])])
    infinite = Echo()
    infinite.output.bias.data[PAD] = torch.inf
    with pytest.raises(Diverged):
        score_targets([infinite], [([4, EOS], [4, 5])])


@pytest.mark.parametrize("most", [1, 60, 10_000])
def test_batches_hold_every_pair_once_and_are_not_too_large(most: int) -> None:
    lengths = [(len(source), len(target) + 1) for source, target in PAIRS]
    cuts = list(pair_batches(lengths, most))
    assert sorted(i for batch in cuts for i in batch) == list(range(len(PAIRS)))
    for cut in cuts:
        assert (
            len(cut) == 1
            or len(cut) * sum(max(lengths[i][side] for i in cut) for side in range(2)) <= most
        )
    assert len(cuts) == {1: len(PAIRS), 10_000: 1}.get(most, len(cuts)) and not list(
        pair_batches([], most)
    )


def test_the_pattern_finds_attention_to_the_source_alone() -> None:
    model = build("coordinated", mixed_attention=False)
    with trace.listen(alignment.PATTERN) as recorded:
        model(*batch([[4, 5, EOS]]), torch.tensor([[BOS, 4]]))
    assert set(recorded) == {"decoder.layer1.cross", "decoder.layer2.cross"}
