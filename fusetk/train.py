"""``train``: one training run in its folder, from the start or resumed."""

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import nn

import fusetk
from fusetk import sections
from fusetk.config import outside_kinds
from fusetk.data import integrity, manifest
from fusetk.data.batch_config import UNITS
from fusetk.data.corpus import Corpus
from fusetk.data.pipeline import Pipeline
from fusetk.errors import (
    WARNING,
    ConfigError,
    DataError,
    FusetkError,
    Interrupted,
    first_line,
    join_names,
    out_of_memory,
    quantity,
)
from fusetk.files import code_checksums, digest, remove_temporary_files, write_if_changed
from fusetk.machine import (
    ChosenWays,
    chosen_ways,
    computing,
    describe_device,
    device_of,
    has_kernels,
    read_chosen_ways,
    revision,
    use_huge_pages,
    write_chosen_ways,
)
from fusetk.models import Seq2Seq
from fusetk.processes import World, connect, is_peer_failure, local_device, same_gpu_error
from fusetk.processor import processor
from fusetk.recipe import Recipe
from fusetk.resume import find_changes, last_checkpoint
from fusetk.runs import (
    CHECKPOINTS,
    CONFIG,
    MACHINE,
    METRICS,
    SESSIONS,
    STARTING,
    TEXT,
    RunLock,
    Session,
    add_session,
    check_run_folder,
)
from fusetk.system import build
from fusetk.training import checkpoint
from fusetk.training.compiling import compile_layers
from fusetk.training.cuda_graphs import check_recordable
from fusetk.training.log import Log, NullLog, forget_after, import_tensorboard
from fusetk.training.loop import NO_BEST, RESTART, Trainer
from fusetk.training.progress import Progress, read_progress
from fusetk.training.reporter import device_name
from fusetk.training.sharding import shard
from fusetk.training.signals import Stop
from fusetk.training.start_from import start_checkpoint, start_from
from fusetk.training.validation import Validator, check_shares
from fusetk.training.verify import newer_rule, verify
from fusetk.training.verify_construction import check_construction
from fusetk.ways import slower_than_float32


class Execution(NamedTuple):
    """The device, the processes and the kernels of a training."""

    device: torch.device
    world: World
    ways: ChosenWays | None  # None on a GPU
    matmul_note: str  # how products are computed, for the log


def train(recipe: Recipe, run: Path, device: str = fusetk.DEVICE, quiet: bool = False) -> None:
    """Train a recipe in a run folder, from the start or from its last checkpoint.

    Raises DataError or ConfigError if data, config and run do not fit together; then nothing is
    written. Raises Interrupted after a signal, and FusetkError if training fails.
    """
    use_huge_pages()
    torch_device = device_of(local_device(device))
    world = connect(torch_device)
    try:
        ways = world.broadcast(
            _ways_of_run(recipe, run) if torch_device.type == "cpu" and world.first else None
        )
        with (
            Stop() as stop,
            computing(
                torch_device,
                recipe.training.matmul,
                ways,
                recipe.training.precision,
                recipe.training.compile,
            ) as matmul_note,
            RunLock(run) as run_lock,
        ):
            execution = Execution(torch_device, world, ways, matmul_note)
            _train(recipe, run, execution, quiet, stop, run_lock)
    except Interrupted:
        world.close()
        raise
    except Exception as error:
        _raise_with_context(error, world)
    world.close()


def _raise_with_context(error: Exception, world: World) -> NoReturn:
    """Raise an error again: with the name of its process, or as FusetkError for a known cause."""
    several = world.size > 1
    reason = first_line(error)
    if several and isinstance(error, FusetkError):
        error.args = (f"{world}: {error}",)
    elif several and (same_gpu := same_gpu_error(error, str(world))):
        raise same_gpu from None
    elif several and is_peer_failure(error) and not out_of_memory(error):  # NCCL needs memory
        raise FusetkError(
            f"{world}: another process has ended or does not answer ({reason}): read the messages "
            "of all processes, and start them again"
        ) from None
    elif out_of_memory(error):
        raise FusetkError(
            f"{f'{world}: ' if several else ''}there is not enough memory ({reason}): use a "
            "smaller model or, if a validation failed, lower training.validation.tokens and "
            "decoding.batch_tokens"
        ) from None
    elif several:
        print(f"fusetk: {world} failed: {type(error).__name__}: {error}", file=sys.stderr)
        sys.stderr.flush()
    raise error


