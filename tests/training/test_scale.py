"""Training in fp16: the loss scale adapts, and nothing else changes."""

import math
from pathlib import Path

import pytest
import torch

from fusetk import runs
from fusetk import train as train_module
from fusetk import weights as weights_module
from fusetk.errors import FusetkError
from fusetk.recipe import load
from fusetk.training import loop
from fusetk.training.gradient_check import LARGEST_SCALE, SMALLEST_SCALE, next_scale
from fusetk.training.update import optimizer_step
from fusetk.weights import read_state

GIVEN = ["training.precision=fp16", "training.save_every=1", "training.keep_last=50"]


def test_the_scale_is_halved_at_once_and_doubled_slowly() -> None:
    assert next_scale(1024.0, 7, finite=False) == (512.0, 0)
    scale, good = 1024.0, 0
    for _ in range(4000):
        scale, good = next_scale(scale, good, finite=True)
    assert (scale, good) == (4096.0, 0)
    assert next_scale(SMALLEST_SCALE, 0, finite=False) == (SMALLEST_SCALE, 0)
    assert next_scale(LARGEST_SCALE, 1999, finite=True) == (LARGEST_SCALE, 0)


def test_fp16_trains_as_float32(toy: Path, tmp_path: Path) -> None:
    for precision in ("fp16", "fp32"):
        overrides = [
            f"training.precision={precision}",
            "training.stages.0.end.updates=40",
            "model.dropout=0",
        ]
        train_module.train(load(toy, overrides), tmp_path / precision, "cpu", quiet=True)
    half, full = (
        read_state(tmp_path / name / "checkpoints" / "last")["valid"]["loss"]
        for name in ("fp16", "fp32")
    )
    assert half == pytest.approx(full, rel=0.03)


def overflowing(monkeypatch: pytest.MonkeyPatch, above: float) -> None:
    """Make gradients infinite if the losses were multiplied by more than ``above``."""
    plain = loop.optimizer_step

    def step(model, optimizer, losses, rate, clip, world, scale, **named):
        if scale > above:
            next(iter(model.parameters())).grad.fill_(math.inf)
        return plain(model, optimizer, losses, rate, clip, world, scale, **named)

    monkeypatch.setattr(loop, "optimizer_step", step)


def test_overflow_halves_the_scale_and_resuming_is_exact(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overflowing(monkeypatch, 8192)
    train_module.train(load(toy, GIVEN), tmp_path / "whole", "cpu", quiet=True)
    assert (tmp_path / "whole" / "log.txt").read_text().count(
        "fp16 gradients overflowed"
    ) == 3  # 65536, 32768, 16384
    states = [read_state(path)["progress"] for path in runs.checkpoints(tmp_path / "whole")]
    assert [state["scale"] for state in states] == [
        32768,
        16384,
        8192,
        8192,
        8192,
        8192,
        8192,
        8192,
    ]
    train_module.train(
        load(toy, [*GIVEN, "training.stages.0.end.updates=2"]),
        tmp_path / "parts",
        "cpu",
        quiet=True,
    )
    train_module.train(load(toy, GIVEN), tmp_path / "parts", "cpu", quiet=True)
    folders = (
        tmp_path / name / "checkpoints" / runs.checkpoint_name(8) for name in ("whole", "parts")
    )
    whole, parts = (weights_module.read_tensors(folder, runs.MODEL) for folder in folders)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_overflow_at_every_scale_ends_training(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overflowing(monkeypatch, 0)
    with pytest.raises(FusetkError, match=r"no update had a finite .*; or train in bf16 or fp32"):
        overrides = [
            *GIVEN,
            "training.stages.0.end.updates=100",
            "training.validation.every_updates=1000",
        ]
        train_module.train(load(toy, overrides), tmp_path / "a", "cpu", quiet=True)


def test_the_scale_changes_neither_weights_nor_the_gradient_norm() -> None:
    """With a clip of 0, the update is that of the complete gradient, (1, 2, 3) in each row."""
    results = []
    for scale in (1.0, 1024.0):
        model = torch.nn.Linear(3, 2)
        model.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
        (model(torch.tensor([[1.0, 2.0, 3.0]])).sum() * scale).backward()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        stats = optimizer_step(model, optimizer, [], 0.1, 0.0, scale=scale)
        results.append((stats.grad_norm, model.weight))
    torch.testing.assert_close(*results)
    norm, weight = results[0]
    assert norm == pytest.approx(30**0.5)
    torch.testing.assert_close(weight.detach(), torch.tensor([[0.9, 0.8, 0.7]] * 2))
