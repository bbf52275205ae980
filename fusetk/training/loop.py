"""The training loop: stages of updates, with validations and checkpoints between them."""

import copy
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from fusetk.data.corpus import Corpus
from fusetk.data.sampler import Indices, update_size
from fusetk.errors import WARNING, CheckpointError, Interrupted, TrainingDiverged
from fusetk.models.parts import layers_and_parts
from fusetk.models.seq2seq import ModelConfig, Seq2Seq
from fusetk.processes import ALONE, World, is_peer_failure
from fusetk.runs import CHECKPOINTS, checkpoint_name
from fusetk.training.checkpoint import load_optimizer
from fusetk.training.checkpoints import Checkpoints
from fusetk.training.compiling import CompilationFailed
from fusetk.training.config import TrainingConfig
from fusetk.training.distributed_validation import DistributedValidation
from fusetk.training.ema import Ema
from fusetk.training.gradient_check import GradientCheck
from fusetk.training.gradients import BatchSplitter, GradientComputer
from fusetk.training.log import Log
from fusetk.training.loss import Loss
from fusetk.training.optimizer_check import OptimizerCheck
from fusetk.training.progress import (
    Progress,
    StageClock,
    read_progress,
    update_schedule,
    validation_due,
)
from fusetk.training.reporter import Reporter
from fusetk.training.schedule import rate_of_update
from fusetk.training.sharding import sharded
from fusetk.training.signals import Stop
from fusetk.training.stages import Stages
from fusetk.training.update import UpdateStats, optimizer_step
from fusetk.training.validation import Validator
from fusetk.training.zero_gradients import ZeroGradientCheck

NO_BEST = "each validation gave NaN, because training has diverged"
RESTART = "lower the learning rate, lengthen the warm-up or clip gradients, in a new run folder"


