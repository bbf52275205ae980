"""Training with schedule plateau: resuming is exact, and end.rate ends a stage."""

import itertools
import shutil
from pathlib import Path

import pytest

from fusetk import runs
from fusetk import train as train_module
from fusetk.data.prepare import prepare
from fusetk.errors import ConfigError, DataError
from fusetk.recipe import load
from fusetk.training import checkpoint
from fusetk.training.validation import Validator
from fusetk.weights import read_state
from tests.helpers.metrics import records

# A validation that is not at least 3 % better counts as worse.
STAGE = "training.stages.0={optimizer: {kind: nag, momentum: 0.9}, "
STAGE += "schedule: {kind: plateau, rate: 0.25, threshold: 0.03%s}, clip: 0.1, "
STAGE += "batch: {size: 400}, end: %s}"
MORE = ["training.log_every=1", "training.keep_last=99"]


def train(
    toy: Path, run: Path, end: str, options: str = "", *overrides: str
) -> list[tuple[int, float]]:
    """Train, and return each update with its learning rate."""
    train_module.train(
        load(toy, [STAGE % (options, end), *MORE, *overrides]), run, "cpu", quiet=True
    )
    return [(record["update"], record["lr"]) for record in records(run, "train")]


def test_equal_values_are_ranked_by_loss(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([5.0, 4.0, 3.0, 3.5, 2.0, 1.0])
    monkeypatch.setattr(
        Validator,
        "combine",
        lambda self, parts: {"loss": next(losses), "ppl": 1.0, "accuracy": 0.0, "bleu": 0.0},
    )
    validation = "training.validation={every_updates: 1, metric: bleu}"
    rates = train(toy, tmp_path / "run", "{updates: 6}", "", validation)
    assert [rate for _, rate in rates] == [0.25, 0.25, 0.25, 0.25, 0.025, 0.025]


def state(run: Path, update: int) -> tuple[bytes, bytes, object]:
    folder = run / "checkpoints" / runs.checkpoint_name(update)
    tensors = [(folder / name).read_bytes() for name in (runs.MODEL, runs.TRAINING)]
    return tensors[0], tensors[1], read_state(folder)["progress"]["schedule_state"]


@pytest.mark.parametrize("options", ["", ", rule: after-first-rise"])
def test_resuming_before_or_after_a_cut_is_exact(toy: Path, tmp_path: Path, options: str) -> None:
    whole = tmp_path / "whole"
    rates = train(toy, whole, "{updates: 48}", options)
    cuts = [update for (_, before), (update, after) in itertools.pairwise(rates) if after != before]
    assert cuts and cuts[0] > 4 and cuts[-1] < 48, "the rate is never cut"
    for before_it in (True, False):
        remaining = [
            p
            for p in runs.checkpoints(whole)
            if before_it is (int(p.name.removeprefix("update-")) < cuts[0] - 1)
        ]
        copy = tmp_path / f"copy{before_it}"
        shutil.copytree(whole, copy, symlinks=True)
        checkpoint.link(copy, "last", remaining[-1] if before_it else remaining[0])
        assert train(toy, copy, "{updates: 48}", options) == rates
        assert state(copy, 48) == state(whole, 48)


def test_a_stage_that_is_extended_is_as_a_longer_stage(toy: Path, tmp_path: Path) -> None:
    """The validation at the end of the shorter stage does not change the rate."""
    rates = train(toy, tmp_path / "whole", "{updates: 44}")
    assert len({rate for _, rate in rates}) > 1
    train(toy, tmp_path / "halves", "{updates: 22}")
    assert train(toy, tmp_path / "halves", "{updates: 44}") == rates
    assert state(tmp_path / "halves", 44) == state(tmp_path / "whole", 44)


def test_a_stage_ends_when_the_rate_falls_below_the_floor(toy: Path, tmp_path: Path) -> None:
    steep = ", factor: 0.1, rule: after-first-rise"
    every = "training.validation={every_epochs: 1}"
    rates = train(toy, tmp_path, "{rate: 1e-4}", steep, every)
    assert sorted({round(rate, 12) for _, rate in rates}, reverse=True) == [
        0.25,
        0.025,
        0.0025,
        0.00025,
    ]
    last = runs.checkpoints(tmp_path)[-1]
    assert read_state(last)["progress"]["position"] == 0
    assert read_state(last)["progress"]["schedule_state"]["rate"] == pytest.approx(2.5e-5)
    train(toy, tmp_path, "{rate: 1e-4}", steep, every)
    assert "nothing to do: training ended" in (tmp_path / "log.txt").read_text()


def test_a_warm_up_below_the_floor_does_not_end_a_stage(toy: Path, tmp_path: Path) -> None:
    overrides = [
        "training.stages.0.schedule={kind: inverse-sqrt, peak: 1e-2, warmup: 4}",
        "training.stages.0.end={rate: 7e-3}",
    ]
    train_module.train(load(toy, overrides), tmp_path, "cpu", quiet=True)
    assert (
        read_state(tmp_path / "checkpoints" / "last")["progress"]["update"] == 8
    )  # 1e-2 sqrt(4/9) < 7e-3 <= 1e-2 sqrt(4/8)


def test_a_later_stage_starts_with_its_initial_rate(toy: Path, tmp_path: Path) -> None:
    stage = "{optimizer: nag, schedule: {kind: plateau, rate: 0.1, threshold: 0.9}, "
    stage += "batch: {size: 400}, end: {updates: 9}}"
    train_module.train(
        load(toy, [f"training.stages=[{stage}, {stage}]", *MORE]), tmp_path, "cpu", quiet=True
    )
    rates = {record["update"]: record["lr"] for record in records(tmp_path, "train")}
    assert (rates[1], rates[8], rates[9], rates[10]) == pytest.approx((0.1, 0.1, 0.01, 0.1))
    assert "learning rate 1.000e-01 -> 1.000e-02" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize(
    ("schedule", "end", "said"),
    [
        (
            "{kind: constant, rate: 1}",
            "{rate: 0.1}",
            r"end\.rate needs a schedule whose rate falls",
        ),
        (
            "{kind: plateau, rate: 0.01}",
            "{rate: 0.1}",
            r"0\.01, is below end\.rate 0\.1",
        ),
        (
            "{kind: inverse-sqrt, peak: 0.01}",
            "{rate: 0.1}",
            r"0\.01, is below end\.rate 0\.1",
        ),
        (
            "{kind: rnmt-plus, rate: 0.01, replicas: 5, decay_start: 1, decay_end: 2}",
            "{rate: 0.1}",
            r"0\.05, is below end\.rate 0\.1",
        ),
        ("{kind: plateau, rate: 1, factor: 1}", "{rate: 0.1}", "factor"),
        ("{kind: plateau, rate: 1, rule: each}", "{rate: 0.1}", "each-rise"),
        ("{kind: plateau}", "{rate: 0.1}", "rate: must be given"),
        ("{kind: plateau, rate: 1}", "{}", "epochs, updates, patience, rate or hours"),
    ],
)
def test_a_stage_that_never_begins_or_never_ends_is_refused(
    toy: Path, schedule: str, end: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load(toy, [f"training.stages=[{{optimizer: nag, schedule: {schedule}, end: {end}}}]"])


def test_dropout_on_training_pairs_needs_pairs(toy: Path) -> None:
    with pytest.raises(ConfigError, match="train_dropout has no effect without train_pairs"):
        load(toy, ["training.validation.train_dropout=false"])


def test_preparation_without_text_for_validation_is_refused(toy: Path, tmp_path: Path) -> None:
    folder = f"data.folder={tmp_path / 'data'}"
    with pytest.raises(ConfigError, match=r"data\.valid is an empty list"):
        prepare(load(toy, [folder, "data.valid=[]"]).data)
    for language in ("de", "en"):
        (tmp_path / f"none.{language}").touch()
    recipe = load(toy, [folder, f"data.valid=[{tmp_path / 'none'}]"])
    with pytest.raises(DataError, match=r"none\.de is empty; give a file that holds text"):
        prepare(recipe.data)
