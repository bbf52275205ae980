"""Every registered optimiser and schedule against its formula in NumPy float64 or Python."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fusetk.training import schedule as schedule_module
from fusetk.training.config import StageConfig
from fusetk.training.optim import OPTIMIZERS
from fusetk.training.schedule import SCHEDULES, Schedule

Array = np.ndarray
State = dict[str, Any]


# Optimisers: (state, w, g, rate, update, config) -> w


def adam(s: State, w: Array, g: Array, lr: float, t: int, c: Any) -> Array:
    (b1, b2), decay = c.betas, c.weight_decay
    if c.kind == "adamw":
        w = w - lr * decay * w
    else:
        g = g + decay * w
    s["m"], s["v"] = b1 * s.get("m", 0) + (1 - b1) * g, b2 * s.get("v", 0) + (1 - b2) * g**2
    return w - lr * (s["m"] / (1 - b1**t)) / (np.sqrt(s["v"] / (1 - b2**t)) + c.eps)


def nag(s: State, w: Array, g: Array, lr: float, t: int, c: Any) -> Array:
    g = g + c.weight_decay * w
    if not c.rescale_velocity:
        s["u"] = c.momentum * s.get("u", 0) - lr * g
        return w + c.momentum * s["u"] - lr * g
    s["v"] = c.momentum * s.get("v", 0) + g
    return w - lr * (g + c.momentum * s["v"])


def sgd(s: State, w: Array, g: Array, lr: float, t: int, c: Any) -> Array:
    s["v"] = c.momentum * s.get("v", 0) + g + c.weight_decay * w
    return w - lr * s["v"]


def adafactor(s: State, w: Array, g: Array, lr: float, t: int, c: Any) -> Array:
    """With sums, as in the paper, and matrix by matrix."""
    (eps1, eps2), b = c.eps, 1 - t**-c.decay
    square = g**2 + eps1
    if w.ndim < 2:
        v = s["v"] = b * s.get("v", 0) + (1 - b) * square
    else:
        v = np.empty_like(w)
        for at in np.ndindex(w.shape[:-2]):
            r, k = s.get(at, (0, 0))
            s[at] = r, k = (
                b * r + (1 - b) * square[at].sum(axis=1),
                b * k + (1 - b) * square[at].sum(axis=0),
            )
            v[at] = np.outer(r, k) / r.sum()
    u = g / np.sqrt(v)
    u = u / max(1, root_mean_square(u) / c.clip_rms)
    step = u * lr * (max(eps2, root_mean_square(w)) if c.scale_parameter else 1)
    s["m"] = c.beta1 * s.get("m", 0) + (1 - c.beta1) * step
    return w - s["m"]


def root_mean_square(x: Array) -> float:
    return float(np.sqrt((x**2).mean()))


OPTIMIZER_FORMULAS: dict[str, Callable[..., Array]] = {
    "adam": adam,
    "adamw": adam,
    "nag": nag,
    "sgd": sgd,
    "adafactor": adafactor,
}
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in OPTIMIZER_FORMULAS),
    ("adam", {"weight_decay": 0.1, "betas": (0.9, 0.999), "eps": 1e-4}),
    ("adamw", {"weight_decay": 0.1}),
    ("nag", {"momentum": 0.9, "weight_decay": 0.1}),
    ("nag", {"momentum": 0.9, "weight_decay": 0.1, "rescale_velocity": False}),
    ("sgd", {"weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.9, "weight_decay": 0.1}),
    ("adafactor", {"beta1": 0.9}),
    ("adafactor", {"scale_parameter": False}),
    ("adafactor", {"scale_parameter": False, "beta1": 0.5, "clip_rms": 1e9}),
    ("adafactor", {"eps": (1e-2, 0.5), "clip_rms": 0.3, "decay": 0.5}),
]
SHAPES: list[tuple[int, ...]] = [(), (5,), (4, 6), (1, 7), (2, 3, 5)]


def build(
    kind: str, options: dict[str, Any], parameters: list[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    builder: Any = OPTIMIZERS[kind]
    built: torch.optim.Optimizer = builder(config(OPTIMIZERS, kind, options), parameters)
    return built


def config(table: dict[str, Any], kind: str, options: dict[str, Any]) -> Any:
    return table[kind].Config.model_validate({"kind": kind, **options})


@pytest.mark.parametrize(("kind", "options"), OPTIONS)
def test_each_optimizer_follows_its_formula(kind: str, options: dict[str, Any]) -> None:
    random = np.random.default_rng(7)
    weights: list[Array] = [random.normal(size=shape) for shape in SHAPES] + [
        np.zeros((3, 2)),
        np.zeros(3),
    ]
    parameters = [torch.nn.Parameter(torch.tensor(w)) for w in weights]
    optimizer, chosen, states = (
        build(kind, options, parameters),
        config(OPTIMIZERS, kind, options),
        [{} for _ in weights],
    )  # type: ignore[var-annotated]
    for t in range(1, 13):
        lr = random.uniform(0.001, 0.3)
        optimizer.param_groups[0]["lr"] = lr
        for i, parameter in enumerate(parameters):
            g = random.normal(size=weights[i].shape) * 10.0 ** random.integers(-3, 2)
            parameter.grad = torch.tensor(g)
            weights[i] = OPTIMIZER_FORMULAS[kind](states[i], weights[i], g, lr, t, chosen)
        optimizer.step()
        for parameter, w in zip(parameters, weights, strict=True):
            np.testing.assert_allclose(parameter.detach().numpy(), w, rtol=1e-10, atol=1e-12)


def test_every_optimizer_has_a_formula_here() -> None:
    assert OPTIMIZER_FORMULAS.keys() == OPTIMIZERS.keys()


@pytest.mark.parametrize("scale", [1e-18, 1e-12, 1.0, 1e6])
def test_adafactor_has_finite_steps_in_float32(scale: float) -> None:
    """The rows of words outside the batch have no gradient, the others a tiny or a large one."""
    table, bias = torch.nn.Parameter(torch.ones(50, 8)), torch.nn.Parameter(torch.zeros(8))
    optimizer = build("adafactor", {}, [table, bias])
    optimizer.param_groups[0]["lr"] = 0.01
    for update in range(3):
        table.grad, bias.grad = torch.zeros(50, 8), torch.full((8,), -scale)
        table.grad[update] = scale
        optimizer.step()
    assert (
        torch.equal(table[3:], torch.ones(47, 8))
        and bool((table[:3] < 1).all())
        and bool((bias > 0).all())
    )
    assert bool(table.isfinite().all()) and bool(bias.isfinite().all())


def test_adafactor_keeps_a_row_and_a_column_of_each_matrix() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2, 30, 40))
    parameter.grad = torch.ones_like(parameter)
    for options, extra in (({}, 0), ({"beta1": 0.9}, parameter.numel())):
        optimizer = build("adafactor", options, [parameter])
        optimizer.step()
        assert (
            sum(value.numel() for value in optimizer.state[parameter].values())
            == 2 * (30 + 40) + 1 + extra
        )


def test_the_schedule_of_adafactors_paper_is_an_inverse_sqrt() -> None:
    schedule = make("inverse-sqrt", {"peak": 0.01, "start": 0.01, "warmup": 10_000})
    for t in (1, 2, 5_000, 9_999, 10_000, 10_001, 40_000):
        assert schedule.rate(t) == pytest.approx(min(0.01, t**-0.5))


# Schedules: (update, options) -> rate


def cosine(t: int, peak: float, warmup: int, start: float, floor: float, updates: int) -> float:
    if t < warmup:
        return start + (peak - start) * t / warmup
    now, period = min(t, updates) - warmup, updates - warmup  # T_cur, T_i
    return floor + 0.5 * (peak - floor) * (1 + math.cos(now / period * math.pi))


def linear(t: int, peak: float, warmup: int, start: float, floor: float, updates: int) -> float:
    return (
        float(np.interp(t, [0, warmup, updates], [start, peak, floor]))
        if warmup
        else float(np.interp(t, [0, updates], [peak, floor]))
    )


def replicas(
    t: int, rate: float, replicas: int, warmup: int, decay_start: int, decay_end: int
) -> float:
    n = replicas
    rise, fall = (
        1 + t * (n - 1) / (n * warmup),
        n * (2 * n) ** ((decay_start - n * t) / (decay_end - decay_start)),
    )
    return rate * min(rise, n, fall)


SCHEDULE_FORMULAS: dict[str, tuple[Callable[..., float], list[dict[str, Any]]]] = {
    "noam": (
        lambda t, warmup, factor: factor / 16 * min(t**-0.5, t * warmup**-1.5),
        [{"warmup": 500, "factor": 2.0}],
    ),
    "inverse-sqrt": (
        lambda t, peak, warmup, start: (
            start + (peak - start) * t / warmup if t < warmup else peak * math.sqrt(warmup / t)
        ),
        [{"peak": 2e-3, "warmup": 500, "start": 1e-7}],
    ),
    "constant": (lambda t, rate: rate, [{"rate": 5e-5}]),
    "linear": (
        linear,
        [
            {"peak": 2e-3, "warmup": 500, "start": 1e-7, "floor": 1e-5, "updates": 4_000},
            {"peak": 2e-3, "warmup": 0, "start": 1e-7, "floor": 0.0, "updates": 5_000},
            {"peak": 2e-3, "warmup": 4_999, "start": 0.0, "floor": 0.0, "updates": 5_000},
        ],
    ),
    "cosine": (
        cosine,
        [
            {"peak": 2e-3, "warmup": 500, "start": 1e-7, "floor": 1e-5, "updates": 4_000},
            {"peak": 2e-3, "warmup": 0, "start": 1e-7, "floor": 0.0, "updates": 5_000},
        ],
    ),
    "rnmt-plus": (
        replicas,
        [{"rate": 1e-4, "replicas": 8, "warmup": 50, "decay_start": 4_000, "decay_end": 12_000}],
    ),
    "plateau": (lambda t, rate: rate, [{"rate": 0.25}]),  # test_optim.py tests its cuts
}


def make(kind: str, options: dict[str, Any]) -> Schedule:
    built: Schedule = SCHEDULES[kind](config(SCHEDULES, kind, options), 256)
    return built


@pytest.mark.parametrize(
    ("kind", "options"),
    [(kind, options) for kind, (_, some) in SCHEDULE_FORMULAS.items() for options in some],
)
def test_each_schedule_follows_its_formula(kind: str, options: dict[str, Any]) -> None:
    for t in (1, 2, 250, 499, 500, 501, 2_250, 3_999, 4_000, 4_001, 4_999, 5_000, 5_001, 50_000):
        expected = SCHEDULE_FORMULAS[kind][0](t, **options)
        assert make(kind, options).rate(t) == pytest.approx(expected, rel=1e-9, abs=1e-18), t


def test_every_schedule_has_a_formula_here() -> None:
    assert SCHEDULE_FORMULAS.keys() == SCHEDULES.keys()


def test_the_default_kind_of_the_config_of_a_schedule_is_its_name() -> None:
    kinds = [component.Config.model_fields["kind"].default for component in SCHEDULES.values()]
    assert kinds == list(SCHEDULES)


@pytest.mark.parametrize(
    ("earlier", "now", "options"),
    [
        ("vaswani", "noam", {}),
        ("replicas", "rnmt-plus", {"rate": 1e-4, "decay_start": 1, "decay_end": 2}),
    ],
)
def test_an_earlier_name_is_replaced_with_a_notice(
    earlier: str, now: str, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    schedule_module._announce.cache_clear()
    for kind in (earlier, earlier, now):
        stage = StageConfig.model_validate(
            {"optimizer": "adam", "schedule": {"kind": kind, **options}, "end": {"updates": 1}}
        )
        assert stage.schedule.kind == now
    assert capsys.readouterr().err == f"fusetk: schedule {earlier} is now called {now}\n"


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_the_floor_is_reached_with_the_last_update_and_held(kind: str) -> None:
    schedule = make(kind, {"peak": 0.7, "warmup": 10, "floor": 0.1, "updates": 90})
    rates = [schedule.rate(t) for t in range(1, 200)]
    assert rates[:10] == sorted(rates[:10]) and rates[9] == pytest.approx(0.7)
    assert rates[9:90] == sorted(set(rates[9:90]), reverse=True)
    assert rates[88] > 0.1 and set(rates[89:]) == {0.1}
    assert rates[49] == pytest.approx(0.4)  # half of the way, after half of the fall


@pytest.mark.parametrize("kind", ["linear", "cosine"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"updates": 4_000},
            r"updates 4000 end before the rate falls: give more updates than warmup 4000",
        ),
        ({"updates": 9_000, "floor": 0.5}, r"floor 0\.5 must be below peak 0\.5"),
        ({"updates": 9_000, "floor": -1}, "floor"),
        ({"updates": 9_000, "warmup": 0, "start": 0.1}, "start has no effect without a warm-up"),
        ({"updates": 9_000, "warmup": -1}, "warmup"),
        ({}, "updates"),
    ],
)
def test_a_schedule_whose_rate_does_not_fall_is_refused(
    kind: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        config(SCHEDULES, kind, {"peak": 0.5, **options})


def test_a_warm_up_does_not_start_above_its_peak() -> None:
    with pytest.raises(ValidationError, match=r"start 0\.6 is above peak 0\.5"):
        config(SCHEDULES, "inverse-sqrt", {"peak": 0.5, "start": 0.6})
