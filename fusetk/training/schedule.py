"""Learning-rate schedules: the rate of update t = 1, 2, ... of a stage, given its validations."""

import math
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from fusetk.config import ComponentConfig, outside_error, resolve
from fusetk.errors import ConfigError, FusetkError, class_name

ScheduleState = Mapping[str, Any]
"""The validations of a stage as a schedule stores them: plain values, kept in checkpoints."""
INITIAL_STATE: ScheduleState = {}
RENAMED = {"vaswani": "noam", "replicas": "rnmt-plus"}  # earlier names of schedules


class ScheduleConfig(ComponentConfig):
    """Base of the configs of schedules."""

    def rate_limits(self) -> tuple[float, float]:
        """Return the lowest and the highest rate after the warm-up.

        The lowest rate is 0 if the rate decreases without end. Both are (0, infinity) if the config
        does not determine them.
        """
        return 0.0, math.inf


class NoamConfig(ScheduleConfig):
    """The original Transformer's schedule. Its earlier name is `vaswani`."""

    kind: str = "noam"
    warmup: int = Field(4000, ge=1)
    """Number of updates of the warm-up."""
    factor: float = Field(1.0, gt=0)
    """Factor of the rate."""


class WarmupConfig(ScheduleConfig):
    """A schedule whose rate rises linearly to a peak first."""

    peak: float = Field(gt=0)
    """Highest rate, reached at the end of the warm-up."""
    warmup: int = Field(4000, ge=1)
    """Number of updates of the warm-up."""
    start: float = Field(1e-7, ge=0)
    """Rate at the start of the warm-up."""

    def warmup_rate(self, update: int) -> float:
        """Return the rate of an update of the warm-up: start + (peak - start) t / warmup."""
        return self.start + (self.peak - self.start) * update / self.warmup

    def rate_limits(self) -> tuple[float, float]:
        return 0.0, self.peak

    @model_validator(mode="after")
    def _rises(self) -> "WarmupConfig":
        if self.warmup and self.start > self.peak:
            raise ValueError(f"start {self.start} is above peak {self.peak}: give a lower start")
        return self


class InverseSqrtConfig(WarmupConfig):
    """Linear warm-up to a peak, then decay with the inverse square root of the update."""

    kind: str = "inverse-sqrt"


class ConstantConfig(ScheduleConfig):
    """A constant rate."""

    kind: str = "constant"
    rate: float = Field(gt=0)
    """The rate."""

    def rate_limits(self) -> tuple[float, float]:
        return self.rate, self.rate


class LinearDecayConfig(WarmupConfig):
    """Linear warm-up to a peak, then linear decay to a floor over a given number of updates."""

    kind: str = "linear"
    warmup: int = Field(4000, ge=0)
    """Number of updates of the warm-up; 0 is no warm-up."""
    floor: float = Field(0.0, ge=0)
    """Lowest rate, reached at the last of `updates`."""
    updates: int = Field(ge=1)
    """Number of updates of warm-up and decay together. In a longer stage, the rate then stays at
    `floor`."""

    @model_validator(mode="after")
    def _decays(self) -> "LinearDecayConfig":
        if self.updates <= self.warmup:
            raise ValueError(
                f"updates {self.updates} end before the rate falls: "
                f"give more updates than warmup {self.warmup}"
            )
        if not self.warmup and self.start != LinearDecayConfig.model_fields["start"].default:
            raise ValueError("start has no effect without a warm-up: remove it, or give warmup")
        if self.floor >= self.peak:
            raise ValueError(
                f"floor {self.floor} must be below peak {self.peak}; "
                "for a constant rate use schedule: constant"
            )
        return self

    def rate_limits(self) -> tuple[float, float]:
        return self.floor, self.peak


class CosineDecayConfig(LinearDecayConfig):
    """Linear warm-up to a peak, then cosine decay to a floor over a given number of updates."""

    kind: str = "cosine"


