"""Measure how the cost grows with each size, and fit exponents.

    python tests/benchmarks/growth.py CONFIG

CONFIG is a Transformer. Text of the necessary lengths is generated. Training costs seconds for a
target token; they depend on the tokens of a batch, the length of the sentences, the layers, the
width and the vocabulary. Decoding costs seconds for a sentence; they depend on the beam, the number
of sentences and the length. Preparation costs processor seconds for a line; they depend on the
lines and the worker processes. The script prints each cost as a ratio to that of the first size,
and the exponent b of the fit cost = a * size^b. For example, b is 0 if the cost of a token does not
depend on the size of the batch, and 2 if it grows with the square of the width.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import decoding  # isort: skip
import training  # isort: skip
from sample_data import prepare_sample  # isort: skip

BATCH = "training.stages.0.batch.size"
# A separate process, because worker processes import the modules of this script otherwise.
PREP = """
import sys
from fusetk.data.config import load_data
from fusetk.data.prepare import prepare
if __name__ == "__main__":
    prepare(load_data(sys.argv[1]), int(sys.argv[2]), force=True)
"""
TURNS = 2  # measurements of each size after the warm-up; the fastest counts


def _overrides(folder: Path, *settings: str) -> list[str]:
    layers = ["model.encoder.layers=2", "model.decoder.layers=2"]
    sizes = ["model.width=128", "model.ffn=512", *layers, f"{BATCH}=2048"]
    return [f"data.folder={folder}", *sizes, *settings]


def training_cost(config: str, overrides: list[str], *options: str) -> float:
    """Return the seconds of a target token in training."""
    words = [config, "--device", "cpu", "--updates", "1", *options]
    arguments = training.training_parser().parse_args([*words, *_settings(overrides)])
    return _cost(training.turns(config, "fp32", arguments))


def decoding_cost(config: str, overrides: list[str], option: str, value: int) -> float:
    """Return the seconds of a sentence in decoding, with this value of an option."""
    words = [config, "--device", "cpu", "--sentences", "64", f"--{option}", str(value)]
    arguments = decoding.decoding_parser().parse_args([*words, *_settings(overrides)])
    with torch.inference_mode():
        return _cost(decoding.turns(config, "fp32", arguments))


def _settings(overrides: list[str]) -> list[str]:
    return [f"--set={override}" for override in overrides]


def _cost(speeds: Iterator[float]) -> float:
    next(speeds)
    return 1 / max(next(speeds) for _ in range(TURNS))


def _prep_cost(config: Path, lines: int, jobs: int) -> float:
    """Return the processor seconds of a preparation, for a line."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    subprocess.run([sys.executable, "-c", PREP, str(config), str(jobs)], check=True)
    return (used() - before) / lines


def measure(config: str, folder: Path) -> dict[str, dict[int, float]]:
    """Return the cost for each size of each axis."""
    sample = prepare_sample(folder / "sample", 2000)
    tables: dict[str, dict[int, float]] = {}

    def train(axis: str, sizes: list[int], *settings: str) -> None:
        tables[f"training, {axis}"] = {
            n: training_cost(config, _overrides(sample, *(s.format(n, 4 * n) for s in settings)))
            for n in sizes
        }

    train("tokens of a batch", [512, 1024, 2048, 4096], BATCH + "={0}")
    train("layers", [1, 2, 4, 8], "model.encoder.layers={0}", "model.decoder.layers={0}")
    train("width", [64, 128, 256, 512], "model.width={0}", "model.ffn={1}")
    tables["training, vocabulary"] = {
        n: training_cost(config, _overrides(sample), "--vocabulary", str(n), str(n))
        for n in (5000, 10_000, 20_000, 40_000)
    }
    tables["training, length"] = {
        n: training_cost(config, _overrides(prepare_sample(folder / f"{n}", 20_000 // n, n)))
        for n in (10, 20, 40, 80)
    }
    decode = _overrides(sample)
    for option, sizes in (
        ("beam", [1, 2, 4, 8]),
        ("sentences", [32, 64, 128, 256]),
        ("length", [8, 16, 32, 64]),
    ):
        tables[f"decoding, {option}"] = {n: decoding_cost(config, decode, option, n) for n in sizes}
    tables["prep, lines"] = {}
    for n in (8000, 32_000, 128_000):
        prepare_sample(folder / f"lines{n}", n)
        tables["prep, lines"][n] = _prep_cost(folder / f"lines{n}" / "config.yaml", n, 1)
    tables["prep, processes"] = {
        n: _prep_cost(folder / "lines128000" / "config.yaml", 128_000, n) for n in (1, 2, 4)
    }
    return tables


def exponent(costs: dict[int, float]) -> float:
    """Return b of the fit cost = a * size^b."""
    return float(np.polyfit(np.log(list(costs)), np.log(list(costs.values())), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tables = measure(options.config, Path(folder))
    results = {}
    for axis, costs in tables.items():
        first = next(iter(costs.values()))
        ratios = {size: cost / first for size, cost in costs.items()}
        results[axis] = {"cost": ratios, "exponent": exponent(costs)}
        row = ", ".join(f"{size:,}: {ratio:.2f}" for size, ratio in ratios.items())
        print(f"{axis}: {row}; exponent {results[axis]['exponent']:.2f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
