"""Every option of the search agrees with a plain implementation, on tiny random models."""

import itertools
import math
import random
from functools import partial

import pytest
import torch

from fusetk.data.vocab import EOS, UNK
from fusetk.decoding import alignment
from fusetk.decoding.beam import search
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.constraints import Constraints
from fusetk.decoding.ensemble import EnsembleMean
from fusetk.decoding.scores import PENALTIES, bound, normalized_score
from fusetk.decoding.target_scores import score_targets
from fusetk.decoding.token_mask import EncodedRequest, length_bounds
from tests.contracts.systems import SYSTEMS
from tests.decoding.fakes import (
    Echo,
    assert_same,
    batch,
    exhaustive,
    log_probabilities,
    next_scores,
)
from tests.decoding.plain import PlainSearch, coverage_term

SOURCES = [[4, 5, EOS], [6, EOS], [7, 4, 4, 5, EOS], [5, EOS], [6, 6, 7, EOS]]
MODELS = [Echo(vocabulary=9, seed=seed, scale=3.0) for seed in range(3)]
WORDS = [UNK, 4, 5, 6, 7, 8]
FREE = [EncodedRequest()] * len(SOURCES)
MIXED = [  # repeated beginnings, nested beginnings, two phrases, none
    EncodedRequest(constraints=[[4, 5, 4, 6]]),
    EncodedRequest(constraints=[[7], [8, 8]]),
    EncodedRequest(),
    EncodedRequest(prefix=[5, 5], constraints=[[5, 4]]),
    EncodedRequest(prefix=[8, 4, 7]),
]
CONTINUED = frozenset({6, 8})
WORDS_GO_ON = [  # after 6 and 8
    EncodedRequest(constraints=[[4, 5], [6, 7]], continued=CONTINUED),
    EncodedRequest(constraints=[[8, 6, 8, 5]], continued=CONTINUED),
    EncodedRequest(constraints=[[5], [5]], continued=CONTINUED),
    EncodedRequest(prefix=[8, 4], constraints=[[6, 6, 4]], continued=CONTINUED),
    EncodedRequest(continued=CONTINUED),
]


def config(**options) -> SearchConfig:
    return SearchConfig(
        **({"max_length_factor": 0, "max_length_extra": 6, "min_length": 0, "beam": 4} | options)
    )


def plain(model, i, settings, request=FREE[0]):
    mask = torch.ones(1, len(SOURCES[i]), dtype=torch.bool)
    _, [limit] = length_bounds([model], mask, settings, [request])
    least = max(settings.min_length, int(settings.min_length_factor * (len(SOURCES[i]) - 1)))
    scores = partial(next_scores, model, SOURCES[i])
    return PlainSearch(scores, WORDS, limit, least, settings, request).search()


def check(settings, requests=FREE):
    for model in MODELS:
        results = search([model], *batch(SOURCES), settings, requests)
        for i, hypotheses in enumerate(results):
            assert_same(hypotheses, plain(model, i, settings, requests[i]))
            for hypothesis in hypotheses:
                assert hypothesis.score == pytest.approx(
                    log_probabilities(model, SOURCES[i], [hypothesis.ids]).item(), abs=1e-4
                )


OPTIONS = {
    "plain": {},
    "word penalty": {"word_penalty": 0.7, "normalize": 0.9},
    "word reward": {"word_penalty": -1.5, "normalize": 0.9},
    "gnmt, word reward": {"word_penalty": -1.0, "penalty": "gnmt", "normalize": 0.6},
    "no word twice": {"no_repeat_ngram": 1},
    "no pair twice": {"no_repeat_ngram": 2},
    "minimum": {"min_length": 2, "min_length_factor": 1.6},
    "no unknown": {"forbid_unknown": True},
    "2 groups": {"groups": 2, "diversity": 1.0},
    "4 groups": {"groups": 4, "diversity": 0.8},
    "a large cost": {"groups": 2, "diversity": 1e6},
    "groups, no pair twice": {"groups": 2, "diversity": 2.0, "no_repeat_ngram": 2, "beam": 6},
}


