"""``train``: one training in its run folder, from the start or resumed."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import fusetk
from fusetk import config
from fusetk import recipe as recipes
from fusetk.config import resolve
from fusetk.data import integrity, manifest
from fusetk.data.corpus import Corpus
from fusetk.data.pipeline import Pipeline
from fusetk.errors import ConfigError, DataError, FusetkError, Interrupted
from fusetk.files import lock, write_if_changed
from fusetk.machine import (
    Choices,
    choices,
    computing,
    device_of,
    processor,
    read_choices,
    revision,
    write_choices,
)
from fusetk.models import Seq2Seq
from fusetk.processes import World, connect, is_peer_failure, local_device
from fusetk.recipe import NEUTRAL, Recipe
from fusetk.runs import CHECKPOINTS, CONFIG, MACHINE, TEXT, is_intact
from fusetk.system import build
from fusetk.training import checkpoint
from fusetk.training.compiling import compile_layers
from fusetk.training.log import Log, Silent, forget_after
from fusetk.training.loop import Trainer
from fusetk.training.schedule import SCHEDULES, Schedule
from fusetk.training.sharding import shard
from fusetk.training.signals import Stop
from fusetk.training.step import out_of_memory
from fusetk.training.validation import Validator


def train(recipe: Recipe, run: Path, device_name: str = "auto", quiet: bool = False) -> None:
    """Train a recipe in a run folder, from the start or from its last checkpoint.

    Raises DataError or ConfigError, before anything is written, when data, config and run do not fit together.
    """
    device = device_of(local_device(device_name))
    world = connect(device)
    try:
        chosen = world.broadcast(
            _choices(recipe, run) if device.type == "cpu" and world.first else None
        )
        with (
            Stop() as stop,
            computing(device, recipe.training.matmul, chosen) as products,
            _RunLock(run) as alone,
        ):
            _train(recipe, run, device, quiet, world, stop, chosen, products, alone)
    except Exception as error:
        if isinstance(error, Interrupted):
            world.close()
        elif world.size > 1 and isinstance(error, FusetkError):
            error.args = (f"{world}: {error}",)
        elif world.size > 1 and is_peer_failure(error):
            raise FusetkError(
                f"{world}: another process is gone ({str(error).splitlines()[0]})"
            ) from None
        elif out_of_memory(error):
            raise FusetkError(
                f"{f'{world}: ' if world.size > 1 else ''}there is not enough memory ({str(error).splitlines()[0]}): lower "
                "training.validation.tokens and decoding.batch_tokens, or take a smaller model"
            ) from None
        elif world.size > 1:
            print(
                f"fusetk: {world} failed: {type(error).__name__}: {error}",
                file=sys.stderr,
                flush=True,
            )
        raise
    world.close()


def _choices(recipe: Recipe, run: Path) -> Choices:
    """The choices that the run recorded, so that resuming is exact; those of this machine if it recorded none on this processor."""
    recorded = read_choices(run / MACHINE)
    return (
        recorded
        if recorded and recorded.processor == processor()
        else choices(recipe.training.matmul)
    )


def _train(
    recipe: Recipe,
    run: Path,
    device: torch.device,
    quiet: bool,
    world: World,
    stop: Stop,
    chosen: Choices | None,
    products: str,
    alone: "_RunLock",
) -> None:
    data = Path(recipe.data.folder)
    found = manifest.read(data)
    integrity.check_settings(recipe.data, found)
    fingerprint = manifest.training_fingerprint(found)
    integrity.check_files(data, found)
    if world.first:
        alone.take()
    last = world.broadcast(_last(run) if world.first else None)
    changes = _changes(recipe, run, last, fingerprint) if last else []
    changes += _changed_text(recipe, found, resuming=bool(last))
    recorded = read_choices(run / MACHINE)
    if recorded and chosen and recorded.processor != chosen.processor:
        changes.append(
            f"processor: {recorded.processor} -> {chosen.processor}; the results of one update may differ in rounding"
        )
    pipeline = Pipeline.load(data / TEXT)
    model = build(recipe, len(pipeline.source_vocab), len(pipeline.target_vocab))
    if recipe.training.compile:
        compile_layers(model)
    if recipe.training.shard and world.size > 1:
        shard(model, world)
    else:
        model.to(device)
    validator = Validator(recipe.training.validation, recipe.decoding, data, pipeline)
    trainer = Trainer(
        recipe.training,
        model,
        recipe.model.width,
        Corpus.open(data, "train"),
        run,
        validator,
        fingerprint,
        world,
    )
    sizes = len(pipeline.source_vocab), len(pipeline.target_vocab)
    integrity.check_ids(data, found, sizes, {"train": trainer.corpus, "valid": validator.corpus})
    _check_positions(model, trainer.corpus, validator.corpus)
    if last:
        trainer.resume(last)
    world.all_gather(None)  # all have read what is there
    if world.first:
        _prepare(recipe, run, trainer.progress.update if last else 0, chosen)
        alone.take()
    log = Log(run, quiet, recipe.training.tensorboard) if world.first else Silent()
    with log:
        for line in [
            *_header(recipe, model, pipeline, trainer, products),
            *(f"changed: {change}" for change in changes),
        ]:
            log.line(line)
        if trainer.over():
            log.line(
                f"nothing to do: training ended after {trainer.progress.update} updates; raise training.stages.N.end to go on ({run})"
            )
            return
        if last:
            log.line(f"resumed after update {trainer.progress.update}")
        trainer.train(log, stop)
        log.line(
            f"done: {trainer.progress.update} updates; best at {trainer.progress.best_update}; {run}"
        )


class _RunLock:
    """Within this context, from when the run folder is there, no other process trains in it."""

    def __init__(self, run: Path):
        self.run = run
        self.held: int | None = None

    def __enter__(self) -> "_RunLock":
        return self

    def take(self) -> None:
        """Raises ConfigError where another one does."""
        if self.held is not None or not self.run.is_dir() or os.name != "posix":
            return
        self.held = os.open(self.run, os.O_RDONLY)
        if not lock(self.held):
            raise ConfigError(
                f"another fusetk train is at work in {self.run}: wait for it, or name another --run"
            )

    def __exit__(self, *error: object) -> None:
        if self.held is not None:
            os.close(self.held)


def _changed_text(recipe: Recipe, noted: Mapping[str, Any], resuming: bool) -> list[str]:
    """Describe the raw text that changed since it was prepared. Raises DataError for a run that begins."""
    changed = [str(path) for path in integrity.changed_text(recipe.data, noted)]
    if changed and not resuming:
        raise DataError(
            f"{', '.join(changed)} changed since {recipe.data.folder} was prepared: {integrity.PREPARE}"
        )
    return [
        f"{path} changed since {recipe.data.folder} was prepared; the run keeps the prepared text"
        for path in changed
    ]


def _prepare(recipe: Recipe, run: Path, update: int, chosen: Choices | None) -> None:
    """Write everything into the run folder that is not a checkpoint, and remove the metrics of later updates."""
    text = Path(recipe.data.folder) / TEXT
    try:
        run.mkdir(parents=True, exist_ok=True)
        forget_after(run, update)
        for file in sorted(path for path in text.rglob("*") if path.is_file()):
            write_if_changed(run / TEXT / file.relative_to(text), file.read_bytes())
        write_if_changed(run / CONFIG, config.dump(recipe).encode())
        if chosen:
            write_choices(run / MACHINE, chosen)
    except OSError as error:
        raise checkpoint.refused(run, error) from None


def _last(run: Path) -> Path | None:
    """The checkpoint to go on from: ``last``, or the newest whole one where that link leads nowhere."""
    checkpoint.recover(run)
    last = run / CHECKPOINTS / "last"
    if last.is_dir():
        return last.resolve()
    there = sorted((run / CHECKPOINTS).glob("update-*"))
    return next((path for path in reversed(there) if is_intact(path)), there[-1] if there else None)


# What may change between a run and its continuation: it decides how long and how closely watched, not which model.
FREE = (
    r"data\..*",  # paths; what was made of them is compared by fingerprint
    r"paper(\..*)?",
    *NEUTRAL,
    r"training\.stages\.\d+\.end\..*",
)
SEARCH = r"decoding\..*"  # free unless it decides which model is best
WATCHED = r"training\.validation\.every_(updates|epochs)"  # free unless it decides the learning rate, or what a later stage starts from


def _free(recipe: Recipe) -> list[str]:
    stages, metric = recipe.training.stages, recipe.training.validation.metric
    heard = any(
        resolve(stage.schedule.kind, SCHEDULES).judged is not Schedule.judged for stage in stages
    )
    heard = (
        heard
        or any(stage.start == "best" for stage in stages[1:])
        or any(stage.end.patience for stage in stages[:-1])
    )
    return [*FREE, *([] if metric == "bleu" else [SEARCH]), *([] if heard else [WATCHED])]


def _changes(recipe: Recipe, run: Path, last: Path, fingerprint: str) -> list[str]:
    """What differs from the run so far; raises ConfigError or DataError where that would make it another run."""
    before, now = (found.model_dump(mode="json") for found in (recipes.load(run / CONFIG), recipe))
    old, new = before["training"]["stages"], now["training"]["stages"]
    both = min(len(old), len(new))
    added = [
        f"training.stages.{i}: new, {_stage(stage)}" for i, stage in enumerate(new[both:], both)
    ]
    gone = [
        f"training.stages.{i}: taken away, {_stage(stage)}"
        for i, stage in enumerate(old[both:], both)
    ]
    before["training"]["stages"], now["training"]["stages"] = old[:both], new[:both]
    found = list(manifest.differences(before, now))
    deep = [
        change
        for change in found
        if not any(re.fullmatch(pattern, change.partition(":")[0]) for pattern in _free(recipe))
    ]
    if deep or gone:
        raise ConfigError(
            f"{run} was begun with another config ({'; '.join([*deep, *gone])}): name another --run, or take back the change"
        )
    if checkpoint.read_state(last).get("data") not in (None, fingerprint):
        raise DataError(
            f"the data in {recipe.data.folder} are not those that {run} was trained on: prepare them as they were, or name another --run"
        )
    return [*found, *added]


def _stage(stage: dict[str, Any]) -> str:
    """A stage in a few words: `adam, inverse-sqrt, updates 8`."""
    end = (f"{key} {value}" for key, value in stage["end"].items() if value is not None)
    return ", ".join([stage["optimizer"]["kind"], stage["schedule"]["kind"], *end])


def _check_positions(model: Seq2Seq, *corpora: Corpus) -> None:
    """Raise DataError when a sentence is longer than the model has positions."""
    most = model.max_positions
    longest = max(
        int(side.lengths.max(initial=0))
        for corpus in corpora
        for side in (corpus.source, corpus.target)
    )
    if most is not None and longest > most:
        raise DataError(
            f"the longest sentence has {longest} tokens and the model {most} positions: raise model.max_positions, "
            "or drop long sentences in data.steps (filter) or data.bpe.max_subwords"
        )


def _header(
    recipe: Recipe, model: Seq2Seq, pipeline: Pipeline, trainer: Trainer, products: str
) -> list[str]:
    device, world = trainer.device, trainer.world
    count = sum(p.numel() for p in model.parameters())
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    together = (
        f", {world.size} processes{', sharded' if trainer.sharded else ''}"
        if world.size > 1
        else ""
    )
    compiled = ", layers compiled" if recipe.training.compile else ""
    batch = recipe.training.stages[trainer.progress.stage].batch
    several = f" x {batch.accumulate}" if batch.accumulate > 1 else ""
    code = f" ({revision()})" if revision() else ""
    return [
        f"fusetk {fusetk.__version__}{code}, torch {torch.__version__}, {device}{name}, float32 products {products}, "
        f"{torch.get_num_threads()} threads{together}, {recipe.training.precision}{compiled}",
        f"{recipe.model.kind}, {count:,} parameters; vocabularies {len(pipeline.source_vocab):,} and {len(pipeline.target_vocab):,}",
        f"{len(trainer.corpus):,} training pairs, {len(trainer.validator.corpus):,} for validation; batches of {batch.size:,} "
        f"{'target tokens' if batch.unit == 'tokens' else 'pairs'}{several}; seed {recipe.training.seed}; data {trainer.fingerprint[:12]}",
    ]
