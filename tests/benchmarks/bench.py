"""Run all benchmarks: ``make bench``.

    python tests/benchmarks/bench.py [--only PART ...] [--output FOLDER]

The parts are training, decoding, memory, prep, start and growth. Training and decoding use the
systems of recipes/multi30k on generated sentences. ``prep`` needs the folder multi30k in
FUSETK_TEST_DATA. The script prints ratios: speeds are divided by those of the Transformer of the
same folder and by the limit of the matrix products, both measured in the same minute; seconds are
divided by those of the peer's command, or by the time that Python needs to import torch.

The script writes the results to FOLDER/PROCESSOR.json after each part. FOLDER is results/bench by
default, and PROCESSOR is the name of the processor. If the file exists, the script prints each
ratio that changed by more than a tenth since then.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import yaml

from sample_data import prepare_sample  # isort: skip

from fusetk import train
from fusetk.doctor import examine
from fusetk.processor import processor
from fusetk.recipe import load

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GROUPS = ("coordinated", "dense", "fusion", "recurrent")  # folders of recipes/multi30k
BASES = {
    "coordinated": "transformer",
    "dense": "base_4l",
    "fusion": "baseline",
    "recurrent": "transformer",
}
CHANGED = 0.1  # smallest relative change of a ratio that is printed
STARTS = 3  # repetitions of a command; the fastest counts


class Bench:
    """The folder with the data, and the precisions that are fast on this processor."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.sample = prepare_sample(folder / "sample", 4000)
        rates = examine(torch.get_num_threads())["gflops"]
        fast_bf16 = rates["bf16"] is not None and rates["bf16"] > rates["float32"]
        self.precisions = ["fp32", "bf16"] if fast_bf16 else ["fp32"]

    def script(self, name: str, *arguments: str) -> Any:
        """Run a script of this folder, and return what it writes with --json."""
        output = self.folder / "result.json"
        output.unlink(missing_ok=True)
        command = [sys.executable, str(HERE / name), *arguments, "--json", str(output)]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        return json.loads(output.read_text(encoding="utf-8"))

    def systems(self, script: str, *arguments: str) -> Iterator[tuple[str, float]]:
        """Yield the ratios of all systems of recipes/multi30k."""
        for group in GROUPS:
            folder = ROOT / "recipes" / "multi30k" / group
            base = folder / f"{BASES[group]}.yaml"
            others = sorted(set(folder.glob("*.yaml")) - {base, folder / "base.yaml"})
            configs = [str(path.relative_to(ROOT)) for path in (base, *others)]
            settings = ["--set", f"data.folder={self.sample}", "--precision", *self.precisions]
            for result in self.script(script, *configs, *settings, *arguments):
                name = f"{group}/{Path(result['config']).stem} {result['precision']}"
                for ratio in ("of first", "of limit"):
                    if ratio in result:
                        yield f"{name}, {ratio}", result[ratio]


def training(bench: Bench) -> Iterator[tuple[str, float]]:
    yield from bench.systems("training.py", "--updates", "1", "--turns", "3", "--limit")


def decoding(bench: Bench) -> Iterator[tuple[str, float]]:
    """Yield the ratios of all systems, and the speed of other precisions, of float32."""
    yield from bench.systems("decoding.py", "--sentences", "64", "--turns", "3")
    config = "recipes/multi30k/fusion/baseline.yaml"
    settings = ["--set", f"data.folder={bench.sample}", "--precision", *bench.precisions, "int8"]
    float32, *others = bench.script("decoding.py", config, *settings, "--turns", "3")
    for result in others:
        name = f"fusion/baseline {result['precision']}, of float32"
        yield name, result["speed"] / float32["speed"]


def memory(bench: Bench) -> Iterator[tuple[str, float]]:
    """Yield the peak memory of a training and of the start of Python with torch, in ratios."""
    config = _small_config(bench)
    command = [sys.executable, "-m", "fusetk", "train", str(config), "-r", str(bench.folder / "m")]
    base = _peak([sys.executable, "-c", "import torch"])
    yield "peak of training, of importing torch", _peak(command) / base


def prep(bench: Bench) -> Iterator[tuple[str, float]]:
    data = os.environ.get("FUSETK_TEST_DATA")
    if not data:
        print("prep: skipped, because FUSETK_TEST_DATA is not set")
        return
    for language in ("de", "en"):
        file = next((Path(data) / "multi30k").glob(f"train.{language}*"))
        for task, result in bench.script("text.py", str(file), language).items():
            if not result["equal"]:
                raise SystemExit(f"{task}: the outputs differ from those of the library")
            yield f"{language}, {task}, times faster", result["ratio"]


