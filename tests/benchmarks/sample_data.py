"""A prepared folder with generated sentences, for benchmarks that need lengths only."""

from pathlib import Path

import numpy as np
import yaml

from fusetk.data.config import load_data
from fusetk.data.prepare import prepare

TYPES = 5000  # words of each side that occur


def prepare_sample(folder: Path, pairs: int, length: float = 13.0) -> Path:
    """Prepare pairs of sentences with this mean length; return the prepared folder.

    The lengths vary as those of Multi30k. The words of both sides are in one vocabulary, and their
    frequencies follow Zipf's law.
    """
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    probabilities = 1 / np.arange(1, TYPES + 1)
    probabilities /= probabilities.sum()
    lengths = np.clip(random.normal(length, 0.3 * length, pairs), 2, 2 * length).astype(int)
    for language in ("de", "en"):
        for name, count in (("train", pairs), ("valid", min(pairs, 400))):
            rows = (random.choice(TYPES, n, p=probabilities) for n in lengths[:count])
            lines = "".join(" ".join(f"w{i}" for i in row) + "\n" for row in rows)
            (folder / f"{name}.{language}").write_text(lines, encoding="utf-8")
    data = {
        "source": "de",
        "target": "en",
        "folder": "prepared",
        "train": ["train"],
        "valid": ["valid"],
        "vocabulary": {"joint": True},
    }
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump({"data": data}), encoding="utf-8")
    return prepare(load_data(config)).folder
