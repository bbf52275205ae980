"""``train``: one training run in its folder, from the start or resumed."""

import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

import fusetk
from fusetk import config
from fusetk import recipe as recipes
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
from fusetk.recipe import NEUTRAL_KEYS, Recipe
from fusetk.runs import CHECKPOINTS, CONFIG, LOG, MACHINE, METRICS, TEXT, is_intact
from fusetk.system import build
from fusetk.training import checkpoint, schedule
from fusetk.training.compiling import compile_layers
from fusetk.training.log import Log, NullLog, forget_after
from fusetk.training.loop import Trainer
from fusetk.training.sharding import shard
from fusetk.training.signals import Stop
from fusetk.training.start import start_from
from fusetk.training.step import out_of_memory
from fusetk.training.validation import Validator
from fusetk.weights import read_state


def train(recipe: Recipe, run: Path, device_name: str = "auto", quiet: bool = False) -> None:
    """Train a recipe in a run folder, from the start or from its last checkpoint.

    Raises DataError or ConfigError if data, config and run do not fit together; then nothing is
    written. Raises Interrupted after a signal, and FusetkError if training fails.
    """
    device = device_of(local_device(device_name))
    world = connect(device)
    try:
        kernel_choices = world.broadcast(
            _kernel_choices(recipe, run) if device.type == "cpu" and world.first else None
        )
        with (
            Stop() as stop,
            computing(device, recipe.training.matmul, kernel_choices) as matmul,
            _RunLock(run) as run_lock,
        ):
            _train(recipe, run, device, quiet, world, stop, kernel_choices, matmul, run_lock)
    except Interrupted:
        world.close()
        raise
    except Exception as error:
        _raise_with_context(error, world)
    world.close()


def _raise_with_context(error: Exception, world: World) -> NoReturn:
    """Raise an error again: with the name of its process, or as FusetkError for a known cause."""
    several = world.size > 1
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if several and isinstance(error, FusetkError):
        error.args = (f"{world}: {error}",)
    elif several and is_peer_failure(error):
        raise FusetkError(f"{world}: another process has ended ({reason})") from None
    elif out_of_memory(error):
        raise FusetkError(
            f"{f'{world}: ' if several else ''}the memory does not suffice ({reason}): lower "
            "training.validation.tokens and decoding.batch_tokens, or use a smaller model"
        ) from None
    elif several:
        print(f"fusetk: {world} failed: {type(error).__name__}: {error}", file=sys.stderr)
        sys.stderr.flush()
    raise error


def _kernel_choices(recipe: Recipe, run: Path) -> Choices:
    """Return the kernels that the run recorded, so that resuming is exact.

    Returns the kernels of this machine if the run recorded none for this kind of processor.
    """
    recorded = read_choices(run / MACHINE)
    if recorded and recorded.processor == processor():
        return recorded
    return choices(recipe.training.matmul)


def _train(
    recipe: Recipe,
    run: Path,
    device: torch.device,
    quiet: bool,
    world: World,
    stop: Stop,
    kernel_choices: Choices | None,
    matmul: str,
    run_lock: "_RunLock",
) -> None:
    data = Path(recipe.data.folder)
    prepared = manifest.read(data)
    integrity.check_settings(recipe.data, prepared)
    fingerprint = manifest.training_fingerprint(prepared)
    integrity.check_files(data, prepared)
    if world.first:
        _check_run_folder(run)
        run_lock.take()
    last = world.broadcast(_last_checkpoint(run) if world.first else None)
    changes = _config_changes(recipe, run, last, fingerprint) if last else []
    changes += _text_changes(recipe, prepared, resuming=bool(last))
    changes += _processor_changes(run, kernel_choices)
    pipeline = Pipeline.load(data / TEXT)
    sizes = (len(pipeline.source_vocab), len(pipeline.target_vocab))
    started: list[str] = []

    def initialise(model: Seq2Seq) -> None:
        assert recipe.training.start_from is not None
        report = start_from(model, Path(recipe.training.start_from), pipeline)
        started.extend(report.lines())

    fresh = recipe.training.start_from is not None and not last
    model = _build_model(recipe, sizes, device, world, initialise if fresh else None)
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
    corpora = {"train": trainer.corpus, "valid": validator.corpus}
    integrity.check_ids(data, prepared, sizes, corpora)
    _check_positions(model, trainer.corpus, validator.corpus)
    if last:
        trainer.resume(last)
    world.all_gather(None)  # rank 0 writes only after all processes have read the run folder
    if world.first:
        _write_run_folder(recipe, run, trainer.progress.update if last else 0, kernel_choices)
        run_lock.take()
    with Log(run, quiet, recipe.training.tensorboard) if world.first else NullLog() as log:
        for line in _run_header(recipe, model, pipeline, trainer, matmul):
            log.line(line)
        for line in started:
            log.line(line)
        for change in changes:
            log.line(f"changed: {change}")
        if trainer.finished():
            log.line(
                f"nothing to do: training ended after {trainer.progress.update} updates; "
                f"raise training.stages.N.end to continue ({run})"
            )
            return
        if last:
            log.line(f"resumed after update {trainer.progress.update}")
        trainer.train(log, stop)
        log.line(
            f"done: {trainer.progress.update} updates; "
            f"best at update {trainer.progress.best_update}; {run}"
        )


