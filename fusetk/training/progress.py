"""The position of a training run."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fusetk.config import outside_error
from fusetk.errors import FusetkError, class_name
from fusetk.processes import World
from fusetk.runs import STATE
from fusetk.training.config import EndConfig
from fusetk.training.schedule import Schedule, rate_of_update
from fusetk.training.validation_config import ValidationConfig, is_lowest_best, ranking_key
from fusetk.weights import damaged, read_state

FIRST_SCALE = 2.0**16  # of fp16 losses


@dataclass
class Progress:
    """The position of training. Each checkpoint stores it in ``state.json``.

    Together with the weights and the optimiser state, it determines all later updates.
    """

    update: int = 0  # updates of all stages
    stage: int = 0
    stage_update: int = 0
    stage_epoch: int = 0  # finished epochs of this stage
    epoch: int = 0  # finished or abandoned epochs of all stages, which seed the shuffle
    epochs: float = 0.0  # data that all stages have read, in epochs
    epochs_before: float = 0.0  # data that the earlier stages have read, in epochs
    position: int = 0  # finished updates of the current epoch
    seconds: float = 0.0  # duration of the stage so far
    scale: float = FIRST_SCALE  # factor of fp16 losses
    scale_updates: int = 0  # updates since ``scale`` changed
    skipped: int = 0  # consecutive skipped updates
    skipped_ever: int = 0
    best: float | None = None  # metric of the best validation
    best_loss: float | None = None  # loss of the best validation
    best_update: int = 0
    stalled: int = 0  # validations since the best one
    # (update, metric, loss) of every validation
    ranking: list[tuple[int, float, float]] = field(default_factory=list)
    # updates of all checkpoints so far, without those that only an interruption caused
    saved: list[int] = field(default_factory=list)
    schedule_state: dict[str, Any] = field(default_factory=dict)

    def advance(self, updates_in_epoch: int) -> None:
        """Count an update. An epoch has ``updates_in_epoch`` updates."""
        self.update += 1
        self.stage_update += 1
        self.position += 1
        if self.position == updates_in_epoch:
            self.epoch += 1
            self.stage_epoch += 1
            self.position = 0
        self.epochs = self.epochs_before + self.stage_epoch + self.position / updates_in_epoch

    def start_stage(self) -> None:
        """Move to the start of the next stage, which begins with a complete epoch."""
        self.stage += 1
        self.stage_update = 0
        self.stage_epoch = 0
        self.epochs_before = self.epochs
        self.stalled = 0
        self.schedule_state = {}
        self.seconds = 0.0
        if self.position:
            self.epoch += 1
            self.position = 0

    def add_validation(self, metric: str, results: Mapping[str, float]) -> bool:
        """Record the results of a validation. Return whether they are the best so far."""
        value = results[metric]
        is_best = not math.isnan(value)
        if is_best and self.best is not None and self.best_loss is not None:
            best = {"loss": self.best_loss, metric: self.best}
            is_best = ranking_key(metric, results) < ranking_key(metric, best)
        if is_best:
            self.best = value
            self.best_loss = results["loss"]
            self.best_update = self.update
            self.stalled = 0
        else:
            self.stalled += 1
        self.ranking.append((self.update, value, results["loss"]))
        return is_best

    def add_checkpoint(self) -> None:
        """Record a checkpoint after the current update. It may replace an earlier one."""
        if self.update not in self.saved[-1:]:
            self.saved.append(self.update)

    @property
    def validated(self) -> bool:
        """Whether the current weights have been validated."""
        return bool(self.ranking) and self.ranking[-1][0] == self.update

    @property
    def has_checkpoint(self) -> bool:
        """Whether a checkpoint after the current update is due to a validation or ``save_every``.

        A checkpoint that only an interruption caused does not count.
        """
        return self.validated or self.update in self.saved

    def to_state(self) -> dict[str, Any]:
        """Return the entry ``progress`` of ``state.json``."""
        return asdict(self)

    @classmethod
    def from_state(cls, values: Mapping[str, Any]) -> "Progress":
        """Return the progress from the entry ``progress`` of ``state.json``.

        Raises TypeError or ValueError if it is not valid.
        """
        progress = cls(**values)
        # An earlier version wrote such a state. It counted abandoned epochs as finished.
        if "epochs_before" not in values:
            progress.epochs_before = progress.epoch - progress.stage_epoch
        progress.ranking = [(update, value, loss) for update, value, loss in progress.ranking]
        return progress


def read_progress(folder: Path) -> Progress:
    """Read the progress of a checkpoint. Raises CheckpointError if it is damaged."""
    state = read_state(folder)
    try:
        return Progress.from_state(state["progress"])
    except (KeyError, TypeError, ValueError):
        raise damaged(folder, f"{folder / STATE} has no valid training progress") from None


def stage_ended(end: EndConfig, progress: Progress, schedule: Schedule) -> bool:
    """Whether one of the limits of the current stage is reached."""
    return (
        (end.epochs is not None and progress.stage_epoch >= end.epochs)
        or (end.updates is not None and progress.stage_update >= end.updates)
        or (end.patience is not None and progress.stalled >= end.patience)
        or (end.rate is not None and _rate_fell_below(end.rate, progress, schedule))
        or (end.hours is not None and progress.seconds >= end.hours * 3600)
    )


def _rate_fell_below(limit: float, progress: Progress, schedule: Schedule) -> bool:
    """Whether the rate of the next update is below a limit, and not rising."""
    if not progress.stage_update:
        return False
    rate = rate_of_update(schedule, progress.stage_update, progress.schedule_state)
    next_rate = rate_of_update(schedule, progress.stage_update + 1, progress.schedule_state)
    return next_rate < limit and next_rate <= rate


def validation_due(config: ValidationConfig, progress: Progress) -> bool:
    """Whether the config asks for a validation after the last update."""
    every_epochs = config.every_epochs or (None if config.every_updates else 1)
    if config.every_updates and progress.update % config.every_updates == 0:
        return True
    epoch_ended = progress.position == 0
    return bool(every_epochs and epoch_ended and progress.stage_epoch % every_epochs == 0)


def update_schedule(
    progress: Progress, schedule: Schedule, metric: str, value: float, is_tie: bool = False
) -> str | None:
    """Give the schedule the result of a validation, and store its new state in ``progress``.

    ``is_tie`` says that the value equals the best one of the run and the loss is lower. Returns a
    message if the learning rate changes, else None. Raises FusetkError if a schedule outside fusetk
    fails, or if JSON cannot represent its state.
    """
    update = progress.stage_update + 1
    rate = rate_of_update(schedule, update, progress.schedule_state)
    name = class_name(schedule)
    before, epoch = progress.schedule_state, progress.stage_epoch
    method = "after_validation(state, value, lower_is_better, epoch)"
    if is_tie:
        method = "after_tie(state, value, epoch)"
    try:
        if is_tie:
            state = schedule.after_tie(before, value, epoch)
        else:
            state = schedule.after_validation(before, value, is_lowest_best(metric), epoch)
    except (Exception, SystemExit) as error:
        raise FusetkError(
            f"the method {method} of the schedule {name} failed: {outside_error(error)}"
        ) from error
    try:
        progress.schedule_state = json.loads(json.dumps(dict(state)))
    except (TypeError, ValueError) as error:
        raise FusetkError(
            f"the schedule {name} has a state that a checkpoint cannot hold ({error}): let its "
            f"method {method} return a dict that JSON can represent"
        ) from None
    new_rate = rate_of_update(schedule, update, progress.schedule_state)
    return None if new_rate == rate else f"learning rate {rate:.3e} -> {new_rate:.3e}"


class StageClock:
    """Clock that measures the duration of a stage, which ``progress`` stores."""

    def __init__(self, world: World):
        self.world = world
        self.restart()

    def restart(self) -> None:
        """Measure from now."""
        self._last_time = time.monotonic()

    def add_to(self, progress: Progress, end: EndConfig) -> None:
        """Add the time since the last call to the duration of the stage.

        If ``end.hours`` limits the stage, all processes use the duration of rank 0, so that they
        end together.
        """
        now = time.monotonic()
        progress.seconds += now - self._last_time
        self._last_time = now
        if end.hours is not None:
            seconds = progress.seconds if self.world.first else 0.0
            [progress.seconds] = self.world.all_sum([seconds])
