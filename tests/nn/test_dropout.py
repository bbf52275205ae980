"""Dropout: the rate, the scale, the gradient, the seed."""

import pytest
import torch

from fusetk.nn.dropout import Dropout


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rate_and_mean(rate: float, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    y = Dropout(rate)(torch.ones(1001, 997, dtype=dtype)).float()
    assert (y == 0).float().mean() == pytest.approx(rate, abs=0.002)
    assert y.double().mean() == pytest.approx(1, abs=0.01)
    by_column, by_row = (y == 0).float().mean(0), (y == 0).float().mean(1)
    assert by_column.std() < 2 * (rate * (1 - rate) / 1001) ** 0.5
    assert by_row.std() < 2 * (rate * (1 - rate) / 997) ** 0.5


def test_the_gradient_has_the_same_mask() -> None:
    x = torch.randn(50, 3, requires_grad=True)
    y = Dropout(0.4)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x.detach(), y.detach())


def test_the_seed_fixes_the_mask_and_evaluation_has_no_dropout() -> None:
    drop, x = Dropout(0.5), torch.randn(33, 7)
    torch.manual_seed(4)
    first = drop(x)
    second = drop(x)
    torch.manual_seed(4)
    assert torch.equal(drop(x), first) and not torch.equal(first, second)
    assert drop.eval()(x) is x and Dropout(0.0)(x) is x


def test_a_temporary_rate_replaces_a_rate_except_0() -> None:
    drop, none, x = Dropout(0.5), Dropout(0.0), torch.ones(400, 400)
    for module in (drop, none):
        module.set_rate(0.2)
    assert (drop(x) == 0).float().mean() == pytest.approx(0.2, abs=0.01) and none(x) is x
    assert drop.active_rate == 0.2 and drop.eval().active_rate == 0
    drop.train().set_rate(None)
    assert (drop(x) == 0).float().mean() == pytest.approx(0.5, abs=0.01)


def test_a_rate_that_rounds_to_1_keeps_a_few_elements() -> None:
    torch.manual_seed(1)
    y = Dropout(1 - 1e-9)(torch.ones(1000, 1000))
    assert 0 < (y != 0).sum() < 100 and y.isfinite().all()
