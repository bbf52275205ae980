"""Compare the layers of trained models: ``python -m tools.diagnose RUN [RUN ...]``.

The script computes loss and gradients on validation pairs and on as many training pairs, without
dropout, in batches of the same pairs for all runs. For each layer of each stack it prints:

- size: the root mean square of the layer's output, without padding (layer 0 is the embedding);
- gradient: the root mean square of the gradient of the loss of a token for this output, times 1000;
- parameters: the norm of the gradient of the mean loss of a token for the layer's parameters,
  divided by the norm of the parameters, times 1000;
- cosine: the mean cosine between the layer's output and the output of the stack at the same
  position.

The row "fusion" has the same values for the output of the stack and for the parameters of the
fusion. Without a fusion, the output of the stack is that of the highest layer. The difference
between the two losses shows how much a model overfits.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk.data.batch import Batch, collate
from fusetk.data.corpus import Corpus
from fusetk.models.seq2seq import Seq2Seq
from fusetk.models.stack import Stack, StackOutput
from fusetk.system import load_model
from fusetk.training.update import batch_loss

BATCH = 50  # pairs
COLUMNS = ("layer", "size", "gradient", "parameters", "cosine")
Sums = dict[tuple[str, str], float]  # by layer and column
OUTPUT = "fusion"  # name of the last row


def stacks(model: Seq2Seq) -> dict[str, Stack]:
    """Return the stacks of a model by their names."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Stack)}


@contextmanager
def outputs_of(model: Seq2Seq) -> Iterator[dict[str, StackOutput]]:
    """Collect the last output of each stack. Its tensors keep their gradients."""
    outputs: dict[str, StackOutput] = {}

    def keep(name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: StackOutput) -> None:
            outputs[name] = output
            for tensor in (*output.history, output.output):
                if tensor.requires_grad:
                    tensor.retain_grad()

        return hook

    handles = [stack.register_forward_hook(keep(name)) for name, stack in stacks(model).items()]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def batches(corpus: Corpus, pairs: int) -> Iterator[Batch]:
    """Yield ``pairs`` pairs, which are evenly spread over the corpus."""
    count = min(pairs, len(corpus))
    indices = np.linspace(0, len(corpus) - 1, count).round().astype(np.int64)
    for start in range(0, count, BATCH):
        yield collate(corpus, indices[start : start + BATCH], 1)


def loss(model: Seq2Seq, corpus: Corpus, pairs: int) -> float:
    """Return the mean loss of a token, without label smoothing."""
    total, tokens = 0.0, 0
    with torch.no_grad():
        for batch in batches(corpus, pairs):
            total += batch_loss(model, batch, 0.0).nll.item()
            tokens += len(batch.target_index)
    return total / tokens


def measure(model: Seq2Seq, corpus: Corpus, pairs: int) -> dict[str, Sums]:
    """Return the values of each layer, by the name of its stack."""
    sums: dict[str, Sums] = defaultdict(lambda: defaultdict(float))
    count = tokens = 0
    with outputs_of(model) as outputs:
        model.zero_grad()
        for batch in batches(corpus, pairs):
            batch_loss(model, batch, 0.0).smoothed.backward()
            count += 1
            tokens += len(batch.target_index)
            for name, output in outputs.items():
                real = partial(_real_positions, stacks(model)[name].name, batch)
                for layer, tensor in _layers(output):
                    sums[name][layer, "size"] += _rms(real(tensor))
                    if tensor.grad is not None:
                        sums[name][layer, "gradient"] += 1000 * _rms(real(tensor.grad))
                    cosine = _cosine(real(tensor), real(output.output))
                    if cosine is not None:
                        sums[name][layer, "cosine"] += cosine
    for name, stack in stacks(model).items():
        means = {key: value / count for key, value in sums[name].items()}
        layers = ((str(i), layer) for i, layer in enumerate(stack.layers, 1))
        for layer, module in (*layers, (OUTPUT, stack.fuse)):
            means[layer, "parameters"] = 1000 * _relative_gradient(module.parameters()) / tokens
        sums[name] = means
    return sums


def _layers(output: StackOutput) -> list[tuple[str, Tensor]]:
    names = [str(i) for i in range(len(output.history))]
    return [*zip(names, output.history, strict=True), (OUTPUT, output.output)]


def _real_positions(side: str, batch: Batch, x: Tensor) -> Tensor:
    """Return the rows (N, D) of x (B, T, D) without padding. Packed sentences are (1, N, D)."""
    tokens = batch.src if side == "encoder" else batch.tgt_in
    if x.shape[:2] != tokens.shape:
        return x[0]
    mask = batch.src_mask.flatten() if side == "encoder" else batch.target_index
    return x.flatten(0, 1)[mask]


def _rms(x: Tensor) -> float:
    return x.detach().square().mean().sqrt().item()


def _cosine(x: Tensor, output: Tensor) -> float | None:
    """Return the mean cosine of two tensors at the same position; None if their widths differ."""
    if x.shape != output.shape:
        return None
    return F.cosine_similarity(x.detach(), output.detach(), dim=-1).mean().item()


def _relative_gradient(parameters: Iterable[nn.Parameter]) -> float:
    gradient = norm = 0.0
    for parameter in parameters:
        norm += parameter.detach().square().sum().item()
        if parameter.grad is not None:
            gradient += parameter.grad.square().sum().item()
    return (gradient / norm) ** 0.5 if norm else 0.0


def table(values: Sums) -> Iterator[str]:
    """Yield the lines of the table of a stack."""
    layers = list(dict.fromkeys(layer for layer, _ in values))
    layers.sort(key=lambda layer: (layer == OUTPUT, len(layer), layer))
    yield "".join(f"{column:>12}" for column in COLUMNS)
    for layer in layers:
        cells = [values.get((layer, column)) for column in COLUMNS[1:]]
        yield f"{layer:>12}" + "".join(
            f"{'' if cell is None else format(cell, '.3f'):>12}" for cell in cells
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--pairs", type=int, default=1000, help="validation pairs (%(default)s)")
    arguments = parser.parse_args()
    for run in arguments.runs:
        loaded = load_model(run, "cpu")
        folder = Path(loaded.recipe.data.folder)
        losses = {
            split: loss(loaded.model, Corpus.open(folder, split), arguments.pairs)
            for split in ("train", "valid")
        }
        print(f"{run}: {loaded.checkpoint.name}")
        print("  loss: " + ", ".join(f"{split} {value:.3f}" for split, value in losses.items()))
        tables = measure(loaded.model, Corpus.open(folder, "valid"), arguments.pairs)
        for name, values in tables.items():
            print(f"  {name}")
            for line in table(values):
                print(line)


if __name__ == "__main__":
    main()
