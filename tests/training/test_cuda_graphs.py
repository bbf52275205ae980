"""The rules of ``CudaGraphs`` on CPU, where a function replaces a recorded graph.

``tests.contracts.test_cuda`` tests graphs on a GPU.
"""

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fusetk import train as train_module
from fusetk.data.corpus import Corpus
from fusetk.errors import ConfigError, FusetkError
from fusetk.estimate import measure
from fusetk.estimate.cost import TextLengths
from fusetk.models import Seq2Seq
from fusetk.nn.dropout import Dropout
from fusetk.recipe import load
from fusetk.runs import MODEL
from fusetk.training import cuda_graphs, gradients
from fusetk.training.config import TrainingConfig
from fusetk.training.cuda_graphs import CudaGraphs, check_recordable
from fusetk.training.optim import AdamConfig, build
from fusetk.training.update import (
    accumulate_gradients,
    add_gradients,
    length_multiple,
    optimizer_step,
)
from fusetk.training.validation import Validator
from fusetk.weights import read_state, read_tensors
from tests.contracts.systems import SYSTEMS
from tests.helpers.batches import random_batch, with_lengths

NAME = "transformer, decoder fuse average"


class Repeated(CudaGraphs):
    """Computes the passes again in place of a replay, with the same tensors."""

    def _capture(self, passes: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        before = [grad.clone() for grad in grads(self.model)]
        with torch.random.fork_rng():
            sums = passes().fill_(torch.nan)
        torch._foreach_copy_(grads(self.model), before)
        recorded = self.dropout_rates()

        def replay() -> None:
            assert self.dropout_rates() == recorded, "a graph has the rates of its recording"
            sums.copy_(passes())

        return replay, sums

    def dropout_rates(self) -> list[float]:
        return [module.rate for module in self.model.modules() if isinstance(module, Dropout)]


def grads(model: Seq2Seq) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_gradients_are_added_in_the_same_memory() -> None:
    plain, graphs = SYSTEMS[NAME]().train(), Repeated(SYSTEMS[NAME]().train(), 0.1, "fp32")
    small, large = random_batch(3, 5, 4), random_batch(5, 7, 6)
    addresses = None
    for i, batch in enumerate((small, large, small, small, large, large)):
        rolled = batch._replace(src=batch.src.roll(i, 0), src_mask=batch.src_mask.roll(i, 0))
        losses = []
        for model in (plain, graphs.model):
            torch.manual_seed(i)
            if model is plain:
                losses.append(add_gradients(plain, rolled, 0.1, "fp32", 0.5 + i))
            else:
                losses.append(graphs.add_gradients(with_lengths(rolled), 0.5 + i))
        assert losses[1] == losses[0]
        torch.testing.assert_close(grads(graphs.model), grads(plain), rtol=1e-5, atol=1e-6)
        addresses = addresses or [grad.data_ptr() for grad in grads(graphs.model)]
        assert [grad.data_ptr() for grad in grads(graphs.model)] == addresses
    assert len(graphs.graphs) == 2


def test_losses_stay_valid_after_the_next_replay() -> None:
    graphs = Repeated(SYSTEMS[NAME](), 0.1, "fp32")
    batch = random_batch()
    graphs.add_gradients(batch, 1.0)
    first = graphs.add_gradients(batch, 1.0)
    before = float(first.nll)
    graphs.add_gradients(batch._replace(tgt_out=batch.tgt_out.flip(0)), 1.0)
    assert float(first.nll) == before


def test_the_number_of_graphs_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 1)
    graphs = Repeated(SYSTEMS[NAME](), 0.1, "fp32")
    batches = [random_batch(3), random_batch(4)]
    losses = [[float(graphs.add_gradients(b, 1.0).nll) for b in batches] for _ in range(3)]
    assert len(graphs.graphs) == 1 and losses[0] == losses[1] == losses[2]
    graphs.clear()
    assert not graphs.graphs and not graphs.seen


