"""Samples: as often as they are likely, fixed by seed and line, within what is allowed."""

import math
from collections import Counter

import pytest
import torch

from fusetk.data.vocab import BOS, EOS, PAD, UNK
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.sample import sample
from fusetk.decoding.token_mask import EncodedRequest
from fusetk.errors import ConfigError, Diverged
from tests.contracts.systems import SYSTEMS
from tests.decoding.fakes import Echo, batch, log_probabilities

SOURCES = [[4, 5, EOS], [6, EOS], [7, 4, 4, 5, EOS]]


def config(**options) -> SearchConfig:
    return SearchConfig(
        **(
            {"sample": True, "max_length_factor": 0, "max_length_extra": 3, "min_length": 0}
            | options
        )
    )


def distribution(model, source, settings) -> dict[tuple[int, ...], float]:
    """Of all translations of at most 3 tokens, with the maximum length's forced end."""
    found: dict[tuple[int, ...], float] = {}
    todo = [((), 1.0)]
    while todo:
        ids, probability = todo.pop()
        if len(ids) == 3:
            found[ids] = probability
            continue
        with torch.no_grad():
            features = model(*batch([source]), torch.tensor([[BOS, *ids]]))
            logits = model.output(features[0, -1]).double() / settings.temperature
        logits[[PAD, BOS]] = -math.inf
        if settings.forbid_unknown:
            logits[UNK] = -math.inf
        values, order = logits.sort(descending=True)
        values = values[: settings.top_k or None].softmax(-1)
        kept = [i for i in range(len(values)) if float(values[:i].sum()) < settings.top_p]
        values = values[kept] / values[kept].sum()
        for token, share in zip(order.tolist(), values.tolist(), strict=False):
            if token == EOS:
                found[ids] = probability * share
            else:
                todo.append(((*ids, token), probability * share))
    return found


OPTIONS = [
    {},
    {"temperature": 0.5},
    {"top_k": 3},
    {"top_p": 0.7},
    {"top_k": 4, "top_p": 0.8, "temperature": 1.5},
    {"forbid_unknown": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_translations_come_as_often_as_they_are_likely(options):
    model, source, draws = Echo(vocabulary=8, seed=4, scale=1.5), SOURCES[2], 20_000
    settings = config(n_best=draws, **options)
    [found] = sample([model], *batch([source]), settings)
    counts, wanted = Counter(tuple(one.ids) for one in found), distribution(model, source, settings)
    assert len(found) == draws and set(counts) <= {
        ids for ids, share in wanted.items() if share > 0
    }
    for ids, share in wanted.items():
        assert abs(counts[ids] - draws * share) < 5 * math.sqrt(draws * share * (1 - share)) + 1, (
            ids
        )


def test_scores_are_those_of_the_model_and_the_likeliest_stands_first():
    model = Echo(vocabulary=30, seed=1, scale=2.0)
    for source, found in zip(
        SOURCES,
        sample([model], *batch(SOURCES), config(n_best=6, max_length_extra=8, top_k=5)),
        strict=True,
    ):
        assert len(found) == 6 and [one.normalized for one in found] == sorted(
            (one.normalized for one in found), reverse=True
        )
        for one in found:
            assert one.score == pytest.approx(
                log_probabilities(model, source, [one.ids]).item(), abs=1e-4
            )
            assert one.normalized == pytest.approx(one.score / (len(one.ids) + 1), abs=1e-4)


@pytest.mark.parametrize("system", [name for name in SYSTEMS if "-" not in name][:4])
def test_neither_order_nor_company_matter_but_seed_and_line_do(system):
    model = SYSTEMS[system]()
    requests = [EncodedRequest(line=line) for line in (7, 8, 9)]
    settings = config(n_best=3, max_length_extra=9)

    def ids(order, settings=settings, requests=requests):
        found = sample(
            [model], *batch([SOURCES[i] for i in order]), settings, [requests[i] for i in order]
        )
        return [[one.ids for one in several] for several in found]

    together = ids([0, 1, 2])
    assert ids([2, 1, 0]) == together[::-1]
    assert [ids([i])[0] for i in range(3)] == together
    assert ids([0, 1, 2], settings.model_copy(update={"seed": 2})) != together
    assert ids([0, 1, 2], requests=[EncodedRequest(line=line) for line in (8, 9, 10)]) != together
    more = ids([0, 1, 2], settings.model_copy(update={"n_best": 5}))
    assert all(
        one in several for mine, several in zip(together, more, strict=True) for one in mine
    ), "the first of more are the same"


def test_what_is_not_allowed_never_comes():
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
    for source, request, found in zip(
        SOURCES, requests, sample([model], *batch(SOURCES), settings, requests), strict=True
    ):
        for one in found:
            assert 3 <= len(one.ids) <= max(3, int(1.5 * (len(source) - 1)) + 2) and not {
                PAD,
                UNK,
                BOS,
                EOS,
            } & set(one.ids)
            assert one.ids[: len(request.prefix)] == list(request.prefix)
            runs = list(zip(one.ids, one.ids[1:], strict=False))
            assert len(set(runs)) == len(runs)


def test_where_everything_is_forbidden_there_is_no_sample():
    model = Echo(vocabulary=8, seed=1)
    settings = config(n_best=20, no_repeat_ngram=1, min_length=8, forbid_unknown=True)
    assert sample([model], *batch(SOURCES), settings) == [[], [], []]


def test_a_low_temperature_is_greedy_and_so_is_the_one_likeliest():
    model = Echo(vocabulary=20, seed=3, scale=3.0)
    greedy = sample([model], *batch(SOURCES), config(top_k=1, max_length_extra=8))
    assert sample([model], *batch(SOURCES), config(temperature=1e-4, max_length_extra=8)) == greedy
    assert sample([model], *batch(SOURCES), config(top_p=1e-9, max_length_extra=8)) == greedy


def test_an_ensemble_is_sampled():
    models = [Echo(vocabulary=8, seed=seed, scale=3.0) for seed in (1, 2)]
    [found] = sample(models, *batch(SOURCES[:1]), config(n_best=4000))
    counts, top = Counter(tuple(one.ids) for one in found), max(found, key=lambda one: one.score)
    assert counts[tuple(top.ids)] == pytest.approx(4000 * math.exp(top.score), rel=0.25)


def test_bad_input():
    model = Echo()
    with pytest.raises(ConfigError, match="sampling cannot enforce phrases"):
        sample([model], *batch(SOURCES), config(), [EncodedRequest(constraints=[[4]])] * 3)
    model.output.bias.data.fill_(math.nan)
    for models in ([model], [Echo(), model]):
        with pytest.raises(Diverged):
            sample(models, *batch(SOURCES), config())
