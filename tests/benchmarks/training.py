"""Training speed of configs side by side: python tests/benchmarks/training.py CONFIG [CONFIG ...] [--precision fp32 bf16].

Each config must be prepared. The configs take turns, a few updates each, so that a machine whose speed drifts is fair to
all; printed are the median over the turns in target tokens (end marks counted) a second, and the ratio to the first.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from fusetk import run
from fusetk.data.batch import collate
from fusetk.data.corpus import Corpus
from fusetk.data.pipeline import Pipeline
from fusetk.data.sampler import batches
from fusetk.machine import device_of
from fusetk.recipe import load
from fusetk.training.optim import OPTIMIZERS
from fusetk.training.step import update


def turns(path: str, precision: str, device: torch.device, overrides: list[str], updates: int) -> Iterator[float]:
    """Target tokens a second of ``updates`` updates, again and again; the first value is warm-up."""
    recipe = load(path, overrides)
    data, stage = Path(recipe.data.folder), recipe.training.stages[0]
    corpus, pipeline = Corpus.open(data, "train"), Pipeline.load(data / run.TEXT)
    model = run.build(recipe, len(pipeline.source_vocab), len(pipeline.target_vocab)).to(device).train()
    optimizer = OPTIMIZERS[stage.optimizer.kind].build(stage.optimizer, model.parameters())  # type: ignore[attr-defined]
    epoch = 0
    while True:
        order = batches(corpus.source.lengths, corpus.target.lengths, stage.batch, recipe.training.seed, epoch)
        for start in range(0, len(order) - updates + 1, updates):
            begun, tokens = time.perf_counter(), 0
            for indices in order[start : start + updates]:
                batch = collate(corpus, indices).to(device)
                tokens += update(model, optimizer, [batch], 1e-4, recipe.training.label_smoothing, stage.clip, precision).tokens
            if device.type == "cuda":
                torch.cuda.synchronize()
            yield tokens / (time.perf_counter() - begun)
        epoch += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="+")
    parser.add_argument("--precision", nargs="+", default=["fp32"], choices=["fp32", "bf16"])
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--updates", type=int, default=5, help="updates a turn")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = device_of(options.device)
    systems = {
        f"{config} {precision}": turns(config, precision, device, options.overrides, options.updates)
        for config in options.configs
        for precision in options.precision
    }
    for system in systems.values():
        next(system)
    found: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(options.turns):
        for name, system in systems.items():
            found[name].append(next(system))
    first = next(iter(found.values()))
    for name, speeds in found.items():
        ratio = statistics.median(a / b for a, b in zip(speeds, first, strict=True))
        span = f"{min(speeds):,.0f} to {max(speeds):,.0f}"
        print(f"{name}: median {statistics.median(speeds):,.0f} tokens/s ({span}), {ratio:.2f} times the first")


if __name__ == "__main__":
    main()
