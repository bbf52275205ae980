"""Optimisers and schedules against their formulas."""

import math

import pytest
import torch

from fusetk.training.optim import NAG, Adam, AdamConfig, AdamW, NAGConfig
from fusetk.training.schedule import Constant, ConstantConfig, InverseSqrt, InverseSqrtConfig, Vaswani, VaswaniConfig


def run(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter, gradients: list[float], rates: list[float]) -> list[float]:
    found = []
    for gradient, rate in zip(gradients, rates, strict=True):
        parameter.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        found.append(parameter.item())
    return found


GRADIENTS, RATES = [0.3, -1.2, 0.7, 2.0], [0.1, 0.1, 0.05, 0.2]


def parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor([1.5], dtype=torch.float64))


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_adam(kind: type, decay: float) -> None:
    w, m, v, expected = 1.5, 0.0, 0.0, []
    for t, (g, lr) in enumerate(zip(GRADIENTS, RATES, strict=True), 1):
        if kind is Adam:
            g += decay * w
        else:
            w -= lr * decay * w
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        w -= lr * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.98**t)) + 1e-9)
        expected.append(w)
    p = parameter()
    assert run(kind.build(AdamConfig(weight_decay=decay), [p]), p, GRADIENTS, RATES) == pytest.approx(expected)  # type: ignore[attr-defined]


def test_nag() -> None:
    w, v, expected = 1.5, 0.0, []
    for g, lr in zip(GRADIENTS, RATES, strict=True):
        v = 0.99 * v + g
        w -= lr * (g + 0.99 * v)
        expected.append(w)
    p = parameter()
    assert run(NAG.build(NAGConfig(), [p]), p, GRADIENTS, RATES) == pytest.approx(expected)


@pytest.mark.parametrize("t", [1, 250, 499, 500, 501, 5000])
def test_schedules(t: int) -> None:
    vaswani = Vaswani(VaswaniConfig(warmup=500, factor=2.0), 256)
    assert vaswani.rate(t) == pytest.approx(2.0 / 16 * min(t**-0.5, t * 500**-1.5))
    peak = InverseSqrt(InverseSqrtConfig(kind="inverse-sqrt", peak=2e-3, warmup=500, start=1e-7), 256)
    expected = 1e-7 + (2e-3 - 1e-7) * t / 500 if t < 500 else 2e-3 * math.sqrt(500 / t)
    assert peak.rate(t) == pytest.approx(expected)
    assert Constant(ConstantConfig(kind="constant", rate=5e-5), 256).rate(t) == 5e-5
