"""Small trained runs and their service, for the tests of the explorer."""

from pathlib import Path

from fusetk import system
from fusetk.exploring.explorer import Explorer
from fusetk.recipe import load
from fusetk.train import train

FUSED = [
    "model.positions=learned",
    "model.max_positions=60",
    "model.encoder={layers: 2, connect: linear}",
    "model.decoder={layers: 2, fuse: {kind: attention, hops: 2, attention_hidden: 16, hidden: 16}}",
]
LARGEST = 2000  # cells of the heatmaps


def trained(toy: Path, folder: Path) -> list[Path]:
    """Return two runs of the toy task: a Transformer, and one with fusion and connections."""
    paths = []
    for name, overrides in (("plain", []), ("fused", FUSED)):
        paths.append(folder / name)
        train(load(toy, overrides), paths[-1], "cpu", quiet=True)
    return paths


def explorer(run: Path) -> Explorer:
    return Explorer(run.name, system.load_model(run, "cpu"), LARGEST)
