"""Pictures of trained models in docs/fusions: ``python -m tools.figures docs``.

A page with such a picture has a model (its first block of YAML) and a command that draws it. The
model is trained for some updates at a small width on the generated corpus of the demo. Then the
command of the page draws it, so the picture is what a reader of the page gets.
"""

import argparse
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from PIL import Image

from fusetk.cli.main import main as fusetk_command
from fusetk.demo.grammar import write_corpus
from tools.markdown import blocks

ROOT = Path(__file__).resolve().parent.parent
PAIRS = {"test": 100, "valid": 100, "train": 2000}
UPDATES = 200
COLORS = 80  # number of colours of a picture, to keep its file small
# Sizes of the models, for pages that do not give them.
SIZES = {"width": 32, "heads": 4, "ffn": 64}


class Figure(NamedTuple):
    """A page with a picture."""

    name: str
    """Name of the page and of the picture, without suffix."""
    model: dict[str, Any]
    """The section `model` of the page."""
    command: list[str]
    """Words of the command that draws the picture, such as ["fusetk", "plot-attention", ...]."""


def read_figure(page: Path) -> Figure | None:
    """Return the model and the command of a page; None if the page has no picture."""
    text = page.read_text(encoding="utf-8")
    if f"../figures/{page.stem}.png" not in text:
        return None
    model = yaml.safe_load(next(blocks(text, "yaml")))["model"]
    command = next(
        line
        for block in blocks(text, "bash")
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("fusetk plot-attention ")
    )
    return Figure(page.stem, model, shlex.split(command))


def config(figure: Figure, folder: Path) -> dict[str, Any]:
    """Return the config that trains the model of ``figure`` in a work folder."""
    own = figure.model.get("kind", "transformer") in ("transformer", "coordinated")
    return {
        "data": {
            "source": "de",
            "target": "en",
            "folder": str(folder / "data"),
            "train": [str(folder / "raw/train")],
            "valid": [str(folder / "raw/valid")],
            "steps": [{"step": "tokenize"}],
            "bpe": {"merges": 2000},
        },
        "model": {**(SIZES if own else {}), "kind": "transformer", **figure.model},
        "training": {
            "label_smoothing": 0.1,
            "stages": [
                {
                    "optimizer": {"kind": "adam", "betas": [0.9, 0.98]},
                    "schedule": {"kind": "inverse-sqrt", "peak": 8e-3, "warmup": 50},
                    "batch": {"size": 400},
                    "end": {"updates": UPDATES},
                }
            ],
            "validation": {"every_updates": UPDATES},
        },
        "decoding": {"beam": 4},
    }


def draw(figure: Figure, folder: Path, output: Path) -> None:
    """Train the model, unless that is done, and draw the picture."""
    path = folder / f"{figure.name}.yaml"
    path.write_text(yaml.safe_dump(config(figure, folder), sort_keys=False), encoding="utf-8")
    run = folder / figure.name / "my"  # the title of the picture contains the name of the folder
    if not (run / "checkpoints" / f"update-{UPDATES:07}").is_dir():
        call("train", path, "--prep", "--run", run, "-q")
    words = list(figure.command)
    words[words.index("-m") + 1] = str(run)
    words[words.index("-o") + 1] = str(output)
    call(*words[1:])
    picture = Image.open(output).convert("RGB")
    picture.quantize(COLORS, Image.Quantize.MAXCOVERAGE).save(output, optimize=True)


def call(*words: object) -> None:
    """Run a command of fusetk in this process. Raises RuntimeError if it fails."""
    status = fusetk_command.main([str(word) for word in words], standalone_mode=False)
    if status:
        raise RuntimeError(f"exit status {status}: fusetk {' '.join(map(str, words))}")


def main() -> None:
    parser = argparse.ArgumentParser(description="train tiny models and draw the pictures")
    parser.add_argument("docs", type=Path)
    parser.add_argument("names", nargs="*", help="pages, by default all")
    parser.add_argument("--work", type=Path, default=ROOT / "work/figures", help="work folder")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    if not (work / "raw").is_dir():
        write_corpus(work / "raw", PAIRS)
    for page in sorted((arguments.docs / "fusions").glob("*.md")):
        figure = read_figure(page)
        if figure and (not arguments.names or figure.name in arguments.names):
            output = arguments.docs / "figures" / f"{figure.name}.png"
            draw(figure, work, output.resolve())


if __name__ == "__main__":
    main()
