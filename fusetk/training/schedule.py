"""Learning rates as formulas of the update t = 1, 2, ... of a stage, and of what validation found in it."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from fusetk.config import ComponentConfig

Seen = Mapping[str, Any]
"""What a schedule makes of the validations of its stage: plain values, {} at first, kept in the checkpoint."""
NOTHING: Seen = {}


class VaswaniConfig(ComponentConfig):
    """The original Transformer's schedule."""

    kind: str = "vaswani"
    warmup: int = Field(4000, ge=1)
    """Updates of warm-up."""
    factor: float = Field(1.0, gt=0)
    """Multiplies the rate."""


class InverseSqrtConfig(ComponentConfig):
    """Linear warm-up to a peak, then falling with the square root of the update."""

    kind: str = "inverse-sqrt"
    peak: float = Field(gt=0)
    """Highest rate, reached at the end of the warm-up."""
    warmup: int = Field(4000, ge=1)
    """Updates of warm-up."""
    start: float = Field(1e-7, ge=0)
    """Rate that the warm-up starts from."""


class ConstantConfig(ComponentConfig):
    """One rate."""

    kind: str = "constant"
    rate: float = Field(gt=0)
    """The rate."""


class LinearConfig(ComponentConfig):
    """Linear warm-up to a peak, then falling to a floor in a given number of updates."""

    kind: str = "linear"
    peak: float = Field(gt=0)
    """Highest rate, reached at the end of the warm-up."""
    warmup: int = Field(4000, ge=0)
    """Updates of warm-up; 0 for none."""
    start: float = Field(1e-7, ge=0)
    """Rate that the warm-up starts from."""
    floor: float = Field(0.0, ge=0)
    """Lowest rate, reached with the last of `updates`."""
    updates: int = Field(ge=1)
    """Updates in all, with those of the warm-up. A stage may end later, by `end.updates` or otherwise: `floor` is held until then."""

    @model_validator(mode="after")
    def _falls(self) -> "LinearConfig":
        if self.updates <= self.warmup:
            raise ValueError(
                f"updates {self.updates} are over before the rate falls: make them more than warmup {self.warmup}"
            )
        if self.floor >= self.peak:
            raise ValueError(
                f"floor {self.floor} must be below peak {self.peak}; for one rate use schedule: constant"
            )
        return self


class CosineConfig(LinearConfig):
    """Linear warm-up to a peak, then falling along a cosine to a floor in a given number of updates."""

    kind: str = "cosine"


class ReplicasConfig(ComponentConfig):
    """RNMT+'s: up with the number of replicas, held there, falling exponentially."""

    kind: str = "replicas"
    rate: float = Field(gt=0)
    """Rate that the warm-up starts from; it goes up to `replicas` times this one."""
    replicas: int = Field(1, ge=1)
    """How many batches make an update, which `batch.accumulate` says, on however many GPUs."""
    warmup: int = Field(500, ge=1)
    """Updates of warm-up for each of `replicas`: it is over after `warmup` * `replicas` updates."""
    decay_start: int = Field(ge=0)
    """Updates times `replicas` after which the rate falls."""
    decay_end: int = Field(ge=1)
    """Updates times `replicas` after which half of `rate` is left; from there on the rate falls as before."""

    @model_validator(mode="after")
    def _starts_before_it_ends(self) -> "ReplicasConfig":
        if self.decay_end <= self.decay_start:
            raise ValueError(
                f"decay_end {self.decay_end} must come after decay_start {self.decay_start}"
            )
        return self


class PlateauConfig(ComponentConfig):
    """One rate, cut when the validation metric gets worse."""

    kind: str = "plateau"
    rate: float = Field(gt=0)
    """The rate at first."""
    factor: float = Field(0.1, gt=0, lt=1)
    """What each cut multiplies the rate by."""
    rule: Literal["each-rise", "after-first-rise"] = "each-rise"
    """Cut at each validation that is worse than the best before it, or after every epoch from the first such validation on."""
    threshold: float = Field(0.0, ge=0, lt=1)
    """By what part of the best a validation must be better than it, to be better at all; with 0 one that is just as good is worse."""
    not_before_epoch: int = Field(0, ge=0)
    """Epochs of the stage that must be over; until then, the best is what the last validation found."""
    floor: float = Field(0.0, ge=0)
    """Lowest rate: no cut goes below it."""

    @model_validator(mode="after")
    def _has_room_for_a_cut(self) -> "PlateauConfig":
        if self.floor >= self.rate:
            raise ValueError(
                f"floor {self.floor} must be below rate {self.rate}; for one rate use schedule: constant"
            )
        return self


class Schedule:
    """A learning rate. Nothing is kept on it: what it makes of validations is a value."""

    Config: type[ComponentConfig]

    def __init__(self, config: Any, width: int):
        """``width`` of the model, for schedules that go by it."""
        raise NotImplementedError

    def rate(self, update: int, seen: Seen = NOTHING) -> float:
        """The rate of an update, 1 the first of the stage."""
        raise NotImplementedError

    def judged(self, seen: Seen, value: float, lower_is_better: bool, epoch: int) -> Seen:
        """``seen`` after one more validation, which found ``value`` when ``epoch`` passes of the stage were over."""
        return seen


