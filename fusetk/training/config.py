"""The section ``training`` of a config."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from fusetk.config import ComponentConfig, Config, component
from fusetk.data.batch_config import BatchConfig
from fusetk.training.optim import OPTIMIZERS, builder
from fusetk.training.schedule import SCHEDULES, Schedule, ScheduleConfig, with_current_name
from fusetk.training.validation_config import ValidationConfig

MOST_UPDATES = 1_000_000_000  # of a stage; also the most epochs, because each has an update


class EndConfig(Config):
    """Limits of a stage. The stage ends as soon as one of them is reached."""

    epochs: int | None = Field(None, ge=1, le=MOST_UPDATES)
    """Number of passes over the training pairs."""
    updates: int | None = Field(None, ge=1, le=MOST_UPDATES)
    """Number of updates of this stage."""
    patience: int | None = Field(None, ge=1)
    """Number of consecutive validations without a new best result."""
    rate: float | None = Field(None, gt=0)
    """Learning rate below which the stage ends, for example with `schedule: plateau`. A warm-up
    that starts below it does not end the stage."""
    hours: float | None = Field(None, gt=0, le=1_000_000)
    """Duration of the updates, validations and checkpoints of this stage in hours, summed over all
    resumes. The number of updates then depends on the machine, so such a stage is not
    reproducible."""

    @model_validator(mode="after")
    def _ends(self) -> "EndConfig":
        limits = (self.epochs, self.updates, self.patience, self.rate, self.hours)
        if all(limit is None for limit in limits):
            raise ValueError(
                "give epochs, updates, patience, rate or hours, or the stage never ends"
            )
        return self


class StageConfig(Config):
    """A part of training with its own optimiser. The state of the optimiser is empty at the start
    of the stage."""

    optimizer: Annotated[ComponentConfig, component(OPTIMIZERS, "an optimiser")]
    """Optimiser: the rule by which gradients change parameters."""
    schedule: Annotated[ComponentConfig, component(SCHEDULES, "a learning-rate schedule", Schedule)]
    """Learning rate as a function of the updates of the stage."""
    batch: BatchConfig = BatchConfig()
    """Size of a batch, and number of batches in an update."""
    weights: dict[str, Annotated[float, Field(ge=0, le=1000)]] | None = None
    """Sampling weight of each training corpus, keyed by its prefix in `data.train` or by the end of
    that path. With weight 2.5, an epoch has each pair twice, and a third time with probability 0.5.
    The seed and the epoch determine which pairs are drawn. The default weight is 1. Weight 0
    excludes a corpus, so a later stage can fine-tune on one of several corpora. The numbers of all
    pairs of an epoch are kept in memory, so weights are at most 1000."""
    clip: float = Field(0.0, ge=0)
    """Maximum gradient norm. Gradients with a larger norm are scaled down to it; 0 is no
    clipping."""
    end: EndConfig
    """Limits of the stage."""
    dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout rate of this stage. It replaces every dropout rate of the model that is not 0. By
    default the model's rates apply."""
    start: Literal["last", "best"] = "last"
    """Initial weights of a stage after the first: those at the end of the previous stage (`last`),
    or those of the best checkpoint so far (`best`). Even with `ema` they are the raw weights, not
    the average."""

    @field_validator("optimizer")
    @classmethod
    def _can_be_built(cls, value: ComponentConfig) -> ComponentConfig:
        builder(value.kind)
        return value

    @field_validator("schedule", mode="before")
    @classmethod
    def _accept_earlier_names(cls, value: Any) -> Any:
        return with_current_name(value)

    @model_validator(mode="after")
    def _reaches_its_end_rate(self) -> "StageConfig":
        end = self.end.rate
        if end is None or not isinstance(self.schedule, ScheduleConfig):
            return self
        lowest, highest = self.schedule.rate_limits()
        if lowest == highest:
            raise ValueError(
                "end.rate needs a schedule whose rate falls, such as plateau; "
                f"the rate of schedule {self.schedule.kind} is constant"
            )
        if highest < end:
            raise ValueError(
                f"the highest rate of the schedule, {highest}, is below end.rate {end}: "
                "give a lower end.rate"
            )
        if lowest >= end:
            raise ValueError(
                f"end.rate {end} is never reached: the lowest rate of the schedule is {lowest}; "
                "give a lower schedule.floor"
            )
        return self