class Trainer:
    """Training of a model on its data. It writes checkpoints into the run folder."""

    def __init__(
        self,
        config: TrainingConfig,
        model: Seq2Seq,
        model_config: ModelConfig,
        corpus: Corpus,
        run: Path,
        validator: Validator,
        fingerprint: str,
        world: World = ALONE,
    ):
        """``fingerprint`` is that of the data; checkpoints store it.

        ``world`` are the processes that train together. Raises the errors of ``Stages``.
        """
        self.config = config
        self.model = model
        self.corpus = corpus
        self.run = run
        self.validator = validator
        self.fingerprint = fingerprint
        self.world = world
        self.device = next(model.parameters()).device
        self.sharded = any(map(sharded, model.parameters()))
        self.progress = Progress()
        self.optimizer: torch.optim.Optimizer | None = None
        self.ema = Ema(model, config.ema) if config.ema else None
        self.checkpoints = Checkpoints(
            run, config, model, self.ema, fingerprint, model_config, world
        )
        self.validation = DistributedValidation(
            validator, model, self.ema, config.precision, self.checkpoints, world
        )
        self.stages = Stages(config, model, model_config.width, corpus)
        self.clock = StageClock(world)
        self.parts = layers_and_parts(model)

    def train(self, log: Log, stop: Stop) -> None:
        """Train from ``progress`` to the end of the last stage.

        After a signal, save a checkpoint and raise Interrupted. Raises the errors of
        ``GradientCheck.check``, and TrainingDiverged if a stage starts from the best checkpoint and
        each validation gave NaN. Raises CheckpointError if this checkpoint is missing.
        """
        self.checkpoints.remember_folder()
        self.log = log
        self.stop = stop
        self.reporter = Reporter(log, self.world, self.device, self.config.log_every, self.parts)
        splitter = BatchSplitter(self.sharded, self.reporter.message)
        self.gradients = GradientComputer(self.config, self.model, self.world, splitter)
        self.gradient_check = GradientCheck(
            self.config.precision, self.config.max_skipped, self.run, log, self.world
        )
        self.zero_gradient_check = ZeroGradientCheck(self.model)
        self.model.train()
        with self.reporter.shown(self.progress):
            while True:
                self._train_stage()
                if self.stages.is_last(self.progress):
                    return
                self._start_next_stage()

    def resume(self, folder: Path) -> None:
        """Load weights, optimiser state and progress from a checkpoint.

        Raises CheckpointError if the checkpoint cannot be read.
        """
        self.progress = read_progress(folder)
        self.checkpoints.load_weights(folder)
        if self.progress.stage_update:
            self.optimizer = self.stages.optimizer(self.progress)
            load_optimizer(self.model, self.optimizer, folder)

    def finished(self) -> bool:
        """Whether the last stage has ended."""
        progress = self.progress
        return progress.validated and self.stages.is_last(progress) and self.stages.ended(progress)

    def _train_stage(self) -> None:
        progress = self.progress
        if self.optimizer is None:
            self.optimizer = self.stages.optimizer(progress)
        self.optimizer_check: OptimizerCheck | None = OptimizerCheck(self.optimizer)
        self.schedule = self.stages.schedule(progress)
        self.stages.set_dropout(progress)
        self.zero_rates = 0
        self.gradients.start_stage()
        self.clock.restart()
        self.reporter.restart()
        if progress.stage_update and not progress.has_checkpoint:
            # Training was interrupted between an update and its validation or checkpoint.
            self._after_update()
        while not self.stages.ended(progress):
            self._train_epoch()
        if not progress.validated:
            with self._saving_if_another_process_fails():
                self._validate()

    def _train_epoch(self) -> None:
        """Make the remaining updates of an epoch, until the stage ends."""
        progress = self.progress
        corpus = self.corpus.of_epoch(progress.epoch)
        updates = self.stages.updates(progress, corpus)
        for indices in updates[progress.position :]:
            try:
                self._update(corpus, indices, len(updates))
                interrupted = self.world.any(self.stop.signal is not None)
            except Exception as error:
                # On a GPU, the optimiser may already have used gradients that are not summed.
                if is_peer_failure(error) and self.device.type == "cpu":
                    self._save_after_failure()
                raise
            with self._saving_if_another_process_fails():
                if interrupted:
                    self.reporter.report(progress)
                    self.checkpoints.interrupt(progress, self.optimizer, self.stop.signal)
                self._after_update()
            if self.stages.ended(progress):
                return

    def _start_next_stage(self) -> None:
        self.optimizer = None
        self.progress.start_stage()
        if self.stages.config(self.progress).start == "best":
            if self.progress.best is None:
                raise TrainingDiverged(
                    f"training.stages.{self.progress.stage} has start: best, but {NO_BEST}: "
                    f"{RESTART}"
                )
            best = self.run / CHECKPOINTS / "best"
            # Another host may still see an old link.
            folder = self.world.broadcast(best.resolve())
            if not folder.exists():
                raise CheckpointError(
                    f"training.stages.{self.progress.stage} has start: best, but the best "
                    f"checkpoint ({checkpoint_name(self.progress.best_update)}) is missing: "
                    f"restore it, or link {best} to another checkpoint"
                )
            self.checkpoints.load_weights(folder)
        self.reporter.task.begin_stage(self.progress)
        self.log.line(
            f"stage {self.progress.stage + 1} of {len(self.config.stages)} starts "
            f"after update {self.progress.update}"
        )

    def _update(self, corpus: Corpus, indices: Sequence[Indices], updates_in_epoch: int) -> None:
        progress = self.progress
        size = update_size(indices, corpus.source.lengths, corpus.target.lengths)
        scale = self.gradient_check.scale(progress)
        self.gradients.buffers.save()
        rate, losses = self._compute_gradients(corpus, indices, size.target_tokens, scale)
        stats = self._take_step(losses, rate, scale)
        if not math.isfinite(stats.grad_norm):
            self.gradients.buffers.restore()
        if self.optimizer_check and math.isfinite(stats.grad_norm):
            self.optimizer_check.check()
            self.optimizer_check = None
        self.gradient_check.check(progress, stats.grad_norm, indices, stats.additional)
        progress.advance(updates_in_epoch)
        if self.ema and math.isfinite(stats.grad_norm):
            self.ema.update(progress.update)
        self.clock.add_to(progress, self.stages.config(progress).end)
        updates_left = self.stages.updates_left(progress, updates_in_epoch)
        self.reporter.update(progress, stats, size, rate, updates_in_epoch, updates_left)
        if warning := self.zero_gradient_check.add(stats):
            self.log.line(warning)
        self._warn_of_rate_zero(rate)

    def _warn_of_rate_zero(self, rate: float) -> None:
        """Warn at the second update with the rate 0. The last update of a schedule may have it."""
        self.zero_rates += rate == 0
        if rate == 0 and self.zero_rates == 2:
            self.log.line(
                f"{WARNING}update {self.progress.update} and one before it have the learning rate "
                "0: end the stage with its schedule, or add a stage with another schedule"
            )

    def _compute_gradients(
        self, corpus: Corpus, indices: Sequence[Indices], tokens: int, scale: float
    ) -> tuple[float, list[Loss]]:
        """Return the learning rate of the next update, and the losses of its batches.

        After an error, restore the buffers and save the updates before this one.
        """
        progress = self.progress
        update = progress.stage_update + 1
        try:
            rate = rate_of_update(self.schedule, update, progress.schedule_state)
            return rate, self.gradients.compute(corpus, indices, tokens, progress.update, scale)
        except Exception as error:
            with suppress(Exception):  # after an error of CUDA, no tensor can be copied
                self.gradients.buffers.restore()
                self._save_after_failure()
            if isinstance(error, CompilationFailed) and self.stop.signal:
                # A signal to a group of processes, such as Ctrl-C, also ends the C++ compiler.
                raise Interrupted(
                    f"{self.stop.signal} received while the layers were compiled: run the same "
                    "command again to resume"
                ) from None
            raise

    def _take_step(self, losses: Sequence[Loss], rate: float, scale: float) -> UpdateStats:
        """Change the weights by the gradients. After an error, restore the buffers."""
        assert self.optimizer is not None
        try:
            return optimizer_step(
                self.model,
                self.optimizer,
                losses,
                rate,
                self.stages.config(self.progress).clip,
                self.world,
                scale,
                keep_gradients=self.gradients.graphs is not None,
            )
        except Exception:
            with suppress(Exception):
                self.gradients.buffers.restore()
            raise

    def _after_update(self) -> None:
        """Validate or save, if this is due."""
        if validation_due(self.config.validation, self.progress):
            self._validate(due=True)
        elif self.config.save_every and self.progress.update % self.config.save_every == 0:
            # Otherwise, a run that resumes here would never log the updates since the last report.
            self.reporter.report(self.progress)
            self.checkpoints.save(self.progress, self.optimizer)
            self.reporter.restart()

    def _save_after_failure(self, failed: str = "the next update") -> None:
        """Save the complete updates since the last checkpoint, without the other processes.

        ``failed`` is the subject of the message in the log. Weights and optimiser state must be
        those after an update. Errors are ignored, because the failure itself is reported.
        """
        progress = self.progress
        if not progress.stage_update or progress.has_checkpoint:
            return
        if self.sharded or not self.world.first:
            return
        with suppress(Exception):
            if self.world.size == 1:  # a report sums the losses of all processes
                self.reporter.report(progress)
            self.checkpoints.save_alone(progress, self.optimizer)
            self.log.line(f"{failed} failed: saved after update {progress.update}")

    @contextmanager
    def _saving_if_another_process_fails(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if is_peer_failure(error):
                self._save_after_failure("another process")
            raise

    def _free_memory(self) -> bool:
        """Delete the CUDA graphs for a validation. Return whether there were any."""
        if not self.gradients.delete_graphs():
            return False
        self.reporter.message(
            f"update {self.progress.update}: the validation and the CUDA graphs do not fit into "
            "memory together: the graphs are deleted, and recorded again after the validation"
        )
        return True

    def _validate(self, due: bool = False) -> None:
        """Validate and save a checkpoint.

        The schedule gets the result only if the validation is ``due`` by the config. A validation
        that is needed only at the end of a stage does not change the learning rate.
        """
        metric = self.config.validation.metric
        self.reporter.report(self.progress)
        start = time.perf_counter()
        results, layer_shares = self.validation(
            self.progress, self.optimizer, self.stop, self._free_memory
        )
        before = copy.deepcopy(self.progress)
        is_best = self.progress.add_validation(metric, results)
        seconds = time.perf_counter() - start
        self.reporter.validation(self.progress, metric, results, is_best, seconds, layer_shares)
        if due:
            # The validation has the best value again and a lower loss.
            is_tie = is_best and results[metric] == before.best
            try:
                change = update_schedule(
                    self.progress, self.schedule, metric, results[metric], is_tie
                )
            except Exception:
                # A resumed run repeats the validation and gives the result to the schedule.
                self.progress = before
                self._save_after_failure("the schedule")
                raise
            if change:
                self.log.line(change)
        # The checkpoint must contain the duration of the validation, because a resumed run does not
        # repeat it.
        try:
            self.clock.add_to(self.progress, self.stages.config(self.progress).end)
        except Exception:
            self.progress = before  # a resumed run repeats the validation
            raise
        self.checkpoints.save(self.progress, self.optimizer, results)
        self.reporter.restart()
