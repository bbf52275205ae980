"""Beam search on a tiny model with random weights finds what the definition says."""

import math
from functools import partial

import pytest
import torch

from fusetk.data.vocab import BOS, EOS, PAD, UNK
from fusetk.decoding import beam as beam_module
from fusetk.decoding.beam import Hypothesis, search
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.scores import PENALTIES
from fusetk.decoding.token_mask import (
    EncodedRequest,
    length_bounds,
    max_positions,
    unrestricted,
)
from fusetk.errors import Diverged
from fusetk.nn.fused import decoding as fused_decoding
from fusetk.nn.inference_linear import KernelLinear
from fusetk.nn.int8 import Int8Linear, ScreenedLinear
from fusetk.nn.output import OutputProjection
from tests.decoding.fakes import (
    Echo,
    assert_same,
    batch,
    exhaustive,
    log_probabilities,
    next_scores,
)
from tests.decoding.plain import PlainSearch

SOURCES = [[4, 5, EOS], [6, EOS], [7, 4, 4, 5, EOS], [5, EOS], [6, 6, 7, EOS]]
TOKENS = [UNK, 4, 5]  # all tokens of a model with a vocabulary of 6, except EOS
PENALIZED = [(penalty, alpha) for penalty in PENALTIES for alpha in (0.0, 0.6, 1.0, 1.7)]

MODELS = [
    Echo(seed=seed, scale=3.0) for seed in range(4)
]  # shared, so that each prefix is computed once


def config(**options) -> SearchConfig:
    return SearchConfig(
        **(
            {"stop": "exact", "max_length_factor": 0, "max_length_extra": 4, "min_length": 0}
            | options
        )
    )


def plain(model, source, settings) -> list[Hypothesis]:
    """Search one sentence as the head of beam.py defines."""
    scores, limit = partial(next_scores, model, source), settings.max_length_extra + 1
    return PlainSearch(scores, TOKENS, limit, 0, settings, EncodedRequest()).search()


@pytest.mark.parametrize(("penalty", "alpha"), PENALIZED)
def test_a_wide_enough_beam_is_exhaustive_search(penalty, alpha):
    settings = config(beam=100, n_best=7, penalty=penalty, normalize=alpha)
    for seed in range(3):
        model = Echo(seed=seed)
        for source, hypotheses in zip(
            SOURCES, search([model], *batch(SOURCES), settings), strict=True
        ):
            assert_same(hypotheses, exhaustive(model, source, TOKENS, 5, settings)[:7])


@pytest.mark.parametrize("kind", [OutputProjection, KernelLinear, Int8Linear])
def test_the_search_runs_the_hooks_of_the_output_projection(kind):
    settings = config(beam=100, n_best=7)
    model = Echo(seed=0)
    if kind is KernelLinear and not fused_decoding.has_products(torch.float32):
        pytest.skip("there is no C++ compiler")
    if kind is not OutputProjection:
        model.output = kind(model.output.weight, model.output.bias)
    model.output.register_forward_hook(lambda _module, _inputs, logits: -2 * logits)
    for source, hypotheses in zip(SOURCES, search([model], *batch(SOURCES), settings), strict=True):
        assert_same(hypotheses, exhaustive(model, source, TOKENS, 5, settings)[:7])


def test_greedy_search_without_scores_runs_the_hooks_of_the_output_projection(monkeypatch):
    if not fused_decoding.has_products(torch.int8):
        pytest.skip("the processor has no products of int8")
    monkeypatch.setattr(ScreenedLinear, "screens", lambda linear, x: True)
    model = Echo(seed=0)
    model.output = ScreenedLinear(model.output.weight, model.output.bias)
    model.output.register_forward_hook(lambda _module, _inputs, logits: -2 * logits)
    results, expected = (
        search([model], *batch(SOURCES), config(beam=1), scores=scores) for scores in (False, True)
    )
    assert [h[0].ids for h in results] == [h[0].ids for h in expected]


@pytest.mark.parametrize("stop", ["exact", "beam", "first"])
@pytest.mark.parametrize("beam", [1, 2, 3, 5])
def test_the_definition(beam, stop):
    for model in MODELS:
        for penalty, alpha in PENALIZED[::2]:
            for n_best in {1, min(2, beam)}:
                settings = config(
                    beam=beam,
                    stop=stop,
                    penalty=penalty,
                    normalize=alpha,
                    n_best=n_best,
                    max_length_extra=7,
                )
                results = search([model], *batch(SOURCES), settings)
                for source, hypotheses in zip(SOURCES, results, strict=True):
                    assert_same(hypotheses, plain(model, source, settings))


