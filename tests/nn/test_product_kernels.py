"""The kernels for large products compute what torch computes."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fusetk.nn.fused import products
from fusetk.nn.fused.products import available
from fusetk.nn.output import OutputProjection
from fusetk.training.loss import loss
from tests.helpers.threads import torch_threads

pytestmark = pytest.mark.skipif(not available(), reason="there is no C++ compiler")

# M, N and K: multiples of the block sizes of the kernels, and other sizes. Sums of the last five
# products are divided, but those of bf16 are not if the result is bf16, A is stored by rows, and K
# is at most 8192. The columns of B are divided if N is 999, and in bf16 if K is 8191.
SHAPES = [
    (64, 32, 16),
    (65, 33, 1),
    (71, 50, 17),
    (130, 95, 300),
    (200, 77, 2100),
    (70, 999, 1600),
    (64, 300, 8191),
    (64, 40, 9001),
    (64, 32, 1025),
]
TYPES = [
    pytest.param(
        dtype,
        marks=pytest.mark.skipif(
            not available(dtype), reason="this processor has no products of this type"
        ),
    )
    for dtype in (torch.float32, torch.bfloat16)
]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(1)


def matrix(rows: int, columns: int, transposed: bool, dtype: torch.dtype) -> Tensor:
    """Return a part of a larger matrix, so there are other numbers between its rows."""
    if transposed:
        return matrix(columns, rows, False, dtype).t()
    return torch.randn(rows, columns + 3).to(dtype)[:, 1 : columns + 1]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "columns", "count"), SHAPES)
def test_products_with_transposed_factors(rows, columns, count, dtype):
    for transposed in itertools.product((False, True), repeat=2):
        a = matrix(rows, count, transposed[0], dtype)
        b = matrix(count, columns, transposed[1], dtype)
        assert products.usable(a, b)
        exact = a.double() @ b.double()
        bias, out = torch.randn(columns), torch.randn(rows, columns)
        # The sums of bf16 are float32; only the result is rounded.
        rounding = 1e-5 if dtype == torch.float32 else 2**-8

        def close(result: Tensor, expected: Tensor, rounding=rounding, dtype=dtype) -> None:
            assert result.dtype == dtype
            atol = 2e-6 * count**0.5 + 1e-5
            torch.testing.assert_close(result.double(), expected, rtol=rounding, atol=atol)

        close(products.matmul(a, b), exact)
        close(products.matmul(a, b, bias), exact + bias)
        total = out.clone()
        products.add_matmul(total, a, b)
        close(total, exact + out, 1e-5, torch.float32)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(300, 100), (70, 1000)])
def test_results_do_not_depend_on_the_number_of_threads(rows, columns, by_columns, dtype):
    a, b = matrix(rows, 1500, by_columns, dtype), torch.randn(1500, columns).to(dtype)
    bias = torch.randn(columns)
    results = []
    for number in (1, 2, 3, 7, 64):
        with torch_threads(number):
            results.append(products.matmul(a, b, bias))
    for result in results[1:]:
        assert torch.equal(results[0], result)


@pytest.fixture
def calls(monkeypatch):
    """A list with an entry for each call of the kernels; torch's operators are replaced."""
    calls = []
    call = products._call
    monkeypatch.setattr(
        products, "_call", lambda *arguments: (calls.append(1), call(*arguments))[1]
    )
    undo = [products.replace(dtype) for dtype in products.used_in_training if available(dtype)]
    yield calls
    for end in undo:
        end()
    del calls[:]
    for dtype in products.used_in_training:
        torch.ones(100, 100, dtype=dtype) @ torch.ones(100, 100, dtype=dtype)
    assert not calls, "the operators of torch are restored"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("columns", [64, 20])
def test_a_product_in_given_memory_is_that_of_the_operator(calls, columns, dtype):
    a, b = torch.randn(100, 30).to(dtype), torch.randn(30, columns).to(dtype)
    out = torch.full((100, columns), torch.nan, dtype=dtype)
    products.matmul_into(out, a, b)
    assert out.equal(a @ b) and len(calls) == 2 * (columns == 64)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("columns", [64, 20])
def test_a_product_in_float32_is_not_rounded_by_the_kernels(calls, columns, dtype):
    a, b = torch.randn(100, 30).to(dtype), torch.randn(30, columns).to(dtype)
    product = products.unrounded_matmul(a, b)
    assert product.dtype == torch.float32
    assert product.to(dtype).equal(a @ b) and len(calls) == 2 * (columns == 64)
    is_rounded = product.equal(product.to(dtype))
    assert is_rounded == (columns == 20 or dtype == torch.float32)


@pytest.mark.parametrize("dtype", TYPES)
def test_linear_maps_and_their_gradients_use_the_kernels(calls, monkeypatch, dtype):
    x = torch.randn(4, 30, 40, dtype=dtype, requires_grad=True)
    weight = torch.randn(70, 40, dtype=dtype, requires_grad=True)
    bias = torch.randn(70, dtype=dtype, requires_grad=True)
    grad = torch.randn(4, 30, 70, dtype=dtype)
    results = []
    for _ in range(2):
        y = F.linear(x, weight, bias)
        results.append([y, *torch.autograd.grad(y, (x, weight, bias), grad)])
        if len(results) == 1:
            assert len(calls) == 3
            monkeypatch.setattr(products, "usable", lambda a, b: False)
    assert len(calls) == 3
    rounding = 1e-5 if dtype == torch.float32 else 2**-7
    for kernel, plain in zip(*results, strict=True):
        torch.testing.assert_close(kernel, plain, rtol=rounding, atol=1e-4)


