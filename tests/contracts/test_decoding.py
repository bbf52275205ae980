"""Contracts of every registered backbone, connection, fusion and attention in decoding.

Reading, reordering and selecting are tested with every system. A search knows a model by these
methods only, so searches are tested with two systems of each backbone.
"""

import copy
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk import trace
from fusetk.data.vocab import BOS, EOS, PAD, UNK
from fusetk.decoding import alignment
from fusetk.decoding.alignment import AttentionHeads
from fusetk.decoding.beam import search
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.sample import sample
from fusetk.decoding.target_scores import score_targets
from fusetk.decoding.token_mask import EncodedRequest
from fusetk.errors import ConfigError, Diverged
from fusetk.fusion.base import Fusion
from fusetk.models import cpu_inference
from fusetk.models.quantization import to_bf16, to_int8, to_kernels
from fusetk.models.seq2seq import Seq2Seq, State
from fusetk.models.transformer import Transformer
from fusetk.nn.fused import decoding as fused_decoding
from fusetk.nn.inference_linear import KernelLinear, kernels_are_faster, screens
from fusetk.nn.int8 import ScreenedLinear
from fusetk.nn.nested import map_tensors, select
from fusetk.nn.output import OutputProjection
from fusetk.nn.weightnorm import NormedLinear
from tests.contracts.systems import SEARCHED, SOURCE_SIZE, SYSTEMS, TARGET_SIZE
from tests.decoding.fakes import batch, exhaustive

SOURCES = [[4, 5, 6, 7, EOS], [8, EOS], [9, 4, EOS], [10, 10, 5, 5, 4, 9, EOS]]
assert max(map(max, SOURCES)) < SOURCE_SIZE
WORDS = [UNK, *range(EOS + 1, TARGET_SIZE)]
LENGTH = 6


@pytest.fixture(scope="module", params=SYSTEMS)
def model(request) -> Seq2Seq:
    return SYSTEMS[request.param]()


@pytest.fixture(scope="module", params=SEARCHED)
def searched_model(request) -> Seq2Seq:
    return SYSTEMS[request.param]()


