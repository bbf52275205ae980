"""Where a training stands."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Progress:
    """Where training stands: with the weights and the optimiser's state, all that decides how it goes on."""

    update: int = 0  # in all
    stage: int = 0
    stage_update: int = 0
    stage_epoch: int = 0  # passes finished in this stage
    epoch: int = 0  # passes finished in all
    epochs: float = 0.0  # passes in all, the one under way counted by its part
    position: int = 0  # updates done in the pass that is under way
    seconds: float = 0.0  # that the stage took
    scale: float = 65536.0  # of fp16 losses
    scale_updates: int = 0  # since that changed
    skipped: int = 0  # updates in a row whose gradient was not finite
    skipped_ever: int = 0
    best: float | None = None
    best_loss: float | None = None
    best_update: int = 0
    stalled: int = 0  # validations since the best
    ranking: list[tuple[int, float, float]] = field(
        default_factory=list
    )  # (update, metric, loss) of every validation
    seen: dict[str, Any] = field(
        default_factory=dict
    )  # what the schedule made of the stage's validations

    def advance(self, updates_in_epoch: int) -> None:
        """Count one update."""
        self.update, self.stage_update, self.position = (
            self.update + 1,
            self.stage_update + 1,
            self.position + 1,
        )
        if self.position == updates_in_epoch:
            self.epoch, self.stage_epoch, self.position = self.epoch + 1, self.stage_epoch + 1, 0
        self.epochs = self.epoch + self.position / updates_in_epoch

    @property
    def validated(self) -> bool:
        """Whether the weights as they are have been judged."""
        return bool(self.ranking) and self.ranking[-1][0] == self.update
