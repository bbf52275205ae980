"""Compiled layers give the results of layers, for every length, and the same checkpoints."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_additional_loss import gradients, parts_of, with_residuals
from test_sharding import close

from fusetk import train as train_module
from fusetk.errors import ConfigError, Interrupted
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.attention import CrossAttention, SelfAttention
from fusetk.nn.dropout import Dropout
from fusetk.recipe import load
from fusetk.runs import EMA, MODEL, TRAINING, find_checkpoint
from fusetk.training.compiling import CompilationFailed, compile_layers
from fusetk.training.gradients import GradientComputer
from fusetk.training.verify_pairs import Pairs
from tests.contracts.systems import SYSTEMS
from tests.helpers.batches import random_batch
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
        results.append(values(model, model(src, mask, tgt)))
    return results


def packed_passes(model: Seq2Seq) -> list[list[torch.Tensor]]:
    """Return the values of ``passes`` for packed sentences of several lengths."""
    results = []
    for seed, (rows, source, target) in enumerate(SHAPES):
        torch.manual_seed(seed)
        sources, targets = (
            [torch.randint(3, 9, (length - i % 3,)).tolist() for i in range(rows)]
            for length in (source, target)
        )
        pairs = Pairs(sources, targets, torch.device("cpu"))
        results.append(values(model, pairs.training_features(model)))
    return results


def values(model: Seq2Seq, features: torch.Tensor) -> list[torch.Tensor]:
    """Return features, their gradients, and the next random number."""
    model.zero_grad()
    features.square().sum().backward()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [features.detach(), *grads, torch.rand(1)]


def same(
    name: str,
    backend: str,
    compute: Callable[[Seq2Seq], list[list[torch.Tensor]]] = passes,
    attention_dropout: float | None = None,
) -> None:
    """Check that compiled layers give the same results, including separate dropout masks."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model = SYSTEMS[name]().train()
    for module in model.modules():
        if attention_dropout and isinstance(module, SelfAttention | CrossAttention):
            module.dropout = Dropout(attention_dropout)
    names, uncompiled = [n for n, _ in model.named_parameters()], compute(model)
    compile_layers(model, backend)
    for actual, expected in zip(compute(model), uncompiled, strict=True):
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
    same("transformer, residual hyper", "eager")


def test_equal_layers_share_compiled_code_and_drop_attention_weights() -> None:
    same("transformer", "eager", packed_passes, attention_dropout=0.3)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == 2, "one for all layers of the encoder, one for those of the decoder"


@pytest.mark.slow
def test_compiled_layers_add_their_losses() -> None:
    torch._dynamo.reset()
    batches = [random_batch(), *parts_of(random_batch())]
    plain, compiled = with_residuals().train(), with_residuals().train()
    expected = gradients(plain, batches)
    compile_layers(compiled, "eager")
    torch.testing.assert_close(gradients(compiled, batches), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "transformer",
        "conv",
        "coordinated",
        "coordinated, post-norm, recomputed",
        "transformer, dense, attend dense-sum",
        "transformer, residual hyper",
    ],
)
def test_through_the_compilers_own_passes(name: str) -> None:
    same(name, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["transformer", "coordinated", "transformer, dense, attend dense-sum"]
)
def test_packed_sentences_through_the_compilers_own_passes(name: str) -> None:
    same(name, "aot_eager", packed_passes, attention_dropout=0.3)


def test_a_recurrence_is_refused_before_anything_is_written(toy: Path, tmp_path: Path) -> None:
    recurrent = ["model={kind: recurrent, width: 16, heads: 2}", "training.compile=true"]
    with pytest.raises(ConfigError, match=r"nothing to compile.* model Recurrent"):
        train_module.train(load(toy, recurrent), tmp_path / "run", "cpu", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_signal_that_also_ends_the_compiler_is_an_interruption(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = GradientComputer.compute

    def fail(self: GradientComputer, *arguments: Any) -> Any:
        updates = arguments[3]
        if updates == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            raise CompilationFailed("the compiler was ended")
        return compute(self, *arguments)

    monkeypatch.setattr(GradientComputer, "compute", fail)
    with pytest.raises(Interrupted, match="SIGTERM received while the layers were compiled"):
        train_module.train(load(toy, PLAIN), tmp_path / "run", "cpu", quiet=True)
    assert find_checkpoint(tmp_path / "run")[1].resolve().name == "update-0000002"
    monkeypatch.undo()
    train_module.train(load(toy, PLAIN), tmp_path / "run", "cpu", quiet=True)
    train_module.train(load(toy, PLAIN), tmp_path / "plain", "cpu", quiet=True)
    close(tmp_path / "run", tmp_path / "plain", 8, MODEL, TRAINING, EMA)


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
