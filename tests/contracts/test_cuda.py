"""Contracts of every system on a GPU.

Its results equal those on the CPU. A resumed training equals one without interruption.
"""

import copy
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from fusetk.cli.main import main
from fusetk.decoding.beam import search
from fusetk.decoding.config import SearchConfig
from fusetk.errors import ConfigError
from fusetk.models import Seq2Seq
from fusetk.models.stack import stacks_of
from fusetk.nn.positions import Sinusoidal
from fusetk.training.cuda_graphs import CudaGraphs
from fusetk.training.update import accumulate_gradients, add_gradients, autocast, batch_loss
from tests.contracts.systems import SEARCHED, SYSTEMS
from tests.contracts.test_decoding import LENGTH, SOURCES, assert_same, prefixes, read
from tests.decoding.fakes import batch
from tests.helpers.batches import random_batch, with_lengths

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

GPU = torch.device("cuda")


RECORDED = [name for name in SYSTEMS if not name.startswith("recurrent")]


def recomputes(model: Seq2Seq) -> bool:
    return any(stack.gradient_checkpointing for stack in stacks_of(model))


def on_gpu(model: Seq2Seq) -> Seq2Seq:
    return copy.deepcopy(model).to(GPU)


def gradients(model: Seq2Seq) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", SYSTEMS)
def test_losses_and_gradients_are_those_of_the_cpu(name: str) -> None:
    model, pairs = SYSTEMS[name](scale=1.0), with_lengths(random_batch())
    results = []
    for copied, moved in ((model, pairs), (on_gpu(model), pairs.to(GPU))):
        sums = batch_loss(copied, moved, 0.1)
        sums.smoothed.backward()
        gradients = {n: p.grad.cpu() for n, p in copied.named_parameters() if p.grad is not None}
        results.append({"loss": sums.nll.detach().cpu(), **gradients})
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_losses_and_gradients_in_16_bits_are_close(name: str, precision: str) -> None:
    model, pairs = on_gpu(SYSTEMS[name](scale=1.0)), with_lengths(random_batch()).to(GPU)
    losses, gradients = [], []
    for kind in ("fp32", precision):
        model.zero_grad()
        with autocast(GPU, kind):
            sums = batch_loss(model, pairs, 0.1)
        sums.smoothed.backward()
        losses.append(float(sums.nll.detach()))
        parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        gradients.append(torch.cat(parts))
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    difference = (gradients[1] - gradients[0]).norm() / gradients[0].norm()
    assert difference < 0.3


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", RECORDED)
def test_cuda_graphs_compute_the_same(name: str, precision: str) -> None:
    """The batches have the same shapes and other tokens."""
    model = on_gpu(SYSTEMS[name](scale=1.0))
    graphs = CudaGraphs(copy.deepcopy(model), 0.1, precision)
    pairs = with_lengths(random_batch())
    for shift in range(4):
        batch = pairs._replace(src=pairs.src.roll(shift, 0), src_mask=pairs.src_mask.roll(shift, 0))
        loss = add_gradients(model, batch.to(GPU), 0.1, precision, 0.5)
        recorded = graphs.add_gradients(batch, 0.5)
        torch.testing.assert_close([*recorded], [*loss], rtol=1e-5, atol=1e-5)
        expected = gradients(model)
        torch.testing.assert_close(gradients(graphs.model), expected, rtol=1e-4, atol=1e-5)
    assert len(graphs.graphs) == 1


@pytest.mark.parametrize("name", RECORDED)
def test_dropout_of_cuda_graphs_follows_from_the_seed(name: str) -> None:
    graphs = CudaGraphs(on_gpu(SYSTEMS[name]()).train(), 0.1, "fp32")
    if recomputes(graphs.model):
        pytest.skip("recomputed layers cannot be recorded")
    losses = []
    for seed in (1, 1, 2, 1):  # the first pass has no graph
        torch.manual_seed(seed)
        losses.append(float(graphs.add_gradients(random_batch(), 1.0).nll))
    first, second, other, last = losses
    assert [first, first] == pytest.approx([second, last], rel=1e-6)
    assert first != pytest.approx(other, rel=1e-6)


