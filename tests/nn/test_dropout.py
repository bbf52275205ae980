"""Dropout: the rate, the scale, the gradient, the seed."""

import pytest
import torch

from fusetk.nn.dropout import Dropout


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rate_is_met_and_the_mean_kept(rate: float, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    y = Dropout(rate)(torch.ones(1001, 997, dtype=dtype)).float()
    assert (y == 0).float().mean() == pytest.approx(rate, abs=0.002)
    assert y.double().mean() == pytest.approx(1, abs=0.01)
    rows, columns = (y == 0).float().mean(0), (y == 0).float().mean(1)
    assert (
        rows.std() < 2 * (rate * (1 - rate) / 1001) ** 0.5
        and columns.std() < 2 * (rate * (1 - rate) / 997) ** 0.5
    )


def test_the_gradient_passes_where_the_value_did() -> None:
    x = torch.randn(50, 3, requires_grad=True)
    y = Dropout(0.4)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x.detach(), y.detach())


def test_the_seed_fixes_it_and_evaluation_has_none() -> None:
    drop, x = Dropout(0.5), torch.randn(33, 7)
    torch.manual_seed(4)
    first = drop(x)
    second = drop(x)
    torch.manual_seed(4)
    assert torch.equal(drop(x), first) and not torch.equal(first, second)
    assert drop.eval()(x) is x and Dropout(0.0)(x) is x


def test_another_rate_for_a_while() -> None:
    drop, none, x = Dropout(0.5), Dropout(0.0), torch.ones(400, 400)
    for one in (drop, none):
        one.override(0.2)
    assert (drop(x) == 0).float().mean() == pytest.approx(0.2, abs=0.01) and none(x) is x
    assert drop.now == 0.2 and drop.eval().now == 0
    drop.train().override(None)
    assert (drop(x) == 0).float().mean() == pytest.approx(0.5, abs=0.01)