class RnmtPlusConfig(ScheduleConfig):
    """RNMT+'s schedule: a warm-up to `replicas` times the rate, a plateau, exponential decay.

    Its earlier name is `replicas`.
    """

    kind: str = "rnmt-plus"
    rate: float = Field(gt=0)
    """Rate at the start of the warm-up, which ends at `replicas` times this rate."""
    replicas: int = Field(1, ge=1)
    """Number of batches in an update (`batch.accumulate`), whatever the number of GPUs."""
    warmup: int = Field(500, ge=1)
    """Number of updates of the warm-up for each replica: the warm-up ends after `warmup` *
    `replicas` updates."""
    decay_start: int = Field(ge=0)
    """The decay starts after `decay_start` / `replicas` updates."""
    decay_end: int = Field(ge=1)
    """After `decay_end` / `replicas` updates the rate is half of `rate`. The decay continues."""

    def rate_limits(self) -> tuple[float, float]:
        return 0.0, self.rate * self.replicas

    @model_validator(mode="after")
    def _starts_before_it_ends(self) -> "RnmtPlusConfig":
        if self.decay_end <= self.decay_start:
            raise ValueError(
                f"decay_end {self.decay_end} must come after decay_start {self.decay_start}"
            )
        return self


class PlateauConfig(ScheduleConfig):
    """A constant rate that is lowered ("cut") when the validation metric gets worse."""

    kind: str = "plateau"
    rate: float = Field(gt=0)
    """Initial rate."""
    factor: float = Field(0.1, gt=0, lt=1)
    """Factor by which each cut multiplies the rate."""
    rule: Literal["each-rise", "after-first-rise"] = "each-rise"
    """`each-rise`: cut after each validation that is worse than the best one before it.
    `after-first-rise`: from the first such validation on, cut after every epoch."""
    threshold: float = Field(0.0, ge=0, lt=1)
    """Relative improvement over the best that a validation needs to count as better. An equal
    validation counts as worse, unless it equals the best value of the run and has a lower loss."""
    not_before_epoch: int = Field(0, ge=0)
    """Number of epochs at the start of the stage without a cut. In these epochs, the last
    validation counts as the best."""
    floor: float = Field(0.0, ge=0)
    """Lowest rate: no cut goes below it."""

    @model_validator(mode="after")
    def _has_room_for_a_cut(self) -> "PlateauConfig":
        if self.floor >= self.rate:
            raise ValueError(
                f"floor {self.floor} must be below rate {self.rate}; "
                "for a constant rate use schedule: constant"
            )
        return self

    def rate_limits(self) -> tuple[float, float]:
        return self.floor, self.rate


class Schedule:
    """A learning rate. It has no mutable state: ``after_validation`` returns a new state."""

    Config: type[ComponentConfig]
    uses_validation: ClassVar[bool] = False
    """Whether the results of validations change the rate."""

    def __init__(self, config: Any, width: int):
        """``width`` is the width of the model; some schedules depend on it."""
        self.config = config

    def rate(self, update: int, state: ScheduleState = INITIAL_STATE) -> float:
        """Return the rate of an update. The first update of a stage is 1."""
        raise NotImplementedError(f"{type(self).__name__} has no method rate")

    def after_validation(
        self, state: ScheduleState, value: float, lower_is_better: bool, epoch: int
    ) -> ScheduleState:
        """Return the state after a validation with metric ``value`` and ``epoch`` full epochs."""
        return state

    def after_tie(self, state: ScheduleState, value: float, epoch: int) -> ScheduleState:
        """Return the state after a validation that equals the best one and has a lower loss.

        ``value`` is the best value of the run. Training calls this method instead of
        ``after_validation``, which does not see the loss.
        """
        return state


class Noam(Schedule):
    """lr = factor * D^-0.5 * min(t^-0.5, t * warmup^-1.5), where D is the model's width (Vaswani
    et al. 2017, Equation 3; MLRF section 4.2).
    """

    Config = NoamConfig

    def __init__(self, config: NoamConfig, width: int):
        self.factor = config.factor * width**-0.5
        self.warmup = config.warmup

    def rate(self, update: int, state: ScheduleState = INITIAL_STATE) -> float:
        return self.factor * min(update**-0.5, update * self.warmup**-1.5)


