"""The training loop: resuming is exact, stages restart, and the best checkpoint is kept."""

import errno
import fcntl
import gc
import itertools
import json
import math
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fusetk
from fusetk import runs, system
from fusetk import train as train_module
from fusetk import weights as weights_module
from fusetk.config import ComponentConfig
from fusetk.data import manifest
from fusetk.data.batch_config import MOST_IN_BATCH
from fusetk.data.corpus import Corpus
from fusetk.data.pipeline import Pipeline
from fusetk.data.prepare import prepare
from fusetk.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    FusetkError,
    Interrupted,
    TrainingDiverged,
)
from fusetk.files import locked
from fusetk.machine import revision
from fusetk.nn.dropout import Dropout
from fusetk.processes import World
from fusetk.recipe import Recipe, load
from fusetk.resume import last_checkpoint
from fusetk.system import build
from fusetk.training import checkpoint, gradients, loop, reporter
from fusetk.training.average import average, choose
from fusetk.training.checkpoints import regular_checkpoints
from fusetk.training.loop import Trainer
from fusetk.training.schedule import INITIAL_STATE, Schedule, ScheduleState
from fusetk.training.start_from import start_checkpoint, start_from
from fusetk.training.validation import LossSums, PartialResults, ValidationConfig, Validator
from fusetk.weights import read_state
from tests.helpers.forks import Forks, train
from tests.helpers.metrics import records

TWO_STAGES = [
    "training.stages=["
    "{optimizer: adam, schedule: {kind: noam, warmup: 10}, batch: {size: 300}, "
    "end: {updates: 11}}, "
    "{optimizer: nag, schedule: {kind: constant, rate: 0.01}, "
    "batch: {size: 30, unit: sentences, accumulate: 2}, "
    "clip: 1, start: best, end: {epochs: 1}}]",
    "training.validation.every_updates=5",
    "training.keep_last=50",
]

ENDLESS = [
    "training.stages.0.end.updates=100000",
    "training.validation.every_updates=100000",
]


def files(run: Path, update: int) -> dict[str, bytes]:
    folder = run / "checkpoints" / runs.checkpoint_name(update)
    return {name: (folder / name).read_bytes() for name in (runs.MODEL, runs.TRAINING)}