def test_stopping_early_loses_nothing(monkeypatch):
    model = Echo(vocabulary=30, seed=5, scale=3.0)
    model.output.bias.data[EOS] = 5.0
    settings = config(beam=3, n_best=2, max_length_extra=15, normalize=0.4)
    results = search([model], *batch(SOURCES), settings)
    steps = len(model.rows)
    monkeypatch.setattr(
        beam_module._Finished,
        "done",
        lambda self, live, length: live.score[:, 0] == beam_module.NEG_INF,
    )
    monkeypatch.setattr(beam_module._Finished, "prune", lambda self, live, length: live)
    model.rows.clear()
    assert search([model], *batch(SOURCES), settings) == results
    assert len(model.rows) == 16 > steps


@pytest.mark.parametrize("scale", [0.5, 4.0])
def test_beam_1_is_greedy(scale):
    for seed in range(5):
        model = Echo(vocabulary=20, seed=seed, scale=scale)
        results = search([model], *batch(SOURCES), config(beam=1, max_length_extra=9))
        for source, [hypothesis] in zip(SOURCES, results, strict=True):
            prefix: list[int] = []
            while len(prefix) < 9:
                scores = next_scores(model, source, prefix)
                scores[PAD] = scores[BOS] = -math.inf
                token = scores.index(max(scores))
                if token == EOS:
                    break
                prefix.append(token)
            assert hypothesis.ids == prefix


def test_scores_are_those_of_teacher_forcing():
    model = Echo(vocabulary=40, seed=1)
    for source, hypotheses in zip(
        SOURCES,
        search([model], *batch(SOURCES), config(beam=4, n_best=4, max_length_extra=12)),
        strict=True,
    ):
        for hypothesis in hypotheses:
            score = log_probabilities(model, source, [hypothesis.ids]).item()
            assert hypothesis.score == pytest.approx(score, abs=1e-4)
            assert hypothesis.normalized == pytest.approx(
                score / (len(hypothesis.ids) + 1), abs=1e-4
            )


def test_results_do_not_depend_on_the_batch():
    model = Echo(vocabulary=40, seed=2, scale=3.0)
    settings = config(beam=4, n_best=3, max_length_factor=2.0)
    together = search([model], *batch(SOURCES), settings)
    for source, hypotheses in zip(SOURCES, together, strict=True):
        assert_same(search([model], *batch([source]), settings)[0], hypotheses)
    for hypotheses, expected in zip(
        search([model], *batch(SOURCES[::-1]), settings), together[::-1], strict=True
    ):
        assert_same(hypotheses, expected)


@pytest.mark.parametrize("leave", [0.0, 0.5, 2.0])
def test_the_compaction_threshold_does_not_change_results(leave, monkeypatch):
    model = Echo(vocabulary=40, seed=3, scale=4.0)
    settings = config(beam=3, n_best=2, max_length_factor=3.0)
    expected = search([model], *batch(SOURCES), settings)
    monkeypatch.setattr(beam_module, "COMPACTION_THRESHOLD", leave)
    for hypotheses, others in zip(
        search([model], *batch(SOURCES), settings), expected, strict=True
    ):
        assert_same(hypotheses, others)


def test_state_of_sentences_is_not_repeated_and_shrinks_with_the_batch():
    model = Echo(vocabulary=40, seed=4, scale=4.0)
    search([model], *batch(SOURCES), config(beam=3, max_length_factor=3.0))
    assert model.rows[0] == (5, 5)
    assert all(moving == 3 * fixed for fixed, moving in model.rows[1:])
    assert model.rows[-1][0] < 5


def test_a_vocabulary_smaller_than_the_beam():
    model = Echo(vocabulary=5, seed=0)  # one word, the unknown word, EOS
    [hypotheses] = search(
        [model], *batch([[4, EOS]]), config(beam=50, n_best=50, max_length_extra=3)
    )
    assert len(hypotheses) == 2**0 + 2**1 + 2**2 + 2**3
    assert all(math.isfinite(h.score) for h in hypotheses)
    [hypotheses] = search(
        [model],
        *batch([[4, EOS]]),
        config(beam=50, n_best=50, max_length_extra=3, forbid_unknown=True),
    )
    assert sorted(h.ids for h in hypotheses) == [[], [4], [4, 4], [4, 4, 4]]


