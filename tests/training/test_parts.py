"""The parts of the training loop: split batches, gradient checks, checkpoints and progress."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fusetk import runs, system
from fusetk.data.corpus import Corpus
from fusetk.errors import CheckpointError, FusetkError
from fusetk.processes import ALONE, World
from fusetk.recipe import load
from fusetk.training import checkpoint
from fusetk.training import gradients as gradients_module
from fusetk.training.average import average, choose
from fusetk.training.checkpoints import Checkpoints
from fusetk.training.config import EndConfig
from fusetk.training.gradient_check import GradientCheck
from fusetk.training.gradients import BatchSplitter, GradientComputer
from fusetk.training.parallel import local_batches
from fusetk.training.progress import (
    Progress,
    StageClock,
    stage_ended,
    update_schedule,
    validation_due,
)
from fusetk.training.schedule import Constant, ConstantConfig, Plateau, PlateauConfig
from fusetk.training.stages import Stages
from fusetk.training.validation_config import ValidationConfig, ranking_key
from fusetk.weights import read_state, read_tensors


class RecordingLog:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


def corpus_of(lengths: list[int]) -> Any:
    """A corpus whose sentences have these lengths."""
    side = SimpleNamespace(lengths=np.array(lengths))
    return SimpleNamespace(source=side, target=side)


def test_a_batch_is_split_until_it_is_below_the_limit() -> None:
    corpus = corpus_of([10] * 8)
    messages: list[str] = []
    splitter = BatchSplitter(False, messages.append)
    pairs = np.arange(8)
    assert len(splitter.split(corpus, pairs)) == 1, "nothing has failed yet"
    error = RuntimeError("out of memory\nmore")
    parts = splitter.split_after_failure(corpus, [pairs], pairs, error, 1)
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    parts = splitter.split_after_failure(corpus, parts, parts[1], error, 1)
    assert [len(part) for part in parts] == [2, 2, 2, 2]
    assert np.concatenate(splitter.split(corpus, pairs)).tolist() == list(range(8))
    assert len(messages) == 1 and "80 target tokens" in messages[0] and "more" not in messages[0]


def test_a_batch_that_cannot_be_split_is_an_error() -> None:
    corpus, error = corpus_of([10, 3]), RuntimeError("x")
    batches = [np.array([0]), np.array([1])]
    with pytest.raises(FusetkError, match="training pair 2 "):
        BatchSplitter(False, print).split_after_failure(corpus, batches, batches[1], error, 1)
    both = np.array([0, 1])
    with pytest.raises(FusetkError, match=r"with training\.shard it cannot be split"):
        BatchSplitter(True, print).split_after_failure(corpus, [both], both, error, 1)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_skipped_updates_are_counted_and_end_a_run(precision: str) -> None:
    log: Any = RecordingLog()
    check = GradientCheck(precision, 2, Path("run"), log)
    # The smallest fp16 scale cannot be lowered.
    progress = Progress(scale=2.0**-4, update=7)
    batches = [np.arange(3)]
    check.check(progress, math.nan, batches)
    check.check(progress, 1.0, batches)
    assert (progress.skipped, progress.skipped_ever) == (0, 1)
    check.check(progress, math.inf, batches)
    progress.update += 1
    with pytest.raises(FusetkError, match="2 updates in a row after update 7 had no finite"):
        check.check(progress, math.inf, batches)
    assert "prepared training pairs 1, 2, 3; " in log.lines[0]


def test_an_fp16_overflow_lowers_the_scale_and_is_not_a_failure() -> None:
    log: Any = RecordingLog()
    check = GradientCheck("fp16", 1, Path("run"), log)
    progress = Progress(scale=8.0)
    check.check(progress, math.inf, [np.arange(3)])
    assert (check.scale(progress), progress.skipped) == (4.0, 0)
    assert "loss scale 8 -> 4" in log.lines[0]


def test_a_failed_attempt_changes_no_buffer(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load(toy)
    corpus = Corpus.open(Path(recipe.data.folder), "train")
    sizes = [int(side.ids.max()) + 1 for side in (corpus.source, corpus.target)]
    model = system.build(recipe, *sizes)
    count = torch.zeros(())
    model.register_buffer("count", count)
    before: list[float] = []

    def accumulate(model: Any, batches: Any, *arguments: Any) -> list[Any]:
        before.append(float(count))
        count.add_(1)
        parts = list(batches)
        if len(before) == 1:
            raise RuntimeError("out of memory")
        return parts

    monkeypatch.setattr(gradients_module, "accumulate_gradients", accumulate)
    computer = GradientComputer(recipe.training, model, ALONE, BatchSplitter(False, print))
    parts = computer.compute(corpus, [np.arange(8)], 1, 0, 1.0)
    assert len(parts) == 2 and before == [0, 0] and count == 1


def test_the_processes_share_the_batches_of_an_update() -> None:
    """Each pair is in one part, and all processes have the same number of batches."""
    batches = [np.arange(7), np.arange(7, 10), np.arange(10, 11)]
    for size in (1, 2, 3, 4):
        shares = [local_batches(World(rank, size), batches) for rank in range(size)]
        assert len({len(share) for share in shares}) == 1
        together = np.sort(np.concatenate([pairs for share in shares for pairs in share]))
        assert together.tolist() == list(range(11))
    assert [pairs.tolist() for pairs in local_batches(World(1, 3), batches)] == [[7, 8, 9]]


def test_dropout_draws_new_numbers_at_each_update(toy: Path) -> None:
    """The seed and the number of the update determine them."""
    recipe = load(toy)
    corpus = Corpus.open(Path(recipe.data.folder), "train")
    sizes = [int(side.max()) + 1 for side in (corpus.source.ids, corpus.target.ids)]
    model = system.build(recipe, *sizes).train()
    gradients = GradientComputer(recipe.training, model, ALONE, BatchSplitter(False, print))
    losses = [
        float(gradients.compute(corpus, [np.arange(8)], 1, update, 1.0)[0].smoothed)
        for update in (0, 1, 0)
    ]
    assert losses[0] == losses[2] != losses[1]


@pytest.mark.parametrize(
    ("metric", "better", "worse"),
    [
        ("loss", 1.0, 2.0),
        ("ppl", 1.0, 2.0),
        ("accuracy", 0.2, 0.1),
        ("bleu", 20.0, 10.0),
        ("chrf++", 20.0, 10.0),
        ("ter", 10.0, 20.0),
    ],
)
def test_a_better_validation_has_a_lower_key(metric: str, better: float, worse: float) -> None:
    best = ranking_key(metric, {"loss": 6.0, metric: better})
    assert best < ranking_key(metric, {"loss": 5.0, metric: worse})
    assert best < ranking_key(metric, {"loss": 5.0, metric: math.nan})
    if metric != "loss":
        assert best > ranking_key(metric, {"loss": 5.0, metric: better}), (
            "the loss decides between equals"
        )


def checkpoints_of(toy: Path, run: Path, settings: list[str]) -> Checkpoints:
    """The checkpoints of a small model, with a changed config."""
    (run / "checkpoints").mkdir()
    model: Any = torch.nn.Linear(2, 2)
    recipe = load(toy, settings)
    return Checkpoints(run, recipe.training, model, None, "fingerprint", recipe.model, ALONE)


def test_the_last_and_the_best_checkpoints_are_kept(toy: Path, tmp_path: Path) -> None:
    """A checkpoint of an interruption is kept only while it is the last."""
    saved, progress = (
        checkpoints_of(toy, tmp_path, ["training.keep_last=2", "training.keep_best=1"]),
        Progress(),
    )
    for update, loss in enumerate([3.0, 1.0, 2.0, 2.5, None, 4.0], 1):
        progress.update = update
        if loss is not None:
            progress.add_validation("loss", {"loss": loss})
        saved.save(progress, None, {"loss": loss} if loss else None, interrupted=loss is None)
        assert (tmp_path / "checkpoints" / "last").resolve() == saved.path(update)
        if loss is None:
            assert runs.checkpoints(tmp_path)[-1].name == runs.checkpoint_name(update)
    names = [path.name for path in runs.checkpoints(tmp_path)]
    assert names == [runs.checkpoint_name(update) for update in (2, 4, 6)]
    assert (tmp_path / "checkpoints" / "best").resolve().name == runs.checkpoint_name(2)
    assert read_state(saved.path(6))["valid"] == {"loss": 4.0}
    assert [path.name for path in choose(tmp_path, last=2)] == names[1:], "5 is not one of them"
    with pytest.raises(CheckpointError, match="has only 2 of the 3 requested last checkpoints"):
        choose(tmp_path, last=3)  # 2 is the best one, and 3 was deleted


def test_a_checkpoint_of_an_interruption_is_kept_besides_the_last_ones(
    toy: Path, tmp_path: Path
) -> None:
    saved, progress = checkpoints_of(toy, tmp_path, ["training.keep_last=2"]), Progress()
    for update in (1, 2, 3, 4):
        progress.update = update
        saved.save(progress, None, interrupted=update == 4)
        saved.repair(saved.path(update), progress)  # as a resumed training does
    assert runs.checkpoints(tmp_path) == [saved.path(update) for update in (2, 3, 4)]
    assert choose(tmp_path, last=2) == [saved.path(2), saved.path(3)]
    with pytest.raises(CheckpointError, match=r"only 2 .*; a checkpoint of an interruption does"):
        choose(tmp_path, last=3)
    progress.update = 5
    saved.save(progress, None)
    assert runs.checkpoints(tmp_path) == [saved.path(3), saved.path(5)]


def test_a_validation_without_a_number_is_not_among_the_best(toy: Path, tmp_path: Path) -> None:
    saved, progress = (
        checkpoints_of(toy, tmp_path, ["training.keep_last=1", "training.keep_best=2"]),
        Progress(),
    )
    for update in (1, 2, 3):
        progress.update = update
        progress.add_validation("loss", {"loss": math.nan})
        saved.save(progress, None, {"loss": math.nan})
    assert runs.checkpoints(tmp_path) == [saved.path(3)]
    assert not (tmp_path / "checkpoints" / "best").exists()


def test_a_checkpoint_that_is_written_twice_is_one_of_the_last(toy: Path, tmp_path: Path) -> None:
    saved, progress = checkpoints_of(toy, tmp_path, ["training.keep_last=3"]), Progress()
    for update in (1, 2, 2, 3):
        progress.update = update
        saved.save(progress, None)
    assert choose(tmp_path, last=3) == runs.checkpoints(tmp_path)


@pytest.mark.parametrize(
    ("options", "due"),
    [
        ({}, [4, 8, 12]),
        ({"every_epochs": 2}, [8]),
        ({"every_updates": 3}, [3, 6, 9, 12]),
        ({"every_updates": 5, "every_epochs": 3}, [5, 10, 12]),
    ],
)
def test_validations_are_due_after_epochs_or_updates(
    options: dict[str, int], due: list[int]
) -> None:
    config = ValidationConfig(**options)
    progress = Progress()
    updates = []
    for update in range(1, 13):
        progress.advance(updates_in_epoch=4)
        if validation_due(config, progress):
            updates.append(update)
    assert updates == due


def test_an_average_may_have_infinite_values_that_never_change(tmp_path: Path) -> None:
    names = [runs.checkpoint_name(update) for update in (1, 2)]
    folders = [tmp_path / runs.CHECKPOINTS / name for name in [*names, "mean"]]
    folders[0].parent.mkdir()
    for number, folder in enumerate(folders[:2]):
        checkpoint.save(folder, {"bias": torch.tensor([-math.inf, number])}, {}, {})
    average(folders[:2], folders[2])
    assert read_tensors(folders[2], runs.MODEL)["bias"].tolist() == [-math.inf, 0.5]


def test_a_stage_with_a_limit_of_hours_has_the_duration_of_the_first_process() -> None:
    world: Any = SimpleNamespace(first=False, all_sum=lambda values: [values[0] + 7200.0])
    clock = StageClock(world)
    progress = Progress(seconds=5.0)
    clock.add_to(progress, EndConfig(updates=3))
    assert 5 <= progress.seconds < 60
    clock.add_to(progress, EndConfig(hours=1))
    assert progress.seconds == 7200


def test_a_change_of_the_rate_is_reported() -> None:
    schedule = Plateau(PlateauConfig(rate=0.5, factor=0.5), 8)
    progress = Progress(stage_update=4)
    messages = [update_schedule(progress, schedule, "bleu", value) for value in (3.0, 2.0)]
    assert messages == [None, "learning rate 5.000e-01 -> 2.500e-01"]
    assert schedule.rate(5, progress.schedule_state) == 0.25


def test_stages_know_their_updates_and_ends(toy: Path) -> None:
    recipe = load(toy, ["training.stages.0.end={epochs: 2, updates: 9}"])
    model: Any = torch.nn.Linear(2, 2)
    corpus = Corpus.open(Path(recipe.data.folder), "train")
    stages = Stages(recipe.training, model, 8, corpus)
    progress = Progress()
    assert stages.is_last(progress)
    updates = stages.updates(progress, stages.corpus)
    pairs = np.concatenate([pairs for batches in updates for pairs in batches])
    assert sorted(pairs) == list(range(len(corpus)))
    assert stages.updates_left(progress, 4) == 8 and stages.updates_left(progress, 50) == 9
    assert not stages.ended(progress)
    second_epoch = Progress(update=5, stage_update=5, stage_epoch=1, position=1)
    assert stages.updates_left(second_epoch, 3) == 2  # the first epoch had four updates
    for _ in range(8):
        progress.advance(4)
    assert stages.ended(progress) and stages.updates_left(progress, 4) == 0


def test_the_state_of_a_checkpoint_is_read() -> None:
    progress = Progress(update=3, ranking=[(2, 0.5, 0.7)], schedule_state={"cuts": 1})
    state = json.loads(json.dumps(progress.to_state()))
    assert Progress.from_state(state) == progress
    for wrong in (None, {"no_such_field": 1}):
        with pytest.raises(TypeError):
            Progress.from_state(wrong)  # type: ignore[arg-type]


def test_each_stage_begins_with_a_complete_epoch() -> None:
    """Its shuffle is not that of the epoch in which the stage before ended."""
    config = ValidationConfig(every_epochs=2)
    progress = Progress()
    due = []
    for updates in (2, 2, 2, 28):
        if progress.update:
            progress.start_stage()
        for _ in range(updates):
            progress.advance(updates_in_epoch=7)
            if validation_due(config, progress):
                due.append(progress.update)
        assert progress.epochs == pytest.approx(progress.update / 7)
    assert progress.epoch == 3 + 4, "the number of the shuffle"
    assert due == [6 + 14, 6 + 28]


def test_a_stage_does_not_inherit_the_limits_of_the_stage_before() -> None:
    """Its patience and its time start with its first update."""
    schedule = Constant(ConstantConfig(rate=1.0), 8)
    end = EndConfig(patience=2, hours=1)
    progress = Progress(update=5, stage_update=5, stalled=2, seconds=3600.0)
    assert stage_ended(end, progress, schedule)
    progress.start_stage()
    assert not stage_ended(end, progress, schedule)
    progress.stalled = 1
    progress.seconds = 3599.0
    assert not stage_ended(end, progress, schedule)


def test_the_progress_of_an_earlier_version_is_read() -> None:
    """It lacks the data of earlier stages. The number of epochs is continued."""
    progress = Progress(update=11, stage=1, stage_update=9, stage_epoch=1, epoch=2, position=2)
    progress.epochs = 2 + 2 / 7
    state = progress.to_state()
    del state["epochs_before"]
    resumed = Progress.from_state(state)
    resumed.advance(updates_in_epoch=7)
    assert resumed.epochs == pytest.approx(2 + 3 / 7)