def test_a_model_that_cannot_be_recorded_is_refused() -> None:
    class Refused(CudaGraphs):
        def _capture(self, passes: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
            try:
                raise RuntimeError(reason)
            finally:  # as the end of a failed capture does
                raise RuntimeError("operation failed due to a previous error during capture")

    graphs = Refused(SYSTEMS[NAME](), 0.1, "fp32")
    graphs.add_gradients(random_batch(), 1.0)
    reason = "operation not permitted when stream is capturing\nmore"
    with pytest.raises(ConfigError, match=r"^training\.cuda_graphs: .* \(operation not permitted "):
        graphs.add_gradients(random_batch(), 1.0)
    reason = "CUDA out of memory"
    with pytest.raises(RuntimeError, match="out of memory"):
        graphs.add_gradients(random_batch(), 1.0)


def test_a_recording_without_memory_frees_its_tensors() -> None:
    """The batch is computed again before Python looks for cycles."""

    class Full(CudaGraphs):
        def _capture(self, passes: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
            sums = passes()
            self.freed = weakref.finalize(sums, list)
            raise RuntimeError("CUDA out of memory")

    graphs = Full(SYSTEMS[NAME](), 0.1, "fp32")
    graphs.add_gradients(random_batch(), 1.0)
    gc.disable()
    try:
        with suppress(RuntimeError):
            graphs.add_gradients(random_batch(), 1.0)
        assert not graphs.freed.alive
    finally:
        gc.enable()


def test_an_update_can_keep_the_memory_of_the_gradients() -> None:
    results = []
    for keep in (False, True):
        model = SYSTEMS[NAME]()
        optimizer = build(AdamConfig(kind="adam"), model.parameters())
        for _ in range(3):
            before = [grad.data_ptr() for grad in grads(model)]
            losses = accumulate_gradients(model, [random_batch()], 0.1, "fp32", 20)
            optimizer_step(model, optimizer, losses, 0.01, 1.0, keep_gradients=keep)
            if not keep:
                assert not grads(model)
            elif before:
                assert before == [grad.data_ptr() for grad in grads(model)]
                assert not any(grad.any() for grad in grads(model))
        results.append([*model.parameters()])
    assert all(map(torch.equal, *results))


def test_an_optimiser_that_replaces_a_gradient_is_refused() -> None:
    graphs = Repeated(SYSTEMS[NAME](), 0.1, "fp32")
    for _ in range(2):
        graphs.add_gradients(random_batch(), 1.0)
    parameter = graphs.parameters[0]
    parameter.grad = parameter.grad.clone()
    with pytest.raises(ConfigError, match="optimiser has replaced the tensor of a gradient"):
        graphs.add_gradients(random_batch(), 1.0)


def test_a_gradient_that_a_recorded_pass_alone_has_is_refused() -> None:
    graphs = Repeated(SYSTEMS[NAME](), 0.1, "fp32")
    graphs.add_gradients(random_batch(), 1.0)
    graphs.parameters[0].grad = None  # as if the first pass had skipped the layer

    with pytest.raises(ConfigError, match="a parameter gets a gradient in some passes only"):
        graphs.add_gradients(random_batch(), 1.0)


@pytest.mark.parametrize("kind", ["recurrent", "coordinated, pre-norm, recomputed"])
def test_a_model_of_fusetk_is_refused_before_training(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"^training\.cuda_graphs: .* cannot be recorded: set"):
        check_recordable(SYSTEMS[kind]())


def test_a_buffer_that_a_pass_replaces_is_refused() -> None:
    """A graph has the addresses of its recording: it would read the same old buffer each time."""

    def add_in_place(model: Any, arguments: object) -> None:
        model.count += 1

    def replace(model: Any, arguments: object) -> None:
        model.count = model.count + 1

    for hook in (add_in_place, replace):
        graphs = Repeated(SYSTEMS[NAME](), 0.1, "fp32")
        graphs.model.register_buffer("count", torch.zeros(()))
        graphs.model.register_forward_pre_hook(hook)
        graphs.add_gradients(random_batch(), 1.0)
        with (
            pytest.raises(ConfigError, match="a pass replaces the buffer count")
            if hook is replace
            else nullcontext()
        ):
            graphs.add_gradients(random_batch(), 1.0)


def with_repeated_passes(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[Repeated]:
    """Let a module compute with ``Repeated`` on CPU. Return the list of its objects."""
    objects: list[Repeated] = []

    def of(model: Seq2Seq, config: TrainingConfig) -> Repeated:
        assert config.cuda_graphs and CudaGraphs.of(model, config) is None  # on CPU
        objects.append(Repeated(model, config.label_smoothing, config.precision))
        return objects[0]

    monkeypatch.setattr(module, "CudaGraphs", SimpleNamespace(of=of))
    return objects


STAGE = (
    "{optimizer: adam, schedule: {kind: constant, rate: 0.01}, end: {updates: 8}, "
    "batch: {size: 20, accumulate: 2}"
)


def test_training_with_graphs_gives_the_same_weights(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second stage has another dropout rate and starts from the best weights."""
    overrides = [
        f"training.stages=[{STAGE}}}, {STAGE}, start: best, dropout: 0.4}}]",
        *("model.dropout=0.1", "training.ema=0.9", "training.cuda_graphs=true"),
    ]

    def trained(name: str) -> object:
        train_module.train(load(toy, overrides), tmp_path / name, "cpu", quiet=True)
        return read_state(tmp_path / name / "checkpoints" / "last")["sha256"]

    plain = trained("plain")
    graphs = with_repeated_passes(monkeypatch, gradients)
    assert trained("recorded") == plain
    assert graphs[0].graphs


@pytest.mark.parametrize("failing", ["pass", "first recording", "recording"])
def test_passes_that_do_not_fit_into_memory_are_computed_again(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """A batch is split only if no graphs are left to delete, and none was being recorded.

    With this seed, the first batch of the first update is smaller than the second one, so it is not
    split either.
    """
    overrides = ["model.dropout=0", "model.attention_bias=false", "training.cuda_graphs=true"]
    overrides += [f"training.stages=[{STAGE}}}]", "training.seed=2"]

    def trained(name: str) -> dict[str, Tensor]:
        train_module.train(load(toy, overrides), tmp_path / name, "cpu", quiet=True)
        return read_tensors(tmp_path / name / "checkpoints" / "last", MODEL)

    plain = trained("plain")
    with_repeated_passes(monkeypatch, gradients)
    calls = [0]

    def fail_once(function: Callable[..., Any]) -> Callable[..., Any]:
        def failing_function(*arguments: Any) -> Any:
            calls[0] += 1
            if calls[0] == (1 if failing == "first recording" else 2):
                raise RuntimeError("CUDA out of memory. Tried to allocate 2 MiB")
            return function(*arguments)

        return failing_function

    if failing == "pass":
        monkeypatch.setattr(cuda_graphs, "add_gradients", fail_once(add_gradients))
    else:
        monkeypatch.setattr(Repeated, "_record", fail_once(Repeated._record))
    recorded = trained("recorded")
    torch.testing.assert_close(recorded, plain, rtol=1e-4, atol=1e-6)
    log = (tmp_path / "recorded" / "log.txt").read_text()
    was_split = "batches of this size are split into halves" in log
    were_deleted = "graphs do not fit into memory; from now on at most 0 shapes" in log
    assert (was_split, were_deleted) == (failing == "pass", failing != "pass")


@pytest.mark.parametrize("failures", [1, 2])
def test_a_validation_gets_the_memory_of_the_graphs(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """Validation without graphs is not repeated if it fails."""
    graphs = with_repeated_passes(monkeypatch, gradients)
    plain = Validator.validate_part
    num_graphs: list[int] = []

    def validate(*arguments: Any) -> Any:
        num_graphs.append(len(graphs[0].graphs))
        if len(num_graphs) <= failures:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 MiB")
        return plain(*arguments)

    monkeypatch.setattr(Validator, "validate_part", validate)
    settings = [f"training.stages=[{STAGE}}}]", "training.cuda_graphs=true"]
    recipe = load(toy, [*settings, "training.validation.every_updates=8"])
    if failures == 2:
        with pytest.raises(FusetkError, match="there is not enough memory"):
            train_module.train(recipe, tmp_path / "run", "cpu", quiet=True)
    else:
        train_module.train(recipe, tmp_path / "run", "cpu", quiet=True)
    assert len(num_graphs) == 2 and num_graphs[0] > 0 == num_graphs[1]
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "do not fit into memory together: the graphs are deleted" in log


def test_the_speed_is_measured_with_graphs(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load(toy, ["training.cuda_graphs=true"])
    graphs = with_repeated_passes(monkeypatch, measure)
    text = TextLengths(Corpus.open(Path(recipe.data.folder), "train"), 5.0, 5.0, None)
    assert measure.measured_speed(recipe, (20, 20), text, torch.device("cpu"), 2) > 0
    assert graphs[0].graphs


def test_lengths_are_padded_for_graphs_on_a_gpu_only() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert length_multiple(gpu, "fp32", True) == 8
    assert length_multiple(gpu, "fp32") == length_multiple(cpu, "fp32", True) == 1


def test_graphs_of_a_sharded_model_are_refused(toy: Path) -> None:
    with pytest.raises(ConfigError, match="cuda_graphs cannot record a sharded model"):
        load(toy, ["training.cuda_graphs=true", "training.shard=true"])