@pytest.mark.parametrize("requests", [FREE, MIXED, WORDS_GO_ON], ids=["free", "asked", "words"])
@pytest.mark.parametrize("stop", ["exact", "beam", "first"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_definition(options, stop, requests):
    for n_best in (1, 3) if requests is FREE else (3,):
        check(config(stop=stop, n_best=n_best, **options), requests)


def test_the_number_of_met_tokens_after_a_mismatch():
    """It is the longest beginning of the phrase, at a word start, at the end of the tokens."""
    choose = random.Random(5)
    for _ in range(300):
        phrase = choose.choices(range(4, 7), k=choose.randint(1, 9))
        continued = choose.choice([set(), {4}, {4, 5}])
        constraints = Constraints([[phrase]], continued, 1, torch.device("cpu"))
        for met, token in itertools.product(range(len(phrase)), sorted(set(phrase))):
            tokens = [*phrase[:met], token]
            starts = [i for i in range(met + 1) if i == 0 or tokens[i - 1] not in continued]
            lengths = [met + 1 - i for i in starts if tokens[i:] == phrase[: met + 1 - i]]
            column = constraints.tables.distinct[0].tolist().index(token)
            assert constraints.tables.num_met_after[0, met, column] == max([*lengths, 0])
        assert not constraints.tables.num_met_after[0, : len(phrase), -1].any()


def test_the_required_tokens_are_those_of_the_shortest_translation():
    """A phrase may be in the prefix, completely or in part. No phrase begins inside a word."""
    choose = random.Random(5)

    def tokens(least):
        return choose.choices([4, 5], k=choose.randint(least, 3))

    for _ in range(100):
        phrases = [tokens(1) for _ in range(choose.randint(1, 2))]
        request = EncodedRequest(tokens(0), phrases, 1, choose.choice([frozenset(), {4}]))
        search = PlainSearch(lambda ids: [], WORDS, 0, 0, config(), request)
        size = next(
            size
            for size in itertools.count(len(request.prefix))
            for more in itertools.product([4, 5], repeat=size - len(request.prefix))
            if search.met((*request.prefix, *more)) == search.total
        )
        assert request.num_required == size, request


def test_phrases_that_must_begin_inside_a_word(monkeypatch):
    """After the prefix of ``longer``, 7 positions leave none for a token that ends the word."""
    longer = EncodedRequest(prefix=[UNK, 5, 4], constraints=[[6], [4, 4]], continued={4})
    shorter = EncodedRequest(prefix=[UNK, 4, 5], constraints=[[6], [4, 4]], continued={4})
    settings = config(max_length_extra=0)
    requests = [longer, shorter, FREE[0], longer, EncodedRequest(prefix=[5] * 9)]
    check(settings, requests)
    for positions in (None, 7):
        monkeypatch.setattr(Echo, "max_positions", positions)
        check(settings, requests[:4] + FREE[:1])
        for request in (longer, shorter):
            [hypotheses] = search([MODELS[0]], *batch(SOURCES[:1]), settings, [request])
            assert bool(hypotheses) == (request is shorter or positions is None)


@pytest.mark.parametrize("requests", [FREE, MIXED], ids=["free", "asked"])
def test_greedy(requests):
    check(config(beam=1), requests)
    check(config(beam=3, groups=3), requests)


@pytest.mark.parametrize(("penalty", "alpha"), [("power", 0.9), ("gnmt", 0.6), ("power", 0.0)])
@pytest.mark.parametrize("word_penalty", [0.5, -0.8])
def test_a_beam_wide_enough_with_a_word_penalty_is_exhaustive_search(penalty, alpha, word_penalty):
    settings = config(
        beam=400,
        n_best=5,
        penalty=penalty,
        normalize=alpha,
        max_length_extra=3,
        word_penalty=word_penalty,
        stop="exact",
    )
    for model in MODELS:
        for source, hypotheses in zip(
            SOURCES, search([model], *batch(SOURCES), settings), strict=True
        ):
            every = exhaustive(model, source, WORDS, 4, settings)
            divide = PENALTIES[penalty]
            penalized = [
                hypothesis._replace(
                    normalized=(hypothesis.score - word_penalty * (n := len(hypothesis.ids) + 1))
                    / divide(n, alpha)
                )
                for hypothesis in every
            ]
            penalized.sort(key=lambda hypothesis: -hypothesis.normalized)
            assert_same(hypotheses, penalized[:5])


@pytest.mark.parametrize("phrases", [[[4, 5]], [[5, 5]], [[8], [4]], [[4, 4, 5]]], ids=str)
def test_a_wide_beam_finds_the_best_translation_with_the_phrases(phrases):
    """The beam is so wide that each bank holds all of its hypotheses."""
    settings = config(beam=2000, n_best=4, max_length_extra=4, stop="exact")
    for model in MODELS:
        [hypotheses] = search(
            [model], *batch(SOURCES[:1]), settings, [EncodedRequest(constraints=phrases)]
        )

        def holds(ids):
            for phrase in phrases:
                ends = [
                    i + len(phrase) for i in range(len(ids)) if ids[i : i + len(phrase)] == phrase
                ]
                if not ends:
                    return False
                ids = ids[ends[0] :]
            return True

        assert_same(
            hypotheses,
            [
                hypothesis
                for hypothesis in exhaustive(model, SOURCES[0], WORDS, 5, settings)
                if holds(hypothesis.ids)
            ][:4],
        )


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_phrases_are_met_whatever_the_beam(beam):
    model = Echo(vocabulary=30, seed=7, scale=5.0)
    phrases = [[9, 9, 10], [11], [12, 13, 12, 14]]
    results = search(
        [model],
        *batch(SOURCES),
        config(beam=beam, max_length_extra=0),
        [EncodedRequest(constraints=phrases)] * len(SOURCES),
    )
    for [best] in results:
        assert [
            token for token in best.ids if token in range(9, 15)
        ] and " 9 9 10 " in f" {' '.join(map(str, best.ids))} "
        assert " 12 13 12 14 " in f" {' '.join(map(str, best.ids))} "


@pytest.mark.parametrize("beam", [1, 3, 6])
def test_phrases_are_whole_words_whatever_the_beam(beam):
    """Every second token is continued, the model avoids to end words, and no position is spare."""
    continued = frozenset(range(4, 30, 2))
    for seed in range(5):
        model = Echo(vocabulary=30, seed=seed, scale=3.0)
        model.output.bias.data[list(continued)] = 4.0
        requests = [EncodedRequest(constraints=[[9], [8, 10, 11]], continued=continued)] * len(
            SOURCES
        )
        for [best] in search(
            [model], *batch(SOURCES), config(beam=beam, max_length_extra=5), requests
        ):
            words, last = [], []
            for token in best.ids:
                last.append(token)
                if token not in continued:
                    words, last = [*words, last], []
            assert [9] in words and [8, 10, 11] in words[words.index([9]) :]


def test_groups_differ_and_have_no_duplicates():
    model = Echo(vocabulary=30, seed=3, scale=4.0)
    plain_beam = search([model], *batch(SOURCES), config(beam=6, n_best=6, max_length_extra=9))
    diverse = search(
        [model],
        *batch(SOURCES),
        config(beam=6, n_best=6, groups=6, diversity=3.0, max_length_extra=9),
    )

    def firsts(results):
        return sum(len({h.ids[0] for h in n_best if h.ids}) for n_best in results)

    assert firsts(diverse) > 2 * firsts(plain_beam)
    assert all(len({tuple(h.ids) for h in n_best}) == len(n_best) for n_best in diverse)
    same_thing = search(
        [model],
        *batch(SOURCES),
        config(beam=6, n_best=6, groups=6, diversity=0.0, max_length_extra=9),
    )
    assert all(len(n_best) == 1 for n_best in same_thing), (
        "without a cost all groups find the greedy translation"
    )


def test_groups_without_a_cost_find_what_one_group_finds():
    """The groups have more places than there are candidates."""
    model, requests = Echo(vocabulary=5), [EncodedRequest(constraints=[[4]])] * len(SOURCES)
    options = {"n_best": 8, "max_length_extra": 3}
    single = search([model], *batch(SOURCES), config(beam=8, **options), requests)
    settings = config(beam=16, groups=2, diversity=0.0, **options)
    in_groups = search([model], *batch(SOURCES), settings, requests)
    for hypotheses, expected in zip(in_groups, single, strict=True):
        assert_same(hypotheses, expected)


def test_no_repeated_ngram_except_in_forced_tokens():
    model = Echo(vocabulary=6, seed=2, scale=2.0)
    settings = config(no_repeat_ngram=2, max_length_extra=12, min_length=8, n_best=4)
    for hypotheses in search([model], *batch(SOURCES), settings):
        for hypothesis in hypotheses:
            runs = list(zip(hypothesis.ids, hypothesis.ids[1:], strict=False))
            assert len(hypothesis.ids) >= 8 and len(set(runs)) == len(runs)
    forced = search([model], *batch(SOURCES), settings, [EncodedRequest(prefix=[4, 4, 4, 4])] * 5)
    assert all(
        hypothesis.ids[:4] == [4, 4, 4, 4] for hypotheses in forced for hypothesis in hypotheses
    )


@pytest.mark.parametrize("system", ["transformer", "conv", "recurrent"])
def test_coverage(system):
    model = SYSTEMS[system]()
    sources = [[4, 5, 6, 7, EOS], [8, EOS], [9, 4, EOS]]
    settings = config(beam=40, n_best=5, max_length_extra=3, coverage_penalty=0.8, stop="exact")
    results = search([model], *batch(sources), settings)
    unpenalized = search(
        [model],
        *batch(sources),
        settings.model_copy(update={"coverage_penalty": 0.0, "n_best": 40}),
    )
    for source, n_best, candidates in zip(sources, results, unpenalized, strict=True):
        for hypothesis in n_best:
            [read] = score_targets(
                [model], [(source, hypothesis.ids)], attention=alignment.AttentionHeads()
            )
            least = hypothesis.score / (len(hypothesis.ids) + 1) + coverage_term(
                read.attention[:, :-1].tolist(), 0.8
            )
            assert hypothesis.normalized == pytest.approx(least, abs=1e-3)
        assert {tuple(hypothesis.ids) for hypothesis in n_best} <= {
            tuple(hypothesis.ids) for hypothesis in candidates
        }
        values = [hypothesis.normalized for hypothesis in n_best]
        assert values == sorted(values, reverse=True)


def test_the_bound_holds_for_every_penalty():
    draw = torch.Generator().manual_seed(1)
    for penalty in PENALTIES:
        for word_penalty in (0.0, 0.4, -0.4, -3.0):
            settings = config(penalty=penalty, word_penalty=word_penalty, normalize=0.9)
            score = -torch.rand(20, generator=draw) * 10
            limit = torch.randint(6, 20, (20,), generator=draw)
            best = bound(score, 5, limit, 20, settings)
            reached = [
                max(float(normalized_score(s, m, settings)) for m in range(6, int(most) + 1))
                for s, most in zip(score, limit, strict=True)
            ]
            assert best.tolist() == pytest.approx(reached, abs=1e-5)


@pytest.mark.parametrize("options", [OPTIONS["4 groups"], OPTIONS["no pair twice"]], ids=str)
def test_results_do_not_depend_on_the_batch(options):
    model = Echo(vocabulary=40, seed=2, scale=3.0)
    settings = config(n_best=3, max_length_factor=2.0, **options)
    together = search([model], *batch(SOURCES), settings, MIXED)
    for source, hypotheses, request in zip(SOURCES, together, MIXED, strict=True):
        assert_same(search([model], *batch([source]), settings, [request])[0], hypotheses)
    for hypotheses, expected in zip(
        search([model], *batch(SOURCES[::-1]), settings, MIXED[::-1]), together[::-1], strict=True
    ):
        assert_same(hypotheses, expected)


def test_settings_without_an_effect_are_refused():
    for options, reason in [
        ({"groups": 3}, "beam 4 is not a multiple of groups 3"),
        ({"top_k": 3}, "top_k has an effect on samples only"),
        ({"temperature": 0.5}, "temperature has an effect on samples only"),
        ({"n_best": 5}, "n_best 5 is more than beam 4"),
        ({"seed": 5}, "seed has an effect on samples only"),
        ({"diversity": 1.0}, "diversity has an effect with groups only"),
        ({"word_penalty": 0.5}, "word_penalty has no effect with penalty power and normalize 1"),
        ({"normalize": 400}, "less than or equal to 10"),
        ({"sample": True, "groups": 2}, "groups has no effect on samples"),
        ({"sample": True, "seed": 1 << 64}, "less than"),
    ]:
        with pytest.raises(ValueError, match=reason):
            config(**options)
    assert math.isfinite(config(sample=True, n_best=50).temperature)


def test_the_cost_of_a_wide_beam():
    assert config(beam=100).wide_beam_warning(9) is None
    assert "sorts 90,300 candidates" in config(beam=300, stop="beam").wide_beam_warning(30_000)
    assert "--stop" not in config(beam=300, stop="beam").wide_beam_warning(30_000)
    assert "sorts 4,500 candidates" in config(beam=300, groups=20).wide_beam_warning(15), (
        "groups of 15"
    )


@pytest.mark.parametrize("weights", [(1e-50, 3e-50), (1e50, 3e50), (0.25, 0.75)])
@pytest.mark.parametrize("form", ["probability", "log"])
def test_only_the_ratio_of_ensemble_weights_counts(form, weights):
    log_probs = torch.randn(2, 3, 7).log_softmax(-1)
    expected = EnsembleMean(form, (1.0, 3.0))(log_probs)
    torch.testing.assert_close(EnsembleMean(form, weights)(log_probs), expected)
