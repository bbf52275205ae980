"""Run folders: everything that training leaves and translation needs."""

import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import torch

import fusetk
from fusetk import config
from fusetk import recipe as recipes
from fusetk.config import find_kind
from fusetk.data import manifest
from fusetk.data.corpus import Corpus
from fusetk.data.pipeline import Pipeline
from fusetk.errors import CheckpointError, ConfigError, DataError, FusetkError
from fusetk.machine import device_of, fastest_float32
from fusetk.models import MODELS, Seq2Seq
from fusetk.recipe import Recipe
from fusetk.training import checkpoint, distributed, metrics
from fusetk.training.loop import Trainer
from fusetk.training.signals import Stop
from fusetk.training.validation import Validator

CONFIG, TEXT = "config.yaml", "text"


class Loaded(NamedTuple):
    """A trained model and what belongs to it."""

    recipe: Recipe
    pipeline: Pipeline
    model: Seq2Seq
    checkpoint: Path


def build(recipe: Recipe, source_size: int, target_size: int) -> Seq2Seq:
    """The model of a recipe with freshly drawn weights, fixed by the seed; vocabulary sizes count the special tokens."""
    torch.manual_seed(recipe.training.seed)
    model: Seq2Seq = find_kind(recipe.model.kind, MODELS)(recipe.model, source_size, target_size)
    return model


def load(path: Path | str, device: str | torch.device = "cpu", raw: bool = False) -> Loaded:
    """A run folder (its best checkpoint, or its last without one) or one checkpoint folder, ready to translate.

    Of a checkpoint with an exponential mean of the weights that is what is loaded, unless ``raw`` ones are wanted.

    Raises CheckpointError when it is neither, or when something in it is missing or damaged.
    """
    run, folder = find_checkpoint(Path(path))
    recipe = recipes.load(run / CONFIG)
    pipeline = Pipeline.load(run / TEXT)
    model = build(recipe, len(pipeline.source_vocab), len(pipeline.target_vocab))
    mean = not raw and (folder / checkpoint.EMA).exists()
    checkpoint.load_model(model, folder, checkpoint.EMA if mean else checkpoint.MODEL)
    return Loaded(recipe, pipeline, model.to(device_of(str(device))).eval(), folder)


def find_checkpoint(path: Path) -> tuple[Path, Path]:
    """The run folder and the checkpoint folder that a path to either stands for."""
    if (path / checkpoint.STATE).exists():
        for run in (path.absolute().parent.parent, path.resolve().parent.parent):
            if (run / CONFIG).exists():
                return run, path
        raise CheckpointError(f"{path} is a checkpoint, but no {CONFIG} lies two folders above it: keep it in its run folder")
    if not path.is_dir():
        raise CheckpointError(f"{path} is no run folder: " + ("it is a file" if path.exists() else "there is no such folder"))
    for name in ("best", "last"):
        found = path / "checkpoints" / name
        if (found / checkpoint.STATE).exists() and (path / CONFIG).exists():
            return path, found
    raise CheckpointError(f"{path} is no run folder: it has no {CONFIG} with checkpoints/best or checkpoints/last beside it")


