"""What a training can be told."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, model_validator

from fusetk.config import ComponentConfig, Config, component
from fusetk.data.sampler import BatchConfig
from fusetk.training.optim import OPTIMIZERS
from fusetk.training.schedule import SCHEDULES, ConstantConfig, LinearConfig, PlateauConfig
from fusetk.training.validation import ValidationConfig


class EndConfig(Config):
    """When a stage ends: at the first of these."""

    epochs: int | None = Field(None, ge=1)
    """Passes over the training pairs."""
    updates: int | None = Field(None, ge=1)
    """Optimiser steps of this stage."""
    patience: int | None = Field(None, ge=1)
    """Validations in a row without a new best."""
    rate: float | None = Field(None, gt=0)
    """The learning rate falls below this, as `schedule: plateau` makes it; a warm-up that begins below it is no fall."""
    hours: float | None = Field(None, gt=0)
    """Hours of updates, validation and checkpoints of this stage, over all the times that it was resumed. What time allows depends on
    the machine, so such a stage is not the same twice."""

    @model_validator(mode="after")
    def _ends(self) -> "EndConfig":
        if all(
            value is None
            for value in (self.epochs, self.updates, self.patience, self.rate, self.hours)
        ):
            raise ValueError(
                "give epochs, updates, patience, rate or hours, or the stage never ends"
            )
        return self


class StageConfig(Config):
    """A stretch of training with an optimiser of its own, started fresh."""

    optimizer: Annotated[ComponentConfig, component(OPTIMIZERS, "an optimiser")]
    """How a gradient becomes a step."""
    schedule: Annotated[ComponentConfig, component(SCHEDULES, "a learning-rate schedule")]
    """The learning rate as a function of the stage's updates."""
    batch: BatchConfig = BatchConfig()
    """What one update sees."""
    weights: dict[str, NonNegativeFloat] | None = None
    """How often an epoch has each pair of a training corpus, by its prefix in `data.train` or the end of that path: 2.5 is twice, and with
    probability 0.5 once more, drawn by seed and epoch; what is not named weighs 1. 0 leaves a corpus out: a later stage with weights
    fine-tunes on one corpus of several."""
    clip: float = Field(0.0, ge=0)
    """Largest gradient norm; 0 for none."""
    end: EndConfig
    """When the stage ends."""
    dropout: float | None = Field(None, ge=0, lt=1)
    """Every dropout of the model that is not 0 is this one in this stage; as the model has them if not given."""
    start: Literal["last", "best"] = "last"
    """Weights that a later stage starts from: those at the end of the stage before, or of the best checkpoint so far (the weights
    themselves, also where their exponential mean was judged)."""

    @model_validator(mode="after")
    def _rate_falls_to_the_end(self) -> "StageConfig":
        schedule, end = self.schedule, self.end.rate
        if end is None:
            return self
        if isinstance(schedule, ConstantConfig):
            raise ValueError(
                "end.rate needs a schedule whose rate falls, such as plateau; this one is constant"
            )
        if isinstance(schedule, PlateauConfig) and schedule.rate < end:
            raise ValueError(
                f"schedule.rate {schedule.rate} is below end.rate {end} from the start"
            )
        if isinstance(schedule, LinearConfig) and schedule.peak < end:
            raise ValueError(
                f"schedule.peak {schedule.peak} is below end.rate {end}: the rate is never above it"
            )
        if isinstance(schedule, PlateauConfig | LinearConfig) and schedule.floor >= end:
            raise ValueError(
                f"end.rate {end} is never reached: the rate stays at schedule.floor {schedule.floor}; give a lower floor"
            )
        return self


class TrainingConfig(Config):
    """How a model is trained."""

    seed: int = Field(1, ge=0, lt=1 << 32)
    """Fixes initial weights, batches and dropout."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of matrix products and activations; weights, sums and losses are float32 always. bf16 where the device has it: fp16 has few
    exponents, so its losses are multiplied before and gradients divided after, by as much as they bear."""
    matmul: Literal["highest", "high", "medium"] = "highest"
    """Of the factors of float32 matrix products: `highest` is float32; `high` tf32 (10 bits after the first), where a GPU has it;
    `medium` bf16 (7 bits), where a processor has it, and on a GPU as `high`. The log says what it comes to."""
    compile: bool = False
    """Compile layers with torch, in training: what stands between their matrix products becomes few kernels. It takes a minute or more at
    the start, pays on a GPU if at all, and changes results by rounding, and by which elements drop out on a GPU. Not for recurrent
    models, which have kernels of their own."""
    shard: bool = False
    """Under torchrun, split parameters, gradients and optimiser state over the processes (FSDP): for models too large for one GPU. Each
    layer is gathered when it runs; in validation, every process holds all parameters. Checkpoints are the same; alone, it does
    nothing."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Probability taken from the right word and spread over all others; reported losses are without it."""
    stages: list[StageConfig] = Field(min_length=1)
    """One after the other."""
    ema: float | None = Field(None, gt=0, lt=1)
    """Keep an exponential mean of the weights with this decay, such as 0.999, beside them; validation judges the mean, and it is what
    `fusetk decode` translates with."""
    validation: ValidationConfig = ValidationConfig()
    """When and by what the model is judged."""
    save_every: int | None = Field(None, ge=1)
    """Updates between checkpoints, besides those at validations."""
    keep_last: int = Field(5, ge=1)
    """Latest checkpoints to keep."""
    keep_best: int = Field(1, ge=1)
    """Best checkpoints to keep, by the validation metric."""
    log_every: int = Field(100, ge=1)
    """Updates between log lines."""
    max_skipped: int = Field(5, ge=1)
    """An update whose gradient is not finite is skipped; so many in a row end the training."""
    tensorboard: bool = False
    """Write TensorBoard files into the run folder, too (needs the package tensorboard)."""
