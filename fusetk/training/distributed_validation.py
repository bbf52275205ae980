"""Validation in all processes of a training at once."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import NamedTuple, NoReturn

import torch

from fusetk.errors import FusetkError, out_of_memory
from fusetk.models.seq2seq import Seq2Seq
from fusetk.processes import World
from fusetk.training.checkpoints import Checkpoints
from fusetk.training.ema import Ema
from fusetk.training.progress import Progress
from fusetk.training.sharding import unsharded
from fusetk.training.signals import Stop, StopNow
from fusetk.training.validation import PartialResults, Validator


class ValidationResults(NamedTuple):
    """The metrics, and the share of each layer in each fusion if the config asks for it."""

    metrics: dict[str, float]
    layer_shares: dict[str, dict[str, float]] | None


class DistributedValidation:
    """Validation in all processes; each validates a part of the corpus.

    If validation fails in a process, or a signal ends it, a checkpoint is saved.
    """

    def __init__(
        self,
        validator: Validator,
        model: Seq2Seq,
        ema: Ema | None,
        precision: str,
        checkpoints: Checkpoints,
        world: World,
    ):
        """``ema`` is the moving average of the weights, which replaces them in validation."""
        self.validator = validator
        self.model = model
        self.ema = ema
        self.precision = precision
        self.checkpoints = checkpoints
        self.world = world

    def __call__(
        self,
        progress: Progress,
        optimizer: torch.optim.Optimizer | None,
        stop: Stop,
        free_memory: Callable[[], bool],
    ) -> ValidationResults:
        """Return the metrics and the shares of the layers.

        If the memory does not suffice, ``free_memory`` is called. If it returns True, this process
        validates again.

        Raises Interrupted after a signal in a process. Raises the error if one occurs in this
        process, and FusetkError if one occurs in another process.
        """
        part, error = self._validate_part(stop)
        if error is not None and out_of_memory(error) and free_memory():
            error = None  # it refers to tensors
            part, error = self._validate_part(stop)
        parts = self.world.all_gather(part)
        if self.world.any(error is not None):
            self._save_and_raise(error, progress, optimizer)
        if None in parts:
            self.checkpoints.interrupt(progress, optimizer, stop.signal)
        complete = [part for part in parts if part is not None]
        # A metric outside fusetk may fail, or differ between processes.
        metrics: dict[str, float] | None = None
        if self.world.first:
            try:
                metrics = self.validator.combine(complete)
            except Exception as raised:
                error = raised
        metrics = self.world.broadcast(metrics)
        if metrics is None:
            self._save_and_raise(error, progress, optimizer)
        return ValidationResults(metrics, complete[0].layer_shares)

    def _save_and_raise(
        self,
        error: Exception | None,
        progress: Progress,
        optimizer: torch.optim.Optimizer | None,
    ) -> NoReturn:
        """Save a checkpoint, and raise the error, which is None in the other processes."""
        self.checkpoints.save(progress, optimizer, interrupted=True)
        raise error or FusetkError(
            f"validation failed in another process; saved after update {progress.update}"
        )

    def _validate_part(self, stop: Stop) -> tuple[PartialResults | None, Exception | None]:
        """Return the results of this process, None after a signal or an error, and the error."""
        part: PartialResults | None = None
        try:
            with (
                suppress(StopNow),
                self.ema.in_place() if self.ema else nullcontext(),
                unsharded(self.model),
                stop.at_once(),
            ):
                part = self.validator.validate_part(self.model, self.precision, self.world)
        except Exception as error:
            return None, error
        return part, None