def train(recipe: Recipe, run: Path, device_name: str = "auto", quiet: bool = False) -> None:
    """Train a recipe in a run folder, from the start or from where its last checkpoint stands.

    Raises DataError or ConfigError, before anything is written, when data, config and run do not fit together.
    """
    device = device_of(distributed.local_device(device_name))
    world = distributed.join(device)
    try:
        _train(recipe, run, device, quiet, world)
    except Exception as error:
        if world.size > 1 and not isinstance(error, FusetkError):
            print(f"fusetk: {world} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise
    world.leave()


def _train(recipe: Recipe, run: Path, device: torch.device, quiet: bool, world: distributed.World) -> None:
    data = Path(recipe.data.folder)
    fingerprint = manifest.training_fingerprint(manifest.read(data))
    last = world.tell(_last(run))
    changes = _changes(recipe, run, last, fingerprint) if last else []
    pipeline = Pipeline.load(data / TEXT)
    model = build(recipe, len(pipeline.source_vocab), len(pipeline.target_vocab)).to(device)
    validator = Validator(recipe.training.validation, recipe.decoding, data, pipeline)
    trainer = Trainer(recipe.training, model, recipe.model.width, Corpus.open(data, "train"), run, validator, fingerprint, world)
    _check_positions(model, trainer.corpus, validator.corpus)
    if last:
        trainer.resume(last)
    world.collect(None)  # all have read what is there
    if world.first:
        _prepare(recipe, run, trainer.progress.update if last else 0)
    log = metrics.Log(run, quiet, recipe.training.tensorboard) if world.first else metrics.Silent()
    with log, Stop() as stop:
        for line in [*_card(recipe, model, pipeline, trainer), *(f"changed: {change}" for change in changes)]:
            log.line(line)
        if trainer.over():
            log.line(f"nothing to do: training ended after {trainer.progress.update} updates; raise training.stages.N.end to go on ({run})")
            return
        if last:
            log.line(f"resumed after update {trainer.progress.update}")
        trainer.train(log, stop)
        log.line(f"done: {trainer.progress.update} updates; best at {trainer.progress.best_update}; {run}")


def _prepare(recipe: Recipe, run: Path, update: int) -> None:
    """Put into the run folder all that is not a checkpoint, and forget what its metrics say of later updates."""
    run.mkdir(parents=True, exist_ok=True)
    metrics.forget_after(run, update)
    shutil.copytree(Path(recipe.data.folder) / TEXT, run / TEXT, dirs_exist_ok=True)
    text = config.dump(recipe)
    if not (run / CONFIG).exists() or (run / CONFIG).read_text(encoding="utf-8") != text:
        (run / CONFIG).write_text(text, encoding="utf-8")


def _last(run: Path) -> Path | None:
    """The checkpoint to go on from: ``last``, or the newest whole one where that link was lost."""
    last = run / "checkpoints" / "last"
    if (last / checkpoint.STATE).exists():
        return last.resolve()
    there = checkpoint.whole(run)
    return there[-1] if there else None


# What may change between a run and its continuation: it decides how long and how closely watched, not which model.
FREE = (
    "data.",  # paths; what was made of them is compared by fingerprint
    "decoding.",
    "paper.",
    "training.keep_last",
    "training.keep_best",
    "training.log_every",
    "training.save_every",
    "training.tensorboard",
    "training.validation.every_",
    "training.validation.bleu",
    "training.validation.tokens",
)


def _changes(recipe: Recipe, run: Path, last: Path, fingerprint: str) -> list[str]:
    """What differs from the run so far; raises ConfigError or DataError where that would make it another run."""
    before, now = (found.model_dump(mode="json") for found in (recipes.load(run / CONFIG), recipe))
    added = now["training"]["stages"][len(before["training"]["stages"]) :]
    now["training"]["stages"] = now["training"]["stages"][: len(before["training"]["stages"])]
    found = list(manifest.differences(before, now))
    deep = [change for change in found if not change.startswith(FREE) and ".end" not in change.partition(":")[0]]
    if deep:
        raise ConfigError(f"{run} was begun with another config ({'; '.join(deep)}): name another --run, or take back the change")
    if checkpoint.read_state(last).get("data") not in (None, fingerprint):
        raise DataError(
            f"the data in {recipe.data.folder} are not those that {run} was trained on: prepare them as they were, or name another --run"
        )
    return [*found, *(f"training.stages: one more, {stage}" for stage in added)]


def _check_positions(model: Seq2Seq, *corpora: Corpus) -> None:
    """Raise DataError when a sentence is longer than the model has positions."""
    most = model.max_positions
    longest = max(int(side.lengths.max(initial=0)) for corpus in corpora for side in (corpus.source, corpus.target))
    if most is not None and longest > most:
        raise DataError(
            f"the longest sentence has {longest} tokens and the model {most} positions: raise model.max_positions, "
            "or drop long sentences in data.steps (filter) or data.bpe.max_subwords"
        )


def _card(recipe: Recipe, model: Seq2Seq, pipeline: Pipeline, trainer: Trainer) -> list[str]:
    device, world = trainer.device, trainer.world
    count = sum(p.numel() for p in model.parameters())
    products = f", float32 products by {fastest_float32()}" if device.type == "cpu" else f" ({torch.cuda.get_device_name(device)})"
    together = f", {world.size} processes" if world.size > 1 else ""
    return [
        f"fusetk {fusetk.__version__}, torch {torch.__version__}, {device}{products}, {torch.get_num_threads()} threads{together}, "
        f"{recipe.training.precision}",
        f"{recipe.model.kind}, {count:,} parameters; vocabularies {len(pipeline.source_vocab):,} and {len(pipeline.target_vocab):,}",
        f"{len(trainer.corpus):,} training pairs, {len(trainer.validator.corpus):,} for validation; seed {recipe.training.seed}",
    ]
