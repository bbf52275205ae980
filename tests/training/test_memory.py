"""A batch that does not fit into memory is split into halves, with the same result."""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from fusetk import runs
from fusetk import train as train_module
from fusetk import weights as weights_module
from fusetk.data.batch import Batch
from fusetk.errors import FusetkError, out_of_memory
from fusetk.recipe import load
from fusetk.training import gradients as gradients_module
from fusetk.training.loss import Loss

GIVEN = ["model.dropout=0", "training.stages.0.optimizer={kind: nag, momentum: 0.9}"]


def small_memory(
    monkeypatch: pytest.MonkeyPatch,
    fits: Callable[[Batch], bool],
    kind: type[Exception] = RuntimeError,
) -> list[int]:
    """Let batches that do not fit fail after their backward pass. Return their target tokens."""
    plain, failed = gradients_module.accumulate_gradients, list[int]()

    def gradients(model: torch.nn.Module, batches: Iterable[Batch], *arguments: Any) -> list[Loss]:
        losses = []
        for batch in batches:
            losses += plain(model, [batch], *arguments)  # type: ignore[arg-type]
            if not fits(batch):
                failed.append(len(batch.target_index))
                raise kind(
                    "[enforce fail] DefaultCPUAllocator: can't allocate memory: "
                    "you tried to allocate 1 bytes\nand more"
                )
        return losses

    monkeypatch.setattr(gradients_module, "accumulate_gradients", gradients)
    return failed


@pytest.mark.parametrize("kind", [RuntimeError, torch.OutOfMemoryError])
def test_batches_are_done_in_halves(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    train_module.train(load(toy, GIVEN), tmp_path / "whole", "cpu", quiet=True)
    failed = small_memory(monkeypatch, lambda batch: len(batch.target_index) <= 200, kind)
    train_module.train(load(toy, GIVEN), tmp_path / "halves", "cpu", quiet=True)
    actual, expected = (
        weights_module.read_tensors(
            tmp_path / name / "checkpoints" / runs.checkpoint_name(8), runs.MODEL
        )
        for name in ("halves", "whole")
    )
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    assert 0 < len(failed) <= 4, "a batch of a size that failed is tried again"
    said = (tmp_path / "halves" / "log.txt").read_text()
    assert said.count("batches of this size are split into halves") == 1


def test_a_memory_for_single_pairs_suffices(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that does not fit may have fewer target tokens than one that fits."""
    stage = "training.stages.0"
    settings = [*GIVEN, f"{stage}.end.updates=1", f"{stage}.batch={{size: 30, accumulate: 8}}"]
    train_module.train(load(toy, settings), tmp_path / "whole", "cpu", quiet=True)
    small_memory(monkeypatch, lambda batch: len(batch.src) == 1)
    train_module.train(load(toy, settings), tmp_path / "pairs", "cpu", quiet=True)
    actual, expected = (
        weights_module.read_tensors(
            tmp_path / name / "checkpoints" / runs.checkpoint_name(1), runs.MODEL
        )
        for name in ("pairs", "whole")
    )
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


def test_a_sentence_that_does_not_fit_is_named(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_memory(monkeypatch, lambda batch: False)
    with pytest.raises(
        FusetkError,
        match=r"training pair \d+ \(\d+ source and \d+ target tokens\) does not fit into "
        "memory alone",
    ):
        train_module.train(load(toy, GIVEN), tmp_path / "run", "cpu", quiet=True)


def test_an_update_that_fails_loses_no_earlier_one(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = gradients_module.accumulate_gradients
    calls = itertools.count(1)

    def gradients(*arguments: Any) -> list[Loss]:
        losses = plain(*arguments)
        if next(calls) == 4:
            raise RuntimeError("the GPU is lost")
        return losses

    settings = ["training.validation.every_updates=8", "training.log_every=3"]
    train_module.train(load(toy, settings), tmp_path / "whole", "cpu", quiet=True)
    monkeypatch.setattr(gradients_module, "accumulate_gradients", gradients)
    with pytest.raises(RuntimeError, match="the GPU is lost"):
        train_module.train(load(toy, settings), tmp_path / "run", "cpu", quiet=True)
    [saved] = runs.checkpoints(tmp_path / "run")
    assert saved.name == runs.checkpoint_name(3)
    assert weights_module.read_state(saved)["interrupted"]
    assert "saved after update 3" in (tmp_path / "run" / "log.txt").read_text()
    monkeypatch.setattr(gradients_module, "accumulate_gradients", plain)
    train_module.train(load(toy, settings), tmp_path / "run", "cpu", quiet=True)
    resumed, whole = (tmp_path / name / "checkpoints" / "last" for name in ("run", "whole"))
    for file in (runs.MODEL, runs.TRAINING):
        assert (resumed / file).read_bytes() == (whole / file).read_bytes()


def test_other_errors_are_not_treated_as_lack_of_memory(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> list[Loss]:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(gradients_module, "accumulate_gradients", broken)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        train_module.train(load(toy, GIVEN), tmp_path / "run", "cpu", quiet=True)


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED",
    ],
)
def test_messages_of_other_libraries_are_recognised(said: str) -> None:
    assert out_of_memory(RuntimeError(said)) and not out_of_memory(ValueError(said))