class InverseSqrt(Schedule):
    """lr = start + (peak - start) t / warmup in the warm-up, then peak * sqrt(warmup / t), as in
    fairseq.
    """

    Config = InverseSqrtConfig

    def rate(self, update: int, state: ScheduleState = INITIAL_STATE) -> float:
        config: InverseSqrtConfig = self.config
        if update < config.warmup:
            return config.warmup_rate(update)
        return config.peak * (config.warmup / update) ** 0.5


class Constant(Schedule):
    """lr = rate."""

    Config = ConstantConfig

    def rate(self, update: int, state: ScheduleState = INITIAL_STATE) -> float:
        return self.config.rate


class LinearDecay(Schedule):
    """lr = start + (peak - start) t / p for t < p; floor + (peak - floor) (n - t) / (n - p) for
    p <= t < n; floor for t >= n, where p is `warmup` and n is `updates` (Devlin et al. 2019,
    Appendix A.2).
    """

    Config: type[ComponentConfig] = LinearDecayConfig

    def rate(self, update: int, state: ScheduleState = INITIAL_STATE) -> float:
        config: LinearDecayConfig = self.config
        if update < config.warmup:
            return config.warmup_rate(update)
        remaining = max(config.updates - update, 0) / (config.updates - config.warmup)
        return config.floor + (config.peak - config.floor) * self._height(remaining)

    def _height(self, remaining: float) -> float:
        """Return (rate - floor) / (peak - floor) when this fraction of the decay remains."""
        return remaining


class CosineDecay(LinearDecay):
    """lr = start + (peak - start) t / p for t < p; floor + (peak - floor) (1 + cos(pi (t - p) /
    (n - p))) / 2 for p <= t < n; floor for t >= n, where p is `warmup` and n is `updates`
    (Loshchilov and Hutter 2017, Equation 5, one period).
    """

    Config = CosineDecayConfig

    def _height(self, remaining: float) -> float:
        return (1 + math.cos(math.pi * (1 - remaining))) / 2


class RnmtPlus(Schedule):
    """lr = rate * min(1 + t (n-1) / (n p), n, n (2n)^((s - n t) / (e - s))), where n is `replicas`,
    p is `warmup`, s is `decay_start` and e is `decay_end` (DTMT Equation 17, after Chen et al.
    2018).

    The warm-up ends at t = n p. The decay starts at t = s / n, and the rate is rate / 2 at
    t = e / n. Chen et al. then hold the rate. DTMT does not mention this and its authors' code does
    not do it, so the rate falls further here.
    """

    Config = RnmtPlusConfig

    def rate(self, update: int, state: ScheduleState = INITIAL_STATE) -> float:
        n = self.config.replicas
        start = self.config.decay_start
        end = self.config.decay_end
        warmup = min(1 + update * (n - 1) / (n * self.config.warmup), n)
        exponent = min((start - n * update) / (end - start), 0.0)  # positive ones may overflow
        return self.config.rate * min(warmup, n * (2 * n) ** exponent)


class Plateau(Schedule):
    """lr = max(rate * factor^n, floor) after n cuts (DenseNMT section 4.3, as Gehring et al. 2017).

    Each validation is compared with a reference: the last validation that did not count as worse,
    as in fairseq for Lua, the authors' toolkit. The reference is the best validation, with two
    exceptions: a validation that is better by `threshold` or less counts as worse, and before
    `not_before_epoch` a worse validation becomes the reference. NaN counts as worse. A validation
    that equals the best one of the run in its value and has a lower loss does not count as worse.
    """

    Config = PlateauConfig
    uses_validation = True

    def rate(self, update: int, state: ScheduleState = INITIAL_STATE) -> float:
        cuts = state.get("cuts", 0)
        return max(self.config.rate * self.config.factor**cuts, self.config.floor)

    def after_validation(
        self, state: ScheduleState, value: float, lower_is_better: bool, epoch: int
    ) -> ScheduleState:
        best = state.get("best")
        risen_since = state.get("risen_since")
        cuts = state.get("cuts", 0)
        worse = best is not None and not self._is_better(value, best, lower_is_better)
        counts = worse and epoch >= self.config.not_before_epoch
        if counts and risen_since is None:
            risen_since = epoch
        if self.config.rule == "each-rise":
            cuts += counts
        elif risen_since is not None:
            cuts = 1 + epoch - risen_since
        if not counts and not math.isnan(value):
            best = value
        return self._state(cuts, best, risen_since)

    def after_tie(self, state: ScheduleState, value: float, epoch: int) -> ScheduleState:
        risen_since = state.get("risen_since")
        cuts = state.get("cuts", 0)
        if self.config.rule == "after-first-rise" and risen_since is not None:
            cuts = 1 + epoch - risen_since
        return self._state(cuts, value, risen_since)

    def _state(self, cuts: int, best: float | None, risen_since: int | None) -> ScheduleState:
        rate = self.rate(1, {"cuts": cuts})
        return {"cuts": cuts, "best": best, "risen_since": risen_since, "rate": rate}

    def _is_better(self, value: float, best: float, lower_is_better: bool) -> bool:
        margin = self.config.threshold * abs(best)
        return value < best - margin if lower_is_better else value > best + margin


