"""Optimisers and schedules against their formulas."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from fusetk.training.optim import NAG, Adam, AdamConfig, AdamW, NAGConfig
from fusetk.training.schedule import (
    Constant,
    ConstantConfig,
    InverseSqrt,
    InverseSqrtConfig,
    Plateau,
    PlateauConfig,
    Vaswani,
    VaswaniConfig,
)  # fmt: skip


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


@pytest.mark.parametrize("momentum", [0.5, 0.99])
def test_nag_is_fairseqs_where_the_rate_changes(momentum: float) -> None:
    """Its buffer holds the step, ours the gradients: the rate's change, which it makes good in each step, falls out."""
    random = np.random.default_rng(3)
    gradients, rates = random.normal(size=(12, 5)), [0.25] * 4 + [0.025] * 4 + [0.3, 0.0025, 1e-5, 0.1]
    w, u, before = (start := random.normal(size=5)).copy(), np.zeros(5), rates[0]
    p = torch.nn.Parameter(torch.tensor(start))
    optimizer = NAG.build(NAGConfig(momentum=momentum), [p])
    for g, lr in zip(gradients, rates, strict=True):
        w += momentum**2 * u * (lr / before) - (1 + momentum) * lr * g
        u, before = momentum * u * (lr / before) - lr * g, lr
        optimizer.param_groups[0]["lr"] = lr
        p.grad = torch.tensor(g)
        optimizer.step()
        np.testing.assert_allclose(p.detach().numpy(), w, rtol=1e-12, atol=1e-13)


def test_weight_decay_of_nag_is_added_to_the_gradient() -> None:
    w, v, expected = 1.5, 0.0, []
    for g, lr in zip(GRADIENTS, RATES, strict=True):
        g += 0.1 * w
        v = 0.9 * v + g
        w -= lr * (g + 0.9 * v)
        expected.append(w)
    p = parameter()
    assert run(NAG.build(NAGConfig(momentum=0.9, weight_decay=0.1), [p]), p, GRADIENTS, RATES) == pytest.approx(expected)


@pytest.mark.parametrize("t", [1, 250, 499, 500, 501, 5000])
def test_schedules(t: int) -> None:
    vaswani = Vaswani(VaswaniConfig(warmup=500, factor=2.0), 256)
    assert vaswani.rate(t) == pytest.approx(2.0 / 16 * min(t**-0.5, t * 500**-1.5))
    peak = InverseSqrt(InverseSqrtConfig(kind="inverse-sqrt", peak=2e-3, warmup=500, start=1e-7), 256)
    expected = 1e-7 + (2e-3 - 1e-7) * t / 500 if t < 500 else 2e-3 * math.sqrt(500 / t)
    assert peak.rate(t) == pytest.approx(expected)
    assert Constant(ConstantConfig(kind="constant", rate=5e-5), 256).rate(t) == 5e-5


def cuts(schedule: Plateau, values: list[float], lower_is_better: bool = True, first_epoch: int = 1) -> list[int]:
    """Cuts after each of some validations, one at the end of each epoch."""
    seen: Any = {}
    found = []
    for epoch, value in enumerate(values, first_epoch):
        seen = schedule.judged(seen, value, lower_is_better, epoch)
        assert seen["rate"] == schedule.rate(7 * epoch, seen) == schedule.config.rate * schedule.config.factor ** seen["cuts"]
        found.append(seen["cuts"])
    return found


LOSSES = [5.0, 4.0, 4.2, 4.1, 3.9, 3.95, 3.0]


@pytest.mark.parametrize(
    ("options", "values", "expected"),
    [
        ({}, LOSSES, [0, 0, 1, 2, 2, 3, 3]),  # 4.1 is not below the best, 4.0
        ({"rule": "after-first-rise"}, LOSSES, [0, 0, 1, 2, 3, 4, 5]),
        ({"not_before_epoch": 4}, LOSSES, [0, 0, 0, 0, 0, 1, 1]),  # the rise of epoch 3 is let pass, 4.1 is below it
        ({"not_before_epoch": 3, "rule": "after-first-rise"}, LOSSES, [0, 0, 1, 2, 3, 4, 5]),
        ({"not_before_epoch": 4, "rule": "after-first-rise"}, LOSSES, [0, 0, 0, 0, 0, 1, 2]),
        ({"threshold": 0.03}, [5.0, 4.9, 4.8, 4.8], [0, 1, 1, 2]),  # 4.9 is not 3 % below 5, 4.8 is
        ({}, [5.0, 5.0, 4.0], [0, 1, 1]),
        ({}, [math.nan, 5.0, math.nan, 4.0], [0, 0, 1, 1]),
    ],
)
def test_plateau(options: dict[str, Any], values: list[float], expected: list[int]) -> None:
    assert cuts(Plateau(PlateauConfig(rate=0.25, **options), 256), values) == expected
    assert cuts(Plateau(PlateauConfig(rate=0.25, **options), 256), [-value for value in values], lower_is_better=False) == expected


def test_plateau_after_the_first_rise_counts_epochs_not_validations() -> None:
    schedule = Plateau(PlateauConfig(rate=1, factor=0.5, rule="after-first-rise"), 256)
    seen: Any = {}
    found = []
    for epoch, value in [(0, 3.0), (0, 2.0), (1, 2.5), (1, 2.4), (2, 1.0), (4, 1.0)]:
        seen = schedule.judged(seen, value, True, epoch)
        found.append(schedule.rate(1, seen))
    assert found == [1, 1, 0.5, 0.5, 0.25, 0.0625]