def test_a_graph_outlives_the_table_of_positions() -> None:
    """A longer sentence replaces the table, and the graph reads the old one."""
    graphs = CudaGraphs(on_gpu(SYSTEMS["transformer"]()), 0.1, "fp32")
    expected = [float(graphs.add_gradients(random_batch(), 1.0).nll) for _ in range(2)]
    for module in graphs.model.modules():
        if isinstance(module, Sinusoidal):
            module(0, 4 * len(module.table))
    torch.cuda.empty_cache()
    _ = [torch.full((size,), torch.nan, device=GPU) for size in (1 << 14, 1 << 16, 1 << 20)]
    assert float(graphs.add_gradients(random_batch(), 1.0).nll) == pytest.approx(expected[1])


def test_a_pass_that_reads_lengths_is_refused() -> None:
    graphs = CudaGraphs(on_gpu(SYSTEMS["recurrent"]()), 0.1, "fp32")
    graphs.add_gradients(random_batch(), 1.0)
    with pytest.raises(ConfigError, match=r"training\.cuda_graphs: .* cannot be recorded"):
        graphs.add_gradients(random_batch(), 1.0)


@pytest.mark.parametrize("name", SYSTEMS)
def test_dropout_follows_from_the_seed(name: str) -> None:
    model, pairs = on_gpu(SYSTEMS[name]()).train(), with_lengths(random_batch()).to(GPU)
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses += accumulate_gradients(model, [pairs], 0.1, "fp32", 1)
    first, second, other = (float(sums.nll) for sums in losses)
    assert first == pytest.approx(second, rel=1e-6)
    assert first != pytest.approx(other, rel=1e-6)


@pytest.mark.parametrize("name", SYSTEMS)
def test_reading_in_pieces_is_forced_decoding_on_the_cpu(name: str) -> None:
    model, tokens = SYSTEMS[name](), prefixes(len(SOURCES))
    moved = on_gpu(model)
    with torch.inference_mode():
        expected = model.output(model(*batch(SOURCES), tokens))
        source = (tensor.to(GPU) for tensor in batch(SOURCES))
        state = moved.start(moved.encode(*source))
        logits, _ = read(moved, tokens.to(GPU), state, [1, 4, LENGTH - 5])
    torch.testing.assert_close(logits.cpu(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("stop", ["exact", "beam"])
@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("name", SEARCHED)
def test_searches_find_the_same(name: str, beam: int, stop: str) -> None:
    model = SYSTEMS[name]()
    config = SearchConfig(beam=beam, n_best=min(2, beam), stop=stop, max_length_extra=6)
    with torch.inference_mode():
        expected = search([model], *batch(SOURCES), config)
        source = (tensor.to(GPU) for tensor in batch(SOURCES))
        n_best_lists = search([on_gpu(model)], *source, config)
    for n_best, others in zip(n_best_lists, expected, strict=True):
        assert_same(n_best, others)


def run(*words: object) -> str:
    result = CliRunner().invoke(main, [*map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("keys", [[], ["compile"], ["cuda_graphs"], ["compile", "cuda_graphs"]])
def test_an_interrupted_training_ends_with_the_same_weights(
    toy: Path, tmp_path: Path, keys: list[str]
) -> None:
    """Weights are compared with a tolerance: some CUDA kernels add in no fixed order.

    The gradient of a key's bias is 0 up to rounding. Adam divides it by its size, so this bias
    differs without a limit, and the model has none.
    """
    weights = []
    for parts in ([8], [7, 8]):  # the updates 7 and 8 have batches of one shape
        folder = tmp_path / f"{len(parts)}"
        for updates in parts:
            values = [f"training.stages.0.end.updates={updates}", "model.attention_bias=false"]
            values += [f"training.{key}=true" for key in keys]
            words = [word for value in values for word in ("--set", value)]
            run("train", toy, "--run", folder, "--device", "cuda", "--quiet", *words)
        log = (folder / "log.txt").read_text()
        assert log.count(", CUDA graphs\n") == len(parts) * ("cuda_graphs" in keys)
        weights.append(load_file(folder / "checkpoints" / "last" / "model.safetensors"))
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def trained(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a training on a GPU in bf16."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    values = ("--set", "training.precision=bf16", "--set", "training.stages.0.end.updates=150")
    run("train", toy, "--run", folder, "--device", "cuda", "--quiet", *values)
    return folder


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_translations_are_those_of_the_cpu(trained: Path, tmp_path: Path, precision: str) -> None:
    text = tmp_path / "text"
    text.write_text("eins zwei drei\nvier\n")
    words = ("decode", "-m", trained, "-i", text, "--precision", precision)
    translations = run(*words, "--device", "cuda").splitlines()
    assert all(translations) and translations == run(*words, "--device", "cpu").splitlines()
