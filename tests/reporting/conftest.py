"""Folders of results."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fusetk.cli.main import main
from tests.helpers.results import BAD, REFERENCES, WORSE, make_prepared, make_recipes, make_run

RATE = "training.stages.0.schedule.peak"
LOSSES = {"plain": [3.0, 2.0, 2.5], "fused": [2.0, 1.5, 1.75, 1.9], "other": [3.5, 3.25, 3.0]}


@pytest.fixture(scope="session")
def saved(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of three systems with seeds 1 and 2, and two runs of ``fused`` with other configs.

    ``other`` is compared with ``fused``.
    """
    folder = tmp_path_factory.mktemp("saved")
    rows: dict[str, dict[str, Any]] = {
        "plain": {},
        "fused": {"model": {"attention_dropout": 0.1}},
        "other": {"model": {"attention_dropout": 0.2}, "paper": {"compared_with": "fused"}},
    }
    recipes = make_recipes(folder / "recipes", toy, rows)
    prepared = make_prepared(folder / "prepared", toy)
    texts = {"plain": (BAD, WORSE), "fused": (REFERENCES, REFERENCES), "other": (BAD, BAD)}
    for name, translations in texts.items():
        for seed, text in enumerate(translations, 1):
            run = folder / "runs" / f"{name}{seed}"
            both = {"best": text, "average-2": REFERENCES}
            recipe = recipes / f"{name}.yaml"
            make_run(run, recipe, prepared, seed, both, losses=LOSSES[name])
    for rate in (0.02, 0.03):
        run = folder / "runs" / f"fused{rate}"
        make_run(run, recipes / "fused.yaml", prepared, 1, {"best": BAD}, [f"{RATE}={rate}"])
    words = ["report", recipes, "--runs", folder / "runs", "--save", folder / "results"]
    result = CliRunner().invoke(main, list(map(str, words)))
    assert "8 results written" in result.stderr
    for name in ("runs", "recipes", "prepared"):
        shutil.rmtree(folder / name)
    return folder / "results"


@pytest.fixture
def results(saved: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(saved, tmp_path / "results"))