class Vaswani(Schedule):
    """lr = factor * D^-0.5 * min(t^-0.5, t * warmup^-1.5) (Vaswani et al. 2017, Equation 3; MLRF section 4.1)."""

    Config = VaswaniConfig

    def __init__(self, config: VaswaniConfig, width: int):
        self.factor, self.warmup = config.factor * width**-0.5, config.warmup

    def rate(self, update: int, seen: Seen = NOTHING) -> float:
        return self.factor * min(update**-0.5, update * self.warmup**-1.5)


class InverseSqrt(Schedule):
    """lr = start + (peak - start) t / warmup up to the warm-up's end, then peak * sqrt(warmup / t) (fairseq)."""

    Config = InverseSqrtConfig

    def __init__(self, config: InverseSqrtConfig, width: int):
        self.peak, self.warmup, self.start = config.peak, config.warmup, config.start

    def rate(self, update: int, seen: Seen = NOTHING) -> float:
        if update < self.warmup:
            return self.start + (self.peak - self.start) * update / self.warmup
        return self.peak * (self.warmup / update) ** 0.5


class Constant(Schedule):
    """lr = rate."""

    Config = ConstantConfig

    def __init__(self, config: ConstantConfig, width: int):
        self.value = config.rate

    def rate(self, update: int, seen: Seen = NOTHING) -> float:
        return self.value


class Linear(Schedule):
    """lr = start + (peak - start) t / p before t = p, then floor + (peak - floor) (n - t) / (n - p), and floor from t = n on (Devlin et
    al. 2019, Appendix A.2), where p is `warmup`, and n `updates`.
    """

    Config: type[ComponentConfig] = LinearConfig

    def __init__(self, config: LinearConfig, width: int):
        self.config = config

    def rate(self, update: int, seen: Seen = NOTHING) -> float:
        peak, warmup, start, floor = (
            self.config.peak,
            self.config.warmup,
            self.config.start,
            self.config.floor,
        )
        if update < warmup:
            return start + (peak - start) * update / warmup
        left = max(self.config.updates - update, 0) / (self.config.updates - warmup)
        return floor + (peak - floor) * self._height(left)

    def _height(self, left: float) -> float:
        """The part of the way from floor to peak, while that part of the updates after the warm-up is left."""
        return left


class Cosine(Linear):
    """lr = start + (peak - start) t / p before t = p, then floor + (peak - floor) (1 + cos(pi (t - p) / (n - p))) / 2, and floor from
    t = n on (Loshchilov and Hutter 2017, Equation 5, one period), where p is `warmup`, and n `updates`.
    """

    Config = CosineConfig

    def _height(self, left: float) -> float:
        return (1 + math.cos(math.pi * (1 - left))) / 2


class Replicas(Schedule):
    """lr = rate * min(1 + t (n-1) / (n p), n, n (2n)^((s - n t) / (e - s))) (DTMT Equation 17, after Chen et al. 2018), where n is
    `replicas`, p `warmup`, s `decay_start`, and e `decay_end`.

    So the warm-up lasts until t = n p, and s and e are counted in n t: the rate falls from t = s / n on and is rate / 2 at t = e / n.
    Chen et al. hold it from there on; DTMT does not say so and its authors' code does not do so, and it goes on falling here.
    """

    Config = ReplicasConfig

    def __init__(self, config: ReplicasConfig, width: int):
        self.config = config

    def rate(self, update: int, seen: Seen = NOTHING) -> float:
        n, start, end = self.config.replicas, self.config.decay_start, self.config.decay_end
        risen = min(1 + update * (n - 1) / (n * self.config.warmup), n)
        fallen = n * (2 * n) ** min(
            (start - n * update) / (end - start), 0.0
        )  # 0 until the start, where it is far above n
        return self.config.rate * min(risen, fallen)


class Plateau(Schedule):
    """lr = max(rate * factor^n, floor) after n cuts (DenseNMT section 4.3, as Gehring et al. 2017).

    Rises are counted as in the authors' toolkit, fairseq for Lua: against the last validation that led to no cut, which is the best
    one unless rises were let pass before `not_before_epoch`. NaN is a rise.
    """

    Config = PlateauConfig

    def __init__(self, config: PlateauConfig, width: int):
        self.config = config

    def rate(self, update: int, seen: Seen = NOTHING) -> float:
        cuts: int = seen.get("cuts", 0)
        return max(self.config.rate * self.config.factor**cuts, self.config.floor)

    def judged(self, seen: Seen, value: float, lower_is_better: bool, epoch: int) -> Seen:
        best, since, cuts = seen.get("best"), seen.get("risen_since"), seen.get("cuts", 0)
        risen, due = (
            best is not None and not self._better(value, best, lower_is_better),
            epoch >= self.config.not_before_epoch,
        )
        if risen and due and since is None:
            since = epoch
        if self.config.rule == "each-rise":
            cuts += risen and due
        elif since is not None:
            cuts = 1 + epoch - since
        if not (risen and due) and not math.isnan(value):
            best = value
        return {
            "cuts": cuts,
            "best": best,
            "risen_since": since,
            "rate": self.rate(1, {"cuts": cuts}),
        }

    def _better(self, value: float, best: float, lower_is_better: bool) -> bool:
        margin = self.config.threshold * abs(best)
        return value < best - margin if lower_is_better else value > best + margin


SCHEDULES: dict[str, type] = {
    "vaswani": Vaswani,
    "inverse-sqrt": InverseSqrt,
    "constant": Constant,
    "linear": Linear,
    "cosine": Cosine,
    "replicas": Replicas,
    "plateau": Plateau,
}
