"""Compiled layers give the results of layers, for every length, and the same checkpoints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_sharding import close

from fusetk import train as train_module
from fusetk.errors import ConfigError
from fusetk.models.seq2seq import Seq2Seq
from fusetk.recipe import load
from fusetk.runs import EMA, MODEL, TRAINING
from fusetk.training.compiling import compile_layers
from tests.contracts.systems import SYSTEMS
from tests.helpers.forks import train

PLAIN = [
    "model.dropout=0",
    "training.stages.0.optimizer={kind: nag, momentum: 0.9}",
    "training.ema=0.9",
]
SHAPES = [(3, 5, 7), (4, 6, 8), (2, 9, 3), (5, 4, 6)]  # sentences, source, target


def passes(model: Seq2Seq) -> list[list[torch.Tensor]]:
    """Return features and gradients of batches of several shapes, with dropout.

    The last value of each batch is the next number of the generator.
    """
    results = []
    for seed, (rows, source, target) in enumerate(SHAPES):
        torch.manual_seed(seed)
        src, tgt = (torch.randint(3, 9, (rows, length)) for length in (source, target))
        mask = torch.arange(source) < torch.randint(1, source + 1, (rows, 1))
        features = model(src, mask, tgt)
        model.zero_grad()
        features.square().sum().backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        results.append([features.detach(), *grads, torch.rand(1)])
    return results


def same(name: str, backend: str) -> None:
    """Check that compiled layers give the same results, including separate dropout masks."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model = SYSTEMS[name]().train()
    names, uncompiled = [n for n, _ in model.named_parameters()], passes(model)
    compile_layers(model, backend)
    for actual, expected in zip(passes(model), uncompiled, strict=True):
        for a, b in zip(actual, expected, strict=True):
            # Normalisation of a small sum can magnify rounding errors a thousand times.
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3 * max(1.0, float(b.abs().max())))
    assert [n for n, _ in model.named_parameters()] == names
    counted = torch._dynamo.utils.counters
    assert not counted["graph_break"], counted["graph_break"]
    graphs = counted["stats"]["unique_graphs"]
    assert 0 < graphs <= 2 * len(model.layers()), "lengths must be symbolic"
    for training in (False, True):  # a validation may have dropout
        model.train(training)
        with torch.inference_mode():
            model(torch.full((1, 2), 3), torch.ones(1, 2, dtype=torch.bool), torch.full((1, 3), 3))
        assert counted["stats"]["unique_graphs"] == graphs, "evaluation must run uncompiled"


def test_compiled_layers_are_the_layers() -> None:
    same("conv", "eager")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "transformer",
        "conv",
        "coordinated",
        "coordinated, post-norm, recomputed",
        "transformer, dense, attend dense-sum",
    ],
)
def test_through_the_compilers_own_passes(name: str) -> None:
    same(name, "aot_eager")


def test_a_recurrence_is_refused_before_anything_is_written(toy: Path, tmp_path: Path) -> None:
    recurrent = ["model={kind: recurrent, width: 16, heads: 2}", "training.compile=true"]
    with pytest.raises(ConfigError, match=r"nothing to compile.* model Recurrent"):
        train_module.train(load(toy, recurrent), tmp_path / "run", "cpu", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_training_compiled_is_training(toy: Path, tmp_path: Path) -> None:
    """Training with inductor and recomputed layers gives the checkpoints of plain training.

    Two sharded processes start another run, and one uncompiled process ends it.
    """
    overrides = [*PLAIN, "model.encoder.checkpoint=true", "training.validation.every_updates=3"]
    both, begun = (
        ["training.compile=true", "training.shard=true"],
        "training.stages.0.end.updates=3",
    )
    train_module.train(load(toy, overrides), tmp_path / "plain", "cpu", quiet=True)
    train_module.train(load(toy, [*overrides, *both]), tmp_path / "compiled", "cpu", quiet=True)
    assert ", layers compiled" in (tmp_path / "compiled" / "log.txt").read_text()
    close(tmp_path / "compiled", tmp_path / "plain", 8, MODEL, TRAINING, EMA)
    train(toy, tmp_path / "split", [*overrides, begun, *both], 2).succeed(seconds=500)
    train_module.train(load(toy, overrides), tmp_path / "split", "cpu", quiet=True)
    for update in (3, 8):
        close(tmp_path / "split", tmp_path / "plain", update, MODEL, TRAINING, EMA)


@pytest.mark.slow
def test_no_compiler_is_said_in_a_sentence(toy: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fusetk", "train", str(toy), "--run", str(tmp_path / "run")]
    command += ["--device", "cpu", "--set", "training.compile=true"]
    environment = {
        **os.environ,
        "CXX": str(tmp_path / "none"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    [said] = [line for line in done.stderr.splitlines() if line.startswith("fusetk: ")]
    assert "training.compile: torch cannot compile the layers here" in said and "CXX" in said
