"""Decoding speed of configs side by side: python tests/benchmarks/decoding.py CONFIG [CONFIG ...] [--precision fp32 bf16].

Each config must be prepared; no model need be trained. Weights are random and every translation is made as long as
--length says, so that all systems take the same steps. The configs take turns; printed are the median over the turns in
sentences a second, and the ratio to the first.
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


def turns(path: str, precision: str, given: argparse.Namespace) -> Iterator[float]:
    """Sentences a second, again and again; the first value is warm-up."""
    recipe, device = load(path, given.overrides), device_of(given.device)
    corpus, pipeline = (
        Corpus.open(Path(recipe.data.folder), "valid"),
        Pipeline.load(Path(recipe.data.folder) / TEXT),
    )
    sizes = given.vocabulary or (len(pipeline.source_vocab), len(pipeline.target_vocab))
    model = system.build(recipe, *sizes).to(device).eval()
    length = {"min_length": given.length, "max_length_factor": 0, "max_length_extra": given.length}
    translator = Translator(
        [model], pipeline, recipe.decoding.model_copy(update={"beam": given.beam, **length})
    )
    sources = [corpus.source[i] for i in range(min(given.sentences, len(corpus)))]
    while True:
        begun = time.perf_counter()
        with autocast(device, precision):
            translator.translate_ids(sources)
        yield len(sources) / (time.perf_counter() - begun)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--length", type=int, default=14, help="tokens of every translation")
    parser.add_argument(
        "--sentences", type=int, default=200, help="sentences a turn, of the validation set"
    )
    given = parser.parse_args()
    with torch.inference_mode():
        compare(given, turns, "sentences/s")


if __name__ == "__main__":
    main()
