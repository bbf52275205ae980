"""The loss: equal to the formula written out, value and gradient, in pieces of any size."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fusetk.nn.output import MAX_PIECE, MIN_ROWS, PIECE, OutputProjection, rows_in_piece
from fusetk.training.loss import loss


def plain(features: Tensor, output: OutputProjection, targets: Tensor, smoothing: float) -> Tensor:
    """Return -sum_k q(k) log p(k), with each entry of q computed."""
    log_p = F.log_softmax(output(features), -1)
    q = torch.full_like(log_p, smoothing / (log_p.shape[1] - 1)).scatter_(
        1, targets[:, None], 1 - smoothing
    )
    return -(q * log_p).sum()


@pytest.fixture
def case() -> tuple[Tensor, OutputProjection, Tensor]:
    torch.manual_seed(2)
    output = OutputProjection(6, 13)
    torch.nn.init.normal_(output.weight)
    torch.nn.init.normal_(output.bias)
    return torch.randn(29, 6), output, torch.randint(0, 13, (29,))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_value_and_gradient_are_the_formulas(
    case: tuple[Tensor, OutputProjection, Tensor],
    smoothing: float,
    bias: bool,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features, output, targets = case
    if not bias:
        output.bias = None
    monkeypatch.setattr("fusetk.training.loss.rows_in_piece", lambda *_: rows)
    inputs = [features.requires_grad_(), *output.parameters()]
    expected = plain(features, output, targets, smoothing)
    expected_grads = torch.autograd.grad(expected / 7, inputs)
    actual = loss(features, output, targets, smoothing)
    torch.testing.assert_close(actual.smoothed, expected)
    torch.testing.assert_close(
        actual.nll, F.cross_entropy(output(features), targets, reduction="sum")
    )
    for gradient, expected_grad in zip(
        torch.autograd.grad(actual.smoothed / 7, inputs), expected_grads, strict=True
    ):
        torch.testing.assert_close(gradient, expected_grad, rtol=1e-4, atol=1e-5)


def test_a_second_backward_pass_is_refused(case: tuple[Tensor, OutputProjection, Tensor]) -> None:
    smoothed = loss(*case, 0.1).smoothed
    smoothed.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="the loss allows one backward pass only"):
        smoothed.backward()


def test_hits_are_counted_without_gradients(case: tuple[Tensor, OutputProjection, Tensor]) -> None:
    features, output, targets = case
    with torch.inference_mode():
        assert (
            loss(features, output, targets, 0.0).correct
            == (output(features).argmax(-1) == targets).sum()
        )


def test_improbable_words_have_a_finite_loss(case: tuple[Tensor, OutputProjection, Tensor]) -> None:
    features, output, targets = case
    with torch.no_grad():
        output.weight.mul_(500)
    actual = loss(features.requires_grad_(), output, targets, 0.1)
    torch.testing.assert_close(
        actual.nll, F.cross_entropy(output(features), targets, reduction="sum")
    )
    (grad,) = torch.autograd.grad(actual.smoothed, features)
    assert torch.isfinite(grad).all()


@pytest.mark.parametrize("rows", [10, 100])
def test_bf16_is_near(
    case: tuple[Tensor, OutputProjection, Tensor], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, output, targets = case
    monkeypatch.setattr("fusetk.training.loss.rows_in_piece", lambda *_: rows)
    exact = torch.autograd.grad(
        loss(features.requires_grad_(), output, targets, 0.1).smoothed, [features, output.weight]
    )
    with torch.autocast("cpu", torch.bfloat16):
        low = loss(features, output, targets, 0.1)
    found = torch.autograd.grad(low.smoothed, [features, output.weight])
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == torch.float32 and (one - other).norm() / other.norm() < 0.02


@pytest.mark.parametrize(
    ("vocabulary", "rows"),
    [(300, PIECE // 300), (10_000, MIN_ROWS), (100_000, MAX_PIECE // 100_000), (MAX_PIECE + 1, 1)],
)
def test_pieces_are_large_enough_and_limited(vocabulary: int, rows: int) -> None:
    assert rows_in_piece(vocabulary, torch.device("cpu")) == rows


def test_an_output_projection_has_no_initial_values() -> None:
    """A backbone that does not initialise it is refused, whatever the memory contains."""
    output = OutputProjection(4, 6)
    assert output(torch.ones(2, 4)).isnan().all() and not output.bias.any()
