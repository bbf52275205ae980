"""Updates whose gradient is not finite: fp16 loss scale, skipped updates, and the end of a run."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from torch import Tensor

from fusetk.data.sampler import Indices
from fusetk.errors import FusetkError, TrainingDiverged, first_names, join_names
from fusetk.processes import ALONE, World
from fusetk.runs import CHECKPOINTS
from fusetk.training.log import Log
from fusetk.training.progress import FIRST_SCALE, Progress

SMALLEST_SCALE = 2.0**-4
LARGEST_SCALE = 2.0**24
HALVINGS = round(math.log2(FIRST_SCALE / SMALLEST_SCALE))  # from the first scale to the smallest
GROWTH_INTERVAL = 2000  # updates with a finite gradient after which the scale doubles


def next_scale(scale: float, updates: int, finite: bool) -> tuple[float, int]:
    """Return the next fp16 loss scale and the number of updates since it changed.

    The scale is halved after a gradient that is not finite, and doubled after 2,000 finite ones
    (Micikevicius et al. 2018, section 3.2).
    """
    if not finite:
        return max(scale / 2, SMALLEST_SCALE), 0
    if updates + 1 == GROWTH_INTERVAL:
        return min(scale * 2, LARGEST_SCALE), 0
    return scale, updates + 1


class GradientCheck:
    """Check of gradients. It adapts the fp16 loss scale and stops a run that has diverged."""

    def __init__(self, precision: str, max_skipped: int, run: Path, log: Log, world: World = ALONE):
        self.fp16 = precision == "fp16"
        self.max_skipped = max_skipped
        self.run = run
        self.log = log
        self.world = world
        self.had_finite_gradient = False

    def scale(self, progress: Progress) -> float:
        """Return the factor by which the losses of the next update are multiplied."""
        return progress.scale if self.fp16 else 1.0

    def check(
        self,
        progress: Progress,
        grad_norm: float,
        batches: Sequence[Indices],
        additional: Mapping[str, Tensor] = {},
    ) -> None:
        """Record whether the update after ``progress`` had a finite gradient.

        All processes must call it with the same ``grad_norm``. ``additional`` are the additional
        losses of this process. The message of a failure names the losses that are not finite in at
        least one process. In fp16, a gradient that is not finite is not a failure while the loss
        scale can still be lowered. Raises TrainingDiverged after ``max_skipped`` consecutive
        failures, or FusetkError if no update had a finite gradient.
        """
        finite = math.isfinite(grad_norm)
        self.had_finite_gradient |= finite
        if self.fp16:
            previous = progress.scale
            progress.scale, progress.scale_updates = next_scale(
                previous, progress.scale_updates, finite
            )
            if not finite and progress.scale != previous:
                self.log.line(
                    f"update {progress.update + 1} skipped: fp16 gradients overflowed; "
                    f"loss scale {previous:g} -> {progress.scale:g}"
                )
                return
        if finite:
            progress.skipped = 0
        else:
            self._count_skipped(progress, batches, additional)

    def _count_skipped(
        self, progress: Progress, batches: Sequence[Indices], additional: Mapping[str, Tensor]
    ) -> None:
        names = [name for name, value in additional.items() if not value.isfinite()]
        infinite = dict.fromkeys(chain(*self.world.all_gather(names)))
        progress.skipped += 1
        progress.skipped_ever += 1
        pairs = first_names([str(i + 1) for i in np.concatenate(batches)], 10)
        losses = f"not finite: {', '.join(infinite)}; " if infinite else ""
        self.log.line(
            f"update {progress.update + 1} skipped: its gradient is not finite "
            f"({losses}prepared training pairs {pairs}; "
            f"{progress.skipped} in a row, {progress.skipped_ever} in total)"
        )
        if progress.skipped >= self.max_skipped:
            raise self._too_many_skipped(progress)

    def _too_many_skipped(self, progress: Progress) -> FusetkError:
        """Return the error after ``max_skipped`` consecutive skipped updates."""
        updates = progress.update + 1 - progress.skipped  # before the skipped ones
        if not self.had_finite_gradient and updates <= (HALVINGS if self.fp16 else 0):
            return FusetkError(
                "no update had a finite gradient: the new model computes NaN or infinity. Check "
                "its initial weights, and divisions and square roots in your own classes"
                + ("; or train in bf16 or fp32" if self.fp16 else "")
            )
        best = self.run / CHECKPOINTS / "best"
        earlier = f"use {best}, or " if best.exists() else ""
        remedies = ["lower the learning rate", "lengthen the warm-up", "clip gradients"]
        if self.fp16:
            remedies.append("train in bf16 or fp32")
        return TrainingDiverged(
            f"{progress.skipped} updates in a row after update {updates} had no finite "
            f"gradient: training has diverged; {earlier}{join_names(remedies, 'or')}, in a new run "
            "folder"
        )
