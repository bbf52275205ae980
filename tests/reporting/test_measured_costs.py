"""Measured costs in the table of results."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from fusetk.cli.main import main
from fusetk.reporting.measured_costs import (
    NAME,
    MeasuredCosts,
    SystemCost,
    read_costs,
    write_costs,
)
from fusetk.reporting.result_files import read_result
from fusetk.reporting.saved_run import SavedRun
from tests.helpers.results import write_result
from tests.reporting.test_result_tables import as_json, cells, output

PLAIN = SystemCost(training=[100.0, 200.0, 400.0], decoding=[10.0, 10.0], bytes_per_token=2048)
FUSED = SystemCost(training=[50.0, 160.0, 100.0], decoding=[8.0, 9.0], bytes_per_token=4096)


def costs(**systems: SystemCost) -> MeasuredCosts:
    return MeasuredCosts(
        processor="P", device="CPU", settings="3 turns", revision=None, systems=systems
    )


def test_costs_are_read_as_written(tmp_path: Path) -> None:
    assert read_costs(tmp_path) is None
    measured = costs(plain=PLAIN, fused=FUSED)
    path = write_costs(tmp_path, measured)
    assert path == tmp_path / NAME and read_costs(tmp_path) == measured


def test_a_ratio_is_the_median_of_the_turns() -> None:
    measured = costs(plain=PLAIN, fused=FUSED)
    assert measured.ratio("training", "fused", "plain") == 0.5, "0.5, 0.8 and 0.25"
    assert measured.ratio("decoding", "fused", "plain") == pytest.approx(0.85)
    assert measured.ratio("training", "plain", "plain") == 1


def test_the_table_has_measured_costs(results: Path) -> None:
    write_costs(results, costs(plain=PLAIN, fused=FUSED))
    table = cells(results)
    names = ("training speed", "decoding speed", "memory a token", "time to baseline's loss")
    assert [table["plain"][name] for name in names] == ["×1.00", "×1.00", "2.0 KB", "10 s"]
    # The loss is reached after 20 and 10 updates of 100 tokens, at 200 and 100 tokens a second.
    assert [table["fused"][name] for name in names] == ["×0.50", "×0.85", "4.1 KB", "10 s"]
    assert [table["other"][name] for name in names] == ["", "", "", ""], "it was not measured"
    assert table["other"]["peak memory"] == "1 MB", "the trainings have it"
    text = output(results)
    assert "decoding speed: " in text and "3 turns" in text and "on P" in text
    rows = as_json(results)
    assert rows["fused"]["relative_training_speed"] == 0.5
    assert rows["fused"]["bytes_per_token"] == 4096
    assert rows["other"]["relative_decoding_speed"] is None


def test_a_run_that_does_not_reach_the_loss(results: Path) -> None:
    write_costs(results, costs(plain=PLAIN, fused=FUSED))
    path = results / "fused.seed2.json"
    result = read_result(path)
    curve = {**result.valid_curve, "loss": [9.0, 8.0, 7.0, 2.5]}
    write_result(path, result, valid_curve=curve)
    assert cells(results)["fused"]["time to baseline's loss"] == "10 s (1 of 2)"


def test_losses_are_compared_after_equal_times(results: Path) -> None:
    write_costs(results, costs(plain=PLAIN, fused=FUSED))
    curves = {"plain": [4.0, 3.0, 2.5, 2.0], "fused": [3.5, 2.5, 2.0, 1.5]}
    for name, losses in curves.items():
        for path in results.glob(f"{name}.seed?.json"):
            curve = {"update": [1, 2, 3, 4], "epoch": [1.0, 2.0, 3.0, 4.0], "loss": losses}
            write_result(path, read_result(path), valid_curve=curve)
    text = output(results, "--markdown").split("validation loss by time**")[1]
    heads, _, fused, *_ = text.strip().splitlines()
    assert heads == "|  | compared with | config | seeds | 4 |"
    # With half the speed, it ends epoch 2 in the time of four epochs.
    assert fused == "| fused | plain | the recipe's | 1 2 | +0.500 |"


def test_a_loss_between_validations_is_linear_in_the_logarithm_of_the_epochs(results: Path) -> None:
    result = read_result(results / "plain.seed1.json")
    curve = {"update": [1, 2, 3], "epoch": [0.5, 2.0, 8.0], "loss": [5.0, None, 1.0]}
    run = SavedRun("plain", result.model_copy(update={"valid_curve": curve}))
    losses = [run.loss_at(epoch) for epoch in (0.4, 0.5, 1, 2, 4, 8, 9)]
    assert losses[1:-1] == pytest.approx([5.0, 4.0, 3.0, 2.0, 1.0])
    assert losses[0] is losses[-1] is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{", ""),
        ('"processor": "P"', '"processor": 1'),
        ("100.0, 200.0, ", ""),
        ("100.0", "0.0"),
        ('"P"', '"\udcff"'),
    ],
)
def test_damaged_costs_are_an_error(results: Path, old: str, new: str) -> None:
    path = write_costs(results, costs(plain=PLAIN, fused=FUSED))
    text = path.read_text()
    assert old in text
    path.write_bytes(text.replace(old, new, 1).encode("utf-8", "surrogateescape"))
    result = CliRunner().invoke(main, ["report", str(results)])
    assert result.exit_code == 2 and f"{path} is damaged" in result.stderr
    assert "measure again" in result.stderr and result.stderr.count("\n") == 1