def _ways_of_run(recipe: Recipe, run: Path) -> ChosenWays:
    """Return the ways that the run recorded, so that resuming is exact.

    Returns the ways of this machine if the run recorded none for this kind of processor.
    """
    recorded = read_chosen_ways(run / MACHINE)
    if recorded and recorded.processor == processor():
        return replace(recorded, threads=torch.get_num_threads())
    return chosen_ways(recipe.training.matmul)


def _train(
    recipe: Recipe, run: Path, execution: Execution, quiet: bool, stop: Stop, run_lock: RunLock
) -> None:
    world = execution.world
    data = Path(recipe.data.folder)
    prepared = manifest.read(data)
    integrity.check_files(data, prepared)
    _check_same_files(recipe, prepared, world)
    if world.first:
        check_run_folder(run)
        run_lock.take()
    last = world.broadcast(last_checkpoint(run) if world.first else None)
    integrity.check_settings(recipe.data, prepared, files=last is None)
    session = _session(recipe, execution, last)
    changes = find_changes(recipe, run, last, prepared, execution.ways, session)
    pipeline = Pipeline.load(data / TEXT)
    model, start_lines = _build_model(recipe, pipeline, execution, resuming=last is not None)
    trainer = _make_trainer(recipe, run, prepared, pipeline, model, world)
    if last:
        trainer.resume(last)
    text = _prepared_text(data, prepared)
    if world.first and recipe.training.tensorboard:
        import_tensorboard()  # before the first write, because a missing package is an error
    world.all_gather(None)  # rank 0 writes only after all processes have read the run folder
    if world.first:
        _lock_run_folder(run, run_lock, last)
        _write_run_folder(recipe, run, text, trainer.progress, execution.ways)
        if last:
            trainer.checkpoints.repair(last, trainer.progress)
    with _open_log(recipe, run, quiet, trainer) as log:
        for line in _run_header(recipe, pipeline, trainer, session, execution.matmul_note):
            log.line(line)
        for line in (*_speed_warning(recipe, execution), *start_lines):
            log.line(line)
        for change in changes:
            log.line(change if change.startswith(WARNING) else f"changed: {change}")
        if trainer.finished():
            updates = quantity(trainer.progress.update, "update")
            log.line(
                f"nothing to do: training ended after {updates}; "
                f"raise training.stages.N.end to continue ({run})"
            )
            return
        if last:
            log.line(f"resumed after update {trainer.progress.update}")
        if world.first:
            _record_session(run, session)
        trainer.train(log, stop)
        for line in _end(trainer.progress, run):
            log.line(line)


def _check_same_files(recipe: Recipe, prepared: Mapping[str, Any], world: World) -> None:
    """Raise ConfigError if the processes do not have the same config, prepared data and code.

    Hosts may have different copies of the files.
    """
    settings = recipe.model_dump(mode="json")
    modules = code_checksums(outside_kinds(settings))
    del settings["data"]  # the fingerprint is that of the text
    del settings["training"]["start_from"]  # a path, which hosts may resolve differently
    own = {
        "configs": digest(settings),
        "prepared data": manifest.training_fingerprint(prepared),
        "versions of fusetk": fusetk.__version__,
        "modules outside fusetk": digest(modules),
    }
    every = world.all_gather(own)
    if different := [name for name in own if any(each[name] != own[name] for each in every)]:
        raise ConfigError(
            f"the processes have different {join_names(different)}: use the same ones on all hosts"
        )


def _speed_warning(recipe: Recipe, execution: Execution) -> list[str]:
    """Return a line if fp32 is faster on this processor than the precision of the training."""
    if execution.device.type != "cpu" or recipe.training.precision != "bf16":
        return []
    if not slower_than_float32(torch.bfloat16, training=True):
        return []
    return [f"{WARNING}bf16 is slower than fp32 on this processor: use training.precision fp32"]


def _end(progress: Progress, run: Path) -> list[str]:
    """Return the last lines of a log."""
    updates = quantity(progress.update, "update")
    if progress.best is not None:
        return [f"done: {updates}; best at update {progress.best_update}; {run}"]
    return [
        f"{WARNING}{NO_BEST}, so the checkpoints cannot be used: {RESTART}",
        f"done: {updates}; none is the best; {run}",
    ]


