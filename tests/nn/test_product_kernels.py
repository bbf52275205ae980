"""The kernels for large products compute what torch computes."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fusetk.nn.fused import products

pytestmark = pytest.mark.skipif(not products.available(), reason="there is no C++ compiler")

# M, N and K: multiples of the block sizes of the kernels, and other sizes. The kernels divide B
# into parts in the last two products.
SHAPES = [(64, 32, 16), (65, 33, 1), (71, 50, 17), (130, 95, 300), (200, 77, 2100), (70, 999, 600)]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(1)


def matrix(rows: int, columns: int, transposed: bool) -> Tensor:
    """Return a part of a larger matrix, so there are other numbers between its rows."""
    if transposed:
        return matrix(columns, rows, False).t()
    return torch.randn(rows, columns + 3)[:, 1 : columns + 1]


@pytest.mark.parametrize(("rows", "columns", "count"), SHAPES)
def test_products_with_transposed_factors(rows, columns, count):
    for transposed in itertools.product((False, True), repeat=2):
        a = matrix(rows, count, transposed[0])
        b = matrix(count, columns, transposed[1])
        assert products.usable(a, b)
        exact = a.double() @ b.double()
        bias, out = torch.randn(columns), torch.randn(rows, columns)
        tolerance = {"rtol": 1e-5, "atol": 2e-6 * count**0.5 + 1e-5}

        def close(result: Tensor, expected: Tensor, tolerance=tolerance) -> None:
            torch.testing.assert_close(result, expected.float(), **tolerance)

        close(products.matmul(a, b), exact)
        close(products.matmul(a, b, bias), exact + bias)
        total = out.clone()
        products.add_matmul(total, a, b)
        close(total, exact + out)


def test_results_do_not_depend_on_the_number_of_threads():
    a, b = torch.randn(300, 1500), torch.randn(1500, 100)
    results = []
    threads = torch.get_num_threads()
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        results.append(products.matmul(a, b))
    torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.fixture
def calls(monkeypatch):
    """A list with an entry for each call of the kernels; torch's operators are replaced."""
    calls = []
    call = products._call
    monkeypatch.setattr(
        products, "_call", lambda *arguments: (calls.append(1), call(*arguments))[1]
    )
    undo = products.replace()
    yield calls
    undo()
    del calls[:]
    torch.ones(100, 100) @ torch.ones(100, 100)
    assert not calls, "the operators of torch are restored"


@pytest.mark.parametrize("columns", [64, 20])
def test_a_product_in_given_memory_is_that_of_the_operator(calls, columns):
    a, b = torch.randn(100, 30), torch.randn(30, columns)
    out = torch.full((100, columns), torch.nan)
    products.matmul_into(out, a, b)
    assert out.equal(a @ b) and len(calls) == 2 * (columns == 64)


def test_linear_maps_and_their_gradients_use_the_kernels(calls, monkeypatch):
    x = torch.randn(4, 30, 40, requires_grad=True)
    weight = torch.randn(70, 40, requires_grad=True)
    bias = torch.randn(70, requires_grad=True)
    grad = torch.randn(4, 30, 70)
    results = []
    for _ in range(2):
        y = F.linear(x, weight, bias)
        results.append([y, *torch.autograd.grad(y, (x, weight, bias), grad)])
        if len(results) == 1:
            assert len(calls) == 3
            monkeypatch.setattr(products, "usable", lambda a, b: False)
    assert len(calls) == 3
    for kernel, plain in zip(*results, strict=True):
        torch.testing.assert_close(kernel, plain, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.ones(100, 50, dtype=torch.float64), torch.ones(50, 40, dtype=torch.float64)),
        (torch.ones(100, 50, dtype=torch.bfloat16), torch.ones(50, 40, dtype=torch.bfloat16)),
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
    with pytest.raises(RuntimeError, match=r"size|2"):
        torch.mm(torch.ones(a), torch.ones(b))
    assert not calls


def test_nan_and_infinity_propagate(calls):
    a, b = torch.ones(64, 32), torch.ones(32, 32)
    a[3, 5] = torch.nan
    b[7, 2] = torch.inf
    product = a @ b
    assert calls
    assert product[3].isnan().all()
    assert (product[:3, 2] == torch.inf).all()
    assert product.isfinite().sum() == 63 * 31


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
