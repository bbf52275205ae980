"""The kernel for the loss of the output projection against PyTorch's products."""

import pytest
import torch
from torch import Tensor

from fusetk.nn.fused import output_loss as kernel
from fusetk.nn.fused.build import library
from fusetk.nn.output_loss import output_loss, output_loss_of_products

pytestmark = pytest.mark.skipif(library("output_loss") is None, reason="there is no C++ compiler")

# Rows, width and vocabulary: below, at and above the sizes of blocks and slices
SIZES = [(1, 1, 2), (5, 7, 3), (32, 16, 32), (33, 48, 129), (97, 33, 261), (140, 64, 31)]


def arguments(rows: int, width: int, vocabulary: int, bias: bool) -> tuple[Tensor, ...]:
    torch.manual_seed(rows)
    return (
        torch.randn(rows, width),
        torch.randn(vocabulary, width),
        torch.randn(vocabulary) if bias else None,
        torch.randint(0, vocabulary, (rows,)),
    )


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("piece", [1, 1 << 20])
@pytest.mark.parametrize("training", [True, False])
def test_the_kernel_computes_the_same(sizes, bias, piece, training) -> None:
    given = arguments(*sizes, bias)
    sums, gradients = kernel.output_loss(*given, 0.9, 0.01, piece, training)
    expected_sums, expected = output_loss_of_products(*given, 0.9, 0.01, training)
    torch.testing.assert_close(sums, expected_sums, rtol=1e-5, atol=1e-4)
    assert (gradients is None) == (expected is None) == (not training)
    for gradient, other in zip(gradients or (), expected or (), strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-4)


def test_no_rows() -> None:
    sums, gradients = kernel.output_loss(*arguments(0, 4, 9, True), 0.9, 0.01, 100, True)
    assert not sums.any() and not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_reproducible(threads) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        given = arguments(200, 24, 100, True)
        (sums, gradients), (other_sums, others) = (
            kernel.output_loss(*given, 0.9, 0.01, 1, True) for _ in range(2)
        )
    finally:
        torch.set_num_threads(before)
    assert torch.equal(sums, other_sums)
    assert all(map(torch.equal, gradients, others))


def test_strides_of_the_arguments_do_not_matter() -> None:
    features, weight, bias, targets = arguments(40, 12, 21, True)
    strided = features.T.contiguous().T, weight.T.contiguous().T, bias, targets
    expected, _ = kernel.output_loss(features, weight, bias, targets, 0.9, 0.01, 100, True)
    assert torch.equal(kernel.output_loss(*strided, 0.9, 0.01, 100, True)[0], expected)


def test_targets_are_checked_and_converted() -> None:
    features, weight, bias, targets = arguments(40, 12, 21, True)
    expected, _ = kernel.output_loss(features, weight, bias, targets, 0.9, 0.01, 100, True)
    for equal in (targets.int(), torch.stack((targets, targets), 1)[:, 1]):
        actual, _ = kernel.output_loss(features, weight, bias, equal, 0.9, 0.01, 100, True)
        assert torch.equal(actual, expected)
    for wrong in (-100, 21):
        targets[3] = wrong
        with pytest.raises(IndexError, match="21 entries of the vocabulary"):
            kernel.output_loss(features, weight, bias, targets, 0.9, 0.01, 100, True)


def test_a_nan_is_not_hidden() -> None:
    features, *others = arguments(40, 12, 21, False)
    features[3, 4] = torch.nan
    sums, gradients = kernel.output_loss(features, *others, 0.9, 0.01, 100, True)
    assert sums[0].isnan() and gradients.features[3].isnan().all()
    assert gradients.weight.isnan().all()


def test_products_in_bf16_are_those_of_pytorch(monkeypatch) -> None:
    monkeypatch.setattr(kernel, "in_use", True)
    given = arguments(40, 12, 21, False)
    with torch.autocast("cpu", torch.bfloat16):
        sums, _ = output_loss(*given, 0.9, 0.01, True)
        expected, _ = output_loss_of_products(*given, 0.9, 0.01, True)
    assert torch.equal(sums, expected)
