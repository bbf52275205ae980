"""Learning rates as formulas of the update t = 1, 2, ... of a stage."""

from pydantic import Field

from fusetk.config import Kind


class VaswaniConfig(Kind):
    """The original Transformer's schedule."""

    kind: str = "vaswani"
    warmup: int = Field(4000, ge=1)
    """Updates of warm-up."""
    factor: float = Field(1.0, gt=0)
    """Multiplies the rate."""


class InverseSqrtConfig(Kind):
    """Linear warm-up to a peak, then falling with the square root of the update."""

    kind: str = "inverse-sqrt"
    peak: float = Field(gt=0)
    """Highest rate, reached at the end of the warm-up."""
    warmup: int = Field(4000, ge=1)
    """Updates of warm-up."""
    start: float = Field(1e-7, ge=0)
    """Rate that the warm-up starts from."""


class ConstantConfig(Kind):
    """One rate."""

    kind: str = "constant"
    rate: float = Field(gt=0)
    """The rate."""


class Vaswani:
    """lr = factor * D^-0.5 * min(t^-0.5, t * warmup^-1.5) (Vaswani et al. 2017, Equation 3; MLRF section 4.1)."""

    Config = VaswaniConfig

    def __init__(self, config: VaswaniConfig, width: int):
        self.factor, self.warmup = config.factor * width**-0.5, config.warmup

    def rate(self, update: int) -> float:
        return self.factor * min(update**-0.5, update * self.warmup**-1.5)


class InverseSqrt:
    """lr = start + (peak - start) t / warmup up to the warm-up's end, then peak * sqrt(warmup / t) (fairseq)."""

    Config = InverseSqrtConfig

    def __init__(self, config: InverseSqrtConfig, width: int):
        self.peak, self.warmup, self.start = config.peak, config.warmup, config.start

    def rate(self, update: int) -> float:
        if update < self.warmup:
            return self.start + (self.peak - self.start) * update / self.warmup
        return self.peak * (self.warmup / update) ** 0.5


class Constant:
    """lr = rate."""

    Config = ConstantConfig

    def __init__(self, config: ConstantConfig, width: int):
        self.value = config.rate

    def rate(self, update: int) -> float:
        return self.value


SCHEDULES: dict[str, type] = {"vaswani": Vaswani, "inverse-sqrt": InverseSqrt, "constant": Constant}
