"""The fused kernels of Transformer layers against PyTorch's operations."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fusetk.models.residual.base import ResidualConfig, SubLayer
from fusetk.models.residual.plain import PlainResidual
from fusetk.nn.dropout_mask import (
    DropoutMask,
    plain_random_words,
    random_words,
    scale,
    threshold,
)
from fusetk.nn.feedforward import FeedForward
from fusetk.nn.fused import transformer as fused_transformer
from fusetk.training.loss import plain_cross_entropy

fused = pytest.mark.skipif(
    not fused_transformer.usable(torch.zeros(1)), reason="there is no C++ compiler"
)
DROPOUT_MASKS = [None, DropoutMask(12345, 13_107)]
pytestmark = pytest.mark.usefixtures("two_threads")  # the kernels use both above 8192 numbers


def dropped(x: torch.Tensor, dropout_mask: DropoutMask | None) -> torch.Tensor:
    if dropout_mask is None:
        return x
    units = dropout_mask.units
    return x * (dropout_mask.random_bits(x.shape) >= threshold(units)) * scale(units)


def compare(results, tensors, tolerance=1e-5) -> None:
    """Compare two results and their gradients."""
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)
    grad = torch.randn_like(results[0])
    gradients = [torch.autograd.grad(result, tensors, grad) for result in results]
    for pair in zip(*gradients, strict=True):
        torch.testing.assert_close(*pair, rtol=10 * tolerance, atol=10 * tolerance)


@fused
@pytest.mark.parametrize("leading", [(2, 5), (400,)], ids=["few rows", "many rows"])
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("dropout_mask", DROPOUT_MASKS)
def test_residual_sum(dropout_mask, normalised, leading) -> None:
    x, y = (torch.randn(*leading, 22, requires_grad=True) for _ in range(2))
    norm = nn.LayerNorm(22) if normalised else None
    expected = x + dropped(y, dropout_mask)
    tensors = [x, y]
    if norm is not None:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        expected = norm(expected)
        tensors += list(norm.parameters())
    compare((fused_transformer.residual(x, y, dropout_mask, norm), expected), tensors)


@fused
@pytest.mark.parametrize("leading", [(3, 7), (), (500,)], ids=["few rows", "vector", "many rows"])
@pytest.mark.parametrize("dropout_mask", DROPOUT_MASKS)
def test_feed_forward(dropout_mask, leading) -> None:
    x = torch.randn(*leading, 10, requires_grad=True)
    hidden, out = nn.Linear(10, 18), nn.Linear(18, 6)
    expected = out(dropped(F.relu(hidden(x)), dropout_mask))
    tensors = [x, *hidden.parameters(), *out.parameters()]
    compare((fused_transformer.feed_forward(x, hidden, out, dropout_mask), expected), tensors)


@fused
def test_feed_forward_in_bf16_differs_by_rounding_only() -> None:
    torch.manual_seed(1)  # with other seeds, rounding may change the sign of a hidden unit
    x = torch.randn(3, 7, 10, requires_grad=True)
    hidden, out = nn.Linear(10, 18), nn.Linear(18, 6)
    with torch.autocast("cpu", torch.bfloat16):
        result = fused_transformer.feed_forward(x, hidden, out, None)
    assert result.dtype == torch.bfloat16
    compare((result.float(), out(F.relu(hidden(x)))), [x, *hidden.parameters()], tolerance=0.02)


@fused
def test_a_nan_is_not_hidden() -> None:
    x = torch.full((1, 4), torch.nan)
    hidden, out = nn.Linear(4, 8), nn.Linear(8, 4)
    assert fused_transformer.feed_forward(x, hidden, out, DROPOUT_MASKS[1]).isnan().all()


@fused
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
def test_cross_entropy(with_bias, training) -> None:
    logits = torch.randn(6, 33) * 3
    logits[0, 3] = logits[0, 7] = 20.0  # two largest logits: the first counts as the prediction
    targets = torch.tensor([7, 0, 32, 5, int(logits[4].argmax()), 9])
    bias = torch.randn(33) if with_bias else None
    if bias is not None:
        bias[3] = bias[7]
    results = []
    for function in (fused_transformer.cross_entropy, plain_cross_entropy):
        gradients = logits.clone()
        bias_grad = None if bias is None else torch.ones(33)
        sums = function(gradients, bias, targets, 0.87, 0.004, bias_grad, training)
        results.append((sums, gradients, bias_grad))
    for pair in zip(*results, strict=True):
        if pair[0] is not None:
            torch.testing.assert_close(*pair, rtol=1e-5, atol=1e-5)


@fused
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 700])
def test_addition(dtype: torch.dtype, rows: int) -> None:
    total, x = torch.randn(rows, 23), torch.randn(rows, 23).to(dtype)
    expected = total + x
    fused_transformer.add(total, x)
    assert total.equal(expected)


@fused
def test_gradients_of_very_small_logits() -> None:
    results = []
    for function in (fused_transformer.cross_entropy, plain_cross_entropy):
        logits = torch.full((1, 4), -1e35)
        function(logits, None, torch.tensor([2]), 1.0, 0.0, None, True)
        results.append(logits)  # the gradients
    torch.testing.assert_close(*results)


@fused
def test_targets_of_the_loss_are_checked_and_converted() -> None:
    logits, targets = torch.randn(6, 33), torch.tensor([7, 0, 32, 5, 1, 9])
    expected = fused_transformer.cross_entropy(logits.clone(), None, targets, 0.9, 0.01, None, True)
    for equal in (targets.int(), torch.stack((targets, targets), 1)[:, 1]):
        actual = fused_transformer.cross_entropy(logits.clone(), None, equal, 0.9, 0.01, None, True)
        assert torch.equal(actual, expected)
    for wrong in (-100, 33):
        targets[3] = wrong
        with pytest.raises(IndexError, match="indices from 0 to 32"):
            fused_transformer.cross_entropy(logits.clone(), None, targets, 0.9, 0.01, None, True)


@pytest.mark.parametrize("options", [{"bias": False}, {"elementwise_affine": False}])
def test_a_norm_without_parameters_is_not_skipped(options) -> None:
    sublayer = SubLayer("r", 0, 1, 6, "post", "layer", 0.0, "encoder", {"encoder": 1})
    residual = PlainResidual(ResidualConfig(kind="plain"), sublayer)
    residual.norm = nn.LayerNorm(6, **options)
    x, y = torch.randn(2, 3, 6), torch.randn(2, 3, 6)
    torch.testing.assert_close(residual.after(x, y), residual.norm(x + y))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_sublayer_may_return_another_type(dtype: torch.dtype) -> None:
    sublayer = SubLayer("r", 0, 1, 6, "post", "layer", 0.0, "encoder", {"encoder": 1})
    residual = PlainResidual(ResidualConfig(kind="plain"), sublayer)
    residual.norm = None
    residual.pre = True
    x, y = torch.randn(2, 3, 6), torch.randn(2, 3, 6).to(dtype)
    torch.testing.assert_close(residual.after(x, y), x + y)


@pytest.mark.parametrize("width", [8, 32])
def test_a_norm_of_another_width_is_an_error(width: int) -> None:
    sublayer = SubLayer("a", 0, 1, 16, "post", "layer", 0.0, "encoder", {"encoder": 1})
    residual = PlainResidual(ResidualConfig(kind="plain"), sublayer)
    with pytest.raises(RuntimeError, match="normalized_shape"):
        residual.after(torch.randn(2, 5, width), torch.randn(2, 5, width))


def test_parameters_may_have_any_stride() -> None:
    x, (bias, gain) = torch.randn(2, 3, 6), torch.randn(6, 2).unbind(1)
    ffn = FeedForward(6, 6, 5)
    ffn.hidden.bias = nn.Parameter(bias)
    torch.testing.assert_close(ffn(x), ffn.out(F.relu(ffn.hidden(x))))
    sublayer = SubLayer("r", 0, 1, 6, "post", "layer", 0.0, "encoder", {"encoder": 1})
    residual = PlainResidual(ResidualConfig(kind="plain"), sublayer)
    residual.norm.weight = nn.Parameter(gain)
    torch.testing.assert_close(residual.after(x, x), residual.norm(x + x))


def test_feed_forward_without_biases() -> None:
    ffn = FeedForward(6, 8, 5)
    ffn.hidden = nn.Linear(6, 8, bias=False)
    x = torch.randn(2, 3, 6)
    torch.testing.assert_close(ffn(x), ffn.out(F.relu(ffn.hidden(x))))


def test_random_words_are_those_of_splitmix64() -> None:
    """The first numbers at seed 1234567 are those of the generator's reference implementation."""
    first = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [word % 2**64 for word in plain_random_words(1234567, 3).tolist()] == first
    for seed in (0, -1, 2**63 - 1, -(2**63)):
        assert torch.equal(random_words(seed, 1001), plain_random_words(seed, 1001))
