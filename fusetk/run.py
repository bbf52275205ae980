"""Run folders: everything that training leaves and translation needs."""

import shutil
from pathlib import Path
from typing import NamedTuple

import torch

import fusetk
from fusetk import config
from fusetk import recipe as recipes
from fusetk.config import find_kind
from fusetk.data.pipeline import Pipeline
from fusetk.errors import CheckpointError, ConfigError, DataError
from fusetk.machine import device_of, fastest_float32
from fusetk.models import MODELS, Seq2Seq
from fusetk.recipe import Recipe
from fusetk.training import checkpoint, metrics
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


def load(path: Path | str, device: str | torch.device = "cpu") -> Loaded:
    """A run folder (its best checkpoint, or its last without one) or one checkpoint folder, ready to translate.

    Raises CheckpointError when it is neither, or when something in it is missing or damaged.
    """
    path = Path(path)
    folder = find_checkpoint(path)
    run = folder.resolve().parent.parent
    recipe = recipes.load(run / CONFIG)
    pipeline = Pipeline.load(run / TEXT)
    model = build(recipe, len(pipeline.source_vocab), len(pipeline.target_vocab))
    checkpoint.load_model(model, folder)
    return Loaded(recipe, pipeline, model.to(device_of(str(device))).eval(), folder)


def find_checkpoint(path: Path) -> Path:
    """The checkpoint folder that a run folder or a checkpoint folder stands for."""
    if (path / checkpoint.STATE).exists():
        if not (path.resolve().parent.parent / CONFIG).exists():
            raise CheckpointError(f"{path} is a checkpoint, but no {CONFIG} lies two folders above it: keep it in its run folder")
        return path
    if not path.is_dir():
        raise CheckpointError(f"{path} is no run folder: there is no such folder")
    for name in ("best", "last"):
        found = path / "checkpoints" / name
        if (found / checkpoint.STATE).exists() and (path / CONFIG).exists():
            return found
    raise CheckpointError(f"{path} is no run folder: it has no {CONFIG} with checkpoints/best or checkpoints/last beside it")


def train(recipe: Recipe, run: Path, device_name: str = "auto", quiet: bool = False) -> None:
    """Train a recipe in a run folder, from the start or from where its last checkpoint stands."""
    device = device_of(device_name)
    data = Path(recipe.data.folder)
    if not (data / "manifest.json").exists():
        raise DataError(f"{data} holds no prepared data (no manifest.json): run `fusetk prep` with this config first")
    pipeline = Pipeline.load(data / TEXT)
    last = run / "checkpoints" / "last"
    resuming = (last / checkpoint.STATE).exists()
    if resuming:
        _check_same(recipe, run)
        metrics.forget_after(run, checkpoint.read_state(last)["progress"]["update"])
    run.mkdir(parents=True, exist_ok=True)
    shutil.copytree(data / TEXT, run / TEXT, dirs_exist_ok=True)
    (run / CONFIG).write_text(config.dump(recipe), encoding="utf-8")
    model = build(recipe, len(pipeline.source_vocab), len(pipeline.target_vocab)).to(device)
    validator = Validator(recipe.training.validation, recipe.decoding, data, pipeline)
    with metrics.Log(run, quiet, recipe.training.tensorboard) as log, Stop() as stop:
        trainer = Trainer(recipe.training, model, recipe.model.width, data, run, validator, log, stop)
        for line in _card(recipe, model, pipeline, device, trainer):
            log.line(line)
        if resuming:
            trainer.resume(last)
            done = trainer.progress.update
            if trainer.over():
                log.line(f"nothing to do: training ended after {done} updates ({last}); raise training.stages.N.end to go on")
                return
            log.line(f"resumed after update {done}")
        trainer.train()
        log.line(f"done: {trainer.progress.update} updates; best at {trainer.progress.best_update}; {run}")


def _check_same(recipe: Recipe, run: Path) -> None:
    before = recipes.load(run / CONFIG)
    for section in ("model", "data"):
        if getattr(before, section).model_dump() != getattr(recipe, section).model_dump():
            raise ConfigError(
                f"{run} was begun with another `{section}` (see its {CONFIG}): name another --run, or keep the config it was begun with"
            )


def _card(recipe: Recipe, model: Seq2Seq, pipeline: Pipeline, device: torch.device, trainer: Trainer) -> list[str]:
    count = sum(p.numel() for p in model.parameters())
    products = f", float32 products by {fastest_float32()}" if device.type == "cpu" else f" ({torch.cuda.get_device_name(device)})"
    return [
        f"fusetk {fusetk.__version__}, torch {torch.__version__}, {device}{products}, {torch.get_num_threads()} threads, "
        f"{recipe.training.precision}",
        f"{recipe.model.kind}, {count:,} parameters; vocabularies {len(pipeline.source_vocab):,} and {len(pipeline.target_vocab):,}",
        f"{len(trainer.corpus):,} training pairs, {len(trainer.validator.corpus):,} for validation; seed {recipe.training.seed}",
    ]
