"""Measure the decoding speed of configs.

    python tests/benchmarks/decoding.py CONFIG [CONFIG ...] [--precision fp32 bf16]

The data of each config must be prepared; trained models are not needed. Weights are random, and
every translation has --length tokens, so all systems take the same steps. The configs take turns.
The script prints the median speed over the turns, in sentences a second, and its ratio to that of
the first config.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from fusetk import system
from fusetk.data.corpus import Corpus
from fusetk.data.pipeline import Pipeline
from fusetk.decoding.translate import Translator
from fusetk.machine import device_of
from fusetk.recipe import load
from fusetk.runs import TEXT
from fusetk.training.step import autocast

from turns import compare, options  # isort: skip


def turns(path: str, precision: str, arguments: argparse.Namespace) -> Iterator[float]:
    """Yield sentences a second; the first value is warm-up."""
    recipe = load(path, arguments.overrides)
    device = device_of(arguments.device)
    corpus = Corpus.open(Path(recipe.data.folder), "valid")
    pipeline = Pipeline.load(Path(recipe.data.folder) / TEXT)
    sizes = arguments.vocabulary or (len(pipeline.source_vocab), len(pipeline.target_vocab))
    model = system.build(recipe, *sizes).to(device).eval()
    length = {
        "min_length": arguments.length,
        "max_length_factor": 0,
        "max_length_extra": arguments.length,
    }
    translator = Translator(
        [model], pipeline, recipe.decoding.model_copy(update={"beam": arguments.beam, **length})
    )
    sources = [corpus.source[i] for i in range(min(arguments.sentences, len(corpus)))]
    while True:
        start = time.perf_counter()
        with autocast(device, precision):
            translator.translate_ids(sources)
        yield len(sources) / (time.perf_counter() - start)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--length", type=int, default=14, help="tokens of every translation")
    parser.add_argument(
        "--sentences", type=int, default=200, help="sentences of the validation set in a turn"
    )
    arguments = parser.parse_args()
    with torch.inference_mode():
        compare(arguments, turns, "sentences/s")


if __name__ == "__main__":
    main()
