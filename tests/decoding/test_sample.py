"""Samples have the right frequencies, depend on seed and line only, and contain allowed tokens."""

import math
from collections import Counter

import pytest
import torch

from fusetk.data.vocab import BOS, EOS, PAD, UNK
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.sample import _draw, _uniform, sample
from fusetk.decoding.token_mask import EncodedRequest
from fusetk.errors import ConfigError, Diverged
from fusetk.models import MODELS
from tests.contracts.systems import SYSTEMS
from tests.decoding.fakes import Echo, batch, log_probabilities, next_scores

SOURCES = [[4, 5, EOS], [6, EOS], [7, 4, 4, 5, EOS]]


def config(**options) -> SearchConfig:
    return SearchConfig(
        **(
            {"sample": True, "max_length_factor": 0, "max_length_extra": 3, "min_length": 0}
            | options
        )
    )


def distribution(models, source, settings) -> dict[tuple[int, ...], float]:
    """Return the probabilities of all translations of at most 3 tokens; EOS is forced after 3."""
    probabilities: dict[tuple[int, ...], float] = {}
    todo = [((), 1.0)]
    while todo:
        ids, probability = todo.pop()
        if len(ids) == 3:
            probabilities[ids] = probability
            continue
        each = [torch.tensor(next_scores(model, source, ids)).double() for model in models]
        logits = torch.stack(each).logsumexp(0) / settings.temperature
        logits[[PAD, BOS]] = -math.inf
        if settings.forbid_unknown:
            logits[UNK] = -math.inf
        values, order = logits.sort(descending=True)
        values = values[: settings.top_k or None].softmax(-1)
        nucleus = [i for i in range(len(values)) if float(values[:i].sum()) < settings.top_p]
        values = values[nucleus] / values[nucleus].sum()
        for token, share in zip(order.tolist(), values.tolist(), strict=False):
            if token == EOS:
                probabilities[ids] = probability * share
            else:
                todo.append(((*ids, token), probability * share))
    return probabilities


OPTIONS = [
    {},
    {"temperature": 0.5},
    {"top_k": 3},
    {"top_p": 0.7},
    {"top_k": 4, "top_p": 0.8, "temperature": 1.5},
    {"forbid_unknown": True},
]


def check_frequencies(models, source, settings) -> None:
    draws = settings.n_best
    [samples] = sample(models, *batch([source]), settings)
    counts = Counter(tuple(drawn.ids) for drawn in samples)
    expected = distribution(models, source, settings)
    assert len(samples) == draws and set(counts) <= {
        ids for ids, share in expected.items() if share > 0
    }
    for ids, share in expected.items():
        assert abs(counts[ids] - draws * share) < 5 * math.sqrt(draws * share * (1 - share)) + 1, (
            ids
        )


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_frequencies_are_the_probabilities(options):
    model = Echo(vocabulary=8, seed=4, scale=1.5)
    check_frequencies([model], SOURCES[2], config(n_best=20_000, **options))


def test_scores_are_those_of_the_model_and_sorted():
    model = Echo(vocabulary=30, seed=1, scale=2.0)
    for source, samples in zip(
        SOURCES,
        sample([model], *batch(SOURCES), config(n_best=6, max_length_extra=8, top_k=5)),
        strict=True,
    ):
        assert len(samples) == 6 and [hypothesis.normalized for hypothesis in samples] == sorted(
            (hypothesis.normalized for hypothesis in samples), reverse=True
        )
        for hypothesis in samples:
            assert hypothesis.score == pytest.approx(
                log_probabilities(model, source, [hypothesis.ids]).item(), abs=1e-4
            )
            assert hypothesis.normalized == pytest.approx(
                hypothesis.score / (len(hypothesis.ids) + 1), abs=1e-4
            )


