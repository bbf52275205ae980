"""Layer weights in result files, of models that were trained for a few updates."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fusetk import recipe
from fusetk.reporting.layer_weights import layer_weights
from fusetk.train import train
from tests.helpers.results import REFERENCES, SOURCES


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("texts")
    for name, lines in (("test.a.de.txt", SOURCES), ("test.a.en.txt", REFERENCES)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder / "test.a.de.txt", folder / "test.a.en.txt"


def trained(toy: Path, run: Path, *settings: str) -> Path:
    ends = "training.stages.0.end={updates: 4}"
    train(recipe.load(toy, [ends, *settings]), run, "cpu", quiet=True)
    return run


def test_means_of_a_fusion_and_of_connections(
    toy: Path, tmp_path: Path, texts: tuple[Path, Path]
) -> None:
    fuse = "model.decoder={layers: 2, fuse: {kind: attention, hops: 2, attention_hidden: 8}}"
    run = trained(toy, tmp_path / "run", fuse, "model.encoder={layers: 2, connect: linear}")
    [weights] = layer_weights(run, *texts, [])
    assert (weights.checkpoint, weights.text) == ("best", "test.a.de")
    assert weights.sentences == len(SOURCES)
    panels = {panel.name: np.array(panel.matrix) for panel in weights.panels}
    hops = panels["decoder.fuse.hops.mean"]
    assert hops.shape == (3, 2), "a row for each of 3 layers, a column for each hop"
    np.testing.assert_allclose(hops.sum(0), 1, atol=3e-4)
    assert any(name.startswith("encoder.connect") for name in panels)

    assert layer_weights(run, Path("missing"), Path("missing"), [weights]) == [weights]
    other = weights.model_copy(update={"weights": "another checkpoint"})
    assert layer_weights(run, *texts, [other]) == [weights]
    shutil.rmtree(run / "checkpoints")
    assert layer_weights(run, *texts, [other]) == [other]


def test_a_model_without_fusion_has_no_panels(
    toy: Path, tmp_path: Path, texts: tuple[Path, Path]
) -> None:
    [weights] = layer_weights(trained(toy, tmp_path / "run"), *texts, [])
    assert weights.panels == []