@pytest.mark.parametrize("dtype", TYPES)
def test_only_products_of_a_replaced_type_use_the_kernels(calls, monkeypatch, dtype):
    a, b = torch.randn(100, 30).to(dtype), torch.randn(30, 40).to(dtype)
    with monkeypatch.context() as patch:
        patch.setitem(products._users, dtype, 0)
        _ = a @ b, torch.addmm(b[0], a, b), products.unrounded_matmul(a, b)
        products.matmul_into(a.new_empty(100, 40), a, b)
        torch.zeros(100, 40, dtype=dtype).addmm_(a, b)
        assert not calls and not products.replaced(dtype)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.ones(100, 50, dtype=torch.float64), torch.ones(50, 40, dtype=torch.float64)),
        (torch.ones(100, 50, dtype=torch.float16), torch.ones(50, 40, dtype=torch.float16)),
        (torch.ones(100, 50, dtype=torch.int64), torch.ones(50, 40, dtype=torch.int64)),
        (torch.ones(100, 0), torch.ones(0, 40)),
        (torch.ones(100, 100)[:, ::2], torch.ones(50, 40)),
        (torch.ones(2, 50), torch.ones(50, 40)),
    ],
)
def test_torch_computes_unsupported_products(a, b, calls):
    expected = float(a.shape[1])
    assert ((a @ b) == expected).all()
    assert (a @ b).dtype == a.dtype
    out = torch.ones(len(a), 40, dtype=a.dtype)
    assert (out.addmm_(a, b) == expected + 1).all()
    assert (torch.addmm(torch.ones(40, dtype=a.dtype), a, b) == expected + 1).all()
    assert not calls


def test_torch_computes_sums_with_factors_or_a_matrix(calls):
    a, b, bias = torch.ones(100, 50), torch.ones(50, 40), torch.ones(40)
    assert (torch.addmm(bias, a, b, beta=2) == 52).all()
    assert (torch.addmm(bias, a, b, alpha=2) == 101).all()
    assert (torch.addmm(torch.ones(100, 40), a, b) == 51).all()
    assert (torch.ones(100, 40).addmm_(a, b, alpha=2) == 101).all()
    assert not calls


@pytest.mark.parametrize(("a", "b"), [((100, 50), (40, 50)), ((100, 50), (50,))])
def test_wrong_shapes_are_errors(a, b, calls):
    with pytest.raises(RuntimeError, match="mat2"):
        torch.mm(torch.ones(a), torch.ones(b))
    assert not calls


@pytest.mark.parametrize("dtype", TYPES)
def test_nan_and_infinity_propagate(calls, dtype):
    a, b = torch.ones(64, 32, dtype=dtype), torch.ones(32, 32, dtype=dtype)
    a[3, 5] = torch.nan
    b[7, 2] = torch.inf
    product = a @ b
    assert calls
    assert product[3].isnan().all()
    assert (product[:3, 2] == torch.inf).all()
    assert product.isfinite().sum() == 63 * 31


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("by_columns", [False, True])
def test_numbers_beside_the_factors_are_not_read(calls, dtype, by_columns):
    """A count of 31 is odd, and the memory after each row of a is NaN."""
    memory = torch.full((65, 96), torch.nan, dtype=dtype)
    a = memory.t()[:65, :31] if by_columns else memory[:64, :31]
    a[:64] = 1
    b = torch.ones(31, 33, dtype=dtype)
    assert (a[:64] @ b == 31).all() and calls


def test_a_sum_of_another_shape_is_an_error(calls):
    a, b = torch.ones(100, 50), torch.ones(50, 40)
    for shape in ((40,), (1, 40), (3, 40), ()):
        with pytest.raises(RuntimeError, match="shape"):
            torch.ones(shape).addmm_(a, b)
    assert not calls


def test_a_sum_that_shares_memory_with_a_factor_is_left_to_the_library(calls):
    """The library overwrites the factor while it reads it, so the result is not defined."""
    out, b = torch.randn(128, 128), torch.randn(128, 128)
    out.addmm_(out, b)
    assert not calls


def test_results_have_the_type_of_the_factors(calls):
    torch.set_default_dtype(torch.float64)
    try:
        product = torch.ones(64, 50, dtype=torch.float32) @ torch.ones(50, 40, dtype=torch.float32)
    finally:
        torch.set_default_dtype(torch.float32)
    assert calls and product.dtype == torch.float32 and (product == 50).all()


def test_operators_are_replaced_until_the_last_use_ends(calls):
    undo = products.replace()
    undo()
    torch.ones(64, 64) @ torch.ones(64, 64)
    assert calls


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_gradient_of_an_output_matrix_that_is_stored_by_columns(calls, precision):
    output = OutputProjection(48, 100, bias=False)
    by_columns = torch.randn(48, 100).t()
    features, targets = torch.randn(80, 48), torch.randint(100, (80,))
    gradients = []
    for weight in (by_columns, by_columns.contiguous()):
        output.weight = torch.nn.Parameter(weight)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss(features, output, targets, 0.1).smoothed.backward()
        gradients.append(output.weight.grad)
    torch.testing.assert_close(*gradients)