@pytest.mark.parametrize("beam", [1, 4])
def test_lengths_and_forbidden_tokens(beam):
    model = Echo(vocabulary=12, seed=6, scale=0.3)
    model.output.bias.data[[PAD, BOS, UNK]] = 5.0  # the most probable tokens if they were allowed
    settings = config(
        beam=beam,
        n_best=beam,
        min_length=3,
        max_length_extra=2,
        max_length_factor=1.5,
        forbid_unknown=True,
    )
    for source, hypotheses in zip(SOURCES, search([model], *batch(SOURCES), settings), strict=True):
        for hypothesis in hypotheses:
            assert 3 <= len(hypothesis.ids) <= max(3, int(1.5 * (len(source) - 1)) + 2)
            assert not {PAD, UNK, BOS, EOS} & set(hypothesis.ids)
            assert hypothesis.score == pytest.approx(
                log_probabilities(model, source, [hypothesis.ids]).item(), abs=1e-4
            )
    allowed = search(
        [model], *batch(SOURCES), settings.model_copy(update={"forbid_unknown": False})
    )
    assert all(UNK in h.ids for hypotheses in allowed for h in hypotheses)


def test_lengths_are_bounded_by_multiples_of_the_source_length():
    mask = torch.ones(2, 6, dtype=torch.bool)
    assert length_bounds([], mask, SearchConfig(), unrestricted(2)) == ([1, 1], [21, 21])
    for factor, limit in ((0.29, 30), (0.57, 58), (0.295, 30), (2.0, 201)):
        settings = SearchConfig(max_length_factor=factor, max_length_extra=0)
        mask = torch.ones(1, 101, dtype=torch.bool)
        assert length_bounds([], mask, settings, unrestricted(1))[1] == [limit]
        settings = SearchConfig(min_length_factor=factor)
        assert length_bounds([], mask, settings, unrestricted(1))[0] == [limit - 1]


def test_positions_of_the_model_limit_the_length():
    model = Echo(seed=0)
    model.max_positions = 4
    other = Echo(seed=0)
    assert max_positions([other]) is None
    other.max_positions = 9
    assert max_positions([other, Echo(seed=0), model]) == 4, "all models of an ensemble can read it"
    model.output.bias.data[EOS] = -9.0
    assert all(len(h.ids) == 3 for [h] in search([model], *batch(SOURCES), SearchConfig()))


def test_a_minimum_above_the_maximum_raises_the_maximum():
    settings = SearchConfig(min_length=9, max_length_factor=1.0, max_length_extra=0)
    mask = torch.ones(2, 3, dtype=torch.bool)
    assert length_bounds([], mask, settings, unrestricted(2)) == ([9, 9], [10, 10])


def test_equal_scores_the_lower_index_first():
    model = Echo(vocabulary=8, seed=0)
    for parameter in model.parameters():
        parameter.data.zero_()
    [hypotheses] = search([model], *batch([[4, EOS]]), config(beam=5, n_best=5, max_length_extra=1))
    # Step 1: 1, 3 (EOS), 4, 5, 6, 7, so EOS is among the first five. The first to finish is ahead.
    assert [h.ids for h in hypotheses] == [[], [UNK], [4], [5], [6]]


@pytest.mark.parametrize("mean", ["probability", "log"])
def test_an_ensemble(mean):
    models = [Echo(vocabulary=30, seed=seed, scale=3.0) for seed in (1, 2)]
    settings = config(beam=3, n_best=2, ensemble=mean, max_length_extra=8)
    for source, hypotheses in zip(SOURCES, search(models, *batch(SOURCES), settings), strict=True):
        for hypothesis in hypotheses:
            score = 0.0
            for i, token in enumerate([*hypothesis.ids, EOS]):
                both = torch.tensor(
                    [next_scores(model, source, hypothesis.ids[:i])[token] for model in models]
                ).double()
                score += (both.mean() if mean == "log" else both.exp().mean().log()).item()
            assert hypothesis.score == pytest.approx(score, abs=1e-4)
    twice = search([models[0]] * 2, *batch(SOURCES), settings)
    for hypotheses, expected in zip(
        twice, search(models[:1], *batch(SOURCES), settings), strict=True
    ):
        assert_same(hypotheses, expected)


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_nan_is_an_error(beam):
    model = Echo()
    model.output.bias.data.fill_(math.nan)
    for models in ([model], [Echo(seed=1), model]):
        with pytest.raises(Diverged):
            search(models, *batch(SOURCES), config(beam=beam))
    model.output.bias.data.fill_(0.0)
    model.embedding.data[UNK] = math.nan  # only after an unknown word
    model.output.bias.data[UNK] = 50.0
    with pytest.raises(Diverged):
        search([model], *batch(SOURCES), config(beam=beam, stop="first", min_length=2))


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 4}, {"beam": 4, "groups": 2}], ids=str)
@pytest.mark.parametrize(("token", "logit"), [(PAD, math.inf), (slice(None), -math.inf)])
def test_logits_without_probabilities_are_an_error(token, logit, options):
    """The search never takes PAD, so it does not see the probability of PAD."""
    model = Echo()
    model.output.bias.data[token] = logit
    with pytest.raises(Diverged):
        search([model], *batch(SOURCES), config(**options))