@pytest.fixture(scope="module")
def whole(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    """An uninterrupted run of two stages."""
    run, recipe = tmp_path_factory.mktemp("whole") / "run", load(toy, TWO_STAGES)
    train_module.train(recipe, run, "cpu", quiet=True)
    return recipe, run


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_resuming_gives_the_same_run_to_the_bit(
    whole: tuple[Recipe, Path], stop: int, tmp_path: Path
) -> None:
    """The run restarts from each checkpoint.

    The checkpoints are in an epoch, at the end of a stage, and in the second stage.
    """
    recipe, run = whole
    checkpoints = runs.checkpoints(run)
    last = int(checkpoints[-1].name.removeprefix("update-"))
    copy = tmp_path / "run"
    subprocess.run(["cp", "-a", run, copy], check=True)
    remaining = runs.checkpoints(copy)[:stop]
    checkpoint.prune(copy, remaining)
    checkpoint.link(copy, "last", remaining[-1])
    best = read_state(remaining[-1])["progress"]["best_update"]
    checkpoint.link(copy, "best", copy / "checkpoints" / runs.checkpoint_name(best))
    train_module.train(recipe, copy, "cpu", quiet=True)
    assert files(copy, last) == files(run, last)
    assert [p.name for p in runs.checkpoints(copy)] == [p.name for p in checkpoints]
    for kind in ("train", "valid"):
        assert [line["update"] for line in records(copy, kind)] == [
            line["update"] for line in records(run, kind)
        ]
    assert records(copy, "valid") == records(run, "valid")


def test_a_trainer_is_freed_at_the_end_of_training(
    toy: Path, whole: tuple[Recipe, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no reference cycle, so its mapped files do not wait for the garbage collector."""
    references: list[weakref.ref[Trainer]] = []

    class Watched(Trainer):
        def __init__(self, *arguments: Any):
            super().__init__(*arguments)
            references.append(weakref.ref(self))

    monkeypatch.setattr(train_module, "Trainer", Watched)
    gc.disable()
    try:
        train_module.train(
            load(toy, ["training.stages.0.end.updates=1"]), tmp_path, "cpu", quiet=True
        )
    finally:
        gc.enable()
    assert [reference() for reference in references] == [None]


def test_the_second_stage_has_a_new_optimiser_and_begins_an_epoch(
    whole: tuple[Recipe, Path],
) -> None:
    _, run = whole
    tensors = weights_module.read_tensors(runs.checkpoints(run)[-1], runs.TRAINING)
    assert tensors and all(name.endswith(":momentum_buffer") for name in tensors), (
        "nothing of the first stage's Adam is left"
    )
    epochs = [line["epoch"] for line in records(run, "valid")]
    assert epochs == sorted(epochs)
    assert epochs[-1] == round(11 / 9 + 1, 3), "stage 1 reads 11 / 9 epochs, stage 2 one"


def test_a_stage_can_start_with_the_weights_of_the_best_checkpoint(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best checkpoint is not the last one. The rate of the second stage changes no weight."""
    losses = itertools.count(1.0)
    monkeypatch.setattr(
        Validator,
        "combine",
        lambda self, parts: {"loss": next(losses), "ppl": 1.0, "accuracy": 0.0},
    )
    stage = "{optimizer: sgd, schedule: {kind: constant, rate: %s}, end: {updates: 2}%s}"
    stages = f"training.stages=[{stage % (0.1, '')}, {stage % (1e-30, ', start: best')}]"
    recipe = load(toy, [stages, "training.validation.every_updates=1"])
    train_module.train(recipe, tmp_path, "cpu", quiet=True)
    best, last_of_stage, started = (files(tmp_path, update)[runs.MODEL] for update in (1, 2, 3))
    assert started == best != last_of_stage


def test_best_is_the_lowest_validation_loss(whole: tuple[Recipe, Path]) -> None:
    _, run = whole
    best = min(records(run, "valid"), key=lambda line: line["loss"])["update"]
    assert (run / "checkpoints" / "best").resolve().name == runs.checkpoint_name(best)


def test_a_run_that_has_ended_says_so_and_continues_with_more_updates(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_module.train(load(toy, ["training.stages.0.end.updates=4"]), tmp_path / "a", "cpu")
    train_module.train(load(toy, ["training.stages.0.end.updates=4"]), tmp_path / "a", "cpu")
    assert "nothing to do: training ended after 4 updates" in capsys.readouterr().err
    train_module.train(load(toy), tmp_path / "a", "cpu", quiet=True)
    train_module.train(load(toy), tmp_path / "b", "cpu", quiet=True)
    assert files(tmp_path / "a", 8) == files(tmp_path / "b", 8)


def test_patience_ends_a_stage(toy: Path, tmp_path: Path) -> None:
    overrides = [
        "training.stages.0.schedule={kind: constant, rate: 1e-30}",
        "training.stages.0.end={patience: 3}",
    ]
    train_module.train(load(toy, overrides), tmp_path, "cpu", quiet=True)
    assert [line["update"] for line in records(tmp_path, "valid")] == [4, 8, 12, 16]


def test_the_seed_fixes_everything(toy: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        train_module.train(
            load(toy, [f"training.seed={seed}", "training.stages.0.end.updates=4"]),
            tmp_path / name,
            "cpu",
            quiet=True,
        )
    assert files(tmp_path / "a", 4) == files(tmp_path / "b", 4) != files(tmp_path / "c", 4)


def test_another_model_or_data_is_refused_on_resume(
    toy: Path, whole: tuple[Recipe, Path], tmp_path: Path
) -> None:
    before = (whole[1] / "config.yaml").read_text()
    for change in (
        "model.dropout=0.3",
        "training.seed=9",
        "training.stages.1.optimizer=adam",
        "training.validation.metric=ppl",
    ):
        with pytest.raises(ConfigError, match=r"another config.*->"):
            train_module.train(load(toy, [*TWO_STAGES, change]), whole[1], "cpu", quiet=True)
    recipe = load(toy, TWO_STAGES)
    other = tmp_path / "other"
    for side in ("de", "en"):
        text = (toy.parent / f"train.{side}").read_text().splitlines(keepends=True)
        (tmp_path / f"train.{side}").write_text("".join(text[1:]))
    data = load(toy, [f"data.folder={other}", f"data.train=[{tmp_path / 'train'}]"]).data
    prepare(data)
    with pytest.raises(DataError, match="differ from the data that"):
        train_module.train(recipe.model_copy(update={"data": data}), whole[1], "cpu", quiet=True)
    assert (whole[1] / "config.yaml").read_text() == before


def test_a_lost_link_does_not_start_again(toy: Path, tmp_path: Path) -> None:
    train_module.train(
        load(toy, ["training.stages.0.end.updates=4"]), tmp_path / "a", "cpu", quiet=True
    )
    for name in ("last", "best"):
        (tmp_path / "a" / "checkpoints" / name).unlink()
    train_module.train(load(toy), tmp_path / "a", "cpu", quiet=True)
    assert [line["update"] for line in records(tmp_path / "a", "valid")] == [4, 8]


def test_a_restart_from_an_earlier_checkpoint_keeps_its_new_checkpoints(
    whole: tuple[Recipe, Path], tmp_path: Path
) -> None:
    """Later checkpoints of the first training do not count among the last."""
    recipe, run = whole
    copy = tmp_path / "run"
    subprocess.run(["cp", "-a", run, copy], check=True)
    checkpoint.link(copy, "last", runs.checkpoints(copy)[0])
    keep_one = recipe.model_copy(
        update={"training": recipe.training.model_copy(update={"keep_last": 1})}
    )
    train_module.train(keep_one, copy, "cpu", quiet=True)
    assert (copy / "checkpoints" / "last").resolve().name == runs.checkpoints(run)[-1].name


def test_a_checkpoint_without_its_link_is_resumed(
    whole: tuple[Recipe, Path], tmp_path: Path
) -> None:
    """A kill, or a full disk, may come between a checkpoint and its link."""
    recipe, run = whole
    copy = tmp_path / "run"
    subprocess.run(["cp", "-a", run, copy], check=True)
    first, *_, newest = runs.checkpoints(copy)
    checkpoint.link(copy, "last", first)
    link = copy / "checkpoints" / "last"
    assert last_checkpoint(copy) == first, "a user has set the link"
    before = (first / "state.json").stat().st_mtime_ns
    os.utime(link, ns=(before, before), follow_symlinks=False)
    assert last_checkpoint(copy) == newest
    train_module.train(recipe, copy, "cpu", quiet=True)
    assert "nothing to do" in (copy / "log.txt").read_text().splitlines()[-1]
    assert link.resolve() == newest.resolve() and newest in runs.checkpoints(copy)
    (newest / "model.safetensors").write_bytes(b"")
    checkpoint.link(copy, "last", first)
    os.utime(link, ns=(before, before), follow_symlinks=False)
    assert last_checkpoint(copy) == runs.checkpoints(copy)[-2], "the newest one is damaged"


def test_prep_that_ends_while_a_training_starts_is_an_error(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the vocabulary of the run could be another one than that of its model."""
    recipe = load(toy)
    data = tmp_path / "data"
    shutil.copytree(recipe.data.folder, data)
    build_model = train_module._build_model

    def prepare_again(*arguments: Any, **options: Any) -> Any:
        document = manifest.read(data)
        for stage in document["stages"].values():
            for output in stage["outputs"].values():
                output["sha256"] = "0"
        (data / "manifest.json").write_text(json.dumps(document))
        return build_model(*arguments, **options)

    monkeypatch.setattr(train_module, "_build_model", prepare_again)
    with pytest.raises(DataError, match=f"fusetk prep replaced the text in {data} while"):
        train_module.train(load(toy, [f"data.folder={data}"]), tmp_path / "run", "cpu", quiet=True)
    assert not (tmp_path / "run").exists()


def test_gradients_that_are_not_finite_end_the_run(toy: Path, tmp_path: Path) -> None:
    diverging = (
        "training.stages=[{optimizer: nag, schedule: {kind: constant, rate: 1e30}, "
        "end: {updates: 90}}]"
    )
    with pytest.raises(
        TrainingDiverged, match=r"5 updates in a row after update 1 .* in a new run folder"
    ):
        train_module.train(load(toy, [diverging]), tmp_path, "cpu", quiet=True)
    assert (
        "skipped: its gradient is not finite (prepared training pairs"
        in (tmp_path / "log.txt").read_text()
    )
    checkpoints = runs.checkpoints(tmp_path)
    assert checkpoints == regular_checkpoints(checkpoints), "no checkpoint of a diverged model"


def test_a_skipped_update_changes_neither_weights_nor_optimiser_nor_average(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, calls = loop.optimizer_step, itertools.count(1)

    def overflow_at_second_call(model: Any, *arguments: Any, **options: Any) -> Any:
        if next(calls) == 2:
            next(model.parameters()).grad.fill_(math.inf)
        return step(model, *arguments, **options)

    monkeypatch.setattr(loop, "optimizer_step", overflow_at_second_call)
    settings = ["ema=0.9", "save_every=1", "stages.0.end.updates=2"]
    recipe = load(toy, [f"training.{setting}" for setting in settings])
    train_module.train(recipe, tmp_path, "cpu", quiet=True)
    before, after = runs.checkpoints(tmp_path)
    for file in (runs.MODEL, runs.TRAINING, runs.EMA):
        assert (before / file).read_bytes() == (after / file).read_bytes(), file


class Descending(Schedule):
    Config = ComponentConfig

    def __init__(self, config: ComponentConfig, width: int):
        pass

    def rate(self, update: int, state: ScheduleState = INITIAL_STATE) -> float:
        return 0.01 if update < 3 else -0.01


def test_a_schedule_with_a_wrong_rate_is_named(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = f"training.stages.0.schedule={__name__}:Descending"
    message = r"test_loop:Descending returned the learning rate %s for update %s of its stage"
    with pytest.raises(FusetkError, match=message % (-0.01, 3)):
        train_module.train(load(toy, [schedule]), tmp_path / "a", "cpu", quiet=True)
    for wrong in (math.nan, None):
        monkeypatch.setattr(Descending, "rate", lambda self, update, state, rate=wrong: rate)
        with pytest.raises(FusetkError, match=message % (wrong, 1)):
            train_module.train(load(toy, [schedule]), tmp_path / str(wrong), "cpu", quiet=True)


class Failing(Schedule):
    Config = ComponentConfig
    uses_validation = True

    def __init__(self, config: ComponentConfig, width: int):
        pass

    def rate(self, update: int, state: ScheduleState = INITIAL_STATE) -> float:
        return 0.01 / state.get("validations", 1)

    def after_validation(
        self, state: ScheduleState, value: float, lower_is_better: bool, epoch: int
    ) -> ScheduleState:
        return {"validations": state.get("validations", 0) + 1}


@pytest.mark.parametrize(("method", "update"), [("rate", 5), ("after_validation", 6)])
def test_a_schedule_that_fails_loses_no_update(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, update: int
) -> None:
    settings = [
        f"training.stages.0.schedule={__name__}:Failing",
        "training.validation.every_updates=3",
    ]
    method_before = getattr(Failing, method)

    def failing(self: Schedule, *arguments: Any) -> Any:
        if arguments[0] in (6, {"validations": 1}):  # update 6, or the state at update 6
            raise ZeroDivisionError
        return method_before(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Failing, method, failing)
        with pytest.raises(FusetkError, match=f"the method {method}"):
            train_module.train(load(toy, settings), tmp_path / "a", "cpu", quiet=True)
    assert (tmp_path / "a/checkpoints/last").resolve().name == runs.checkpoint_name(update)
    for name in ("a", "b"):
        train_module.train(load(toy, settings), tmp_path / name, "cpu", quiet=True)
    assert records(tmp_path / "a", "valid") == records(tmp_path / "b", "valid")
    assert files(tmp_path / "a", 8) == files(tmp_path / "b", 8)


def test_metrics_are_flushed_to_disk_before_each_checkpoint(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, after a power failure, a resumed run could lack updates before its checkpoint."""
    flushed: dict[int, int] = {}  # sizes of files by inode
    sizes: list[tuple[int, int | None]] = []  # of the metrics, and as flushed
    fsync, save = os.fsync, checkpoint.save

    def recorded_fsync(descriptor: int) -> None:
        fsync(descriptor)
        status = os.fstat(descriptor)
        flushed[status.st_ino] = status.st_size

    def recorded_save(*arguments: Any) -> None:
        status = (tmp_path / runs.METRICS).stat()
        sizes.append((status.st_size, flushed.get(status.st_ino)))
        save(*arguments)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(checkpoint, "save", recorded_save)
    train_module.train(load(toy), tmp_path, "cpu", quiet=True)
    assert len(sizes) == 2 and all(size == on_disk for size, on_disk in sizes)
    assert 0 < sizes[0][0] < sizes[1][0]


@pytest.mark.parametrize("metric", ["loss", "bleu"])
def test_a_run_without_a_best_checkpoint_says_so(toy: Path, tmp_path: Path, metric: str) -> None:
    settings = [
        "training.stages.0.schedule={kind: constant, rate: 1e30}",
        "training.max_skipped=9",
        f"training.validation.metric={metric}",
    ]
    train_module.train(load(toy, settings), tmp_path / "run", "cpu", quiet=True)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert (
        f"({metric}: no best yet, stalled 2)" in log and "warning: each validation gave NaN" in log
    )
    assert "done: 8 updates; none is the best; " in log


def test_a_stage_cannot_start_from_the_best_checkpoint_if_there_is_none(
    toy: Path, tmp_path: Path
) -> None:
    stage = "{optimizer: adam, schedule: {kind: constant, rate: 1e30}, end: {updates: 4}%s}"
    stages = f"training.stages=[{stage % ''}, {stage % ', start: best'}]"
    recipe = load(toy, [stages, "training.max_skipped=9"])
    for _ in range(2):  # also after a restart
        with pytest.raises(
            TrainingDiverged, match=r"stages\.1 has start: best, but .* has diverged: "
        ):
            train_module.train(recipe, tmp_path, "cpu", quiet=True)


def test_updates_that_are_skipped_are_counted_over_a_resume(toy: Path, tmp_path: Path) -> None:
    def diverging(updates: int) -> Recipe:
        return load(
            toy,
            [
                "training.stages=[{optimizer: nag, schedule: {kind: constant, rate: 1e30}, "
                f"end: {{updates: {updates}}}}}]",
                "training.max_skipped=6",
                "training.log_every=1",
            ],
        )

    train_module.train(diverging(4), tmp_path / "run", "cpu", quiet=True)
    with pytest.raises(TrainingDiverged, match="6 updates in a row after update 1 "):
        train_module.train(diverging(90), tmp_path / "run", "cpu", quiet=True)
    norms = [record["grad_norm"] for record in records(tmp_path / "run", "train")]
    assert norms[0] is not None and norms[-1] is None


def test_surplus_checkpoints_of_a_kill_are_deleted_on_resume(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is also true if training has ended, and with a relative path."""
    monkeypatch.chdir(tmp_path)
    recipe = load(toy, ["training.keep_last=1", "training.validation.every_updates=2"])
    train_module.train(recipe, Path("run"), "cpu", quiet=True)
    names_before = sorted(path.name for path in Path("run/checkpoints").iterdir())
    last = Path("run/checkpoints/last").resolve()
    surplus = last.with_name(runs.checkpoint_name(1))
    shutil.copytree(last, surplus)
    train_module.train(recipe, Path("run"), "cpu", quiet=True)
    assert sorted(path.name for path in Path("run/checkpoints").iterdir()) == names_before


def test_two_trainings_in_one_folder_are_refused(toy: Path, tmp_path: Path) -> None:
    train_module.train(load(toy), tmp_path, "cpu", quiet=True)
    before = files(tmp_path, 8)
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, os, sys\nfcntl.flock(os.open(sys.argv[1], 0), 2)\n"
            "print(flush=True)\ninput()",
            str(tmp_path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout and other.stdout.readline()
        with pytest.raises(ConfigError, match="another fusetk train is running"):
            train_module.train(load(toy), tmp_path, "cpu", quiet=True)
        other.communicate(b"\n")
    assert files(tmp_path, 8) == before
    train_module.train(load(toy), tmp_path, "cpu", quiet=True)


def test_two_trainings_in_one_folder_on_nfs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS locks only files that are open for writing, see flock(2)."""
    flock = fcntl.flock

    def flock_of_nfs(descriptor: int, operation: int) -> None:
        if not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE:
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_of_nfs)
    for _ in range(2):  # the end of the first pass releases the lock
        with runs.RunLock(tmp_path) as one, runs.RunLock(tmp_path) as other:
            one.take()
            with pytest.raises(ConfigError, match="another fusetk train is running"):
                other.take()
    runs.check_run_folder(tmp_path)  # the lock file does not count as a file of the user


def test_a_link_to_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.symlink_to("missing")
    with pytest.raises(ConfigError, match="run is a link to missing, which does not exist"):
        runs.check_run_folder(run)
    (tmp_path / "missing").mkdir()
    runs.check_run_folder(run)


def test_a_training_that_begins_meanwhile_keeps_its_files(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training in the same new folder is refused before it writes."""
    run = tmp_path / "run"
    build = train_module.build

    def build_slowly(*arguments: Any) -> Any:
        monkeypatch.setattr(train_module, "build", build)
        train_module.train(load(toy), run, "cpu", quiet=True)
        return build(*arguments)

    monkeypatch.setattr(train_module, "build", build_slowly)
    late = load(toy, ["training.seed=7"])
    with pytest.raises(ConfigError, match="another fusetk train trained in"):
        train_module.train(late, run, "cpu", quiet=True)
    assert load(run / "config.yaml").training.seed == load(toy).training.seed
    assert files(run, 8) and (run / "metrics.jsonl").read_text()


def test_a_model_that_does_not_fit_into_memory(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*arguments: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 51539607552 bytes\nstack")

    monkeypatch.setattr(train_module, "build", build)
    with pytest.raises(FusetkError, match=r"for the parameters \(.* bytes\): use a smaller model"):
        train_module.train(load(toy), tmp_path / "a", "cpu", quiet=True)


def test_a_validation_without_memory_loses_no_update(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def part(*arguments: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    run = tmp_path / "run"
    monkeypatch.setattr(Validator, "validate_part", part)
    with pytest.raises(
        FusetkError, match=r"there is not enough memory .* lower training.validation.tokens"
    ):
        train_module.train(load(toy), run, "cpu", quiet=True)
    monkeypatch.undo()
    assert read_state((run / "checkpoints" / "last").resolve())["interrupted"]
    train_module.train(load(toy), run, "cpu", quiet=True)
    train_module.train(load(toy), tmp_path / "whole", "cpu", quiet=True)
    assert files(run, 8) == files(tmp_path / "whole", 8)


def test_a_stage_cannot_drop_out_where_the_model_does_not(toy: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"stages.0.dropout is 0.3, but every dropout rate of the model is 0"
    ):
        train_module.train(
            load(toy, ["training.stages.0.dropout=0.3", "model.dropout=0"]),
            tmp_path / "run",
            "cpu",
            quiet=True,
        )


def test_sentences_that_do_not_fit_are_refused_before_anything_is_written(
    toy: Path, tmp_path: Path
) -> None:
    stage = "{optimizer: adam, schedule: {kind: constant, rate: 1}, %send: {updates: 1}}"
    later = f"training.stages=[{stage % ''}, {stage % 'batch: {size: 3}, '}]"
    short = "model={kind: transformer, positions: learned, max_positions: 4, width: 8, heads: 2}"
    for override, said in ((later, "a batch holds 3"), (short, "4 positions")):
        with pytest.raises(DataError, match=said):
            train_module.train(load(toy, [override]), tmp_path / "run", "cpu", quiet=True)
    assert not (tmp_path / "run").exists()


def test_padded_lengths_stay_within_learned_positions(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest sentence needs all positions, and their number is not a multiple of four."""
    monkeypatch.setattr(gradients, "length_multiple", lambda *_: 4)
    folder = Path(load(toy, []).data.folder)
    corpora = [Corpus.open(folder, name) for name in ("train", "valid")]
    longest = max(
        int(side.lengths.max()) for corpus in corpora for side in (corpus.source, corpus.target)
    )
    longest += 1 if longest % 4 == 0 else 0
    settings = [
        f"model.max_positions={longest}",
        "model.positions=learned",
        "training.stages.0.end={epochs: 1}",
    ]
    recipe = load(toy, settings)
    train_module.train(recipe, tmp_path / "run", "cpu", quiet=True)
    assert records(tmp_path / "run", "valid")


def test_tying_all_needs_one_vocabulary(toy: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.vocabulary\.joint"):
        load(toy, ["model.tie=all"])


def test_unprepared_data_is_named(toy: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="fusetk prep"):
        train_module.train(
            load(toy, [f"data.folder={tmp_path / 'none'}"]), tmp_path / "run", "cpu", quiet=True
        )


def test_average_is_the_mean(whole: tuple[Recipe, Path], tmp_path: Path) -> None:
    _, run = whole
    chosen = choose(run, last=3)
    average(chosen, tmp_path / "mean")
    tensors = [weights_module.read_tensors(path, runs.MODEL) for path in chosen]
    for name, mean in weights_module.read_tensors(tmp_path / "mean", runs.MODEL).items():
        torch.testing.assert_close(mean, sum(t[name] for t in tensors) / 3)
    best = choose(run, best=2)
    ranked = sorted(records(run, "valid"), key=lambda line: line["loss"])
    assert {p.name for p in best} == {runs.checkpoint_name(line["update"]) for line in ranked[:2]}
    assert [p.name for p in choose(run, updates=[5, 10])] == ["update-0000005", "update-0000010"]
    too_many = len(runs.checkpoints(run)) + 1
    for wrong in ({"last": too_many}, {"best": too_many}, {"updates": [6]}):
        with pytest.raises(CheckpointError, match="requested"):
            choose(run, **wrong)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"no checkpoint of .* has a bleu from"):
        choose(run, best=2, metric="bleu")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_exits_75(toy: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = train(toy, tmp_path / "run", ENDLESS)
    process.wait_for("update 3 ")
    process.send_signal(number)
    assert process.wait() == [75]
    said = process.output()
    assert f"{number.name} received: saved after update" in said and "Traceback" not in said
    (saved,) = runs.checkpoints(tmp_path / "run")
    update = int(saved.name.removeprefix("update-"))
    assert update >= 3 and f"after update {update};" in said
    train_module.train(
        load(toy, [f"training.stages.0.end.updates={update}"]),
        tmp_path / "whole",
        "cpu",
        quiet=True,
    )
    assert files(tmp_path / "whole", update) == files(tmp_path / "run", update)


def test_a_closed_terminal_saves(toy: Path, tmp_path: Path) -> None:
    """The terminal sends SIGHUP, and every later write to it fails."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "fusetk", "train", str(toy), "--run", str(run)]
    command += ["--threads", "1", "-d", "cpu"]
    command += [word for override in ENDLESS for word in ("--set", override)]
    process, terminal = pty.fork()
    if not process:
        os.execv(command[0], command)
    output = b""
    while b"update 3" not in output:
        output += os.read(terminal, 1000)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 75
    assert len(runs.checkpoints(run)) == 1


def test_nohup_trains_on() -> None:
    program = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from fusetk.training.signals import Stop\n"
        "with Stop() as stop: os.kill(os.getpid(), signal.SIGHUP); assert stop.signal is None"
    )
    Forks([], code=program).succeed()


def test_equal_metrics_are_ranked_by_loss(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BLEU is 0 at each validation, so the loss decides.

    While it falls, the last checkpoint is the best and patience does not end the stage. A higher
    loss is not a new best.
    """
    losses = iter([5.0, 4.0, 3.0, 3.5, 2.0, 2.0])
    monkeypatch.setattr(
        Validator,
        "combine",
        lambda self, parts: {"loss": next(losses), "ppl": 1.0, "accuracy": 0.0, "bleu": 0.0},
    )
    overrides = [
        "training.validation.metric=bleu",
        "training.validation.every_updates=1",
        "training.stages.0.end={updates: 6, patience: 2}",
    ]
    run = tmp_path / "run"
    train_module.train(
        load(toy, [*overrides, "training.stages.0.end.updates=4"]), run, "cpu", quiet=True
    )
    assert (run / "checkpoints" / "best").resolve().name == runs.checkpoint_name(3)
    train_module.train(load(toy, [*overrides, "training.keep_best=2"]), run, "cpu", quiet=True)
    assert (run / "checkpoints" / "best").resolve().name == runs.checkpoint_name(5), (
        "the best checkpoint is also kept over a resume"
    )
    assert [path.name for path in choose(run, best=2, metric="bleu")] == [
        runs.checkpoint_name(update) for update in (5, 6)
    ]
    are_best = [line["best"] for line in records(run, "valid")]
    assert are_best == [True, True, True, False, True, False]


def test_a_resume_does_not_write_its_checkpoint_again(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run that is killed soon after each start would only rewrite it."""
    update, save = Trainer._update, checkpoint.save
    recipe = load(toy, ["training.save_every=2"])
    written: list[str] = []

    def fails_after_two(self: Trainer, *arguments: Any) -> None:
        if self.progress.update == 2:
            raise MemoryError
        update(self, *arguments)

    def record(folder: Path, *arguments: Any) -> None:
        written.append(folder.name)
        save(folder, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_update", fails_after_two)
        patched.setattr(checkpoint, "save", record)
        for _ in range(2):
            with pytest.raises(MemoryError):
                train_module.train(recipe, tmp_path / "a", "cpu", quiet=True)
    assert written == [runs.checkpoint_name(2)]
    train_module.train(recipe, tmp_path / "a", "cpu", quiet=True)
    train_module.train(recipe, tmp_path / "b", "cpu", quiet=True)
    assert files(tmp_path / "a", 8) == files(tmp_path / "b", 8)


def test_the_metrics_of_a_killed_run_have_all_tokens(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last report is after update 4, and the checkpoint after update 5."""
    update = Trainer._update
    recipe = load(toy, ["training.save_every=5"])

    def fails_after_five(self: Trainer, *arguments: Any) -> None:
        if self.progress.update == 5:
            raise MemoryError
        update(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_update", fails_after_five)
        with pytest.raises(MemoryError):
            train_module.train(recipe, tmp_path / "a", "cpu", quiet=True)
    train_module.train(recipe, tmp_path / "a", "cpu", quiet=True)
    train_module.train(recipe, tmp_path / "b", "cpu", quiet=True)
    sums = [sum(line["tokens"] for line in records(tmp_path / run, "train")) for run in "ab"]
    assert sums[0] == sums[1]


def test_a_run_that_was_killed_before_its_first_links_gets_them(toy: Path, tmp_path: Path) -> None:
    """Training has ended, so the resumed run writes no checkpoint."""
    recipe = load(toy, ["training.stages.0.end.updates=1"])
    train_module.train(recipe, tmp_path, "cpu", quiet=True)
    links = [tmp_path / "checkpoints" / name for name in ("best", "last")]
    for link in links:
        link.unlink()
    train_module.train(recipe, tmp_path, "cpu", quiet=True)
    assert [str(link.readlink()) for link in links] == 2 * [runs.checkpoint_name(1)]


def test_the_link_to_the_best_checkpoint_moves_while_it_is_loaded(
    whole: tuple[Recipe, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, run = whole
    copy = tmp_path / "run"
    subprocess.run(["cp", "-a", run, copy], check=True)
    best = (copy / "checkpoints" / "best").resolve()
    other = next(folder for folder in runs.checkpoints(copy) if folder != best)
    expected = weights_module.read_tensors(best, runs.MODEL)
    checksum = weights_module.checksum

    def slow(path: Path) -> str:
        checkpoint.link(copy, "best", other)
        return checksum(path)

    monkeypatch.setattr(weights_module, "checksum", slow)
    loaded = system.load_model(copy, "cpu")
    assert loaded.checkpoint == best
    checkpoint.link(copy, "best", best)
    started = build(recipe, len(loaded.pipeline.source_vocab), len(loaded.pipeline.target_vocab))
    start_from(started, *start_checkpoint(copy), loaded.pipeline)
    for model in (loaded.model, started):
        assert all(torch.equal(value, expected[key]) for key, value in model.named_parameters())


def test_a_validation_is_repeated_after_a_signal(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Validator.validate_part

    def signalled(self: Validator, *arguments: Any) -> PartialResults:
        os.kill(os.getpid(), signal.SIGTERM)
        return plain(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Validator, "validate_part", signalled)
        with pytest.raises(Interrupted, match="after update 4"):
            train_module.train(load(toy), tmp_path / "a", "cpu", quiet=True)
    assert records(tmp_path / "a", "valid") == []
    train_module.train(load(toy), tmp_path / "a", "cpu", quiet=True)
    train_module.train(load(toy), tmp_path / "b", "cpu", quiet=True)
    assert records(tmp_path / "a", "valid") == records(tmp_path / "b", "valid") and files(
        tmp_path / "a", 8
    ) == files(tmp_path / "b", 8)
    assert [p.name for p in runs.checkpoints(tmp_path / "a")] == [
        p.name for p in runs.checkpoints(tmp_path / "b")
    ]


def test_a_stage_may_drop_out_at_another_rate(toy: Path, tmp_path: Path) -> None:
    """The dropout of a stage replaces all rates that are not 0, including that of attention.

    The next stage has the rates of the model, whether the run was resumed or not.
    """
    stages = [
        "{optimizer: adam, schedule: {kind: constant, rate: 0.001}, batch: {size: 400}, "
        "dropout: 0.6, end: {updates: 2}}",
        "{optimizer: adam, schedule: {kind: constant, rate: 0.001}, batch: {size: 400}, "
        "end: {updates: 2}}",
    ]
    seen: list[set[float]] = []
    overrides = [
        f"training.stages=[{', '.join(stages)}]",
        "model.attention_dropout=0.3",
        "training.validation.every_updates=1",
    ]

    class Watched(Validator):
        def validate_part(self, model: Any, *arguments: Any) -> PartialResults:
            seen.append({module.rate for module in model.modules() if isinstance(module, Dropout)})
            return super().validate_part(model, *arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(train_module, "Validator", Watched)
        train_module.train(load(toy, overrides), tmp_path / "a", "cpu", quiet=True)
        assert seen == [{0.6, 0.0}, {0.6, 0.0}, {0.1, 0.3, 0.0}, {0.1, 0.3, 0.0}]
        seen.clear()
        last = runs.checkpoints(tmp_path / "a")[2]
        checkpoint.prune(tmp_path / "a", runs.checkpoints(tmp_path / "a")[:3])
        checkpoint.link(tmp_path / "a", "last", last)
        train_module.train(load(toy, overrides), tmp_path / "a", "cpu", quiet=True)
        assert seen == [{0.1, 0.3, 0.0}]


def test_a_stage_ends_after_its_time(toy: Path, tmp_path: Path) -> None:
    overrides = [
        "training.stages.0.end={hours: 0.0002}",
        "training.validation.every_updates=1000000",
    ]
    begun = time.monotonic()
    train_module.train(load(toy, overrides), tmp_path / "a", "cpu", quiet=True)
    assert time.monotonic() - begun > 0.72
    state = read_state(runs.checkpoints(tmp_path / "a")[-1])["progress"]
    assert state["seconds"] >= 0.72
    train_module.train(load(toy, overrides), tmp_path / "a", "cpu", quiet=True)
    assert (
        read_state(runs.checkpoints(tmp_path / "a")[-1])["progress"]["update"] == state["update"]
    ), "nothing to do"


def test_the_duration_of_a_validation_is_in_its_checkpoint(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Validator):
        def validate_part(self, *arguments: Any, **options: Any) -> PartialResults:
            time.sleep(0.5)
            return super().validate_part(*arguments, **options)

    monkeypatch.setattr(train_module, "Validator", Slow)
    train_module.train(
        load(toy, ["training.stages.0.end.updates=1"]), tmp_path / "a", "cpu", quiet=True
    )
    [folder] = runs.checkpoints(tmp_path / "a")
    assert read_state(folder)["progress"]["seconds"] >= 0.5


def test_the_speed_of_updates_does_not_include_checkpoints(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = checkpoint.save
    saves = 0

    def save_slowly(*arguments: Any) -> None:
        nonlocal saves
        saves += 1
        save(*arguments)

    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + 1000 * saves)
    monkeypatch.setattr(reporter, "time", clock)
    monkeypatch.setattr(checkpoint, "save", save_slowly)
    overrides = ["save_every=2", "log_every=2", "stages.0.end.updates=4"]
    train_module.train(
        load(toy, [f"training.{setting}" for setting in overrides]),
        tmp_path / "a",
        "cpu",
        quiet=True,
    )
    lines = map(json.loads, (tmp_path / "a" / "metrics.jsonl").read_text().splitlines())
    last = next(line for line in lines if line["update"] == 4 and line["kind"] == "train")
    assert saves == 2 and last["tokens"] / last["tokens_per_second"] < 500


def test_two_averages_of_one_name_are_written_one_after_the_other(
    tmp_path: Path,
) -> None:
    weights = {"weight": torch.ones(2)}
    for update in (1, 2):
        checkpoint.save(tmp_path / runs.checkpoint_name(update), weights, {}, {})
    folders = [tmp_path / runs.checkpoint_name(update) for update in (1, 2)]
    other = Thread(target=average, args=(folders, tmp_path / "average"))
    with locked(tmp_path):
        other.start()
        other.join(0.3)
        assert other.is_alive() and not (tmp_path / "average").exists()
    other.join()
    assert read_state(tmp_path / "average")["averaged"] == [folder.name for folder in folders]


def test_the_log_names_code_batches_and_data_and_the_state_of_training(
    toy: Path, tmp_path: Path
) -> None:
    train_module.train(
        load(toy, ["training.stages.0.batch.accumulate=2"]), tmp_path / "a", "cpu", quiet=True
    )
    log_text = (tmp_path / "a" / "log.txt").read_text()
    fingerprint = read_state(runs.checkpoints(tmp_path / "a")[-1])["data"]
    assert (
        "batches of 400 target tokens x 2; seed 1" in log_text
        and f"data {fingerprint[:12]}" in log_text
    )
    if found := revision():
        assert f"fusetk {fusetk.__version__} ({found})" in log_text
    [line, *_] = [line for line in log_text.splitlines() if "  train  " in line]
    for part in ("epoch ", "update 1", "loss ", "ppl ", "tokens/s", "gradient norm ", "lr ", " MB"):
        assert part in line
    record = json.loads((tmp_path / "a" / "metrics.jsonl").read_text().splitlines()[0])
    assert 2**25 < record["memory"] < 2**40
    assert f"{record['pairs_per_update']:.1f} pairs per update" in line
    assert 0 <= record["padding"] < 1 and f"padding {record['padding']:.1%}" in line
    assert record["device"].startswith("CPU, ") and record["tokens"] >= record["pairs_per_update"]


def test_validation_counts_all_references(toy: Path, tmp_path: Path) -> None:
    """BLEU against several references is that of ``fusetk score`` with all of them."""
    recipe = load(toy, ["training.validation.bleu=true"])
    source = Path(recipe.data.folder)
    folder = tmp_path / "data"
    shutil.copytree(source, folder)
    first = (folder / f"valid.{recipe.data.target}.txt").read_text().splitlines()
    second = [" ".join(reversed(line.split())) for line in first]
    (folder / f"valid.{recipe.data.target}1.txt").write_text("".join(f"{x}\n" for x in second))
    pipeline = Pipeline.load(folder / "text")
    bleu = {}
    for place in (source, folder):
        validator = Validator(recipe.training.validation, recipe.decoding, place, pipeline)
        part = PartialResults(LossSums(1.0, 1.0, 2), dict(enumerate(second)))
        bleu[place] = validator.combine([part])["bleu"]
    assert bleu[folder] == pytest.approx(100) and bleu[source] < 100


def test_the_largest_batch_of_a_validation_has_all_pairs(toy: Path) -> None:
    key = "training.validation.tokens"
    recipe = load(toy, [f"{key}={MOST_IN_BATCH}"])
    folder = Path(recipe.data.folder)
    pipeline = Pipeline.load(folder / "text")
    validator = Validator(recipe.training.validation, recipe.decoding, folder, pipeline)
    assert [len(batch) for batch in validator.batches] == [len(validator.corpus)]
    with pytest.raises(ConfigError, match=key):
        load(toy, [f"{key}={MOST_IN_BATCH + 1}"])


def test_sampled_translations_do_not_depend_on_the_number_of_processes(toy: Path) -> None:
    recipe = load(toy, ["training.validation.bleu=true", "decoding.sample=true"])
    folder = Path(recipe.data.folder)
    pipeline = Pipeline.load(folder / "text")
    model = build(recipe, len(pipeline.source_vocab), len(pipeline.target_vocab))
    validator = Validator(recipe.training.validation, recipe.decoding, folder, pipeline)
    expected = validator.validate_part(model, "fp32").translations
    parts = [validator.validate_part(model, "fp32", World(rank, 2)) for rank in (0, 1)]
    assert expected == parts[0].translations | parts[1].translations
    assert len(set(expected.values())) > 1


def test_accuracy_on_training_text(toy: Path, tmp_path: Path) -> None:
    """All training pairs without dropout give the loss of these pairs as validation text."""
    settings = [
        "training.validation.train_pairs=1000000000000000",
        "training.validation.train_dropout=false",
    ]
    recipe = load(toy, settings)
    folder = Path(recipe.data.folder)
    pipeline = Pipeline.load(folder / "text")
    model = build(recipe, len(pipeline.source_vocab), len(pipeline.target_vocab))

    def validate(config: ValidationConfig, corpus: Corpus | None = None) -> dict[str, float]:
        validator = Validator(config, recipe.decoding, folder, pipeline)
        if corpus:
            validator.corpus = corpus
            validator.batches = validator.train_batches
        result = validator.combine([validator.validate_part(model, "fp32")])
        assert model.training
        return result

    config = recipe.training.validation
    results = validate(config)
    plain = validate(config, Corpus.open(folder, "train"))
    assert results["train_loss"] == pytest.approx(plain["loss"])
    assert results["train_accuracy"] == pytest.approx(plain["accuracy"])
    assert results["loss"] != results["train_loss"]
    dropped = validate(config.model_copy(update={"train_dropout": True}))
    assert dropped["train_loss"] != results["train_loss"] and dropped["loss"] == results["loss"]
    assert dropped == validate(config.model_copy(update={"train_dropout": True}))
    assert "train_loss" not in validate(ValidationConfig())