class TrainingConfig(Config):
    """The settings of a training."""

    seed: int = Field(1, ge=0, lt=1 << 32)
    """Determines initial weights, batches and dropout."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of matrix products and activations. Weights, reductions and losses are always
    float32. Prefer bf16 on devices that have it: fp16 has a narrow exponent range and needs dynamic
    loss scaling."""
    matmul: Literal["highest", "high", "medium"] = "highest"
    """Precision of the factors in float32 matrix products. `highest` is float32. `high` is tf32
    (10 fraction bits) on GPUs that have it. `medium` is bf16 (7 fraction bits) on CPUs that have
    it; on GPUs it is the same as `high`. The log states the precision that is used."""
    compile: bool = False
    """Compile the layers with torch for training: the operations between their matrix products
    become a few kernels. Compilation takes a minute or two at the start. On a CPU, training was
    1.04 times as fast; on a GPU it was not measured. Results change by rounding, and dropout masks
    change on a GPU. Recurrent models cannot be compiled: they have their own kernels."""
    cuda_graphs: bool = False
    """On a GPU, record the kernels of the forward and backward pass as a CUDA graph for each shape
    of a batch: the number of pairs, the padded lengths and the number of target tokens. The first
    batch of a shape is computed without a graph, the second one is recorded, and for later ones the
    processor starts all kernels with one call. So a small model does not wait for the processor: on
    an H100, a Transformer with 6+6 layers of width 128 trained 4 times as fast. Sentences are
    padded to a multiple of 8 tokens, so that shapes recur. At most 512 shapes are recorded. Results
    change by rounding, and dropout masks change, because there is more padding. Graphs need more
    memory. Recurrent models and recomputed layers (`checkpoint: true`) are refused, also on a CPU.
    On a CPU, the key has no other effect."""
    shard: bool = False
    """With torchrun, split parameters, gradients and optimiser state over the processes (FSDP), for
    models that are too large for one GPU. Each layer is gathered when it runs; in validation, every
    process holds all parameters. Checkpoints do not change. With one process it has no effect."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Probability that is taken from the correct token and spread evenly over all other tokens.
    Reported losses are without label smoothing."""
    start_from: str | None = None
    """Run or checkpoint whose weights a new run starts from; a path like those in `data`. If it has
    moving averages (`ema`), these are copied, not the raw weights. Weights are matched by name, and
    rows of embeddings and of the output projection by token. The log names the weights that do not
    fit; they keep their initial values, as do the rows of new tokens. The state of the optimiser is
    not read."""
    stages: list[StageConfig] = Field(min_length=1)
    """The stages of training, in order."""
    ema: float | None = Field(None, gt=0, lt=1)
    """Decay of an exponential moving average (EMA) of the weights, such as 0.999. Validation and
    `fusetk decode` use the average. By default there is no average."""
    validation: ValidationConfig = ValidationConfig()
    """Times and metric of validations."""
    save_every: int | None = Field(None, ge=1)
    """Number of updates between checkpoints, in addition to the checkpoints at validations."""
    keep_last: int = Field(5, ge=1)
    """Number of latest checkpoints to keep. A checkpoint that was written because of an
    interruption is kept in addition, until the next one is written."""
    keep_best: int = Field(1, ge=1)
    """Number of best checkpoints to keep, by the validation metric."""
    log_every: int = Field(100, ge=1)
    """Number of updates between log lines. There are further lines after 1, 2, 4, 8, ... updates,
    up to this number. There is also a line before each validation and each checkpoint, and after
    10,000 updates without a line."""
    max_skipped: int = Field(5, ge=1)
    """Number of consecutive skipped updates after which training stops with an error. An update is
    skipped if its gradient is not finite."""
    tensorboard: bool = False
    """Also write TensorBoard files into the run folder (needs the package tensorboard)."""

    @model_validator(mode="after")
    def _graphs_exclude_sharding(self) -> "TrainingConfig":
        if self.cuda_graphs and self.shard:
            raise ValueError(
                "cuda_graphs cannot record a sharded model: remove cuda_graphs or shard"
            )
        return self

    @field_validator("stages")
    @classmethod
    def _first_stage_has_no_earlier_one(cls, stages: list[StageConfig]) -> list[StageConfig]:
        if stages[0].start == "best":
            raise ValueError(
                "the first stage has start: best, but there is no checkpoint before it: remove the "
                "key"
            )
        return stages
