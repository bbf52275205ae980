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
from fusetk.models import Seq2Seq
from fusetk.training.step import accumulate_gradients, autocast, batch_loss
from tests.contracts.systems import SEARCHED, SYSTEMS
from tests.contracts.test_decoding import LENGTH, SOURCES, assert_same, prefixes, read
from tests.decoding.fakes import batch
from tests.helpers.batches import random_batch, with_lengths

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

GPU = torch.device("cuda")


def on_gpu(model: Seq2Seq) -> Seq2Seq:
    return copy.deepcopy(model).to(GPU)


@pytest.mark.parametrize("name", SYSTEMS)
def test_losses_and_gradients_are_those_of_the_cpu(name: str) -> None:
    model, pairs = SYSTEMS[name](), with_lengths(random_batch())
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


@pytest.mark.parametrize("compiled", [False, True])
def test_an_interrupted_training_ends_with_the_same_weights(
    toy: Path, tmp_path: Path, compiled: bool
) -> None:
    """Weights are compared with a tolerance: some CUDA kernels add in no fixed order."""
    weights = []
    for parts in ([8], [5, 8]):
        folder = tmp_path / f"{len(parts)}"
        for updates in parts:
            values = [f"training.stages.0.end.updates={updates}", f"training.compile={compiled}"]
            words = [word for value in values for word in ("--set", value)]
            run("train", toy, "--run", folder, "--device", "cuda", "--quiet", *words)
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
