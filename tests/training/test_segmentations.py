"""Training on the segmentations of BPE dropout: one in each epoch, exactly resumed."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch

from fusetk import runs
from fusetk import train as train_module
from fusetk import weights as weights_module
from fusetk.data.batch import Batch, collate
from fusetk.data.corpus import Corpus
from fusetk.data.prepare import prepare
from fusetk.errors import DataError
from fusetk.estimate.cost import text_of
from fusetk.recipe import load
from fusetk.training import gradients
from tests.helpers.forks import train

SIZE = 2000  # target tokens of a batch


@pytest.fixture(scope="module")
def overrides(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides of the toy config, prepared with BPE dropout."""
    folder = tmp_path_factory.mktemp("dropout")
    options = [
        f"data.folder={folder / 'prepared'}",
        "data.bpe={merges: 30, dropout: 0.3, segmentations: 3, seed: 2}",
        f"training.stages.0.batch.size={SIZE}",
        "training.validation.every_updates=100",
    ]
    prepare(load(toy, options).data)
    return options


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, list[int]]]]:
    """The segmentation and the pairs of each training batch."""
    recorded: list[tuple[str, list[int]]] = []

    def record(corpus: Corpus, pairs: Any, *arguments: Any) -> Batch:
        recorded.append((Path(corpus.source.name).name, pairs.tolist()))
        assert corpus.target.lengths[pairs].sum() <= SIZE
        batch = collate(corpus, pairs, *arguments)
        assert batch.tgt_in.shape[1] == corpus.target.lengths[pairs].max()
        return batch

    monkeypatch.setattr(gradients, "collate", record)
    yield recorded


def test_each_epoch_reads_a_segmentation_also_after_resuming(
    toy: Path,
    overrides: list[str],
    batches: list[tuple[str, list[int]]],
    tmp_path: Path,
) -> None:
    """The run stops in the middle of the second epoch, and its end is equal to the bit."""
    recipe = load(toy, [*overrides, "training.stages.0.end={epochs: 4}"])
    train_module.train(recipe, tmp_path / "whole", "cpu", quiet=True)
    uninterrupted = list(batches)
    epochs = [(name, list(group)) for name, group in groupby(batches, lambda batch: batch[0])]
    assert [name for name, _ in epochs] == [f"train.{n}.de.ids" for n in (1, 2, 3, 1)]
    for _, group in epochs:
        assert sorted(pair for _, pairs in group for pair in pairs) == list(range(600))
    assert epochs[0][1] != epochs[3][1]
    log = (tmp_path / "whole" / "log.txt").read_text(encoding="utf-8")
    assert "600 training pairs in 3 segmentations by BPE dropout, " in log

    stop = len(epochs[0][1]) + 2
    for end in (f"{{updates: {stop}}}", "{epochs: 4}"):
        batches.clear()
        recipe = load(toy, [*overrides, f"training.stages.0.end={end}"])
        train_module.train(recipe, tmp_path / "parts", "cpu", quiet=True)
    assert batches == uninterrupted[stop:] and stop < len(uninterrupted)
    name = runs.checkpoint_name(len(uninterrupted))
    for file in (runs.MODEL, runs.TRAINING):
        whole, parts = (tmp_path / run / "checkpoints" / name / file for run in ("whole", "parts"))
        assert whole.read_bytes() == parts.read_bytes()


def test_two_processes_read_the_same_segmentations(
    toy: Path, overrides: list[str], tmp_path: Path
) -> None:
    overrides = [
        *overrides,
        "model.dropout=0",
        # Adam would enlarge the rounding error of zero gradients.
        "training.stages.0.optimizer={kind: nag, momentum: 0.9}",
        "training.stages.0.end={epochs: 2}",
    ]
    train(toy, tmp_path / "two", overrides, 2).succeed()
    train_module.train(load(toy, overrides), tmp_path / "one", "cpu", quiet=True)
    actual, expected = (
        weights_module.read_tensors(tmp_path / run / "checkpoints" / "last", runs.MODEL)
        for run in ("two", "one")
    )
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


def test_all_segmentations_must_fit(toy: Path, overrides: list[str], tmp_path: Path) -> None:
    corpus = Corpus.open(Path(load(toy, overrides).data.folder), "train")
    lengths = [int(part.target.lengths.max()) for part in corpus.segmentations]
    assert int(corpus.target.lengths.max()) < lengths[0] < max(lengths)
    limit = max(lengths) - 1
    for settings in (
        [f"training.stages.0.batch.size={limit}"],
        ["model.positions=learned", f"model.max_positions={limit}"],
    ):
        recipe = load(toy, [*overrides, *settings])
        with pytest.raises(DataError, match=f"the longest .*sentence has {limit + 1} tokens"):
            train_module.train(recipe, tmp_path / "run", "cpu", quiet=True)
    assert not (tmp_path / "run").exists()


def test_settings_that_changed_after_the_preparation_are_refused(
    toy: Path, overrides: list[str], tmp_path: Path
) -> None:
    recipe = load(toy, [*overrides, "data.bpe.dropout=0.1"])
    with pytest.raises(DataError, match=r"data\.bpe\.dropout: 0\.3 -> 0\.1"):
        train_module.train(recipe, tmp_path / "run", "cpu", quiet=True)


def test_a_segmentation_that_changed_after_the_preparation_is_refused(
    toy: Path, overrides: list[str], tmp_path: Path
) -> None:
    path = Path(load(toy, overrides).data.folder) / "train.2.en.ids"
    content = path.read_bytes()
    path.write_bytes(content[:-2] + b"\xff\xff")
    try:
        with pytest.raises(
            DataError, match=r"train\.2\.en\.ids differs from the file that fusetk prep wrote"
        ):
            train_module.train(load(toy, overrides), tmp_path / "run", "cpu", quiet=True)
    finally:
        path.write_bytes(content)


def test_estimates_use_the_lengths_of_the_segmentations(toy: Path, overrides: list[str]) -> None:
    recipe = load(toy, overrides)
    corpus = Corpus.open(Path(recipe.data.folder), "train")
    text = text_of(recipe, None, None, None)
    assert text.target == corpus.segmentations[0].target.lengths.mean()
    assert text.target > corpus.target.lengths.mean()
