"""Training with a rate that decays to a floor: it stays there, and resuming is exact."""

from pathlib import Path

import pytest

from fusetk import runs
from fusetk import train as train_module
from fusetk.errors import ConfigError
from fusetk.recipe import load
from tests.helpers.metrics import records

STAGE = "training.stages.0={optimizer: {kind: adafactor, beta1: 0.9}, batch: {size: 400}, end: %s, "
STAGE += "schedule: {kind: %s, peak: 0.05, warmup: 2, floor: 0.01, updates: 6}}"


def train(toy: Path, run: Path, kind: str, end: str) -> dict[int, float]:
    """Train, and return the learning rate of each update."""
    train_module.train(
        load(toy, [STAGE % (end, kind), "training.log_every=1"]), run, "cpu", quiet=True
    )
    return {record["update"]: record["lr"] for record in records(run, "train")}


def state(run: Path) -> tuple[bytes, ...]:
    return tuple(
        (run / "checkpoints" / "last" / name).read_bytes() for name in (runs.MODEL, runs.TRAINING)
    )


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_the_rate_stays_at_the_floor_and_resuming_is_exact(
    toy: Path, tmp_path: Path, kind: str
) -> None:
    rates = train(toy, tmp_path / "whole", kind, "{updates: 9}")
    assert [rates[t] for t in (2, 4, 6, 7, 9)] == pytest.approx([0.05, 0.03, 0.01, 0.01, 0.01])
    for updates in (3, 7):
        train(toy, tmp_path / str(updates), kind, f"{{updates: {updates}}}")
        assert train(toy, tmp_path / str(updates), kind, "{updates: 9}") == rates
        assert state(tmp_path / str(updates)) == state(tmp_path / "whole")


def test_updates_after_the_end_of_a_schedule_are_a_warning(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def warnings(updates: int, floor: str = "0") -> int:
        stage = STAGE.replace("{kind: adafactor, beta1: 0.9}", "adam").replace("0.01", floor)
        recipe = load(toy, [stage % (f"{{updates: {updates}}}", "linear")])
        train_module.train(recipe, tmp_path / floor, "cpu", quiet=True)
        return capsys.readouterr().err.count("warning: update 8 and one before it")

    assert warnings(6) == 0
    weights = state(tmp_path / "0")[0]
    assert warnings(10) == 1, "the run is resumed"
    assert state(tmp_path / "0")[0] == weights
    assert warnings(8, "0.01") == 0


def test_a_stage_ends_when_the_rate_falls_below_the_ends(toy: Path, tmp_path: Path) -> None:
    assert (
        max(train(toy, tmp_path, "linear", "{rate: 0.025}")) == 4
    )  # 0.05, 0.04, 0.03; the next is 0.02


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (
            "{kind: linear, peak: 1e-3, updates: 9000, floor: 1e-4}",
            r"end\.rate 0\.0001 is never reached: .* 0\.0001; give a lower schedule\.floor",
        ),
        (
            "{kind: cosine, peak: 1e-3, updates: 9000, floor: 2e-4}",
            r"end\.rate 0\.0001 is never reached: .* 0\.0002; give a lower schedule\.floor",
        ),
        (
            "{kind: cosine, peak: 1e-5, updates: 9000}",
            r"1e-05, is below end\.rate 0\.0001",
        ),
        (
            "{kind: plateau, rate: 1, floor: 1e-4}",
            r"end\.rate 0\.0001 is never reached: .* 0\.0001; give a lower schedule\.floor",
        ),
    ],
)
def test_an_end_that_is_never_reached_is_refused(toy: Path, schedule: str, said: str) -> None:
    overrides = [f"training.stages=[{{optimizer: sgd, schedule: {schedule}, end: {{rate: 1e-4}}}}]"]
    with pytest.raises(ConfigError, match=said):
        load(toy, overrides)


@pytest.mark.parametrize(
    "schedule",
    ["{kind: linear, peak: 1e-3, updates: 9000}", "{kind: plateau, rate: 1, floor: 9e-5}"],
)
def test_an_end_above_the_floor_is_not(toy: Path, schedule: str) -> None:
    load(toy, [f"training.stages=[{{optimizer: sgd, schedule: {schedule}, end: {{rate: 1e-4}}}}]"])
