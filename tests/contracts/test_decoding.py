"""What search may rely on, for every registered backbone, connection, fusion and attention."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from fusetk import trace
from fusetk.data.vocab import BOS, EOS, PAD, UNK
from fusetk.decoding import alignment
from fusetk.decoding.alignment import AttentionHeads
from fusetk.decoding.beam import search
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.sample import sample
from fusetk.decoding.target_scores import score_targets
from fusetk.decoding.token_mask import EncodedRequest
from fusetk.models.seq2seq import Seq2Seq, State
from fusetk.nn.nested import map_tensors, select
from fusetk.system import to_bf16
from tests.contracts.systems import SOURCE_SIZE, SYSTEMS, TARGET_SIZE
from tests.decoding.fakes import batch, exhaustive

SOURCES = [[4, 5, 6, 7, EOS], [8, EOS], [9, 4, EOS], [10, 10, 5, 5, 4, 9, EOS]]
assert max(map(max, SOURCES)) < SOURCE_SIZE
WORDS = [UNK, *range(EOS + 1, TARGET_SIZE)]
LENGTH = 6


@pytest.fixture(scope="module", params=SYSTEMS)
def model(request) -> Seq2Seq:
    return SYSTEMS[request.param]()


def prefixes(rows: int, seed: int = 0) -> Tensor:
    """Random target input (rows, LENGTH), the begin mark first."""
    drawn = torch.randint(
        EOS + 1, TARGET_SIZE, (rows, LENGTH), generator=torch.Generator().manual_seed(seed)
    )
    drawn[:, 0] = BOS
    return drawn


def begin(model: Seq2Seq, sources=SOURCES) -> State:
    return model.start(model.encode(*batch(sources)))


def widen(state: State, width: int) -> State:
    """From one hypothesis a sentence to ``width``, as the search does it."""
    rows = len(state_rows(state))
    return state._replace(
        per_hypothesis=select(state.per_hypothesis, torch.arange(rows).repeat_interleave(width))
    )


def state_rows(state: State) -> Tensor:
    found: list[Tensor] = []
    map_tensors(lambda tensor: found.append(tensor) or tensor, state.per_hypothesis)
    return found[0]


def read(model: Seq2Seq, tokens: Tensor, state: State, sizes: list[int]) -> tuple[Tensor, State]:
    """Logits of tokens that are read in pieces of the given sizes."""
    found = []
    for piece in tokens.split(sizes, dim=1):
        features, state = model.decode(piece, state)
        found.append(model.output(features))
    return torch.cat(found, 1), state


def forced(model: Seq2Seq, tokens: Tensor, sources=SOURCES) -> Tensor:
    return model.output(model(*batch(sources), tokens))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("sizes", [[1] * LENGTH, [2, 3, 1], [1, 4, 1]], ids=str)
def test_reading_in_pieces_is_reading_at_once(model, sizes):
    tokens = prefixes(len(SOURCES))
    logits, state = read(model, tokens, begin(model), sizes)
    close(logits, forced(model, tokens))
    assert state.step == LENGTH


@pytest.mark.parametrize("sizes", [[1] * LENGTH, [2, 3, 1]], ids=str)
def test_many_hypotheses_a_sentence(model, sizes):
    tokens = prefixes(3 * len(SOURCES))
    logits, _ = read(model, tokens, widen(begin(model), 3), sizes)
    for i, source in enumerate(SOURCES):
        close(logits[3 * i : 3 * i + 3], forced(model, tokens[3 * i : 3 * i + 3], [source] * 3))


@pytest.mark.parametrize("pieces", [[1, 1], [2]], ids=str)
def test_reordering_hypotheses_is_reordering_their_prefixes(model, pieces):
    width, tokens = 3, prefixes(3 * len(SOURCES))
    offsets = torch.arange(0, len(tokens), width)[:, None]
    state, history = widen(begin(model), width), tokens[:, :0]
    for step, start in enumerate(range(0, LENGTH, 2)):
        _, state = read(model, tokens[:, start : start + 2], state, pieces)
        history = torch.cat((history, tokens[:, start : start + 2]), 1)
        parents = torch.randint(
            width, (len(SOURCES), width), generator=torch.Generator().manual_seed(step)
        )
        rows = (offsets + parents).flatten()
        state, history = (
            state._replace(per_hypothesis=select(state.per_hypothesis, rows)),
            history[rows],
        )
    last = prefixes(len(tokens), seed=1)[:, 1:2]
    features, _ = model.decode(last, state)
    whole = torch.cat((history, last), 1)
    for i, source in enumerate(SOURCES):
        mine = slice(width * i, width * (i + 1))
        close(model.output(features[mine]), forced(model, whole[mine], [source] * width)[:, -1:])


def test_sentences_leave_and_change_places(model):
    width, tokens = 2, prefixes(2 * len(SOURCES))
    _, state = read(model, tokens[:, :3], widen(begin(model), width), [1] * 3)
    stay = torch.tensor([3, 0])
    rows = (stay[:, None] * width + torch.tensor([1, 0])).flatten()
    logits, _ = read(
        model,
        tokens[rows, 3:],
        State(select(state.per_sentence, stay), select(state.per_hypothesis, rows), state.step),
        [1] * 3,
    )
    for i, sentence in enumerate(stay.tolist()):
        mine = slice(width * i, width * (i + 1))
        close(logits[mine], forced(model, tokens[rows[mine]], [SOURCES[sentence]] * width)[:, 3:])


def test_alone_is_as_in_a_padded_batch(model):
    tokens = prefixes(len(SOURCES))
    together = forced(model, tokens)
    for i, source in enumerate(SOURCES):
        close(together[i : i + 1], forced(model, tokens[i : i + 1], [source]))


def test_the_source_matters(model):
    tokens = prefixes(1)
    assert (
        forced(model, tokens, SOURCES[:1]) - forced(model, tokens, SOURCES[3:])
    ).abs().max() > 0.1


def test_fixed_state_is_not_repeated(model):
    state = widen(begin(model), 5)
    for token in prefixes(5 * len(SOURCES)).split(1, dim=1):
        _, state = model.decode(token, state)
        map_tensors(
            lambda tensor: pytest.fail("repeated") if len(tensor) != len(SOURCES) else tensor,
            state.per_sentence,
        )
        map_tensors(
            lambda tensor: pytest.fail("lost") if len(tensor) != 5 * len(SOURCES) else tensor,
            state.per_hypothesis,
        )


def test_a_state_is_a_value(model):
    """Two continuations of one state, read in turns, do not see each other; nor does going back and reading again."""
    one, other = prefixes(len(SOURCES), 1), prefixes(len(SOURCES), 2)
    _, state = read(model, one[:, :2], begin(model), [1, 1])
    other[:, :2] = one[:, :2]
    states, found = [state, state], [[], []]
    for step in range(2, LENGTH):
        for i, tokens in enumerate((one, other)):
            features, states[i] = model.decode(tokens[:, step : step + 1], states[i])
            found[i].append(model.output(features))
    for tokens, logits in zip((one, other), found, strict=True):
        close(torch.cat(logits, 1), forced(model, tokens)[:, 2:])
    again, _ = read(model, one[:, 2:], state, [1] * (LENGTH - 2))
    close(again, forced(model, one)[:, 2:])


def test_attention_of_a_step_is_that_of_a_forced_pass(model):
    """Of each hypothesis, whatever stands beside it; nothing goes to padding."""
    width, tokens = 2, prefixes(2 * len(SOURCES))
    state, steps = widen(begin(model), width), []
    for token in tokens.split(1, dim=1):
        with trace.listen(alignment.PATTERN) as found:
            _, state = model.decode(token, state)
        steps.append(
            alignment.attention(found, AttentionHeads(), len(tokens), max(map(len, SOURCES)))
        )
    pairs = [
        (source, row[1:])
        for source, row in zip(
            sorted(SOURCES * width, key=SOURCES.index), tokens.tolist(), strict=True
        )
    ]
    for row, (source, _), one in zip(
        torch.cat(steps, 1),
        pairs,
        score_targets([model], pairs, attention=AttentionHeads()),
        strict=True,
    ):
        assert one.attention.shape == (LENGTH, len(source))
        close(row[:, : len(source)], torch.from_numpy(one.attention))
        close(row.sum(1), torch.ones(LENGTH))
        assert (row[:, len(source) :] == 0).all()


# Search --------------------------------------------------------------------------------------------------------------


def same(found, wanted):
    assert [h.ids for h in found] == [h.ids for h in wanted]
    for a, b in zip(found, wanted, strict=True):
        assert a.score == pytest.approx(b.score, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize(("penalty", "alpha"), [("power", 1.0), ("gnmt", 0.7)])
def test_a_beam_wide_enough_is_exhaustive_search(model, penalty, alpha):
    limits = {"max_length_factor": 0, "max_length_extra": 3, "min_length": 0}
    config = SearchConfig(
        beam=260, n_best=3, stop="exact", penalty=penalty, normalize=alpha, **limits
    )
    for source, found in zip(SOURCES, search([model], *batch(SOURCES), config), strict=True):
        same(found, exhaustive(model, source, WORDS, 4, config)[:3])


def test_beam_1_is_greedy(model):
    config = SearchConfig(beam=1, max_length_factor=0, max_length_extra=8)
    for source, [found] in zip(SOURCES, search([model], *batch(SOURCES), config), strict=True):
        ids: list[int] = []
        while len(ids) < 8:
            logits = forced(model, torch.tensor([[BOS, *ids]]), [source])[0, -1]
            logits[[PAD, BOS] if ids else [PAD, BOS, EOS]] = -torch.inf
            if logits.argmax() == EOS:
                break
            ids.append(int(logits.argmax()))
        assert found.ids == ids


def test_neither_order_nor_company_matter(model):
    config = SearchConfig(beam=3, n_best=2, max_length_factor=1.5, max_length_extra=3)
    together = search([model], *batch(SOURCES), config)
    for found, wanted in zip(
        search([model], *batch(SOURCES[::-1]), config), together[::-1], strict=True
    ):
        same(found, wanted)
    for source, wanted in zip(SOURCES, together, strict=True):
        same(search([model], *batch([source]), config)[0], wanted)


REQUESTS = [
    EncodedRequest([5]),
    EncodedRequest(constraints=[[6, 4]], line=1),
    EncodedRequest(line=2),
    EncodedRequest([4, 4], [[7]], 3),
]
SEARCHED = {
    "beam": 4,
    "n_best": 2,
    "groups": 2,
    "no_repeat_ngram": 3,
    "coverage_penalty": 0.3,
    "word_penalty": -0.2,
    "min_length_factor": 0.5,
}
SAMPLED = {"sample": True, "n_best": 3, "top_k": 6, "top_p": 0.9}


@pytest.mark.parametrize("options", [SEARCHED, SAMPLED], ids=["searched", "sampled"])
def test_all_that_may_be_asked_of_an_ensemble(model, options):
    """Scores are those of a forced pass, prefixes and phrases are there, and company does not matter."""
    models, config = (
        [model, SYSTEMS["transformer"]()],
        SearchConfig(max_length_factor=0.5, max_length_extra=2, **options),
    )
    requests = (
        [request._replace(constraints=()) for request in REQUESTS] if config.sample else REQUESTS
    )
    find = sample if config.sample else search
    together = find(models, *batch(SOURCES), config, requests)
    same(find(models, *batch(SOURCES[:1]), config, requests[:1])[0], together[0])
    pairs = [
        (source, one.ids) for source, found in zip(SOURCES, together, strict=True) for one in found
    ]
    scores = iter(score_targets(models, pairs))
    for request, found in zip(requests, together, strict=True):
        assert 0 < len(found) <= config.n_best
        for one in found:
            assert one.score == pytest.approx(sum(next(scores).scores), abs=1e-3)
            assert one.ids[: len(request.prefix)] == list(request.prefix)
            for phrase in request.constraints:
                assert phrase in [one.ids[i : i + len(phrase)] for i in range(len(one.ids))]


def test_in_bf16_the_map_to_the_vocabulary_stays_exact(model):
    tokens, lower = prefixes(len(SOURCES)), to_bf16(copy.deepcopy(model))
    features = lower(*batch(SOURCES), tokens)
    logits = lower.output(features)
    assert features.dtype == torch.bfloat16 and logits.dtype == torch.float32
    assert torch.equal(logits, model.output(features.float()))
    assert (logits - forced(model, tokens)).abs().mean() < 0.2 * forced(model, tokens).std()


def test_two_searches_at_once(model):
    config = SearchConfig(beam=3, max_length_extra=12)
    orders = [SOURCES, SOURCES[::-1]] * 2
    alone = [search([model], *batch(order), config) for order in orders]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda order: search([model], *batch(order), config), orders)) == alone