def _check_same_parameters(model: nn.Module, world: World) -> None:
    """Raise ConfigError if the processes have parameters of other names, shapes or order.

    Gradients are added in this order. The order of a set of strings differs between processes.
    """
    shapes = [[name, list(value.shape)] for name, value in model.named_parameters()]
    if len(set(world.all_gather(digest(shapes)))) > 1:
        raise ConfigError(
            "the models of the processes have different parameters, or another order of them: "
            "register the parameters of your own classes in a fixed order, and not in that of a set"
        )


def _build_model(
    recipe: Recipe, pipeline: Pipeline, execution: Execution, resuming: bool
) -> tuple[Seq2Seq, list[str]]:
    """Build the model of a recipe on the device.

    With ``training.compile`` its layers are compiled. With ``training.shard`` its parameters are
    sharded.

    Return the model, and lines about the parameters that it takes from another run. It takes none
    if ``resuming``. Raises the errors of ``start_from``, ConfigError if a class outside fusetk
    breaks a rule, and FusetkError if the memory does not suffice. If ``resuming``, rules that an
    earlier version may not have checked give warnings.
    """
    lines: list[str] = []
    warnings: list[str] = []
    try:
        sizes = (len(pipeline.source_vocab), len(pipeline.target_vocab))
        model = build(recipe, *sizes)
        if kinds := sorted(outside_kinds(recipe.model.model_dump())):
            with newer_rule(warnings, resuming):
                check_construction(model, lambda: build(recipe, *sizes))
            _check_same_parameters(model, execution.world)
        shards = recipe.training.shard and execution.world.size > 1
        if recipe.training.start_from is not None and not resuming:
            old_run, folder = start_checkpoint(Path(recipe.training.start_from))
            # Another process may see another link: the run may be in training.
            folder = folder.with_name(execution.world.broadcast(folder.name))
            lines = start_from(model, old_run, folder, pipeline).lines()
        if kinds:
            verified = model if shards else model.to(execution.device)
            warnings += verify(verified, *sizes, kinds, resuming)
            lines += [f"{WARNING}{warning}" for warning in warnings]
        if recipe.training.validation.share_pairs:
            check_shares(model)
        if recipe.training.cuda_graphs:
            check_recordable(model)
        if recipe.training.compile:
            compile_layers(model)
        if shards:
            shard(model, execution.world)
        else:
            model.to(execution.device)
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise FusetkError(
            f"there is not enough memory for the parameters ({first_line(error)}): use a smaller "
            "model"
        ) from None
    return model, lines


def _make_trainer(
    recipe: Recipe,
    run: Path,
    prepared: Mapping[str, Any],
    pipeline: Pipeline,
    model: Seq2Seq,
    world: World,
) -> Trainer:
    """Open the data of a recipe, check it, and return a trainer at its first update.

    ``prepared`` is the manifest of the data. Raises DataError or ConfigError if data, recipe and
    model do not fit together.
    """
    data = Path(recipe.data.folder)
    trainer = Trainer(
        recipe.training,
        model,
        recipe.model,
        Corpus.open(data, "train"),
        run,
        Validator(recipe.training.validation, recipe.decoding, data, pipeline),
        manifest.training_fingerprint(prepared),
        world,
    )
    sizes = (len(pipeline.source_vocab), len(pipeline.target_vocab))
    corpora = {"train": trainer.corpus, "valid": trainer.validator.corpus}
    integrity.check_ids(data, prepared, sizes, corpora)
    integrity.check_lengths(model.max_positions, corpora.values())
    return trainer


def _prepared_text(data: Path, prepared: Mapping[str, Any]) -> dict[Path, bytes]:
    """Return the files of the text pipeline by their path in the prepared folder.

    Raises DataError if fusetk prep replaced prepared text after its manifest was read.
    """
    fingerprint = manifest.training_fingerprint
    with suppress(OSError, DataError):  # prep is moving the files
        files = sorted(path for path in (data / TEXT).rglob("*") if path.is_file())
        text = {path.relative_to(data): path.read_bytes() for path in files}
        if fingerprint(manifest.read(data)) == fingerprint(prepared):
            return text
    raise DataError(
        f"fusetk prep replaced the text in {data} while this training started: run the same "
        "command again after prep"
    )