@pytest.mark.parametrize("kind", MODELS)
def test_samples_depend_on_seed_and_line_and_not_on_the_batch(kind):
    model = SYSTEMS[kind]()
    requests = [EncodedRequest(line=line) for line in (7, 8, 9)]
    settings = config(n_best=3, max_length_extra=9)

    def ids(order, settings=settings, requests=requests):
        results = sample(
            [model], *batch([SOURCES[i] for i in order]), settings, [requests[i] for i in order]
        )
        return [[hypothesis.ids for hypothesis in samples] for samples in results]

    together = ids([0, 1, 2])
    unnumbered = sample([model], *batch(SOURCES[:3]), settings)
    assert [[hypothesis.ids for hypothesis in samples] for samples in unnumbered] == ids(
        [0, 1, 2], requests=[EncodedRequest(line=line) for line in (1, 2, 3)]
    )
    assert ids([2, 1, 0]) == together[::-1]
    assert [ids([i])[0] for i in range(3)] == together
    assert ids([0, 1, 2], settings.model_copy(update={"seed": 2})) != together
    assert ids([0, 1, 2], requests=[EncodedRequest(line=line) for line in (8, 9, 10)]) != together
    more = ids([0, 1, 2], settings.model_copy(update={"n_best": 5}))
    assert all(
        hypothesis in samples
        for fewer, samples in zip(together, more, strict=True)
        for hypothesis in fewer
    ), "a larger n_best keeps the first samples"


def test_forbidden_tokens_are_never_drawn():
    model = Echo(vocabulary=12, seed=6, scale=0.3)
    model.output.bias.data[[PAD, BOS, UNK]] = 5.0
    settings = config(
        n_best=30,
        min_length=3,
        max_length_factor=1.5,
        max_length_extra=2,
        forbid_unknown=True,
        no_repeat_ngram=2,
    )
    requests = [EncodedRequest(prefix=[5, 6]), EncodedRequest(), EncodedRequest(prefix=[7])]
    for source, request, samples in zip(
        SOURCES, requests, sample([model], *batch(SOURCES), settings, requests), strict=True
    ):
        for hypothesis in samples:
            assert 3 <= len(hypothesis.ids) <= max(3, int(1.5 * (len(source) - 1)) + 2) and not {
                PAD,
                UNK,
                BOS,
                EOS,
            } & set(hypothesis.ids)
            assert hypothesis.ids[: len(request.prefix)] == list(request.prefix)
            runs = list(zip(hypothesis.ids, hypothesis.ids[1:], strict=False))
            assert len(set(runs)) == len(runs)


def test_nothing_is_drawn_if_every_token_is_forbidden():
    model = Echo(vocabulary=8, seed=1)
    settings = config(n_best=20, no_repeat_ngram=1, min_length=8, forbid_unknown=True)
    assert sample([model], *batch(SOURCES), settings) == [[], [], []]


def test_low_temperature_small_top_k_and_small_top_p_are_greedy():
    model = Echo(vocabulary=20, seed=3, scale=3.0)
    greedy = sample([model], *batch(SOURCES), config(top_k=1, max_length_extra=8))
    assert sample([model], *batch(SOURCES), config(temperature=1e-4, max_length_extra=8)) == greedy
    assert sample([model], *batch(SOURCES), config(top_p=1e-9, max_length_extra=8)) == greedy


def test_an_ensemble_is_sampled():
    models = [Echo(vocabulary=8, seed=seed, scale=3.0) for seed in (1, 2)]
    check_frequencies(models, SOURCES[0], config(n_best=4000))


def test_phrases_and_nan_are_errors():
    model = Echo()
    with pytest.raises(ConfigError, match="sampling cannot enforce phrases"):
        sample([model], *batch(SOURCES), config(), [EncodedRequest(constraints=[[4]])] * 3)
    model.output.bias.data.fill_(math.nan)
    for models in ([model], [Echo(), model]):
        with pytest.raises(Diverged):
            sample(models, *batch(SOURCES), config())


@pytest.mark.parametrize(("token", "logit"), [(PAD, math.inf), (slice(None), -math.inf)])
def test_logits_without_probabilities_are_an_error(token, logit):
    """PAD is never drawn."""
    model = Echo()
    model.output.bias.data[token] = logit
    with pytest.raises(Diverged):
        sample([model], *batch(SOURCES), config())


@pytest.mark.parametrize("words", [0, -1])
def test_the_least_and_the_greatest_random_number(
    words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusetk.nn.splitmix.words", lambda states: torch.full_like(states, words))
    numbers = _uniform(torch.tensor([[5]]), torch.arange(3)[None])
    assert numbers.gt(0).all() and numbers.lt(1).all()
    # A token outside top_p has the lowest value whatever its number is.
    logits = torch.tensor([[3.0, 2.0, -9.0]])
    assert _draw(logits, torch.tensor([5]), config(top_p=0.5)).item() == 0