def start(bench: Bench) -> Iterator[tuple[str, float]]:
    """Yield the processor time of cold starts, of that of importing torch."""
    run = bench.folder / "run"
    train.train(load(_small_config(bench)), run, "cpu", quiet=True)
    fusetk = [sys.executable, "-m", "fusetk"]
    config = str(bench.folder / "sample" / "config.yaml")
    base = _cpu_seconds([sys.executable, "-c", "import torch"])
    for name, command in (
        ("--help", [*fusetk, "--help"]),
        ("prep of nothing new", [*fusetk, "prep", config]),
        ("decode of one line", [*fusetk, "decode", "-m", str(run), "--threads", "1"]),
    ):
        yield f"{name}, of importing torch", _cpu_seconds(command) / base


def growth(bench: Bench) -> Iterator[tuple[str, float]]:
    config = "recipes/multi30k/fusion/baseline.yaml"
    for axis, result in bench.script("growth.py", config).items():
        for size, ratio in result["cost"].items():
            yield f"{axis} {int(size):,}", ratio
        yield f"{axis}, exponent", result["exponent"]


PARTS: dict[str, Callable[[Bench], Iterator[tuple[str, float]]]] = {
    part.__name__: part for part in (training, decoding, memory, prep, start, growth)
}


def _small_config(bench: Bench) -> Path:
    """Write the config of a training of ten updates."""
    values = yaml.safe_load((bench.folder / "sample" / "config.yaml").read_text(encoding="utf-8"))
    recipe = load(ROOT / "recipes" / "multi30k" / "fusion" / "baseline.yaml")
    stage = recipe.training.stages[0].model_dump(mode="json")
    values["model"] = recipe.model.model_dump(mode="json")
    values["training"] = {"stages": [{**stage, "end": {"updates": 10}}]}
    path = bench.folder / "sample" / "small.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


# Runs a command as the child of a small process, because the peak memory of a process begins with
# that of its parent. It prints the child's peak memory in KB and its processor time in seconds.
CHILD = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], input=b"w1 w2 w3\\n", stdout=-3, stderr=-3, check=True)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(usage.ru_maxrss, usage.ru_utime + usage.ru_stime)
"""


def _usage(command: list[str]) -> tuple[int, float]:
    """Return the peak memory (KB) and the processor time (seconds) of a command."""
    run = subprocess.run(
        [sys.executable, "-c", CHILD, *command],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    peak, seconds = run.stdout.split()
    return int(peak), float(seconds)


def _peak(command: list[str]) -> int:
    return _usage(command)[0]


def _cpu_seconds(command: list[str]) -> float:
    return min(_usage(command)[1] for _ in range(STARTS))


def changes(before: dict[str, dict[str, float]], now: dict[str, dict[str, float]]) -> list[str]:
    """Return a line for each ratio that differs by more than ``CHANGED`` from the last one."""
    lines = []
    for part, ratios in now.items():
        for name, ratio in ratios.items():
            old = before.get(part, {}).get(name)
            if old is not None and abs(ratio - old) > CHANGED * abs(old):
                lines.append(f"{part}: {name}: {old:.2f} -> {ratio:.2f}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "bench")
    options = parser.parse_args()
    path = options.output / (re.sub(r"\W+", "-", processor()).strip("-") + ".json")
    before = json.loads(path.read_text(encoding="utf-8"))["ratios"] if path.exists() else {}
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        for part in options.only:
            begun = time.monotonic()
            results[part] = {}
            for name, ratio in PARTS[part](bench):
                results[part][name] = ratio
                print(f"{part}: {name}: {ratio:.2f}", flush=True)
            print(f"{part} took {time.monotonic() - begun:.0f} s", file=sys.stderr)
            if not results[part]:
                del results[part]  # a part that was skipped keeps its earlier ratios
                continue
            write(path, {**before, **results})
            for line in changes(before, {part: results[part]}):
                print(f"changed: {line}", flush=True)


def write(path: Path, ratios: dict[str, dict[str, float]]) -> None:
    """Write the ratios of all parts that were ever measured on this processor."""
    values = {"processor": processor(), "threads": torch.get_num_threads(), "ratios": ratios}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
