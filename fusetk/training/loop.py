"""The training loop: stages of updates, with validations and checkpoints between them."""

import math
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import NoReturn

import torch

from fusetk.data.corpus import Corpus
from fusetk.data.corpus_weights import WeightedSpan, sampling_spans
from fusetk.data.sampler import Indices, batches, fits, groups, pair_lengths, update_size
from fusetk.errors import ConfigError, FusetkError, Interrupted
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.dropout import Dropout
from fusetk.processes import ALONE, World
from fusetk.runs import CHECKPOINTS
from fusetk.training import optim, schedule
from fusetk.training.checkpoint import load_optimizer
from fusetk.training.checkpoints import Checkpoints
from fusetk.training.config import StageConfig, TrainingConfig
from fusetk.training.ema import Ema
from fusetk.training.log import Log, Reporter
from fusetk.training.loss_scale import GradientCheck
from fusetk.training.oversize import BatchSplitter, GradientComputer
from fusetk.training.progress import Progress, stage_ended
from fusetk.training.schedule import Schedule
from fusetk.training.sharding import optimizer_groups, sharded, unsharded
from fusetk.training.signals import Stop, StopNow
from fusetk.training.step import optimizer_step
from fusetk.training.validation import LOWER_IS_BETTER, PartialResults, Validator


