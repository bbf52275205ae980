"""Training: stages of updates, with validation and checkpoints between them."""

import math
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from fusetk.config import resolve
from fusetk.data.batch import Batch, collate
from fusetk.data.corpus import Corpus
from fusetk.data.corpus_weights import WeightedSpan, sampling_spans
from fusetk.data.sampler import Indices, batches, fits, groups
from fusetk.errors import CheckpointError, ConfigError, FusetkError, Interrupted
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.dropout import Dropout
from fusetk.processes import ALONE, World
from fusetk.runs import CHECKPOINTS, EMA, STATE, checkpoint_name, checkpoints, read_state_if_valid
from fusetk.training import checkpoint
from fusetk.training.compiling import failure
from fusetk.training.config import StageConfig, TrainingConfig
from fusetk.training.ema import Ema
from fusetk.training.log import Log, peak_memory
from fusetk.training.loss import Loss
from fusetk.training.optim import OPTIMIZERS
from fusetk.training.parallel import share
from fusetk.training.progress import Progress
from fusetk.training.schedule import SCHEDULES, Schedule
from fusetk.training.sharding import gather, gathered, optimizer_groups, part, sharded
from fusetk.training.signals import Stop, StopNow
from fusetk.training.step import Sums, apply, gradients, length_multiple, next_scale, out_of_memory
from fusetk.training.validation import LOWER_IS_BETTER, Part, Validator, rank
from fusetk.weights import damaged, load_weights, read_tensors


