"""Measure the start of training on a large corpus.

    python tests/benchmarks/corpus.py FOLDER [--pairs 40000000] [--tokens 25] [--weights]

The script writes a prepared folder with random ids to FOLDER, which must not exist, and removes it
at the end. A separate process trains up to the first batch, and prints the seconds and the
anonymous memory (sampled, without mapped files). Then it measures the order of one more epoch in
the same way. With --weights, the text has two corpora with weights of 1.5 and 0.5.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fusetk.data import manifest
from fusetk.data.batch import collate
from fusetk.data.corpus import open_sentence_writers
from fusetk.data.prepare import prepare
from fusetk.data.vocab import EOS, SPECIAL
from fusetk.recipe import load

WORDS = 16_000  # in each vocabulary
CHUNK = 1_000_000  # pairs in one write


def make(folder: Path, pairs: int, tokens: int) -> Path:
    """Write a config and its prepared folder with many training ids; return the config."""
    folder.mkdir(parents=True)
    for language in ("de", "en"):
        lines = [
            " ".join(f"{language}{i}" for i in range(start, start + 20))
            for start in range(0, WORDS, 20)
        ]
        for name, part in (("train", lines), ("valid", lines[:50])):
            (folder / f"{name}.{language}").write_text(
                "".join(f"{line}\n" for line in part), encoding="utf-8"
            )
    size = {"width": 16, "heads": 2, "ffn": 16, "encoder": {"layers": 1}, "decoder": {"layers": 1}}
    stage = {
        "optimizer": "adam",
        "schedule": {"kind": "constant", "rate": 0.001},
        "batch": {"size": 4096},
        "end": {"updates": 1},
    }
    values: dict[str, Any] = {
        "data": {
            "source": "de",
            "target": "en",
            "folder": "prepared",
            "train": ["train"],
            "valid": ["valid"],
        },
        "model": {"kind": "transformer", **size},
        "training": {"stages": [stage]},
    }
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    prepared = prepare(load(config).data).folder
    data = manifest.read(prepared)
    random = np.random.default_rng(1)
    total = WORDS + len(SPECIAL)
    with ExitStack() as stack:
        writers = open_sentence_writers(prepared, "train", ("de", "en"), (total, total), stack)
        for start in range(0, pairs, CHUNK):
            base = random.gamma(4, tokens / 4, min(CHUNK, pairs - start))
            for out in writers:
                lengths = np.clip(base * random.normal(1, 0.1, len(base)), 2, 200).astype(np.int64)
                ids = random.integers(len(SPECIAL), total, int(lengths.sum()), dtype=np.uint16)
                ids[np.cumsum(lengths) - 1] = EOS
                out.write(ids, lengths, len(ids))
    split = data["splits"]["train"]
    outputs = data["stages"]["ids.train"]["outputs"]
    split["source"], split["target"] = (out.summary() for out in writers)
    split["corpora"] = [
        {"prefix": "first", "pairs": pairs // 2},
        {"prefix": "second", "pairs": pairs - pairs // 2},
    ]
    for name in outputs:
        outputs[name] = manifest.output_record(prepared / name)
    manifest.write(prepared, data)
    return config


@contextmanager
def anonymous() -> Iterator[dict[str, float]]:
    """Measure the process' anonymous memory in GB: before the context, and its maximum inside."""

    def now() -> float:
        line = next(
            line
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("RssAnon")
        )
        return int(line.split()[1]) * 1024 / 1e9

    memory = {"before": now(), "most": 0.0}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            memory["most"] = max(memory["most"], now())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield memory
    finally:
        done.set()
        thread.join()
        memory["most"] = max(memory["most"], now())


class FirstBatchRead(Exception):
    """Ends training after the first batch was read."""


def measure(config: Path, weights: bool) -> None:
    """Train up to the first batch, and print time and memory."""
    from fusetk import train as train_module
    from fusetk.data.sampler import batches
    from fusetk.training.loop import Trainer

    result: dict[str, Any] = {}

    def first(trainer: Trainer, indices: Any, updates_in_epoch: int) -> Any:
        collate(trainer.corpus, indices[0])
        result.update(seconds=time.perf_counter() - start, trainer=trainer)
        raise FirstBatchRead

    Trainer._update = first  # type: ignore[method-assign]
    recipe = load(
        config, ["training.stages.0.weights={first: 1.5, second: 0.5}"] if weights else []
    )
    start = time.perf_counter()
    with anonymous() as memory, suppress(FirstBatchRead):
        train_module.train(recipe, config.parent / "run", "cpu", quiet=True)
    trainer = result["trainer"]
    print(f"{len(trainer.corpus):,} pairs: first batch after {result['seconds']:.1f} s", end=", ")
    print(
        f"memory without mapped files {memory['before']:.2f} GB before "
        f"and {memory['most']:.2f} GB at most",
        end=", ",
    )
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9:.2f} GB with maps")
    lengths = [side.lengths for side in (trainer.corpus.source, trainer.corpus.target)]
    start = time.perf_counter()
    with anonymous() as memory:
        order = batches(*lengths, trainer.config.stages[0].batch, 1, 1, trainer.stages.spans[0])
        seconds = time.perf_counter() - start
    print(
        f"order of an epoch: {len(order):,} batches in {seconds:.1f} s, "
        f"{memory['most'] - memory['before']:.2f} GB at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=40_000_000)
    parser.add_argument("--tokens", type=int, default=25, help="mean tokens of a sentence")
    parser.add_argument("--weights", action="store_true")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.folder / "config.yaml", options.weights)
        return
    if options.folder.exists():
        parser.error(f"{options.folder} exists; give the name of a new folder")
    try:
        start = time.perf_counter()
        make(options.folder, options.pairs, options.tokens)
        sizes = {
            path.name: path.stat().st_size
            for path in (options.folder / "prepared").iterdir()
            if path.is_file()
        }
        print(f"written in {time.perf_counter() - start:.0f} s: {json.dumps(sizes)}", flush=True)
        script = os.path.abspath(__file__)
        command = [sys.executable, script, str(options.folder), "--measure"]
        subprocess.run([*command, *(["--weights"] if options.weights else [])], check=True)
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
