"""Parameters of classes outside fusetk that are not trained are named after some updates."""

import math

import torch
from torch import Tensor, nn

from fusetk.nn.weightnorm import NormedLinear
from fusetk.processes import ALONE, World
from fusetk.training.parallel import all_reduce_gradients
from fusetk.training.sharding import clip_gradients
from fusetk.training.update import UpdateStats
from fusetk.training.zero_gradients import UPDATES, ZeroGradientCheck


class Gated(nn.Module):
    """A linear map behind a gate that is 0 at the start, and factors that are both 0."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.gate = nn.Parameter(torch.zeros(()))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.unused = nn.Linear(3, 3, bias=False)
        self.left = nn.Parameter(torch.zeros(3))
        self.right = nn.Parameter(torch.zeros(3))
        self.of_fusetk = NormedLinear(3, 3, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.frozen + self.gate * self.linear(x) + self.left * self.right * x

    def layers(self) -> list[nn.Module]:
        return [self.linear]


def warnings(
    model: nn.Module, updates: int, factor: float = 1.0, world: World = ALONE
) -> list[str]:
    """Return the warnings in these updates; ``factor`` multiplies the loss."""
    check = ZeroGradientCheck(model)
    zero = torch.zeros(())
    results = []
    for _ in range(updates):
        model.zero_grad()
        (model(torch.rand(5, 3)).square().sum() * factor).backward()
        all_reduce_gradients(world, model)
        parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
        norms = clip_gradients(parameters, max_norm=1.0)
        stats = UpdateStats(zero, zero, norms.total, parameters, norms.parameters)
        results.append(check.add(stats))
        with torch.no_grad():
            for parameter in parameters:
                parameter -= 0.1 * parameter.grad
    return [warning for warning in results if warning]


def test_parameters_whose_gradient_remains_zero_are_named_once() -> None:
    [warning] = warnings(Gated(), 3 * UPDATES)
    assert warning.startswith(
        "warning: parameters without a gradient, or with a gradient of 0, in 32 updates: "
        "left, right, unused.weight; "
    )
    assert not warnings(Gated(), UPDATES - 1)


def test_skipped_updates_do_not_count() -> None:
    assert not warnings(Gated(), 2 * UPDATES, math.nan)


def test_parameters_of_fusetk_are_not_checked() -> None:
    assert not warnings(nn.Sequential(NormedLinear(3, 3, 1.0), nn.Linear(3, 3)), UPDATES, 0.0)