def prefixes(rows: int, seed: int = 0) -> Tensor:
    """Return random target input (rows, LENGTH) that starts with BOS."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(EOS + 1, TARGET_SIZE, (rows, LENGTH), generator=generator)
    tokens[:, 0] = BOS
    return tokens


def begin(model: Seq2Seq, sources=SOURCES) -> State:
    return model.start(model.encode(*batch(sources)))


def widen(state: State, width: int) -> State:
    """Copy the one hypothesis of each sentence ``width`` times, as the search does."""
    rows = len(state_rows(state))
    return state._replace(
        per_hypothesis=select(state.per_hypothesis, torch.arange(rows).repeat_interleave(width))
    )


def state_rows(state: State) -> Tensor:
    tensors: list[Tensor] = []
    map_tensors(lambda tensor: tensors.append(tensor) or tensor, state.per_hypothesis)
    return tensors[0]


def read(model: Seq2Seq, tokens: Tensor, state: State, sizes: list[int]) -> tuple[Tensor, State]:
    """Read tokens in pieces of these sizes; return their logits and the last state."""
    logits = []
    for piece in tokens.split(sizes, dim=1):
        features, state = model.decode(piece, state)
        logits.append(model.output(features))
    return torch.cat(logits, 1), state


def forced(model: Seq2Seq, tokens: Tensor, sources=SOURCES) -> Tensor:
    """Return the logits of forced decoding."""
    return model.output(model(*batch(sources), tokens))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("sizes", [[1] * LENGTH, [1, 4, 1]], ids=str)
def test_reading_in_pieces_is_forced_decoding(model, sizes):
    tokens = prefixes(len(SOURCES))
    logits, state = read(model, tokens, begin(model), sizes)
    close(logits, forced(model, tokens))
    assert state.step == LENGTH


@pytest.mark.parametrize("sizes", [[1] * LENGTH, [2, 3, 1]], ids=str)
def test_hypotheses_of_a_sentence_are_independent(model, sizes):
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
    prefix = torch.cat((history, last), 1)
    for i, source in enumerate(SOURCES):
        rows = slice(width * i, width * (i + 1))
        expected = forced(model, prefix[rows], [source] * width)[:, -1:]
        close(model.output(features[rows]), expected)


def test_sentences_may_be_selected_and_reordered(model):
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
        selected = slice(width * i, width * (i + 1))
        expected = forced(model, tokens[rows[selected]], [SOURCES[sentence]] * width)[:, 3:]
        close(logits[selected], expected)


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
    """Two continuations of one state do not change each other, nor the state itself."""
    first = prefixes(len(SOURCES), 1)
    second = prefixes(len(SOURCES), 2)
    _, state = read(model, first[:, :2], begin(model), [1, 1])
    second[:, :2] = first[:, :2]
    states = [state, state]
    outputs = [[], []]
    for step in range(2, LENGTH):
        for i, tokens in enumerate((first, second)):
            features, states[i] = model.decode(tokens[:, step : step + 1], states[i])
            outputs[i].append(model.output(features))
    for tokens, logits in zip((first, second), outputs, strict=True):
        close(torch.cat(logits, 1), forced(model, tokens)[:, 2:])
    again, _ = read(model, first[:, 2:], state, [1] * (LENGTH - 2))
    close(again, forced(model, first)[:, 2:])


def test_attention_of_a_step_is_that_of_forced_decoding(model):
    """It does not depend on the other hypotheses, and padding gets none."""
    width, tokens = 2, prefixes(2 * len(SOURCES))
    state, steps = widen(begin(model), width), []
    for token in tokens.split(1, dim=1):
        with trace.listen(alignment.PATTERN) as records:
            _, state = model.decode(token, state)
        steps.append(records)
    pairs = [
        (source, row[1:])
        for source, row in zip(
            sorted(SOURCES * width, key=SOURCES.index), tokens.tolist(), strict=True
        )
    ]
    count = min(values[-1].shape[1] for values in steps[-1].values())
    for heads in (AttentionHeads(), *(AttentionHeads(head=i) for i in range(1, count + 1))):
        weights = torch.cat(
            [
                alignment.attention(step, heads, len(tokens), max(map(len, SOURCES)))
                for step in steps
            ],
            1,
        )
        scored = score_targets([model], pairs, attention=heads)
        for row, (source, _), expected in zip(weights, pairs, scored, strict=True):
            assert expected.attention.shape == (LENGTH, len(source))
            close(row[:, : len(source)], torch.from_numpy(expected.attention))
            if heads.head is None:  # a head of mixed attention may see only the target
                close(row.sum(1), torch.ones(LENGTH))
            assert (row[:, len(source) :] == 0).all()


@pytest.mark.parametrize("uses_kernels", [False, True])
def test_logits_of_a_bf16_model_are_float32(model, uses_kernels, monkeypatch):
    if uses_kernels and not fused_decoding.has_products(torch.bfloat16):
        pytest.skip("the processor has no products of bf16")
    uses_kernels = uses_kernels and isinstance(model.output, (OutputProjection, NormedLinear))
    set_kernels(monkeypatch, torch.bfloat16, uses_kernels)
    set_kernels(monkeypatch, torch.float32, False)
    tokens = prefixes(len(SOURCES))
    lower = to_bf16(copy.deepcopy(model))
    features = lower(*batch(SOURCES), tokens)
    logits = lower.output(features)
    expected = forced(model, tokens)
    # These models on CPU compute in float32 between the products.
    dtype = torch.float32 if model.converts_maps else torch.bfloat16
    assert features.dtype == dtype
    assert logits.dtype == torch.float32
    if uses_kernels:
        rounded_weight = model.output.weight.bfloat16().float()
        same = F.linear(features.bfloat16().float(), rounded_weight, model.output.bias)
    else:
        same = model.output(features.float())
    torch.testing.assert_close(logits, same)
    assert (logits - expected).abs().mean() < 0.2 * expected.std()


def set_kernels(monkeypatch, dtype, value):
    for kind in kernels_are_faster[dtype]:
        monkeypatch.setitem(kernels_are_faster[dtype], kind, value)


# Search


def assert_same(hypotheses, expected):
    assert [h.ids for h in hypotheses] == [h.ids for h in expected]
    for a, b in zip(hypotheses, expected, strict=True):
        assert a.score == pytest.approx(b.score, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize(("penalty", "alpha"), [("power", 1.0), ("gnmt", 0.7)])
def test_a_wide_beam_finds_what_exhaustive_search_finds(searched_model, penalty, alpha):
    limits = {"max_length_factor": 0, "max_length_extra": 3, "min_length": 0}
    config = SearchConfig(
        beam=260, n_best=3, stop="exact", penalty=penalty, normalize=alpha, **limits
    )
    results = search([searched_model], *batch(SOURCES), config)
    for source, hypotheses in zip(SOURCES, results, strict=True):
        assert_same(hypotheses, exhaustive(searched_model, source, WORDS, 4, config)[:3])


def test_beam_1_is_greedy_search(searched_model):
    config = SearchConfig(beam=1, max_length_factor=0, max_length_extra=8)
    results = search([searched_model], *batch(SOURCES), config)
    for source, [hypothesis] in zip(SOURCES, results, strict=True):
        ids: list[int] = []
        while len(ids) < 8:
            logits = forced(searched_model, torch.tensor([[BOS, *ids]]), [source])[0, -1]
            logits[[PAD, BOS] if ids else [PAD, BOS, EOS]] = -torch.inf
            if logits.argmax() == EOS:
                break
            ids.append(int(logits.argmax()))
        assert hypothesis.ids == ids


def test_translations_do_not_depend_on_the_batch(searched_model):
    models = [searched_model]
    config = SearchConfig(beam=3, n_best=2, max_length_factor=1.5, max_length_extra=3)
    together = search(models, *batch(SOURCES), config)
    reverse = search(models, *batch(SOURCES[::-1]), config)
    for hypotheses, expected in zip(reverse, together[::-1], strict=True):
        assert_same(hypotheses, expected)
    for source, expected in zip(SOURCES, together, strict=True):
        assert_same(search(models, *batch([source]), config)[0], expected)


@pytest.mark.parametrize("stop", ["exact", "beam"])
@pytest.mark.parametrize("beam", [1, 4])
def test_searches_without_kernels_find_the_same(searched_model, beam, stop, monkeypatch):
    config = SearchConfig(beam=beam, n_best=min(2, beam), stop=stop, max_length_extra=6)
    with_kernels = search([searched_model], *batch(SOURCES), config)
    monkeypatch.setattr(fused_decoding, "library", lambda name: None)
    without = search([searched_model], *batch(SOURCES), config)
    for hypotheses, expected in zip(with_kernels, without, strict=True):
        assert_same(hypotheses, expected)


def test_a_listener_does_not_change_translations(searched_model):
    config = SearchConfig(beam=3, max_length_extra=6)
    expected = search([searched_model], *batch(SOURCES), config)
    with trace.listen("*"):
        recorded = search([searched_model], *batch(SOURCES), config)
    for hypotheses, same in zip(recorded, expected, strict=True):
        assert_same(hypotheses, same)


@pytest.mark.parametrize("beam", [1, 4])
def test_products_in_kernels_find_the_same(searched_model, beam, monkeypatch):
    if not fused_decoding.has_products(torch.float32):
        pytest.skip("there is no C++ compiler")
    config = SearchConfig(beam=beam, max_length_extra=6)
    expected = search([searched_model], *batch(SOURCES), config)
    set_kernels(monkeypatch, torch.float32, True)
    model = to_kernels(copy.deepcopy(searched_model))
    tokens = prefixes(len(SOURCES))
    assert any(isinstance(module, KernelLinear) for module in model.modules())
    close(forced(model, tokens), forced(searched_model, tokens))
    for hypotheses, same in zip(search([model], *batch(SOURCES), config), expected, strict=True):
        assert_same(hypotheses, same)


def test_greedy_search_without_scores_finds_the_same(searched_model, monkeypatch):
    if not fused_decoding.has_products(torch.int8):
        pytest.skip("the processor has no products of int8")
    config = SearchConfig(beam=1, max_length_extra=6)
    expected = search([searched_model], *batch(SOURCES), config)
    set_kernels(monkeypatch, torch.float32, True)
    monkeypatch.setitem(screens, torch.float32, True)
    monkeypatch.setattr(ScreenedLinear, "screens", lambda linear, x: True)
    model = to_kernels(copy.deepcopy(searched_model))
    results = search([model], *batch(SOURCES), config, scores=False)
    assert [h[0].ids for h in results] == [h[0].ids for h in expected]
    assert all(math.isnan(h[0].score) and math.isnan(h[0].normalized) for h in results)
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(Diverged):
        search([model], *batch(SOURCES), config, scores=False)


DTYPES = {to_kernels: torch.float32, to_bf16: torch.bfloat16, to_int8: torch.int8}


@pytest.mark.parametrize("convert", DTYPES)
@pytest.mark.parametrize(
    "system",
    [
        "transformer",
        "transformer, pre-norm, attend layerwise",
        "coordinated",
        "coordinated, pre-norm, nothing shared",
    ],
)
def test_a_layer_in_one_call_computes_what_its_parts_compute(system, convert, monkeypatch):
    dtype = DTYPES[convert]
    if not fused_decoding.has_products(dtype):
        pytest.skip(f"the processor has no products of {dtype}")
    set_kernels(monkeypatch, dtype, True)
    model = convert(SYSTEMS[system]())
    sources = SOURCES * 20  # more hypotheses than the kernel computes at once
    in_one_call = begin(model, sources)
    monkeypatch.setattr(cpu_inference, "_kernel_arguments", lambda layer: None)
    in_parts = begin(model, sources)
    for state, expected in ((in_one_call, True), (in_parts, False)):
        layers = state.per_hypothesis.shared.layers
        assert all(
            layer.in_kernels and (layer.arguments is not None) == expected for layer in layers
        )
    for tokens in prefixes(len(sources)).split(1, 1):
        features, in_one_call = model.decode(tokens, in_one_call)
        expected, in_parts = model.decode(tokens, in_parts)
        assert torch.equal(features, expected)


def test_kernels_compute_the_attention_of_every_decoder_of_transformer_layers(model):
    if not (model.converts_maps and fused_decoding.library("decoding")):
        pytest.skip("another decoder, or there is no C++ compiler")
    assert isinstance(begin(model).per_hypothesis, cpu_inference.Hypotheses)


@pytest.mark.parametrize("max_numbers", [1, 240])
def test_the_encoder_may_read_groups_of_sentences(searched_model, max_numbers, monkeypatch):
    config = SearchConfig(beam=2, max_length_extra=6)
    together = search([searched_model], *batch(SOURCES), config)
    divide = cpu_inference._groups
    numbers = [1]

    def counted(*arguments):
        groups = divide(*arguments)
        numbers.append(len(groups))
        return groups

    monkeypatch.setattr(cpu_inference, "_groups", counted)
    monkeypatch.setattr(cpu_inference, "PIECE", max_numbers)
    in_groups = search([searched_model], *batch(SOURCES), config)
    for hypotheses, expected in zip(in_groups, together, strict=True):
        assert_same(hypotheses, expected)
    if isinstance(searched_model, Transformer) and fused_decoding.library("decoding"):
        assert max(numbers) > 1


def test_groups_of_sentences_are_as_large_as_possible():
    assert cpu_inference._groups([3, 2, 2, 5, 1], 6) == [
        (slice(0, 2), slice(3)),
        (slice(2, 3), slice(2)),
        (slice(3, 4), slice(5)),
        (slice(4, 5), slice(1)),
    ]
    assert cpu_inference._groups([9, 1, 1], 6) == [(slice(0, 1), slice(9)), (slice(1, 3), slice(1))]
    assert cpu_inference._groups([2, 2], 0) == [(slice(0, 1), slice(2)), (slice(1, 2), slice(2))]
    assert cpu_inference._groups([4, 4, 4], 12) == [(slice(0, 3), slice(4))]


@pytest.mark.parametrize("uses_kernels", [False, True])
@pytest.mark.parametrize("convert", [to_bf16, to_int8])
def test_rounded_models_are_close_and_translate(searched_model, convert, uses_kernels, monkeypatch):
    for dtype in (torch.bfloat16, torch.int8):
        set_kernels(monkeypatch, dtype, uses_kernels and fused_decoding.has_products(dtype))
    if searched_model.converts_maps:
        check_rounded(searched_model, convert)
    elif convert is to_int8:
        with pytest.raises(ConfigError, match="backbone transformer or coordinated"):
            to_int8(copy.deepcopy(searched_model))
    else:
        rounded = to_bf16(copy.deepcopy(searched_model))
        assert all(search([rounded], *batch(SOURCES), SearchConfig(beam=3, max_length_extra=6)))


@pytest.mark.parametrize("convert", [to_bf16, to_int8])
@pytest.mark.parametrize("options", ["separate inputs", "baseline of today"])
def test_rounded_transformers_with_other_attention(options, convert, monkeypatch):
    # With larger scales, a number in the middle of two integers may be rounded up or down here.
    monkeypatch.setattr(fused_decoding, "sums_have_16_bits", lambda: False)
    check_rounded(SYSTEMS[f"transformer, {options}"](), convert)


@pytest.mark.parametrize("convert", DTYPES)
@pytest.mark.parametrize(
    "system",
    [
        "transformer, encoder fuse ffn",
        "transformer, decoder fuse attention",
        "transformer, decoder fuse attention, feature_wise True, independent_w1 True, add_top True",
        "transformer, decoder fuse attention, independent_w1 hops, embedding False",
        "transformer, decoder fuse linear, weights matrix, aggregation ewp-ffn",
        "transformer, decoder fuse iterative, aggregation concat-ffn, embedding True",
        "coordinated, stack fuse tree",
    ],
)
def test_maps_of_fusions_are_converted(system, convert, monkeypatch):
    dtype = DTYPES[convert]
    in_kernels = fused_decoding.has_products(dtype)
    set_kernels(monkeypatch, dtype, in_kernels)
    model = SYSTEMS[system]()
    converted = convert(copy.deepcopy(model))
    fusions = [module for module in converted.modules() if isinstance(module, Fusion)]
    maps = [type(part) for fusion in fusions for part in fusion.modules()]
    assert (nn.Linear in maps) == (convert is to_kernels and not in_kernels)
    if convert is to_kernels:
        tokens = prefixes(len(SOURCES))
        close(forced(converted, tokens), forced(model, tokens))
    else:
        check_rounded(model, convert)


def check_rounded(model: Seq2Seq, convert: Callable[[Seq2Seq], Seq2Seq]) -> None:
    tokens = prefixes(len(SOURCES))
    expected = forced(model, tokens)
    rounded = convert(copy.deepcopy(model))
    logits = forced(rounded, tokens)
    error = 0.2 if convert is to_int8 else 0.05
    assert (logits - expected).abs().mean() < error * expected.std()
    in_steps = read(rounded, tokens, begin(rounded), [1] * LENGTH)[0]
    if convert is to_int8:
        close(in_steps, logits)
    # Forced decoding adds the bias before it rounds a result to bf16, decoding in steps after it.
    assert (in_steps - logits).abs().mean() < 0.01 * expected.std()
    assert all(search([rounded], *batch(SOURCES), SearchConfig(beam=3, max_length_extra=6)))


REQUESTS = [
    EncodedRequest([5]),
    EncodedRequest(constraints=[[6, 4]], line=1),
    EncodedRequest(line=2),
    EncodedRequest([4, 4], [[7]], 3),
]
BEAM_OPTIONS = {
    "beam": 4,
    "n_best": 2,
    "groups": 2,
    "no_repeat_ngram": 3,
    "coverage_penalty": 0.3,
    "word_penalty": -0.2,
    "normalize": 0.9,
    "min_length_factor": 0.5,
}
SAMPLE_OPTIONS = {"sample": True, "n_best": 3, "top_k": 6, "top_p": 0.9}


@pytest.mark.parametrize("options", [BEAM_OPTIONS, SAMPLE_OPTIONS], ids=["beam", "sample"])
def test_options_and_demands_with_an_ensemble(searched_model, options):
    """Scores are those of forced decoding, and demands are met, whatever else is in the batch."""
    models = [searched_model, SYSTEMS["transformer"]()]
    config = SearchConfig(max_length_factor=0.5, max_length_extra=2, **options)
    demands = REQUESTS
    find = search
    if config.sample:
        demands = [demand._replace(constraints=()) for demand in REQUESTS]
        find = sample
    together = find(models, *batch(SOURCES), config, demands)
    assert_same(find(models, *batch(SOURCES[:1]), config, demands[:1])[0], together[0])
    pairs = [
        (source, hypothesis.ids)
        for source, hypotheses in zip(SOURCES, together, strict=True)
        for hypothesis in hypotheses
    ]
    scores = iter(score_targets(models, pairs))
    for demand, hypotheses in zip(demands, together, strict=True):
        assert 0 < len(hypotheses) <= config.n_best
        for hypothesis in hypotheses:
            ids = hypothesis.ids
            assert hypothesis.score == pytest.approx(sum(next(scores).scores), abs=1e-3)
            assert ids[: len(demand.prefix)] == list(demand.prefix)
            for phrase in demand.constraints:
                assert phrase in [ids[i : i + len(phrase)] for i in range(len(ids))]


def test_searches_in_threads_do_not_disturb_each_other(searched_model):
    config = SearchConfig(beam=3, max_length_extra=12)
    orders = [SOURCES, SOURCES[::-1]] * 2

    def translate(order):
        return search([searched_model], *batch(order), config)

    alone = [translate(order) for order in orders]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(translate, orders)) == alone
