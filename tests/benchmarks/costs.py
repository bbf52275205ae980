"""Measure the costs of all systems of a folder of recipes in one run.

    python tests/benchmarks/costs.py RECIPES --out OUT --results RESULTS

The systems take turns of a few updates, and then turns of the beam search for some sentences of the
validation set. The script also counts the memory that a batch keeps for its gradients. It writes
the values to `costs/costs.json` in the folder of results, and `fusetk report` prints them relative
to the baseline. On CPU the times are processor times with one thread, so other processes have
little influence.

The systems have initial weights, so no training is needed. Each translation is as long as its
source, because the time of decoding depends on the length, and the length on the weights.

OUT is the output folder of `fusetk run`. It must have the prepared text.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from fusetk import system
from fusetk.data.corpus import Corpus
from fusetk.data.pipeline import Pipeline
from fusetk.decoding.translate import Translator
from fusetk.errors import DataError, FusetkError
from fusetk.experiment.places import places
from fusetk.machine import device_of, revision
from fusetk.models.quantization import to_kernels
from fusetk.processor import processor
from fusetk.recipe import Recipe, load
from fusetk.reporting.measured_costs import MeasuredCosts, SystemCost, write_costs
from fusetk.reporting.tables import read_rows
from fusetk.runs import TEXT
from fusetk.training.reporter import device_name

from memory import saved  # isort: skip
from training import build  # isort: skip
from training import turns as training_turns  # isort: skip
from turns import take_turns  # isort: skip

PRECISION = "fp32"
AS_LONG_AS_SOURCE = {"min_length_factor": 1.0, "max_length_factor": 1.0, "max_length_extra": 0}


def read_recipes(folder: Path, out: Path) -> dict[str, tuple[Path, list[str]]]:
    """Return the path of each system's recipe, and the options that set the folder of its text.

    Raises DataError if a text is not prepared.
    """
    recipes = {}
    for row in read_rows([folder]):
        if row.path is None:
            continue
        recipe = load(row.path)
        prepared = places(row.path, recipe, out).prepared(recipe.data)
        if not prepared.is_dir():
            raise DataError(
                f"{out} has no prepared text for {row.path}: "
                f"`fusetk run {row.path} --raw RAW --out {out} --until prep` prepares it"
            )
        recipes[row.path.stem] = row.path, [f"data.folder={prepared}"]
    return recipes


def decoding_turns(recipe: Recipe, sentences: int, device: torch.device) -> Iterator[float]:
    """Yield sentences a second of beam search; the first value is warm-up."""
    folder = Path(recipe.data.folder)
    corpus = Corpus.open(folder, "valid")
    sources = [corpus.source[i].tolist() for i in range(min(sentences, len(corpus)))]
    model = to_kernels(build(recipe, None).to(device).eval())
    search = system.changed(recipe.decoding, AS_LONG_AS_SOURCE)
    translator = Translator([model], Pipeline.load(folder / TEXT), search)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    while True:
        start = clock()
        with torch.inference_mode():
            translator.translate_ids(sources)
        yield len(sources) / (clock() - start)


def measure(
    recipes: dict[str, tuple[Path, list[str]]], options: argparse.Namespace
) -> MeasuredCosts:
    """Return the costs of the systems with these recipes and options."""
    device = device_of(options.device)
    bytes_per_token, training, decoding = {}, {}, {}
    for name, (path, overrides) in recipes.items():
        tokens, size = saved(str(path), PRECISION, overrides, None, device)
        bytes_per_token[name] = round(size / tokens, 1)
        arguments = argparse.Namespace(
            overrides=overrides,
            vocabulary=None,
            device=options.device,
            updates=options.updates,
            processor_time=device.type == "cpu",
            library_products=False,
        )
        training[name] = training_turns(str(path), PRECISION, arguments)
        decoding[name] = decoding_turns(load(path, overrides), options.sentences, device)
    training_speeds = take_turns(training, options.turns)
    decoding_speeds = take_turns(decoding, options.turns)
    return MeasuredCosts(
        processor=processor(),
        device=device_name(device, 1),
        settings=(
            f"{options.turns} turns of {options.updates} updates and of the beam search for "
            f"{options.sentences} sentences, each translation as long as its source, float32"
            + (", processor time" if device.type == "cpu" else "")
        ),
        revision=revision(),
        systems={
            name: SystemCost(
                training=[float(f"{value:.4g}") for value in training_speeds[name]],
                decoding=[float(f"{value:.4g}") for value in decoding_speeds[name]],
                bytes_per_token=bytes_per_token[name],
            )
            for name in recipes
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipes", type=Path, help="the folder of the systems' recipes")
    parser.add_argument("--out", type=Path, required=True, help="an output folder of `fusetk run`")
    parser.add_argument("--results", type=Path, required=True, help="the folder of results")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--updates", type=int, default=5, help="updates of a turn")
    parser.add_argument("--sentences", type=int, default=100, help="sentences of a turn")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        costs = measure(read_recipes(options.recipes, options.out), options)
        path = write_costs(options.results, costs)
    except FusetkError as error:
        sys.exit(f"costs.py: {error}")
    print(f"{path}: {', '.join(costs.systems)}")


if __name__ == "__main__":
    main()