class Trainer:
    """Training of a model on its data. It writes checkpoints into the run folder."""

    def __init__(
        self,
        config: TrainingConfig,
        model: Seq2Seq,
        width: int,
        corpus: Corpus,
        run: Path,
        validator: Validator,
        fingerprint: str,
        world: World = ALONE,
    ):
        """``width`` is the width of the model; some schedules depend on it. ``fingerprint`` of the
        data is stored in checkpoints. ``world`` are the processes that train together.

        Raises DataError if a sentence is longer than a batch of a stage. Raises ConfigError for
        sampling weights of an unknown corpus, or for a dropout rate of a stage without effect.
        """
        self.config = config
        self.model = model
        self.width = width
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
        self.checkpoints = Checkpoints(run, config, model, self.ema, fingerprint, world)
        splitter = BatchSplitter(corpus, self.sharded, self._notify)
        self.gradients = GradientComputer(config, model, corpus, world, splitter)
        self._spans = [sampling_spans(corpus.parts, stage.weights) for stage in config.stages]
        self._check_stages()

    def _check_stages(self) -> None:
        dropouts = [module for module in self.model.modules() if isinstance(module, Dropout)]
        all_pairs = [WeightedSpan(0, len(self.corpus), 1.0)]
        source, target = self.corpus.source.lengths, self.corpus.target.lengths
        for i, stage in enumerate(self.config.stages):
            if stage.dropout and not any(module.base_rate for module in dropouts):
                raise ConfigError(
                    f"training.stages.{i}.dropout is {stage.dropout}, but every dropout rate of "
                    "the model is 0, and a stage does not change such rates: "
                    "set model.dropout, or remove dropout from the stage"
                )
            spans = self._spans[i] or all_pairs
            lengths = pair_lengths(source, target, stage.batch)
            fits(
                max(int(lengths[start:end].max(initial=0)) for start, end, _ in spans), stage.batch
            )

    def train(self, log: Log, stop: Stop) -> None:
        """Train from ``progress`` to the end of the last stage.

        After a signal, save a checkpoint and raise Interrupted. Raises FusetkError if too many
        consecutive gradients are not finite.
        """
        self.log = log
        self.stop = stop
        self.reporter = Reporter(log, self.world, self.device, self.config.log_every)
        self.gradient_check = GradientCheck(
            self.config.precision, self.config.max_skipped, self.run, log
        )
        self.model.train()
        while True:
            self._train_stage(self.config.stages[self.progress.stage])
            if self.progress.stage + 1 == len(self.config.stages):
                return
            self._start_next_stage()

    def resume(self, folder: Path) -> None:
        """Load weights, optimiser state and progress from a checkpoint. Raises CheckpointError if
        the checkpoint cannot be read.
        """
        self.progress = self.checkpoints.resume(folder)
        if self.progress.stage_update:
            self.optimizer = self._build_optimizer(self.config.stages[self.progress.stage])
            load_optimizer(self.model, self.optimizer, folder)

    def finished(self) -> bool:
        """Whether the last stage has ended."""
        last = len(self.config.stages) - 1
        return (
            self.progress.validated
            and self.progress.stage == last
            and self._stage_ended(self.config.stages[last])
        )

    # Stages

    def _train_stage(self, stage: StageConfig) -> None:
        progress = self.progress
        if self.optimizer is None:
            self.optimizer = self._build_optimizer(stage)
        self.schedule = self._build_schedule(stage)
        for module in self.model.modules():
            if isinstance(module, Dropout):
                module.set_rate(stage.dropout)
        self._last_time = time.monotonic()
        self.reporter.restart()
        if progress.stage_update and not progress.validated:
            # Training was interrupted between an update and its validation.
            self._after_update()
        while not self._stage_ended(stage):
            updates = groups(self._batches(stage), stage.batch.accumulate)
            for indices in updates[progress.position :]:
                self._update(stage, indices, len(updates))
                if self.world.any(self.stop.signal is not None):
                    self._interrupt()
                self._after_update()
                if self._stage_ended(stage):
                    break
        if not progress.validated:
            self._validate()

    def _start_next_stage(self) -> None:
        self.optimizer = None
        self.progress.start_stage()
        stage = self.progress.stage
        if self.config.stages[stage].start == "best":
            self.checkpoints.load_weights(self.run / CHECKPOINTS / "best")
        self.log.line(
            f"stage {stage + 1} of {len(self.config.stages)} starts "
            f"after update {self.progress.update}"
        )

    def _stage_ended(self, stage: StageConfig) -> bool:
        return stage_ended(stage.end, self.progress, self._build_schedule(stage))

    def _build_optimizer(self, stage: StageConfig) -> torch.optim.Optimizer:
        return optim.build(stage.optimizer, optimizer_groups(self.model.parameters()))

    def _build_schedule(self, stage: StageConfig) -> Schedule:
        return schedule.build(stage.schedule, self.width)

    # Updates

    def _batches(self, stage: StageConfig) -> Sequence[Indices]:
        """Return the batches of the current epoch."""
        return batches(
            self.corpus.source.lengths,
            self.corpus.target.lengths,
            stage.batch,
            self.config.seed,
            self.progress.epoch,
            self._spans[self.progress.stage],
        )

    def _update(
        self, stage: StageConfig, indices: Sequence[Indices], updates_in_epoch: int
    ) -> None:
        assert self.optimizer is not None
        progress = self.progress
        rate = self.schedule.rate(progress.stage_update + 1, progress.schedule_state)
        size = update_size(indices, self.corpus.source.lengths, self.corpus.target.lengths)
        tokens = size.target_tokens
        scale = self.gradient_check.scale(progress)
        losses = self.gradients.compute(indices, tokens, progress.update, scale)
        stats = optimizer_step(
            self.model,
            self.optimizer,
            losses,
            rate,
            stage.clip,
            tokens,
            self.world,
            scale,
        )
        self.gradient_check.check(progress, stats.grad_norm, indices)
        progress.advance(updates_in_epoch)
        if self.ema and math.isfinite(stats.grad_norm):
            self.ema.update(progress.update)
        self._count_time(stage)
        updates = min(
            (stage.end.epochs or math.inf) * updates_in_epoch, stage.end.updates or math.inf
        )
        self.reporter.update(progress, stats, size, rate, updates - progress.stage_update)

    def _count_time(self, stage: StageConfig) -> None:
        """Add the time since the last call to the stage's duration.

        If ``end.hours`` limits the stage, all processes use the duration of rank 0, so that they
        end together.
        """
        now = time.monotonic()
        self.progress.seconds += now - self._last_time
        self._last_time = now
        if stage.end.hours is not None:
            seconds = self.progress.seconds if self.world.first else 0.0
            [self.progress.seconds] = self.world.all_sum([seconds])

    def _notify(self, message: str) -> None:
        """Write a message of this process into the log (rank 0) or to standard error."""
        if self.world.first:
            self.log.line(message)
        else:
            print(f"{self.world}: {message}", file=sys.stderr, flush=True)

    # Validations and checkpoints

    def _after_update(self) -> None:
        """Validate or save, if this is due."""
        progress = self.progress
        config = self.config.validation
        every_epochs = config.every_epochs or (None if config.every_updates else 1)
        epoch_ended = progress.position == 0
        if (config.every_updates and progress.update % config.every_updates == 0) or (
            every_epochs and epoch_ended and progress.epoch % every_epochs == 0
        ):
            self._validate(due=True)
        elif self.config.save_every and progress.update % self.config.save_every == 0:
            self._save()

    def _validate(self, due: bool = False) -> None:
        """Validate and save a checkpoint.

        The schedule gets the result only if the validation is ``due`` by the config. A validation
        that is needed only at the end of a stage does not change the learning rate.
        """
        metric = self.config.validation.metric
        start = time.perf_counter()
        results = self.validator.combine(self._validate_parts())
        is_best = self.progress.add_validation(metric, results)
        seconds = time.perf_counter() - start
        self.reporter.validation(self.progress, metric, results, is_best, seconds)
        if due:
            self._update_schedule(metric, results[metric])
        self._save(results)
        self.reporter.restart()

    def _validate_parts(self) -> list[PartialResults]:
        """Validate in all processes and gather the results.

        After a signal in a process, save a checkpoint and raise Interrupted. After an error in a
        process, save a checkpoint and raise the error.
        """
        part: PartialResults | None = None
        error: Exception | None = None
        try:
            with (
                suppress(StopNow),
                self.ema.in_place() if self.ema else nullcontext(),
                unsharded(self.model),
                self.stop.at_once(),
            ):
                part = self.validator.validate_part(
                    self.model, self.device, self.config.precision, self.world
                )
        except Exception as raised:
            error = raised
        try:
            parts = self.world.all_gather(part)
            failed = self.world.any(error is not None)
        except Exception:  # another process has ended
            if self.world.first and not self.sharded:
                self.checkpoints.save_alone(self.progress, self.optimizer)
            raise
        if failed:
            self._save(interrupted=True)
            raise error or FusetkError(
                f"validation failed in another process; saved after update {self.progress.update}"
            )
        if None in parts:
            self._interrupt()
        return [part for part in parts if part is not None]

    def _update_schedule(self, metric: str, value: float) -> None:
        progress = self.progress
        update = progress.stage_update + 1
        rate = self.schedule.rate(update, progress.schedule_state)
        state = self.schedule.after_validation(
            progress.schedule_state, value, metric in LOWER_IS_BETTER, progress.stage_epoch
        )
        progress.schedule_state = dict(state)
        new_rate = self.schedule.rate(update, state)
        if new_rate != rate:
            self.log.line(f"learning rate {rate:.3e} -> {new_rate:.3e}")

    def _save(self, results: dict[str, float] | None = None, interrupted: bool = False) -> None:
        self.checkpoints.save(self.progress, self.optimizer, results, interrupted)

    def _interrupt(self) -> NoReturn:
        self._save(interrupted=True)
        signal = self.stop.signal or "a signal to another process"
        raise Interrupted(
            f"{signal} received: saved after update {self.progress.update}; "
            "run the same command again to resume"
        )
