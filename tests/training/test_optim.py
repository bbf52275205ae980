"""NAG is that of fairseq, and the plateau schedule cuts the rate as defined.

The formulas of optimisers and schedules are tested in test_formulas.py.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fusetk.config import ComponentConfig
from fusetk.training.config import StageConfig
from fusetk.training.optim import NAGConfig, build, configured_by, nag
from fusetk.training.schedule import Plateau, PlateauConfig


class OwnConfig(ComponentConfig):
    decay: float = 0.5
    """For the tests."""


@configured_by(OwnConfig)
def own(config: OwnConfig, parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, lr=0.0, alpha=config.decay)


class Own:
    Config = OwnConfig
    build = staticmethod(own)


class OwnOptimizer(torch.optim.SGD):
    Config = OwnConfig


NUMBER = 3


def stage_with(optimizer: Any) -> dict[str, Any]:
    schedule = {"kind": "constant", "rate": 1}
    return {"optimizer": optimizer, "schedule": schedule, "end": {"updates": 1}}


@pytest.mark.parametrize("name", ["own", "Own"])
def test_an_optimizer_from_outside_is_a_function_or_a_class_that_builds_it(name: str) -> None:
    stage = StageConfig.model_validate(stage_with({"kind": f"{__name__}:{name}", "decay": 0.25}))
    optimizer = build(stage.optimizer, [torch.nn.Parameter(torch.ones(1))])
    assert optimizer.param_groups[0]["alpha"] == 0.25


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("OwnOptimizer", r"is a class without a static method build\(config, parameters\)"),
        ("NUMBER", "is neither a class nor a function"),
        ("stage_with", r"must have an attribute Config .*: decorate .*optim.configured_by"),
    ],
)
def test_a_class_without_build_and_an_object_without_config_are_refused(
    name: str, said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        StageConfig.model_validate(stage_with(f"{__name__}:{name}"))


@pytest.mark.parametrize("momentum", [0.5, 0.99])
@pytest.mark.parametrize("rescale", [True, False])
def test_nag_is_fairseqs_where_the_rate_changes(momentum: float, rescale: bool) -> None:
    """The velocity is rescaled in fairseq for Python, and it is not in fairseq for Lua."""
    random = np.random.default_rng(3)
    gradients, rates = (
        random.normal(size=(12, 5)),
        [0.25] * 4 + [0.025] * 4 + [0.3, 0.0025, 1e-5, 0.1],
    )
    w, u, before = (start := random.normal(size=5)).copy(), np.zeros(5), rates[0]
    p = torch.nn.Parameter(torch.tensor(start))
    optimizer = nag(NAGConfig(momentum=momentum, rescale_velocity=rescale), [p])
    for g, lr in zip(gradients, rates, strict=True):
        factor = lr / before if rescale else 1.0
        w += momentum**2 * u * factor - (1 + momentum) * lr * g
        u, before = momentum * u * factor - lr * g, lr
        optimizer.param_groups[0]["lr"] = lr
        p.grad = torch.tensor(g)
        optimizer.step()
        np.testing.assert_allclose(p.detach().numpy(), w, rtol=1e-12, atol=1e-13)


def cuts(
    schedule: Plateau, values: list[float], lower_is_better: bool = True, first_epoch: int = 1
) -> list[int]:
    """Return the number of cuts after each validation. Each epoch ends with a validation."""
    seen: Any = {}
    counts = []
    for epoch, value in enumerate(values, first_epoch):
        seen = schedule.after_validation(seen, value, lower_is_better, epoch)
        assert (
            seen["rate"]
            == schedule.rate(7 * epoch, seen)
            == schedule.config.rate * schedule.config.factor ** seen["cuts"]
        )
        counts.append(seen["cuts"])
    return counts


LOSSES = [5.0, 4.0, 4.2, 4.1, 3.9, 3.95, 3.0]


@pytest.mark.parametrize(
    ("options", "values", "expected"),
    [
        ({}, LOSSES, [0, 0, 1, 2, 2, 3, 3]),  # 4.1 is not below the best, 4.0
        ({"rule": "after-first-rise"}, LOSSES, [0, 0, 1, 2, 3, 4, 5]),
        (
            {"not_before_epoch": 4},
            LOSSES,
            [0, 0, 0, 0, 0, 1, 1],
        ),  # the rise of epoch 3 is ignored, and 4.1 is below it
        ({"not_before_epoch": 3, "rule": "after-first-rise"}, LOSSES, [0, 0, 1, 2, 3, 4, 5]),
        ({"not_before_epoch": 4, "rule": "after-first-rise"}, LOSSES, [0, 0, 0, 0, 0, 1, 2]),
        ({"threshold": 0.03}, [5.0, 4.9, 4.8, 4.8], [0, 1, 1, 2]),  # 4.9 is not 3 % below 5, 4.8 is
        ({}, [5.0, 5.0, 4.0], [0, 1, 1]),
        ({}, [math.nan, 5.0, math.nan, 4.0], [0, 0, 1, 1]),
    ],
)
def test_plateau_cuts_the_rate_after_values_that_are_not_better(
    options: dict[str, Any], values: list[float], expected: list[int]
) -> None:
    assert cuts(Plateau(PlateauConfig(rate=0.25, **options), 256), values) == expected
    assert (
        cuts(
            Plateau(PlateauConfig(rate=0.25, **options), 256),
            [-value for value in values],
            lower_is_better=False,
        )
        == expected
    )


def test_plateau_after_the_first_rise_counts_epochs_not_validations() -> None:
    schedule = Plateau(PlateauConfig(rate=1, factor=0.5, rule="after-first-rise"), 256)
    seen: Any = {}
    rates = []
    for epoch, value in [(0, 3.0), (0, 2.0), (1, 2.5), (1, 2.4), (2, 1.0), (4, 1.0)]:
        seen = schedule.after_validation(seen, value, True, epoch)
        rates.append(schedule.rate(1, seen))
    assert rates == [1, 1, 0.5, 0.5, 0.25, 0.0625]


@pytest.mark.parametrize(
    ("rule", "cuts_of_ties"), [("each-rise", [0, 1, 1, 2]), ("after-first-rise", [0, 1, 2, 3])]
)
def test_plateau_does_not_count_a_tie_as_worse(rule: Any, cuts_of_ties: list[int]) -> None:
    schedule = Plateau(PlateauConfig(rate=1, rule=rule), 256)
    seen: Any = {}
    counts = []
    for epoch, value in enumerate([3.0, 4.0, None, 3.0], 1):
        seen = (
            schedule.after_tie(seen, 3.0, epoch)
            if value is None
            else schedule.after_validation(seen, value, True, epoch)
        )
        counts.append(seen["cuts"])
        assert seen["best"] == 3.0 and seen["rate"] == schedule.rate(1, seen)
    assert counts == cuts_of_ties
    in_later_stage = schedule.after_tie({}, 3.0, 1)
    assert schedule.after_validation(in_later_stage, 4.0, True, 2)["cuts"] == 1


@pytest.mark.parametrize("rule", ["each-rise", "after-first-rise"])
def test_plateau_is_not_cut_below_its_floor(rule: Any) -> None:
    schedule = Plateau(PlateauConfig(rate=0.25, floor=1e-3, rule=rule), 256)
    seen: Any = {}
    rates = []
    for epoch, value in enumerate([1.0, 2.0, 2.0, 2.0, 2.0], 1):
        seen = schedule.after_validation(seen, value, True, epoch)
        assert seen["rate"] == schedule.rate(7, seen)
        rates.append(seen["rate"])
    assert rates == pytest.approx([0.25, 0.025, 0.0025, 1e-3, 1e-3])


def test_a_plateau_without_room_for_a_cut_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"floor 0\.25 must be below rate 0\.25"):
        PlateauConfig(rate=0.25, floor=0.25)
