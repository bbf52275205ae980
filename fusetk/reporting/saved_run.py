"""A run that is known by its result file only."""

import re
from typing import Literal, NamedTuple

import numpy as np

from fusetk.reporting.result_files import RunResult, SavedScore
from fusetk.reporting.runs import ScoreColumn

# The keys that change the end of a training; the first one changes the stages themselves.
END_KEY = re.compile(r"training\.stages(\.\d+\.end(\..*)?)?")

CurveMetric = Literal["loss", "bleu"]  # metrics of validations


class SavedRun(NamedTuple):
    """A result and the name of its file without the ending."""

    stem: str
    result: RunResult

    @property
    def changes_end(self) -> bool:
        """Whether the config changes the end of the training, as that of a trial does."""
        return any(END_KEY.fullmatch(key) for key in self.result.overrides)

    @property
    def best_loss(self) -> float | None:
        """The lowest validation loss."""
        return self.best("loss")

    def best(self, metric: CurveMetric) -> float | None:
        """Return the best value of a metric in the validations; None if it was not computed."""
        values = [value for value in self.result.valid_curve.get(metric, []) if value is not None]
        return (min if metric == "loss" else max)(values, default=None)

    def has_computed(self, metric: CurveMetric) -> bool:
        """Whether a validation computed a metric. Each one computes the loss, also if it is NaN."""
        name = "update" if metric == "loss" else metric
        return bool(self.result.valid_curve.get(name))

    @property
    def losses(self) -> list[tuple[float, float]]:
        """The number of epochs and the loss of each validation, if both are known."""
        curve = self.result.valid_curve
        pairs = zip(curve.get("epoch", []), curve.get("loss", []), strict=False)
        return [(end, loss) for end, loss in pairs if end is not None and loss is not None]

    def loss_at(self, epoch: float) -> float | None:
        """Return the validation loss after a number of epochs.

        Between two validations, it is interpolated linearly over the logarithm of the epochs. In
        the first three epochs, this is too high, by some hundredths. Returns None before the first
        validation and after the last one.
        """
        points = [(end, loss) for end, loss in self.losses if end]  # 0 has no logarithm
        if not points or not points[0][0] <= epoch <= points[-1][0]:
            return None
        epochs, losses = np.array(points).T
        return float(np.interp(np.log(epoch), np.log(epochs), losses))

    def score(self, column: ScoreColumn) -> float | None:
        """Return the score of a column; None if the run has no such score."""
        saved = self.saved_score(column)
        return saved.value if saved else None

    def saved_score(self, column: ScoreColumn) -> SavedScore | None:
        """Return the score of a column with its signature; None if there is none."""
        return next((each for each in self.result.scores if each.key == column), None)

    @property
    def seconds_per_update(self) -> float | None:
        """The mean time of an update in training."""
        training = self.result.training
        if not training.updates or training.update_seconds is None:
            return None
        return training.update_seconds / training.updates

    @property
    def tokens_per_update(self) -> float | None:
        """The mean number of target tokens of an update."""
        speed, seconds = self.result.training.tokens_per_second, self.seconds_per_update
        return speed * seconds if speed is not None and seconds is not None else None

    def updates_to(self, metric: CurveMetric, goal: float) -> float | None:
        """Return the updates to the first validation whose value is at least as good as ``goal``.

        Return None if no validation is.
        """
        curve = self.result.valid_curve
        for update, value in zip(curve.get("update", []), curve.get(metric, []), strict=False):
            reached = value is not None and (value <= goal if metric == "loss" else value >= goal)
            if update is not None and reached:
                return update
        return None
