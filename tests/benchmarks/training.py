"""Measure the training speed of configs.

    python tests/benchmarks/training.py CONFIG [CONFIG ...] [--precision fp32 bf16] [--limit]

The data of each config must be prepared. The configs take turns of a few updates each. The script
prints the median speed over the turns, in target tokens (EOS counted) a second, and its ratio to
that of the first config.

With --limit, the script also prints the limit of the speed and the share of it that is reached. The
limit is the rate of one large matrix product of PyTorch, divided by the multiply-adds of a target
token.
The rate is measured in each turn in the same number type and with the same threads. The multiply-
adds are those of all matrix products of the model on real tokens, without padding: projections,
convolutions, recurrences, attention scores and contexts, and the output projection. The backward
pass counts as two forward passes.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fusetk import system
from fusetk.data.batch import collate
from fusetk.data.corpus import Corpus
from fusetk.data.pipeline import Pipeline
from fusetk.data.sampler import batches
from fusetk.errors import DataError
from fusetk.machine import ChosenWays, chosen_ways, computing, device_of, use_huge_pages
from fusetk.models.seq2seq import Seq2Seq
from fusetk.recipe import Recipe, load
from fusetk.runs import TEXT
from fusetk.training import optim
from fusetk.training.compiling import compile_layers
from fusetk.training.cuda_graphs import CudaGraphs
from fusetk.training.update import accumulate_gradients, length_multiple, optimizer_step
from fusetk.ways import LARGE_PRODUCTS

from products import multiply_adds, product_rates, terms  # isort: skip
from turns import compare, options  # isort: skip


def build(recipe: Recipe, vocabulary: list[int] | None) -> Seq2Seq:
    """Return a model with random weights; ``vocabulary`` replaces the sizes of the data."""
    pipeline = Pipeline.load(Path(recipe.data.folder) / TEXT)
    sizes = vocabulary or (len(pipeline.source_vocab), len(pipeline.target_vocab))
    return system.build(recipe, *sizes)


def turns(path: str, precision: str, arguments: argparse.Namespace) -> Iterator[float]:
    """Yield the speed of a few updates, in target tokens a second; the first value is warm-up."""
    recipe = load(path, arguments.overrides)
    device = device_of(arguments.device)
    stage = recipe.training.stages[0]
    corpus = Corpus.open(Path(recipe.data.folder), "train")
    model = build(recipe, arguments.vocabulary).to(device).train()
    if recipe.training.compile:
        compile_layers(model)
    optimizer = optim.build(stage.optimizer, model.parameters())
    clock = chosen_clock(arguments)
    training = recipe.training.model_copy(update={"precision": precision})
    graphs = CudaGraphs.of(model, training)
    ways = ways_to_compute(arguments)
    settings = device, recipe.training.matmul, ways, precision, recipe.training.compile
    with computing(*settings):
        multiple = length_multiple(device, precision, graphs is not None)
    epoch = 0
    while True:
        order = batches(
            corpus.source.lengths, corpus.target.lengths, stage.batch, recipe.training.seed, epoch
        )
        if len(order) < arguments.updates:
            raise DataError(
                f"{path}: an epoch has {len(order)} batches, fewer than the {arguments.updates} "
                "updates of a turn: give less --updates"
            )
        if graphs and not epoch:
            with computing(device, recipe.training.matmul, precision=precision):
                for indices in [*order, *order]:  # the second time, the batches are recorded
                    graphs.add_gradients(collate(corpus, indices, multiple), 0.0)
        for first in range(0, len(order) - arguments.updates + 1, arguments.updates):
            with computing(*settings):
                start = clock()
                tokens = 0
                for indices in order[first : first + arguments.updates]:
                    batch = collate(corpus, indices, multiple)
                    smoothing = recipe.training.label_smoothing
                    count = len(batch.target_index)
                    if graphs:
                        losses = [graphs.add_gradients(batch, 1 / count)]
                    else:
                        moved = [batch.to(device)]
                        losses = accumulate_gradients(model, moved, smoothing, precision, count)
                    optimizer_step(
                        *(model, optimizer, losses, 1e-4, stage.clip),
                        keep_gradients=graphs is not None,
                    )
                    tokens += count
                if device.type == "cuda":
                    torch.cuda.synchronize()
                seconds = clock() - start
            yield tokens / seconds
        epoch += 1


def chosen_clock(arguments: argparse.Namespace) -> Callable[[], float]:
    return time.process_time if arguments.processor_time else time.perf_counter


def ways_to_compute(arguments: argparse.Namespace) -> ChosenWays | None:
    """Return the ways of this machine with large products by the library; None: all its ways."""
    if not arguments.library_products:
        return None
    chosen = chosen_ways()
    library = dict.fromkeys(LARGE_PRODUCTS.values(), "library")
    return replace(chosen, ways={**chosen.ways, **library})


def limits(path: str, precision: str, arguments: argparse.Namespace) -> Iterator[float]:
    """Yield the limit of the speed, in target tokens a second; the first value is warm-up."""
    recipe = load(path, arguments.overrides)
    corpus = Corpus.open(Path(recipe.data.folder), "train")
    source, target = (
        np.asarray(side.lengths, dtype=np.float64) for side in (corpus.source, corpus.target)
    )
    coefficients = multiply_adds(build(recipe, arguments.vocabulary))
    forward = float((terms(source, target) @ coefficients).sum() / target.sum())
    device = device_of(arguments.device)
    for rate in product_rates(device, precision, chosen_clock(arguments)):
        yield rate / (3 * forward)


def add_cpu_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--library-products",
        action="store_true",
        help="compute large products on CPU in PyTorch's library, not in kernels",
    )
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="measure the time of the processor, on a busy machine with one thread on CPU",
    )


def training_parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    parser.add_argument("--updates", type=int, default=5, help="updates a turn")
    add_cpu_options(parser)
    parser.add_argument("--limit", action="store_true", help="print the limit of the speed")
    return parser


def main() -> None:
    arguments = training_parser().parse_args()
    use_huge_pages()  # as `fusetk train` does
    compare(arguments, turns, "target tokens/s", limits if arguments.limit else None)


if __name__ == "__main__":
    main()