def _build_model(
    recipe: Recipe,
    sizes: tuple[int, int],
    device: torch.device,
    world: World,
    initialise: Callable[[Seq2Seq], None] | None = None,
) -> Seq2Seq:
    """Build the model of a recipe on the device. The recipe may compile or shard it.

    ``initialise`` changes the initial weights.
    """
    model = build(recipe, *sizes)
    if initialise:
        initialise(model)
    if recipe.training.compile:
        compile_layers(model)
    if recipe.training.shard and world.size > 1:
        shard(model, world)
    else:
        model.to(device)
    return model


def _check_run_folder(run: Path) -> None:
    """Raise ConfigError if the folder holds files of another kind, such as prepared data."""
    if not run.is_dir() or (run / CONFIG).exists() or (run / CHECKPOINTS).is_dir():
        return
    known = (TEXT, MACHINE, METRICS, LOG)
    foreign = sorted(path.name for path in run.iterdir() if not _may_precede_run(path, known))
    if foreign:
        raise ConfigError(
            f"{run} is not a run folder and holds {foreign[0]}: choose an empty or a new --run"
        )


def _may_precede_run(path: Path, known: Collection[str]) -> bool:
    """Whether a file may be in a run folder before training: a log or a hidden file."""
    return path.name in known or path.name[0] == "." or path.suffix in (".out", ".err", ".log")


class _RunLock:
    """Within this context, after ``take``, no other process trains in the run folder."""

    def __init__(self, run: Path):
        self.run = run
        self.descriptor: int | None = None

    def __enter__(self) -> "_RunLock":
        return self

    def take(self) -> None:
        """Lock the folder if it exists. Raises ConfigError if another process holds the lock."""
        if self.descriptor is not None or not self.run.is_dir() or os.name != "posix":
            return
        self.descriptor = os.open(self.run, os.O_RDONLY)
        if not lock(self.descriptor):
            raise ConfigError(
                f"another fusetk train is running in {self.run}: "
                "wait until it ends, or choose another --run"
            )

    def __exit__(self, *error: object) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)


def _text_changes(recipe: Recipe, prepared: Mapping[str, Any], resuming: bool) -> list[str]:
    """Describe each raw text that changed after its preparation.

    Raises DataError for such a text if the run is new.
    """
    paths = [str(path) for path in integrity.changed_text(recipe.data, prepared)]
    if paths and not resuming:
        raise DataError(
            f"{', '.join(paths)} changed since {recipe.data.folder} was prepared: "
            f"{integrity.PREPARE}"
        )
    return [
        f"{path} changed since {recipe.data.folder} was prepared; the run keeps the prepared text"
        for path in paths
    ]


def _processor_changes(run: Path, kernel_choices: Choices | None) -> list[str]:
    """Describe a change of the processor since the run started."""
    recorded = read_choices(run / MACHINE)
    if not recorded or not kernel_choices or recorded.processor == kernel_choices.processor:
        return []
    return [
        f"processor: {recorded.processor} -> {kernel_choices.processor}; "
        "the results of an update may differ by rounding"
    ]


def _write_run_folder(
    recipe: Recipe, run: Path, update: int, kernel_choices: Choices | None
) -> None:
    """Write text pipeline, config and kernel choices into the run folder.

    Remove the metrics of updates after ``update``. Raises CheckpointError if a file cannot be
    written.
    """
    text = Path(recipe.data.folder) / TEXT
    try:
        run.mkdir(parents=True, exist_ok=True)
        forget_after(run, update)
        for file in sorted(path for path in text.rglob("*") if path.is_file()):
            write_if_changed(run / TEXT / file.relative_to(text), file.read_bytes())
        write_if_changed(run / CONFIG, config.dump(recipe).encode())
        if kernel_choices:
            write_choices(run / MACHINE, kernel_choices)
    except OSError as error:
        raise checkpoint.write_error(run, error) from None


def _last_checkpoint(run: Path) -> Path | None:
    """Return the checkpoint to resume from: ``last``, or the newest complete one without ``last``.

    Returns None if the run has no checkpoint.
    """
    checkpoint.recover(run)
    last = run / CHECKPOINTS / "last"
    if last.is_dir():
        return last.resolve()
    folders = sorted((run / CHECKPOINTS).glob("update-*"), reverse=True)
    complete = (path for path in folders if is_intact(path))
    return next(complete, folders[0] if folders else None)


# Changes of the config ----------------------------------------------------------------------------

