"""The kernels for decoding compute what torch computes."""

import copy
import ctypes
import math
import pickle
import subprocess

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk.nn import int8
from fusetk.nn.fused import build
from fusetk.nn.fused import decoding as fused_decoding
from fusetk.nn.inference_linear import Bf16Linear, KernelLinear, linear_part
from fusetk.nn.int8 import Int8KernelLinear, Int8Linear, ScreenedLinear, integer_product
from tests.helpers.threads import torch_threads

pytestmark = pytest.mark.skipif(
    build.library("decoding") is None, reason="there is no C++ compiler"
)

WIDTHS = [(16, 2), (12, 3), (64, 2), (80, 4)]  # features and heads


@pytest.fixture(autouse=True)
def _inference():
    torch.manual_seed(1)
    with torch.inference_mode():
        yield


def heads_of(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def close(a: Tensor, b: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=atol)


@pytest.mark.parametrize(("width", "heads"), WIDTHS)
@pytest.mark.parametrize("length", [1, 7, 16, 35])
@pytest.mark.parametrize("biased", [False, True])
def test_attention_to_earlier_tokens(width, heads, length, biased):
    rows = [5, *[6] * (length - 1)]  # of each step
    steps = [torch.randn(count, 3 * width) for count in rows]
    bias = torch.randn(3 * width) if biased else None
    ancestors = torch.stack([torch.randint(count, (rows[-1],)) for count in rows], 1)
    ancestors[:, -1] = torch.arange(rows[-1])
    result = fused_decoding.attend_history(steps, ancestors, heads, bias)
    tokens = torch.stack([steps[t][ancestors[:, t]] for t in range(length)], 1)
    q, k, v = (tokens if bias is None else tokens + bias).chunk(3, -1)
    q, k, v = heads_of(q[:, -1:], heads), heads_of(k, heads), heads_of(v, heads)
    expected = F.scaled_dot_product_attention(q, k, v)
    close(result, expected.transpose(1, 2).flatten(1))


def stored(
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    heads: int,
    dtype: torch.dtype = torch.float32,
) -> fused_decoding.SourceKeysValues:
    """Store keys and values (B, n, S, D): the first sentence with padding, the others packed."""
    _, sources, length, width = keys.shape
    source = fused_decoding.SourceKeysValues.empty(
        sources, length, width, heads, lengths, dtype=dtype
    )
    real = torch.arange(length) < lengths[1:, None]
    first_rows = lengths[1:].cumsum(0) - lengths[1:]
    for n in range(sources):
        rows = torch.cat((keys[:, n], values[:, n]), -1)
        source.store(*rows[0].chunk(2, -1), torch.tensor([0]), n)
        source.store(*rows[1:][real].chunk(2, -1), first_rows, n, sentence=1)
    return source


@pytest.mark.parametrize(("width", "heads"), WIDTHS)
@pytest.mark.parametrize(("sources", "length"), [(1, 5), (1, 33), (2, 1), (3, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_to_the_source(width, heads, sources, length, dtype):
    sentences = torch.tensor([0, 0, 2, 1, 2])
    lengths = torch.tensor([length, 1, max(length - 2, 1)])
    keys, values = torch.randn(3, sources, length, 2 * width).chunk(2, -1)
    queries, bias = torch.randn(5, width), torch.randn(width)
    source = stored(keys, values, lengths, heads, dtype)
    keys, values = (x.to(dtype).float() for x in (keys, values))
    weights = torch.empty(5, sources * heads, length)
    result = fused_decoding.attend_source(queries, bias, source, sentences, weights)
    q = heads_of((queries + bias)[:, None, None], heads)  # (R, 1, H, 1, d)
    k, v = (heads_of(x[sentences], heads) for x in (keys, values))  # (R, n, H, S, d)
    scores = q @ k.mT / math.sqrt(width // heads)
    hidden = torch.arange(length) >= lengths[sentences, None]
    expected = scores.masked_fill(hidden[:, None, None, None], -math.inf).softmax(-1)
    close(weights.view(expected[:, :, :, 0].shape), expected[:, :, :, 0])
    contexts = (expected @ v).sum(1)[:, :, 0].flatten(1) / math.sqrt(sources)
    close(result, contexts)


@pytest.mark.parametrize(("width", "heads"), WIDTHS)
@pytest.mark.parametrize("source_length", [5, 33])
@pytest.mark.parametrize("length", [1, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_to_source_and_target(width, heads, source_length, length, dtype):
    """It is the attention to their concatenation, and very small weights are 0."""
    sentences = torch.tensor([0, 0, 2, 1, 2])
    lengths = torch.tensor([source_length, 1, source_length - 2])
    keys, values = torch.randn(3, source_length, 2 * width).chunk(2, -1)
    keys[2] *= 1000  # the softmax has weights that float32 cannot represent
    steps = [torch.randn(5, 3 * width) for _ in range(length)]
    ancestors = torch.stack([torch.randint(5, (5,)) for _ in range(length)], 1)
    ancestors[:, -1] = torch.arange(5)
    source = stored(keys[:, None], values[:, None], lengths, heads, dtype)
    keys, values = (x.to(dtype).float() for x in (keys, values))
    weights = torch.empty(5, heads, source_length + length)
    result = fused_decoding.attend_mixed(steps, ancestors, source, sentences, weights)
    tokens = torch.stack([steps[t][ancestors[:, t]] for t in range(length)], 1)
    q, own_keys, own_values = tokens.chunk(3, -1)
    q = heads_of(q[:, -1:], heads)
    k = heads_of(torch.cat((keys[sentences], own_keys), 1), heads)
    v = heads_of(torch.cat((values[sentences], own_values), 1), heads)
    hidden = torch.arange(source_length) >= lengths[sentences, None]
    hidden = F.pad(hidden, (0, length))[:, None, None]
    scores = (q @ k.mT / math.sqrt(width // heads)).masked_fill(hidden, -math.inf)
    expected = scores.softmax(-1)
    close(weights, expected[:, :, 0])
    assert (weights[expected[:, :, 0] < 1e-40] == 0).all()
    close(result, (expected @ v).transpose(1, 2).flatten(1))


@pytest.mark.parametrize("width", [5, 16, 70])
def test_residual_sum_and_normalisation(width):
    x, y, bias = torch.randn(4, width), torch.randn(4, width), torch.randn(width)
    norm = nn.LayerNorm(width)
    norm.weight.data.normal_()
    norm.bias.data.normal_()
    close(fused_decoding.add_norm(x, y, bias, norm), norm(x + y + bias))
    close(fused_decoding.add_norm(x, None, None, norm), norm(x))
    close(fused_decoding.add_norm(x, y, bias, None), x + y + bias)
    close(fused_decoding.add_bias(x.clone(), bias, relu=True), (x + bias).relu())
    close(fused_decoding.add_bias(x.clone(), bias, relu=False), x + bias)


def test_vectors_may_have_any_stride():
    x, (weight, shift, bias) = torch.randn(4, 20), torch.randn(20, 3).unbind(1)
    norm = nn.LayerNorm(20)
    norm.weight, norm.bias = nn.Parameter(weight), nn.Parameter(shift)
    close(fused_decoding.add_norm(x, None, bias, norm), norm(x + bias))
    matrix = torch.randn(7, 20)
    for kind in (KernelLinear, Int8Linear):
        expected = kind(matrix, shift[:7].clone())(x)
        assert torch.equal(kind(matrix, shift[:7])(x), expected)
    _, _, log_z = fused_decoding.best_tokens(x.clone(), bias, torch.tensor([0]), None, 1)
    close(log_z, (x + bias).logsumexp(1, keepdim=True))


@pytest.mark.parametrize("size", [6, 32, 133, 300])
@pytest.mark.parametrize("count", [1, 4, 20])
@pytest.mark.parametrize("biased", [False, True])
def test_best_tokens(size, count, biased):
    logits = torch.randn(7, size).mul(4).round()  # rounded: several tokens are equal
    bias = torch.randn(size) if biased else None
    forbidden = torch.tensor([0, 3])
    only = torch.tensor([-1, 3, -1, 5, -1, -1, -1])
    best, token, log_z = fused_decoding.best_tokens(logits.clone(), bias, forbidden, only, count)
    scores = logits if bias is None else logits + bias
    close(log_z, scores.logsumexp(1, keepdim=True))
    allowed = scores.index_fill(1, forbidden, -math.inf)
    for row, single in enumerate(only.tolist()):
        if single >= 0:
            allowed[row] = -math.inf
            allowed[row, single] = scores[row, single]
    expected, order = allowed.sort(dim=1, descending=True, stable=True)
    real = min(count, size)
    assert torch.equal(best[:, :real], expected[:, :real])
    assert (best[:, real:] == -math.inf).all()
    filled = best[:, :real] > -math.inf
    assert torch.equal(token[:, :real][filled], order[:, :real][filled])


def test_best_tokens_of_unusual_rows():
    """The kernel adds logits in blocks, and corrects the sum if a block has a new highest logit."""
    ascending = torch.arange(133) * 3.0
    late = torch.full((133,), -math.inf)
    late[70:] = ascending[70:]
    lowest = torch.full((133,), torch.finfo(torch.float32).min)
    rows = [ascending, ascending.flip(0), late, late.flip(0), ascending - 1e6, ascending * 1e4]
    logits = torch.stack(rows)
    best, token, log_z = fused_decoding.best_tokens(logits, None, torch.tensor([0, 132]), None, 3)
    expected, order = logits.index_fill(1, torch.tensor([0, 132]), -math.inf).topk(3)
    assert torch.equal(best, expected) and torch.equal(token, order)
    close(log_z, logits.logsumexp(1, keepdim=True))
    best, token, _ = fused_decoding.best_tokens(lowest[None], None, torch.tensor([0]), None, 2)
    assert best.tolist() == [lowest[:2].tolist()] and token.tolist() == [[1, 2]]
    nothing = torch.full((1, 40), -math.inf)
    _, _, log_z = fused_decoding.best_tokens(nothing, None, torch.tensor([0]), None, 1)
    assert log_z.item() == -math.inf


def test_best_tokens_of_8_bits():
    x, forbidden = torch.randn(5, 24), torch.tensor([0, 3])
    linear = Int8Linear(torch.randn(133, 24), torch.randn(133))
    sums, scales = linear.sums(x)
    results = fused_decoding.best_tokens(sums, linear.bias, forbidden, None, 4, scales)
    expected = fused_decoding.best_tokens(linear.product(x), linear.bias, forbidden, None, 4)
    assert all(map(torch.equal, results, expected))


def needs_products(dtype: torch.dtype) -> pytest.MarkDecorator:
    reason = f"the processor has no products of {dtype}"
    return pytest.mark.skipif(not fused_decoding.has_products(dtype), reason=reason)


DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=needs_products(torch.bfloat16))]


SHAPES = [(1, 6, 5), (35, 40, 133), (64, 64, 96), (77, 600, 32)]


bf16_without_tiles = pytest.param(torch.bfloat16, False, marks=needs_products(torch.bfloat16))
bf16_with_tiles = pytest.param(torch.bfloat16, True, marks=needs_products(torch.bfloat16))


@pytest.mark.parametrize(
    ("dtype", "tiles"), [(torch.float32, False), bf16_without_tiles, bf16_with_tiles]
)
@pytest.mark.parametrize(("rows", "width", "size"), SHAPES)
def test_products(rows, width, size, dtype, tiles):
    x, weight = torch.randn(rows, width), torch.randn(size, width).to(dtype)
    bias = torch.randn(size)
    blocked = fused_decoding.to_blocks(weight)
    product = fused_decoding.product(x, blocked, tiles=tiles)
    exact = (x.to(dtype).double() @ weight.double().t()).float()
    close(product, exact, atol=1e-4)
    close(fused_decoding.product(x, blocked, bias, tiles=tiles), exact + bias, atol=1e-4)
    units = fused_decoding.product(x, blocked, bias, True, tiles)
    close(units, (exact + bias).relu(), atol=1e-4)
    last = fused_decoding.product(x[-1:], blocked, tiles=tiles)
    assert torch.equal(last, product[-1:]), "a row does not depend on the other rows"
    x[0, 0] = math.nan
    units = fused_decoding.product(x, blocked, bias, True, tiles)
    assert units[0].isnan().all() and units[1:].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_maps_in_kernels(dtype, monkeypatch):
    x, weight, bias = torch.randn(5, 40), torch.randn(96, 40).to(dtype), torch.randn(96)
    linear = KernelLinear(weight, bias)
    exact = x.to(dtype).float() @ weight.float().t() + bias
    for with_kernels in (True, False):
        close(linear(x), exact)
        close(linear.hidden_units(x, relu=True), exact.relu())
        close(linear.product(x, relu=True), (exact - bias).relu())
        for start, stop in ((0, 32), (32, 96), (64, 90), (8, 40)):
            part = slice(start, stop)
            close(linear.product(x, bias[part], part=part), exact[:, part])
            close(linear.product(x, None, True, part), (exact - bias)[:, part].relu())
        if with_kernels:
            monkeypatch.setattr(fused_decoding, "library", lambda name: None)


@needs_products(torch.int8)
@pytest.mark.parametrize(("rows", "width", "size"), SHAPES)
def test_products_of_8_bits_in_kernels(rows, width, size, monkeypatch):
    x, weight, bias = torch.randn(rows, width), torch.randn(size, width), torch.randn(size)
    x[0] *= 100
    linear, expected = Int8KernelLinear(weight, bias), Int8Linear(weight, bias)
    parts = [slice(None), slice(1, size), slice(size // 2, size - 1)]
    for with_kernels in (True, False):
        for part in parts:
            for chosen in (None, bias[part]):
                for relu in (False, True):
                    arguments = x, chosen, relu, part
                    close(linear.product(*arguments), expected.product(*arguments))
        if with_kernels:
            assert torch.equal(linear(x[-1:]), linear(x)[-1:]), "rows do not depend on others"
            x[0, 0] = math.nan
            assert linear(x)[0].isnan().all() and linear(x)[1:].isfinite().all()
            x[0, 0] = 0
            monkeypatch.setattr(fused_decoding, "library", lambda name: None)


INPUTS = """
#include "int8.h"

extern "C" void store_and_load(const int8_t *numbers, float *to) {
    Int8Input inputs[2 * LANES];
    to_inputs(2 * LANES, numbers, inputs);
    for (int k = 0; k < 2 * LANES; k += LANES) store(to + k, load_inputs(inputs + k));
}
"""


@needs_products(torch.int8)
def test_inputs_of_8_bits_are_loaded_in_their_original_order(tmp_path):
    """The screen subtracts them from the numbers before rounding. All numbers here differ."""
    compiler, _ = build._compiler()
    if not compiler:
        pytest.skip("there is no C++ compiler")
    (tmp_path / "inputs.cpp").write_text(INPUTS)
    options = ["-O0", "-march=native", "-fPIC", "-shared", f"-I{build.FOLDER}", "-o", "inputs.so"]
    subprocess.run([*compiler, *options, "inputs.cpp"], cwd=tmp_path, check=True)
    numbers = torch.arange(-127, 128, 8, dtype=torch.int8)
    loaded = torch.empty(len(numbers))
    pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (numbers, loaded))
    ctypes.CDLL(str(tmp_path / "inputs.so")).store_and_load(*pointers)
    assert loaded.tolist() == numbers.tolist()


@needs_products(torch.int8)
@pytest.mark.parametrize("width", [5, 64, 70])
def test_products_of_the_largest_numbers_of_8_bits_are_exact(width):
    """Each row of x has the largest numbers, with the signs of a row of W, or with one sign."""
    weight = torch.randn(40, width)
    weight[0], weight[1], weight[2, 1:], weight[3] = 1, -1, 0, weight[3].sign()
    weight[4:8] *= (torch.rand(4, width) < 0.2) + 0.01
    x = 127 * torch.cat((weight.sign(), -weight.sign(), torch.ones(2, width)))
    x[-1] *= -1
    linear = Int8KernelLinear(weight, None)
    rounded = linear.weight.double()
    sums = x.double() @ rounded.T
    assert torch.equal(linear(x), sums.float() * linear.blocked.scale[:40])


def test_weights_of_8_bits_for_sums_of_16_bits(monkeypatch):
    """The sums of weights are limited. One large weight and small ones hardly enlarge the scale."""
    monkeypatch.setattr(fused_decoding, "sums_have_16_bits", lambda: True)
    weight = torch.randn(200, 70)
    weight[0, 1:], weight[1, 1:] = 0, 0.005 * weight[1, 0]
    rounded, scale = int8.quantize_weight(weight)
    expected, lower = int8.quantize(weight)
    assert torch.equal(rounded[0], expected[0]) and scale[0] == lower[0]
    assert 1 < scale[1] / lower[1] < 1.03 and (scale <= 4.01 * lower).all()
    assert ((weight - rounded * scale[:, None]).abs().amax(1) <= 0.501 * scale).all()
    for k in (*range(0, 64, 8), *range(2, 64, 8)):
        four = rounded[:, [k, k + 1, k + 4, k + 5]].int()
        assert four.clamp_min(0).sum(1).amax() <= 129 and four.clamp_max(0).sum(1).amin() >= -129


@needs_products(torch.int8)
def test_a_pickled_map_of_a_processor_with_sums_of_32_bits(monkeypatch):
    """Its weights may overflow in sums of 16 bits, so PyTorch computes the product."""
    weight, x = torch.ones(40, 64), torch.ones(32 * torch.get_num_threads(), 64)
    monkeypatch.setattr(fused_decoding, "sums_have_16_bits", lambda: False)
    linear, screened = Int8KernelLinear(weight, None), ScreenedLinear(weight, None)
    assert linear.has_product and screened.screens(x)
    stored = pickle.dumps((linear, screened))
    monkeypatch.setattr(fused_decoding, "sums_have_16_bits", lambda: True)
    linear, screened = pickle.loads(stored)
    assert not linear.has_product
    close(linear(x), x @ weight.T)
    assert screened.screen.blocked.scale[0] > 1 / 127
    assert Int8KernelLinear(weight, None).has_product


ALL_DTYPES = [*DTYPES, pytest.param(torch.int8, marks=needs_products(torch.int8))]


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize(("size", "width"), [(1, 1), (33, 5), (64, 32), (70, 43)])
def test_a_map_in_the_kernels_stores_its_weight_once(dtype, size, width):
    weight = torch.randn(size, width).mul(50).to(dtype)
    scale = torch.ones(size) if dtype == torch.int8 else None
    linear = KernelLinear(weight, None, scale)
    assert torch.equal(linear.weight, weight)
    assert (linear.in_features, linear.out_features) == (width, size)
    loaded = pickle.loads(pickle.dumps(linear))
    for each in (linear, loaded, copy.deepcopy(linear)):
        assert [*each.buffers()] == [each.matrix]
        assert each.matrix.data_ptr() == each.blocked.matrix.data_ptr()
        assert torch.equal(each.weight, weight)


def test_python_and_the_kernels_have_the_same_constants():
    values = [ctypes.c_int64() for _ in range(4)]
    build.library("decoding").product_constants(0, *map(ctypes.byref, values))
    expected = fused_decoding.BLOCK, fused_decoding.STEP, fused_decoding.BLOCK_ROWS
    expected += (fused_decoding.INPUT_OFFSET,)
    assert tuple(value.value for value in values) == expected


def test_a_map_in_kernels_cannot_be_changed():
    linear = KernelLinear(torch.randn(7, 5), None)
    assert linear.float() is linear and linear(torch.randn(0, 5)).shape == (0, 7)
    assert (linear.in_features, linear.out_features) == (5, 7)
    with pytest.raises(RuntimeError, match="loaded for inference on CPU"):
        linear.to(torch.float64)
    with pytest.raises(AssertionError):
        linear(torch.randn(2, 4))


INT8_KERNELS = pytest.param(Int8KernelLinear, marks=needs_products(torch.int8))


@pytest.mark.parametrize("kind", [KernelLinear, INT8_KERNELS, int8.Int8Linear, Bf16Linear])
def test_a_refused_change_of_a_map_changes_nothing(kind):
    linear = kind(torch.randn(7, 5), torch.randn(7))
    x = torch.randn(2, 5)
    before = linear(x)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        with pytest.raises(RuntimeError, match="loaded for inference on CPU"):
            linear.to(dtype)
    with pytest.raises(RuntimeError, match="weights cannot be replaced"):
        linear.load_state_dict(linear.state_dict())
    assert torch.equal(linear(x), before)


def test_integer_products_of_one_input():
    a = torch.full((3, 1), 5, dtype=torch.int8)
    b = torch.arange(4, dtype=torch.int8)[:, None]
    assert int8.integer_product(a, b).tolist() == 3 * [[0, 5, 10, 15]]


def test_kernels_are_not_used_for_forward_derivatives():
    with torch.inference_mode(False), torch.no_grad(), torch.autograd.forward_ad.dual_level():
        assert not fused_decoding.usable(torch.ones(2))
    with torch.no_grad():
        assert fused_decoding.usable(torch.ones(2))


@needs_products(torch.bfloat16)
def test_rows_of_bf16_use_the_kernel(monkeypatch):
    linear = KernelLinear(torch.randn(7, 5).bfloat16(), None)
    x = torch.randn(3, 5).bfloat16()
    monkeypatch.setattr(linear, "_plain", None)
    close(linear(x), x.float() @ linear.weight.float().t())


@pytest.mark.parametrize("place", [0, 19])
def test_tiny_rows_have_finite_scales(place):
    x = torch.zeros(2, 20)
    x[1, place] = 1e-36
    rounded, scale = fused_decoding.quantize(x)
    assert not rounded[0].any() and scale.isfinite().all()
    assert torch.equal(int8.quantize(x)[0], rounded)


def test_a_map_in_kernels_has_gradients():
    weight = torch.randn(7, 5)
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.randn(3, 5, requires_grad=True)
        KernelLinear(weight.clone(), None)(x).sum().backward()
        close(x.grad, weight.sum(0).expand(3, 5))


@pytest.mark.parametrize(
    "dtype", [*DTYPES, pytest.param(torch.int8, marks=needs_products(torch.int8))]
)
@pytest.mark.parametrize("rows", [3, 70])
@pytest.mark.parametrize("biased", [False, True])
def test_best_tokens_of_a_map(rows, biased, dtype):
    x, weight = torch.randn(rows, 24), torch.randn(133, 24)
    bias = torch.randn(133) if biased else None
    forbidden, only = torch.tensor([0, 3]), torch.full((rows,), -1)
    only[1] = 5
    if dtype == torch.int8:
        blocked = Int8KernelLinear(weight, bias).blocked
    else:
        blocked = fused_decoding.to_blocks(weight.to(dtype))
    logits = fused_decoding.product(x, blocked, bias)
    expected = fused_decoding.best_tokens(logits, None, forbidden, only, 4)
    results = fused_decoding.best_tokens_of_map(x, blocked, bias, forbidden, only, 4)
    assert all(map(torch.equal, results, expected))


@needs_products(torch.int8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [24, 37])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("spread", [1.0, 0.02, 0.0])
@pytest.mark.parametrize("exact", ["nothing", "weight", "x"])
def test_a_screen_finds_the_best_outputs(dtype, width, biased, spread, exact):
    """With a spread of 0.02, the int8 product finds other tokens. With 0, all logits are equal."""
    weight = torch.randn(width) + spread * torch.randn(133, width)
    bias = spread * torch.randn(133) if biased else None
    x, forbidden, only = torch.randn(200, width), torch.tensor([0, 3]), torch.full((200,), -1)
    if exact != "nothing":  # int8 does not round these integers
        factor = weight if exact == "weight" else x
        factor.mul_(20).round_().clamp_(-126, 126)[:, 0] = 127
    only[5] = 3
    linear = ScreenedLinear(weight.to(dtype), bias)
    scores, tokens = linear.best(x, forbidden, only)
    _, expected, _ = fused_decoding.best_tokens_of_map(x, linear.blocked, bias, forbidden, only, 1)
    assert torch.equal(tokens, expected) and (scores == 0).all()
    if spread == 0.02:
        rounded = Int8KernelLinear(weight.to(dtype), bias)(x).index_fill(1, forbidden, -math.inf)
        assert not torch.equal(rounded.argmax(1, keepdim=True), expected)


@needs_products(torch.int8)
def test_a_screen_of_unusual_rows():
    linear = ScreenedLinear(torch.randn(40, 24), None)
    x, all_tokens = torch.randn(6, 24), torch.arange(40)
    x[1, 3], x[2, 0], x[3], x[4] = math.nan, math.inf, 0, 1e30 * x[4]
    scores, tokens = linear.best(x, torch.tensor([0]), None)
    assert scores.flatten().isnan().tolist() == [False, True, True, False, False, False]
    assert tokens[3] == 1 and tokens[4] == linear(x[4:5])[:, 1:].argmax() + 1
    scores, _ = linear.best(x[:1], all_tokens, None)
    assert scores.item() == -math.inf
    assert linear.screens(torch.randn(32 * torch.get_num_threads(), 24)) and not linear.screens(x)
    weight = torch.randn(40, 24)
    weight[7, 3] = math.inf
    assert not ScreenedLinear(weight, None).screens(torch.randn(999, 24))


@needs_products(torch.int8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("factor", "weight_factor"), [(1e-25, 1), (1, 1e-25), (1e25, 1)])
def test_a_screen_of_very_small_and_large_numbers(dtype, factor, weight_factor):
    """Their squares underflow or are infinite."""
    weight = weight_factor * (torch.randn(24) + 0.02 * torch.randn(133, 24))
    x, forbidden, only = factor * torch.randn(200, 24), torch.tensor([0]), torch.full((200,), -1)
    only[5] = 7
    linear = ScreenedLinear(weight.to(dtype), None)
    assert linear.screens(torch.randn(32 * torch.get_num_threads(), 24)) == (weight_factor == 1)
    if weight_factor == 1:
        expected = fused_decoding.best_tokens_of_map(x, linear.blocked, None, forbidden, only, 1)
        assert torch.equal(linear.best(x, forbidden, only)[1], expected[1])


@pytest.mark.parametrize("place", [0, 17, 36])
def test_nan_is_not_lost(place):
    x = torch.randn(2, 37)
    x[1, place] = math.nan
    _, _, log_z = fused_decoding.best_tokens(x.clone(), None, torch.tensor([0]), None, 3)
    assert log_z[0].isfinite() and log_z[1].isnan()
    bias = torch.zeros(37)
    assert fused_decoding.add_bias(x.clone(), bias, relu=True)[1, place].isnan()
    assert fused_decoding.add_norm(x, None, None, nn.LayerNorm(37))[1].isnan().all()
    rounded = Int8Linear(torch.randn(5, 37), None)(x)
    assert rounded[0].isfinite().all() and rounded[1].isnan().all()


def test_threads_give_the_same_bits():
    logits = torch.randn(40, 500)
    x, blocked = torch.randn(70, 32), fused_decoding.to_blocks(torch.randn(200, 32))
    forbidden = torch.tensor([0])
    results = []
    for threads in (1, 2):
        with torch_threads(threads):
            results.append(
                [
                    *fused_decoding.best_tokens(logits.clone(), None, forbidden, None, 5),
                    fused_decoding.product(x, blocked),
                    *fused_decoding.best_tokens_of_map(x, blocked, None, forbidden, None, 5),
                ]
            )
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("width", [5, 64, 70])
def test_products_of_8_bits_are_those_without_kernels(width, monkeypatch):
    x = torch.randn(3, 2, width) * torch.tensor([1e-3, 1.0, 40.0])[:, None, None]
    x[0, 1] = 0
    exact = nn.Linear(width, 33)
    linear = Int8Linear(exact.weight, exact.bias)
    result = linear(x)
    assert torch.equal(linear.product(x[1], linear.bias, relu=True), result[1].relu())
    assert (result - exact(x)).norm() < 0.02 * exact(x).norm()
    monkeypatch.setattr(fused_decoding, "library", lambda name: None)
    close(linear(x), result)
    close(linear.product(x[1], linear.bias, relu=True), result[1].relu())
    monkeypatch.setattr(int8, "_has_exact_products", lambda: False)
    close(linear(x), result)


def test_products_in_bf16_are_close_to_exact_ones():
    x = torch.randn(3, 2, 37)
    exact = nn.Linear(37, 33)
    linear = Bf16Linear(exact.weight, exact.bias)
    result = linear(x)
    assert result.dtype == torch.float32
    assert (result - exact(x)).norm() < 0.01 * exact(x).norm()
    assert torch.equal(linear.product(x[1], linear.bias, relu=True), result[1].relu())
    close(linear_part(linear, x, slice(5, None)), result[..., 5:])


@pytest.mark.parametrize("width", [64, 2000])
def test_integer_products_are_exact(width, monkeypatch):
    a, b = (torch.randint(-127, 128, (9, width), dtype=torch.int8) for _ in range(2))
    a[0] = b[0] = 127
    expected = a.double() @ b.double().T
    assert torch.equal(integer_product(a, b).double(), expected)
    monkeypatch.setattr(int8, "_has_exact_products", lambda: False)
    assert torch.equal(integer_product(a, b).double(), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(integer_product(a, b).double(), expected)
