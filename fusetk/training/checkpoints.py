"""The checkpoints of a run: write, link, prune and load them."""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from fusetk.errors import CheckpointError, Interrupted
from fusetk.files import flush
from fusetk.models.seq2seq import ModelConfig, Seq2Seq
from fusetk.processes import World
from fusetk.runs import (
    CHECKPOINTS,
    EMA,
    METRICS,
    checkpoint_name,
    checkpoints,
    read_state_if_valid,
)
from fusetk.training import checkpoint
from fusetk.training.config import TrainingConfig
from fusetk.training.ema import Ema
from fusetk.training.progress import Progress
from fusetk.training.sharding import gather, shard_like
from fusetk.training.validation_config import ranking_key
from fusetk.weights import load_weights, read_tensors


class Checkpoints:
    """The checkpoints of a run: model, moving average, optimiser state and progress.

    Rank 0 writes. All processes take part, because sharded tensors must be gathered.
    """

    def __init__(
        self,
        run: Path,
        config: TrainingConfig,
        model: Seq2Seq,
        ema: Ema | None,
        fingerprint: str,
        model_config: ModelConfig,
        world: World,
    ):
        self.run = run
        self.config = config
        self.model = model
        self.ema = ema
        self.fingerprint = fingerprint
        self.model_config = model_config
        self.world = world
        self.inode: int | None = None  # of the run folder; see ``remember_folder``

    def path(self, update: int) -> Path:
        return self.run / CHECKPOINTS / checkpoint_name(update)

    def remember_folder(self) -> None:
        """Remember the run folder: no checkpoint is written into a later folder of its name.

        No later folder has its inode, because RunLock keeps the folder open.
        """
        with suppress(OSError):
            self.inode = self.run.stat().st_ino

    # Save

    def save(
        self,
        progress: Progress,
        optimizer: torch.optim.Optimizer | None,
        results: dict[str, float] | None = None,
        interrupted: bool = False,
    ) -> None:
        """Write a checkpoint with the results of a validation, if there was one.

        ``interrupted`` marks a checkpoint that exists only because training was interrupted.
        Raises CheckpointError in all processes if rank 0 cannot write it.
        """
        if not interrupted:
            progress.add_checkpoint()
        error: CheckpointError | None = None
        files = [gather(tensors, self.world.first) for tensors in self._tensors(optimizer)]
        if self.world.first:
            try:
                self._write(progress, files, results, interrupted)
            except CheckpointError as raised:
                error = raised
        error = self.world.broadcast(error)
        if error is not None:
            raise error

    def save_alone(self, progress: Progress, optimizer: torch.optim.Optimizer | None) -> None:
        """Write a checkpoint without the other processes. The model must not be sharded."""
        self._write(progress, self._tensors(optimizer), None, interrupted=True)

    def interrupt(
        self,
        progress: Progress,
        optimizer: torch.optim.Optimizer | None,
        signal: str | None,
    ) -> NoReturn:
        """Write a checkpoint and raise Interrupted; ``signal`` is None in other processes."""
        self.save(progress, optimizer, interrupted=True)
        raise Interrupted(
            f"{signal or 'a signal to another process'} received: saved after update "
            f"{progress.update}; run the same command again to resume"
        )

    def _tensors(self, optimizer: torch.optim.Optimizer | None) -> list[dict[str, Tensor]]:
        """Return the tensors of model, optimiser and moving average."""
        return [
            checkpoint.model_tensors(self.model),
            checkpoint.optimizer_tensors(self.model, optimizer) if optimizer else {},
            self.ema.mean if self.ema else {},
        ]

    def _write(
        self,
        progress: Progress,
        files: Sequence[dict[str, Tensor]],
        results: dict[str, float] | None,
        interrupted: bool,
    ) -> None:
        folder = self.path(progress.update)
        self._check_folder(folder)
        model, training, mean = files
        state = {
            "progress": progress.to_state(),
            "valid": results or {},
            "data": self.fingerprint,
            "interrupted": interrupted,
            "config": {
                "model": self.model_config.model_dump(mode="json"),
                "training": self.config.model_dump(mode="json"),
            },
        }
        # A resumed run does not log the updates before the checkpoint again.
        for path in (self.run / METRICS, self.run):
            with suppress(OSError):  # like a write error, this never stops training
                flush(path)
        checkpoint.save(folder, model, training, state, mean)
        checkpoint.link(self.run, "last", folder)
        if progress.best_update == progress.update:
            checkpoint.link(self.run, "best", folder)
        self._prune(progress, folder)

    def _check_folder(self, folder: Path) -> None:
        """Raise CheckpointError if another folder has the name of the run folder now.

        Another training may have made it, and this one would delete its checkpoints. The error
        names ``folder``, the checkpoint that is not written.
        """
        try:
            inode = self.run.stat().st_ino
        except OSError:  # writing the checkpoint raises the error for a missing folder
            return
        if self.inode not in (None, inode):
            raise CheckpointError(
                f"{folder} cannot be written: the run folder was moved or deleted during the "
                f"training, and {self.run} is another folder now; if it was moved, resume it there "
                "with --run"
            )

    def _prune(self, progress: Progress, folder: Path) -> None:
        """Delete the checkpoints that are neither among the last nor among the best.

        ``folder`` is the current checkpoint, which is kept. Only checkpoints up to ``folder``
        count among the last. A checkpoint that was written because of an interruption does not
        count, so that averages do not include it. A checkpoint with later updates does not count
        either; it exists if the run was restarted from an earlier one.
        """
        metric = self.config.validation.metric
        ranked = sorted(
            (ranking_key(metric, {"loss": loss, metric: value}), update)
            for update, value, loss in progress.ranking
            if not math.isnan(value)
        )
        best = [self.path(update) for _, update in ranked[: self.config.keep_best]]
        folders = checkpoints(self.run)
        names = [path.name for path in folders]
        # A run may resume from a copy with another name, which is newer than all others.
        current = names.index(folder.name) if folder.name in names else len(names)
        last = regular_checkpoints([*folders[:current], folder])[-self.config.keep_last :]
        checkpoint.prune(self.run, [*last, folder, *best])

    # Load

    def load_weights(self, folder: Path) -> None:
        """Load the model and its moving average. Raises CheckpointError if a file is damaged."""
        load_weights(self.model, folder, place=shard_like)
        if self.ema:
            self.ema.load(read_tensors(folder, EMA))

    def repair(self, folder: Path, progress: Progress) -> None:
        """Repair the links and delete surplus checkpoints, after ``folder`` was loaded."""
        if not self.world.first:
            return
        # After a restart from an earlier checkpoint, the link may point to a later one.
        best = folder.with_name(checkpoint_name(progress.best_update))
        if best.exists():
            checkpoint.link(self.run, "best", best)
        # A process may have been killed before it linked its last checkpoint.
        last = self.run / CHECKPOINTS / "last"
        is_in_run = folder.resolve().parent == last.parent.resolve()
        if not last.exists() or (last.is_symlink() and is_in_run):
            checkpoint.link(self.run, "last", folder)
        self._prune(progress, folder)  # a killed process may have left surplus checkpoints


def regular_checkpoints(folders: Sequence[Path]) -> list[Path]:
    """Return the checkpoints that were not written because of an interruption."""
    return [path for path in folders if not read_state_if_valid(path).get("interrupted")]