SCHEDULES: dict[str, type] = {
    "noam": Noam,
    "inverse-sqrt": InverseSqrt,
    "constant": Constant,
    "linear": LinearDecay,
    "cosine": CosineDecay,
    "rnmt-plus": RnmtPlus,
    "plateau": Plateau,
}


def build(config: ComponentConfig, width: int) -> Schedule:
    """Build the schedule that ``config.kind`` names, for a model of this width.

    Raises ConfigError if a schedule outside fusetk cannot be built.
    """
    try:
        return resolve(config.kind, SCHEDULES)(config, width)
    except FusetkError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"the schedule {config.kind} cannot be built with (config, width): "
            f"{outside_error(error)}"
        ) from error


def rate_of_update(schedule: Schedule, update: int, state: ScheduleState) -> float:
    """Return the rate of an update of a stage.

    Raises FusetkError if the schedule, which may be a class outside fusetk, fails, if it returns
    another value than a finite number of at least 0, if a second call returns another rate, or if a
    call changes an attribute. With such a schedule, a resumed run would have other rates.
    """
    attributes = {name: repr(value) for name, value in vars(schedule).items()}
    first = _checked_rate(schedule, update, state)
    second = _checked_rate(schedule, update, state)
    if first != second:
        raise FusetkError(
            f"the schedule {class_name(schedule)} returned two learning rates, {first} and "
            f"{second}, for update {update} of its stage: its method rate may read only its "
            "arguments and self.config"
        )
    for name, value in vars(schedule).items():
        if name in attributes and repr(value) != attributes[name]:
            raise FusetkError(
                f"the method rate of the schedule {class_name(schedule)} changed the attribute "
                f"{name}, which checkpoints do not have: compute the rate from `update`, or return "
                "the values that depend on validations from after_validation"
            )
    return first


def _checked_rate(schedule: Schedule, update: int, state: ScheduleState) -> float:
    name = class_name(schedule)
    try:
        rate: Any = schedule.rate(update, state)
    except (Exception, SystemExit) as error:
        raise FusetkError(
            f"the method rate(update, state) of the schedule {name} failed for update {update} of "
            f"its stage: {outside_error(error)}"
        ) from error
    try:
        # A schedule outside fusetk may return a number of NumPy or a tensor.
        number = math.nan if isinstance(rate, str) else float(rate)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise FusetkError(
            f"the schedule {name} returned the learning rate {rate!r} for update {update} of its "
            "stage: correct the schedule so that it returns a finite number of at least 0"
        )
    return number


def uses_validation(config: ComponentConfig) -> bool:
    """Whether the schedule that ``config.kind`` names depends on the results of validations."""
    return bool(resolve(config.kind, SCHEDULES).uses_validation)


@cache
def _announce(earlier_name: str) -> None:
    current = RENAMED[earlier_name]
    print(f"fusetk: schedule {earlier_name} is now called {current}", file=sys.stderr)


def with_current_name(value: Any) -> Any:
    """Replace an earlier name of a schedule in a config's value, and print a notice once."""
    kind = value.get("kind") if isinstance(value, dict) else value
    if not isinstance(kind, str) or kind not in RENAMED:
        return value
    _announce(kind)
    return {**value, "kind": RENAMED[kind]} if isinstance(value, dict) else RENAMED[kind]
