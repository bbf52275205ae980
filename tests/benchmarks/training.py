"""Measure the training speed of configs.

    python tests/benchmarks/training.py CONFIG [CONFIG ...] [--precision fp32 bf16]

The data of each config must be prepared. The configs take turns of a few updates each. The script
prints the median speed over the turns, in target tokens (EOS counted) a second, and its ratio to
that of the first config.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from fusetk import system
from fusetk.data.batch import collate
from fusetk.data.corpus import Corpus
from fusetk.data.pipeline import Pipeline
from fusetk.data.sampler import batches
from fusetk.machine import device_of
from fusetk.recipe import load
from fusetk.runs import TEXT
from fusetk.training import optim
from fusetk.training.compiling import compile_layers
from fusetk.training.step import accumulate_gradients, length_multiple, optimizer_step

from turns import compare, options  # isort: skip


def turns(path: str, precision: str, arguments: argparse.Namespace) -> Iterator[float]:
    """Yield the speed of a few updates, in target tokens a second; the first value is warm-up."""
    recipe = load(path, arguments.overrides)
    device = device_of(arguments.device)
    data = Path(recipe.data.folder)
    stage = recipe.training.stages[0]
    corpus = Corpus.open(data, "train")
    pipeline = Pipeline.load(data / TEXT)
    sizes = arguments.vocabulary or (len(pipeline.source_vocab), len(pipeline.target_vocab))
    model = system.build(recipe, *sizes).to(device).train()
    if recipe.training.compile:
        compile_layers(model)
    optimizer = optim.build(stage.optimizer, model.parameters())
    epoch = 0
    while True:
        order = batches(
            corpus.source.lengths, corpus.target.lengths, stage.batch, recipe.training.seed, epoch
        )
        for first in range(0, len(order) - arguments.updates + 1, arguments.updates):
            start = time.perf_counter()
            tokens = 0
            for indices in order[first : first + arguments.updates]:
                batch = collate(corpus, indices, length_multiple(device, precision)).to(device)
                smoothing = recipe.training.label_smoothing
                count = len(batch.target_index)
                losses = accumulate_gradients(model, [batch], smoothing, precision, count)
                optimizer_step(model, optimizer, losses, 1e-4, stage.clip, count)
                tokens += count
            if device.type == "cuda":
                torch.cuda.synchronize()
            yield tokens / (time.perf_counter() - start)
        epoch += 1


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--updates", type=int, default=5, help="updates a turn")
    compare(parser.parse_args(), turns, "target tokens/s")


if __name__ == "__main__":
    main()