# Patterns of keys that may change when a run is resumed. They do not affect the trained model.
CHANGEABLE_KEYS = (
    r"data\..*",  # paths; the prepared data are compared by fingerprint
    r"paper(\..*)?",
    *NEUTRAL_KEYS,
    r"training\.stages\.\d+\.end\..*",
)
SEARCH_KEYS = r"decoding\..*"  # changeable unless BLEU selects the best checkpoint
# Changeable unless validation affects a learning rate, or the start or end of a stage.
VALIDATION_KEYS = r"training\.validation\.every_(updates|epochs)"


def _changeable_keys(recipe: Recipe) -> list[str]:
    stages = recipe.training.stages
    validation_decides = (
        any(schedule.uses_validation(stage.schedule) for stage in stages)
        or any(stage.start == "best" for stage in stages[1:])
        or any(stage.end.patience for stage in stages[:-1])
    )
    patterns = list(CHANGEABLE_KEYS)
    if recipe.training.validation.metric != "bleu":
        patterns.append(SEARCH_KEYS)
    if not validation_decides:
        patterns.append(VALIDATION_KEYS)
    return patterns


def _config_changes(recipe: Recipe, run: Path, last: Path, fingerprint: str) -> list[str]:
    """Describe the differences of config and data from those of the run so far.

    Raises ConfigError or DataError for a change with which the run cannot be resumed.
    """
    before = recipes.load(run / CONFIG).model_dump(mode="json")
    now = recipe.model_dump(mode="json")
    old_stages = before["training"]["stages"]
    new_stages = now["training"]["stages"]
    common = min(len(old_stages), len(new_stages))
    added = [
        f"training.stages.{i}: added, {_describe_stage(stage)}"
        for i, stage in enumerate(new_stages[common:], common)
    ]
    removed = [
        f"training.stages.{i}: removed, {_describe_stage(stage)}"
        for i, stage in enumerate(old_stages[common:], common)
    ]
    before["training"]["stages"] = old_stages[:common]
    now["training"]["stages"] = new_stages[:common]
    changes = list(manifest.differences(before, now))
    changeable = re.compile("|".join(_changeable_keys(recipe)))
    fixed = [change for change in changes if not changeable.fullmatch(change.partition(":")[0])]
    if fixed or removed:
        raise ConfigError(
            f"{run} was started with another config ({'; '.join([*fixed, *removed])}): "
            "choose another --run, or undo the change"
        )
    if read_state(last).get("data") not in (None, fingerprint):
        raise DataError(
            f"the data in {recipe.data.folder} are not those that {run} was trained on: "
            "prepare them with the settings of that run, or choose another --run"
        )
    return [*changes, *added]


def _describe_stage(stage: dict[str, Any]) -> str:
    """Return a short description of a stage, such as `adam, inverse-sqrt, updates 8`."""
    end = (f"{key} {value}" for key, value in stage["end"].items() if value is not None)
    return ", ".join([stage["optimizer"]["kind"], stage["schedule"]["kind"], *end])


def _check_positions(model: Seq2Seq, *corpora: Corpus) -> None:
    """Raise DataError if a sentence has more tokens than the model has positions."""
    positions = model.max_positions
    longest = max(
        int(side.lengths.max(initial=0))
        for corpus in corpora
        for side in (corpus.source, corpus.target)
    )
    if positions is not None and longest > positions:
        raise DataError(
            f"the longest sentence has {longest} tokens and the model {positions} positions: "
            "raise model.max_positions, "
            "or drop long sentences in data.steps (filter) or data.bpe.max_subwords"
        )


def _run_header(
    recipe: Recipe, model: Seq2Seq, pipeline: Pipeline, trainer: Trainer, matmul: str
) -> list[str]:
    """Return the first lines of a log: versions, device, sizes of model and data."""
    device = trainer.device
    version = f"fusetk {fusetk.__version__}"
    if code := revision():
        version += f" ({code})"
    hardware = str(device)
    if device.type == "cuda":
        hardware += f" ({torch.cuda.get_device_name(device)})"
    processes = ""
    if trainer.world.size > 1:
        processes = f", {trainer.world.size} processes"
        processes += ", sharded" if trainer.sharded else ""
    compiled = ", layers compiled" if recipe.training.compile else ""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    batch = recipe.training.stages[trainer.progress.stage].batch
    unit = "target tokens" if batch.unit == "tokens" else "pairs"
    accumulated = f" x {batch.accumulate}" if batch.accumulate > 1 else ""
    return [
        f"{version}, torch {torch.__version__}, {hardware}, float32 products {matmul}, "
        f"{torch.get_num_threads()} threads{processes}, {recipe.training.precision}{compiled}",
        f"{recipe.model.kind}, {parameters:,} parameters; "
        f"vocabularies {len(pipeline.source_vocab):,} and {len(pipeline.target_vocab):,}",
        f"{len(trainer.corpus):,} training pairs, "
        f"{len(trainer.validator.corpus):,} validation pairs; "
        f"batches of {batch.size:,} {unit}{accumulated}; "
        f"seed {recipe.training.seed}; data {trainer.fingerprint[:12]}",
    ]