def _lock_run_folder(run: Path, run_lock: RunLock, last: Path | None) -> None:
    """Create and lock the run folder before the first write.

    Raises ConfigError if another process trains in the folder, or trained in it since ``last`` was
    read; CheckpointError if the folder cannot be created.
    """
    with checkpoint.writing(run):
        run.mkdir(parents=True, exist_ok=True)
    run_lock.take()
    if last is None and last_checkpoint(run):
        raise ConfigError(
            f"another fusetk train trained in {run} since this one started: run the same command "
            "again to continue that training, or choose another --run"
        )


def _write_run_folder(
    recipe: Recipe,
    run: Path,
    text: Mapping[Path, bytes],
    progress: Progress,
    ways: ChosenWays | None,
) -> None:
    """Write config, text pipeline and chosen ways into the run folder.

    ``text`` has the files of the text pipeline by their path in the folder. Remove the metrics
    after ``progress``, and incomplete files of killed processes. Raises CheckpointError if a file
    cannot be written.
    """
    with checkpoint.writing(run):
        if not (run / SESSIONS).exists():
            (run / STARTING).touch()
        remove_temporary_files(run, (CONFIG, MACHINE, METRICS, SESSIONS))
        write_if_changed(run / CONFIG, sections.dump(recipe).encode())
        (run / CHECKPOINTS).mkdir(exist_ok=True)
        forget_after(run, progress)
        for path, content in text.items():
            remove_temporary_files((run / path).parent, (path.name,))
            write_if_changed(run / path, content)
        if ways:
            write_chosen_ways(run / MACHINE, ways)


def _open_log(recipe: Recipe, run: Path, quiet: bool, trainer: Trainer) -> Log:
    """Return the log of this process. Raises CheckpointError if its files cannot be opened."""
    if not trainer.world.first:
        return NullLog()
    with checkpoint.writing(run):
        return Log(run, quiet, recipe.training.tensorboard, trainer.progress.update)


def _session(recipe: Recipe, execution: Execution, last: Path | None) -> Session:
    """Describe the session that begins, from the checkpoint ``last`` if there is one."""
    device, world = execution.device, execution.world
    return Session(
        update=read_progress(last).update if last else 0,
        fusetk=fusetk.__version__,
        revision=revision(),
        torch=torch.__version__,
        processor=processor(),
        device=device_name(device, world.size),
        threads=torch.get_num_threads(),
        processes=world.size,
        module_checksums=code_checksums(outside_kinds(recipe.model_dump())),
        kernels=has_kernels(device),
    )


def _record_session(run: Path, session: Session) -> None:
    """Record a session in the run folder. Raises CheckpointError if it cannot be written."""
    with checkpoint.writing(run):
        add_session(run, session)
        (run / STARTING).unlink(missing_ok=True)


def _run_header(
    recipe: Recipe, pipeline: Pipeline, trainer: Trainer, session: Session, matmul_note: str
) -> list[str]:
    """Return the first lines of a log: versions, device, sizes of model and data."""
    device = trainer.device
    processes = ""
    if trainer.world.size > 1:
        processes = f", {trainer.world.size} processes"
        processes += ", sharded" if trainer.sharded else ""
    compiled = ", layers compiled" if recipe.training.compile else ""
    compiled += ", CUDA graphs" if recipe.training.cuda_graphs and device.type == "cuda" else ""
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    batch = recipe.training.stages[trainer.progress.stage].batch
    accumulated = f" x {batch.accumulate}" if batch.accumulate > 1 else ""
    segmentations = ""
    if trainer.corpus.segmentations:
        segmentations = f" in {len(trainer.corpus.segmentations)} segmentations by BPE dropout"
    threads = quantity(torch.get_num_threads(), "thread")
    limited = f" of at most {batch.token_limit:,} tokens" if batch.token_limit else ""
    return [
        f"{session.code}, torch {torch.__version__}, {describe_device(device)}, "
        f"float32 products {matmul_note}, {threads}{processes}, "
        f"{recipe.training.precision}{compiled}",
        f"{recipe.model.kind}, {parameters:,} parameters; "
        f"vocabularies {len(pipeline.source_vocab):,} and {len(pipeline.target_vocab):,}",
        f"{len(trainer.corpus):,} training pairs{segmentations}, "
        f"{len(trainer.validator.corpus):,} validation pairs; "
        f"batches of {batch.size:,} {UNITS[batch.unit]}{limited}{accumulated}; "
        f"seed {recipe.training.seed}; data {trainer.fingerprint[:12]}",
    ]
