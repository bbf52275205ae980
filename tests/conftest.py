"""Fixtures of several test modules: a small prepared corpus and a config that trains on it in
seconds."""

import gc
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from fusetk.cli.main import COLLECT_AFTER
from fusetk.data.prepare import prepare
from fusetk.recipe import load
from tests.helpers.fast_commands import fast_commands

torch.set_num_threads(1)

# The objects of these imports exist until the end, so the garbage collector need not examine them.
gc.freeze()
gc.set_threshold(COLLECT_AFTER)

# `nohup` and the background of a script ignore these signals, and the tests send them.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

WORDS = "eins zwei drei vier fünf sechs sieben acht neun zehn".split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first, so that no process has a long file left at the end."""
    items.sort(key=lambda item: "training" not in item.path.parts)


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config file with prepared data: reverse a sentence and replace each word by its upper
    case."""
    folder = tmp_path_factory.mktemp("toy")
    choose = random.Random(5)
    sentences = [[choose.choice(WORDS) for _ in range(choose.randint(1, 6))] for _ in range(640)]
    for name, part in (("train", sentences[:600]), ("valid", sentences[600:])):
        (folder / f"{name}.de").write_text(
            "".join(" ".join(s) + "\n" for s in part), encoding="utf-8"
        )
        (folder / f"{name}.en").write_text(
            "".join(" ".join(w.upper() for w in reversed(s)) + "\n" for s in part), encoding="utf-8"
        )
    values: dict[str, Any] = {
        "data": {
            "source": "de",
            "target": "en",
            "folder": "prepared",
            "train": ["train"],
            "valid": ["valid"],
        },
        "model": {
            "kind": "transformer",
            "width": 32,
            "heads": 2,
            "ffn": 64,
            "dropout": 0.1,
            "encoder": {"layers": 1},
            "decoder": {"layers": 1},
        },
        "training": {
            "label_smoothing": 0.1,
            "log_every": 3,
            "validation": {"every_updates": 4},
            "stages": [
                {
                    "optimizer": "adam",
                    "schedule": {"kind": "inverse-sqrt", "peak": 0.01, "warmup": 20},
                    "batch": {"size": 400},
                    "end": {"updates": 8},
                }
            ],
        },
        "decoding": {"beam": 2},
    }
    path = folder / "toy.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    prepare(load(path).data)
    return path


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Scripts find ``fusetk`` and ``python3`` in ``PATH``, and these start fast."""
    with fast_commands(tmp_path_factory.mktemp("bin")) as folder, pytest.MonkeyPatch.context() as m:
        m.setenv("PATH", str(folder), prepend=os.pathsep)
        yield