class Trainer:
    """A model, its data and its run folder."""

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
        """``width`` for schedules that go by it; ``fingerprint`` of the data, kept in the checkpoints; ``world`` of the processes that
        train together.

        Raises DataError when a sentence is longer than a batch of one of the stages, ConfigError for weights of no corpus.
        """
        self.config, self.model, self.width, self.corpus, self.run = (
            config,
            model,
            width,
            corpus,
            run,
        )
        self.validator, self.fingerprint, self.world = validator, fingerprint, world
        self.device = next(model.parameters()).device
        self.sharded = any(map(sharded, model.parameters()))
        self.progress = Progress()
        self.optimizer: torch.optim.Optimizer | None = None
        self.ema = Ema(model, config.ema) if config.ema else None
        self._window: list[Sums] = []
        self._since = 0.0
        self._too_large = (
            math.inf
        )  # target tokens of the smallest batch that did not fit into memory
        self._shares = [sampling_spans(corpus.parts, stage.weights) for stage in config.stages]
        drops = any(isinstance(module, Dropout) and module.base_rate for module in model.modules())
        for i, (stage, drawn) in enumerate(zip(config.stages, self._shares, strict=True)):
            if stage.dropout and not drops:
                raise ConfigError(
                    f"training.stages.{i}.dropout is {stage.dropout}, but every dropout of the model is 0 and stays so"
                )
            whole = [WeightedSpan(0, len(corpus), 1.0)]
            fits(
                max(
                    int(corpus.target.lengths[start:end].max(initial=0))
                    for start, end, _ in drawn or whole
                ),
                stage.batch,
            )

    # The loop

    def train(self, log: Log, stop: Stop) -> None:
        """Go on from where ``progress`` stands until the last stage has ended.

        Raises Interrupted, with everything saved, when a signal came.
        """
        self.log, self.stop = log, stop
        self.model.train()
        while True:
            self._stage(self.config.stages[self.progress.stage])
            if self.progress.stage + 1 == len(self.config.stages):
                return
            self._next_stage()

    def over(self) -> bool:
        """Whether the last stage has ended."""
        return (
            self.progress.validated
            and self.progress.stage + 1 == len(self.config.stages)
            and self._over(self.config.stages[-1])
        )

    def _stage(self, stage: StageConfig) -> None:
        progress, seed = self.progress, self.config.seed
        if self.optimizer is None:
            self.optimizer = self._optimizer(stage)
        schedule = self._schedule(stage)
        for module in self.model.modules():
            if isinstance(module, Dropout):
                module.set_rate(stage.dropout)
        self._counted = time.monotonic()
        self._restart_clock()
        if (
            progress.stage_update and not progress.validated
        ):  # a signal came between an update and its validation
            self._between_updates()
        while not self._over(stage):
            drawn = self._shares[progress.stage]
            order = batches(
                self.corpus.source.lengths,
                self.corpus.target.lengths,
                stage.batch,
                seed,
                progress.epoch,
                drawn,
            )
            updates = groups(order, stage.batch.accumulate)
            for indices in updates[progress.position :]:
                rate = schedule.rate(progress.stage_update + 1, progress.seen)
                tokens = sum(int(self.corpus.target.lengths[pairs].sum()) for pairs in indices)
                losses = self._gradients(indices, tokens)
                sums = apply(
                    self.model,
                    self.optimizer,
                    losses,
                    rate,
                    stage.clip,
                    tokens,
                    self.world,
                    self._scale,
                )
                self._check(sums, indices)
                progress.advance(len(updates))
                if self.ema and math.isfinite(sums.grad_norm):
                    self.ema.update(progress.update)
                self._count_time(stage)
                self._report(sums, rate, len(updates), stage)
                if self.world.any(self.stop.signal is not None):
                    self._interrupt()
                self._between_updates()
                if self._over(stage):
                    break
        if not progress.validated:
            self._validate()

    def _count_time(self, stage: StageConfig) -> None:
        """Add what has gone by since the last time to the stage's seconds; where they decide, all processes go by the first one's."""
        now = time.monotonic()
        self.progress.seconds += now - self._counted
        self._counted = now
        if stage.end.hours is not None:
            [self.progress.seconds] = self.world.all_sum(
                [self.progress.seconds if self.world.first else 0.0]
            )

    def _gradients(self, indices: Sequence[Indices], tokens: int) -> list[Loss]:
        """Those of an update's batches, of so many tokens. Where memory does not suffice, batches are halved and done again.

        Raises FusetkError when it does not suffice for a single sentence.
        """
        mine = [
            half
            for pairs in share(self.world, indices)
            if len(pairs) or self.sharded
            for half in self._halves(pairs)
        ]
        multiple, precision = (
            length_multiple(self.device, self.config.precision),
            self.config.precision,
        )
        while True:
            # Dropout: so a checkpoint needs no generator's state. Processes drop out different things.
            torch.manual_seed(
                (self.config.seed * 1_000_003 + self.progress.update) ^ (self.world.rank << 48)
            )
            try:
                ready = (self._batch(pairs, multiple) for pairs in mine)
                return gradients(
                    self.model, ready, self.config.label_smoothing, precision, tokens, self._scale
                )
            except RuntimeError as error:
                if not out_of_memory(error):
                    if said := failure(error):
                        raise ConfigError(said) from None
                    raise
                self._note_too_large(mine, error)
                mine = [half for pairs in mine for half in self._halves(pairs)]
            self.model.zero_grad(set_to_none=True)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _batch(self, pairs: Indices, multiple: int) -> Batch:
        """Pairs on the device. Where the model is sharded, a process that has none goes through one in which no word counts."""
        found = collate(
            self.corpus,
            pairs if len(pairs) else np.zeros(1, np.int64),
            multiple,
            self.model.max_positions,
        )
        return (found if len(pairs) else found._replace(target_index=found.target_index[:0])).to(
            self.device
        )

    def _note_too_large(self, mine: Sequence[Indices], error: RuntimeError) -> None:
        """Remember what did not fit into memory, and say once that such batches are halved. Raises FusetkError where there is nothing to
        halve, or the model is sharded: then all processes must do the same.
        """
        largest = max(mine, key=lambda pairs: int(self.corpus.target.lengths[pairs].sum()))
        tokens, why = int(self.corpus.target.lengths[largest].sum()), str(error).splitlines()[0]
        if self.sharded:
            raise FusetkError(
                f"{tokens} target tokens do not fit into memory at once ({why}), and with training.shard no process can halve them alone: "
                "halve training.stages.N.batch.size and double accumulate, set checkpoint on encoder and decoder, or drop long sentences"
            )
        if len(largest) == 1:
            source, target = (
                int(side.lengths[largest].max())
                for side in (self.corpus.source, self.corpus.target)
            )
            raise FusetkError(
                f"training pair {int(largest[0]) + 1} ({source} source and {target} target tokens) does not fit into memory alone ({why}): "
                "drop long sentences in data.steps (filter) or data.bpe.max_subwords, set checkpoint on encoder and decoder, "
                "or take a smaller model"
            )
        if self._too_large == math.inf:
            said = (
                f"update {self.progress.update + 1}: a batch of {tokens} target tokens does not fit into memory and is done in halves, as "
                f"others will be; training.stages.N.batch.size and accumulate can say so from the start ({why})"
            )
            if self.world.first:
                self.log.line(said)
            else:
                print(f"{self.world}: {said}", file=sys.stderr, flush=True)
        self._too_large = min(self._too_large, tokens)

    def _halves(self, pairs: Indices) -> list[Indices]:
        """A batch, or its halves, or theirs, smaller than what did not fit into memory."""
        if len(pairs) < 2 or int(self.corpus.target.lengths[pairs].sum()) < self._too_large:
            return [pairs]
        return [part for half in np.array_split(pairs, 2) for part in self._halves(half)]

    def _check(self, sums: Sums, indices: Sequence[Indices]) -> None:
        """Stop when too many updates in a row were skipped because their gradient was not finite."""
        finite = math.isfinite(sums.grad_norm)
        if self.config.precision == "fp16" and self._rescale(finite):
            return
        progress = self.progress
        if finite:
            progress.skipped = 0
            return
        progress.skipped, progress.skipped_ever = progress.skipped + 1, progress.skipped_ever + 1
        pairs = ", ".join(str(int(i) + 1) for i in np.concatenate(indices)[:10])
        self.log.line(
            f"update {progress.update + 1} skipped: its gradient is not finite (prepared training pairs {pairs}, ...; "
            f"{progress.skipped} in a row, {progress.skipped_ever} in all)"
        )
        if progress.skipped >= self.config.max_skipped:
            raise FusetkError(
                f"{progress.skipped} updates in a row after update {progress.update} had no finite gradient: training has diverged; "
                f"use checkpoints/best of {self.run}, or lower the learning rate, clip gradients, train in fp32"
            )

    @property
    def _scale(self) -> float:
        return self.progress.scale if self.config.precision == "fp16" else 1.0

    def _rescale(self, finite: bool) -> bool:
        """Find the next loss scale; whether a gradient that is not finite is nothing to worry about, for a smaller one will do."""
        progress, before = self.progress, self.progress.scale
        progress.scale, progress.scale_updates = next_scale(before, progress.scale_updates, finite)
        if finite or progress.scale == before:
            return False
        self.log.line(
            f"update {progress.update + 1} skipped: fp16 losses were too large, times {progress.scale:g} now and not {before:g}"
        )
        return True

    def _interrupt(self) -> NoReturn:
        self._save({}, interrupted=True)
        signal = self.stop.signal or "a signal to another process"
        raise Interrupted(
            f"{signal} came: saved after update {self.progress.update}; the same command goes on from there"
        )

    def _optimizer(self, stage: StageConfig) -> torch.optim.Optimizer:
        parameters = optimizer_groups(self.model.parameters())
        built: torch.optim.Optimizer = resolve(stage.optimizer.kind, OPTIMIZERS).build(
            stage.optimizer, parameters
        )
        return built

    def _schedule(self, stage: StageConfig) -> Schedule:
        built: Schedule = resolve(stage.schedule.kind, SCHEDULES)(stage.schedule, self.width)
        return built

    def _next_stage(self) -> None:
        progress = self.progress
        self.optimizer = None
        progress.stage, progress.stage_update, progress.stage_epoch, progress.stalled = (
            progress.stage + 1,
            0,
            0,
            0,
        )
        progress.seen, progress.seconds = {}, 0.0
        if progress.position:  # each stage starts with a whole pass
            progress.epoch, progress.position = progress.epoch + 1, 0
        if self.config.stages[progress.stage].start == "best":
            self._load(self.run / CHECKPOINTS / "best")
        self.log.line(
            f"stage {progress.stage + 1} of {len(self.config.stages)} begins after update {progress.update}"
        )

    def _over(self, stage: StageConfig) -> bool:
        progress, end = self.progress, stage.end
        return (
            (end.epochs is not None and progress.stage_epoch >= end.epochs)
            or (end.updates is not None and progress.stage_update >= end.updates)
            or (end.patience is not None and progress.stalled >= end.patience)
            or (end.rate is not None and self._fallen(stage, end.rate))
            or (end.hours is not None and progress.seconds >= end.hours * 3600)
        )

    def _fallen(self, stage: StageConfig, floor: float) -> bool:
        """Whether the next update's rate is below ``floor``, and not on its way up."""
        progress, schedule = self.progress, self._schedule(stage)
        if not progress.stage_update:
            return False
        now, then = (schedule.rate(progress.stage_update + i, progress.seen) for i in (0, 1))
        return then < floor and then <= now

    def _between_updates(self) -> None:
        progress, when = self.progress, self.config.validation
        every_epochs = when.every_epochs or (None if when.every_updates else 1)
        due = bool(when.every_updates and progress.update % when.every_updates == 0)
        due = due or bool(
            every_epochs and progress.position == 0 and progress.epoch % every_epochs == 0
        )
        if due:
            self._validate(due=True)
        elif self.config.save_every and progress.update % self.config.save_every == 0:
            self._save({})

    # Validation and checkpoints

    def _validate(self, due: bool = False) -> None:
        """Judge and save. A schedule hears of validations that are ``due``, not of one that is there because the stage was to end."""
        progress, metric = self.progress, self.config.validation.metric
        begun = time.perf_counter()
        found = self.validator.judge(self._validation_parts())
        new_best = not math.isnan(found[metric])
        if progress.best is not None:
            best_loss = (
                -math.inf if progress.best_loss is None else progress.best_loss
            )  # unknown in runs of version 0.1
            new_best = new_best and rank(metric, found) < rank(
                metric, {"loss": best_loss, metric: progress.best}
            )
        if new_best:
            progress.best, progress.best_loss, progress.best_update, progress.stalled = (
                found[metric],
                found["loss"],
                progress.update,
                0,
            )
        else:
            progress.stalled += 1
        progress.ranking.append((progress.update, found[metric], found["loss"]))
        self.log.record(
            "valid",
            {
                "update": progress.update,
                "epoch": round(progress.epochs, 3),
                **found,
                "best": new_best,
            },
        )
        values = "  ".join(
            f"{name} {value:.{2 if name in ('ppl', 'bleu') else 4}f}"
            for name, value in found.items()
        )
        best = 0.0 if progress.best is None else progress.best
        verdict = (
            "new best"
            if new_best
            else f"stalled {progress.stalled} times, best {best:.4f} at {progress.best_update}"
        )
        self.log.line(
            f"valid  update {progress.update}  {values}  ({metric}: {verdict})  {time.perf_counter() - begun:.0f} s"
        )
        if due:
            self._tell_schedule(found[metric])
        self._save(found)
        self._restart_clock()

    def _validation_parts(self) -> list[Part]:
        """Validate, and gather the parts of all processes.

        Saves a checkpoint before it raises: Interrupted after a signal, and what made the validation of a process fail.
        """
        part: Part | None = None
        error: Exception | None = None
        try:
            with (
                suppress(StopNow),
                self.ema.in_place() if self.ema else nullcontext(),
                gathered(self.model),
                self.stop.at_once(),
            ):
                part = self.validator.part(
                    self.model, self.device, self.config.precision, self.world
                )
        except Exception as caught:
            error = caught
        try:
            parts, failed = self.world.all_gather(part), self.world.any(error is not None)
        except Exception:  # a process has ended
            if self.world.first and not self.sharded:
                self._write([*self._tensors()], {}, interrupted=True)
            raise
        if failed:
            self._save({}, interrupted=True)
            raise error or FusetkError(
                f"validation failed in another process; saved after update {self.progress.update}"
            )
        if None in parts:
            self._interrupt()
        return [part for part in parts if part is not None]

    def _tell_schedule(self, value: float) -> None:
        progress, stage = self.progress, self.config.stages[self.progress.stage]
        schedule = self._schedule(stage)
        before = schedule.rate(progress.stage_update + 1, progress.seen)
        lower = self.config.validation.metric in LOWER_IS_BETTER
        progress.seen = dict(schedule.judged(progress.seen, value, lower, progress.stage_epoch))
        now = schedule.rate(progress.stage_update + 1, progress.seen)
        if now != before:
            self.log.line(f"learning rate {before:.3e} -> {now:.3e}")

    def _save(self, valid: dict[str, float], interrupted: bool = False) -> None:
        """Write a checkpoint, by the first process. Raises CheckpointError in all of them where it cannot be written."""
        error: CheckpointError | None = None
        files = [gather(tensors, self.world.first) for tensors in self._tensors()]
        if self.world.first:
            try:
                self._write(files, valid, interrupted)
            except CheckpointError as found:
                error = found
        if (told := self.world.broadcast(error)) is not None:
            raise told

    def _tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """The tensors of a checkpoint: model, optimiser, moving average."""
        training = (
            checkpoint.optimizer_tensors(self.model, self.optimizer) if self.optimizer else {}
        )
        return checkpoint.model_tensors(self.model), training, self.ema.mean if self.ema else {}

    def _write(
        self, files: Sequence[dict[str, Tensor]], valid: dict[str, float], interrupted: bool
    ) -> None:
        progress = self.progress
        folder = self.run / CHECKPOINTS / checkpoint_name(progress.update)
        model, training, mean = files
        if not valid and folder.exists():
            valid = read_state_if_valid(folder).get("valid", {})
        state = {
            "progress": asdict(progress),
            "valid": valid,
            "data": self.fingerprint,
            "interrupted": interrupted,
        }
        checkpoint.save(folder, model, training, state, mean)
        checkpoint.link(self.run, "last", folder)
        if progress.best_update == progress.update:
            checkpoint.link(self.run, "best", folder)
        self._prune(folder)

    def _prune(self, folder: Path) -> None:
        """Delete all checkpoints that are not to be kept beside this one, the last."""
        progress = self.progress
        metric = self.config.validation.metric
        ranked = sorted(
            (rank(metric, {"loss": loss, metric: value}), u)
            for u, value, loss in progress.ranking
            if not math.isnan(value)
        )
        best = [folder.with_name(checkpoint_name(u)) for _, u in ranked[: self.config.keep_best]]
        # One that an interruption left would not be there without it, and must not be among those that are averaged later.
        # Nor may later ones that a run which was set back left.
        there = checkpoints(self.run)
        there = there[: [path.name for path in there].index(folder.name) + 1]
        regular = [
            path
            for path in there
            if path is there[-1] or not read_state_if_valid(path).get("interrupted")
        ]
        checkpoint.prune(self.run, [*regular[-self.config.keep_last :], *best])

    def resume(self, folder: Path) -> None:
        """Go on from a checkpoint: weights, optimiser, position."""
        state = checkpoint.read_state(folder)
        self._load(folder)
        try:
            self.progress = Progress(**state["progress"])
            # Runs of version 0.1 kept no losses here.
            self.progress.ranking = [
                (u, value, loss[0] if loss else math.nan)
                for u, value, *loss in self.progress.ranking
            ]
        except (KeyError, TypeError, ValueError):
            raise damaged(folder, f"{folder / STATE} does not say where training stood") from None
        best = folder.with_name(checkpoint_name(self.progress.best_update))
        if (
            self.world.first and best.exists()
        ):  # where a run was set back, the link may be of the time after
            checkpoint.link(self.run, "best", best)
        if self.world.first:  # a kill may have come before it was done
            self._prune(folder)
        if self.progress.stage_update:
            self.optimizer = self._optimizer(self.config.stages[self.progress.stage])
            checkpoint.load_optimizer(self.model, self.optimizer, folder)

    def _load(self, folder: Path) -> None:
        load_weights(self.model, folder, place=part)
        if self.ema:
            self.ema.load(read_tensors(folder, EMA))

    # Reports

    def _restart_clock(self) -> None:
        self._window, self._since = [], time.perf_counter()

    def _report(self, sums: Sums, rate: float, updates_in_epoch: int, stage: StageConfig) -> None:
        progress, end = self.progress, stage.end
        self._window.append(sums)
        left = (
            min((end.epochs or math.inf) * updates_in_epoch, end.updates or math.inf)
            - progress.stage_update
        )
        self.log.progress(
            progress.update,
            progress.update + left if left < math.inf else None,
            epoch=progress.epoch + 1,
        )
        if progress.update % self.config.log_every:
            return
        tokens = sum(s.tokens for s in self._window)
        mine = [
            float(torch.stack(column).sum())
            for column in zip(*((s.nll, s.smoothed) for s in self._window), strict=True)
        ]
        loss, smoothed = (total / tokens for total in self.world.all_sum(mine))
        norms = [s.grad_norm for s in self._window if math.isfinite(s.grad_norm)]
        norm, memory = sum(norms) / len(norms) if norms else None, peak_memory(self.device)
        values: dict[str, Any] = {
            "update": progress.update,
            "epoch": round(progress.epochs, 3),
            "loss": loss,
            "smoothed": smoothed,
            "ppl": math.exp(min(loss, 700.0)),
            "lr": rate,
            "tokens_per_second": tokens / (time.perf_counter() - self._since),
            "grad_norm": norm,
            "tokens": tokens,
            "memory": memory,
        }
        self.log.record("train", values)
        self.log.line(
            f"train  epoch {progress.epochs:.2f}  update {progress.update}  loss {loss:.4f} ({smoothed:.4f} smoothed)  "
            f"ppl {values['ppl']:.2f}  {values['tokens_per_second']:.0f} tokens/s  norm {math.nan if norm is None else norm:.2f}  "
            f"lr {rate:.3e}  {memory / 2**20:.0f} MB"
        )
        self.log.progress(
            progress.update,
            None,
            loss=loss,
            ppl=values["ppl"],
            lr=rate,
            speed=values["tokens_per_second"],
        )
        self._restart_clock()
