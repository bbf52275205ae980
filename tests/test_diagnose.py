"""The values that `tools/diagnose.py` prints for each layer."""

from pathlib import Path

import pytest

from fusetk import system
from fusetk.data.corpus import Corpus
from fusetk.recipe import load
from tools import diagnose

PAIRS = 12


def values(toy: Path, *overrides: str) -> dict[str, diagnose.Sums]:
    recipe = load(toy, overrides)
    model = system.build(recipe, 20, 20).eval()
    return diagnose.measure(model, Corpus.open(Path(recipe.data.folder), "valid"), PAIRS)


def test_without_a_fusion_the_output_is_the_highest_layer(toy: Path) -> None:
    for stack in values(toy).values():
        layers = {layer for layer, _ in stack} - {diagnose.OUTPUT}
        top = str(max(map(int, layers)))
        assert stack[diagnose.OUTPUT, "cosine"] == pytest.approx(1)
        for column in ("size", "gradient"):
            assert stack[diagnose.OUTPUT, column] == stack[top, column] > 0
        assert all(stack[layer, "parameters"] > 0 for layer in layers - {"0"})


def test_an_average_divides_the_gradient_of_its_output_by_the_number_of_layers(toy: Path) -> None:
    stack = values(toy, "model.encoder.fuse={kind: average, embedding: true, norm: false}")[
        "encoder"
    ]
    layers = sorted({layer for layer, _ in stack} - {diagnose.OUTPUT}, key=int)
    top = stack[layers[-1], "gradient"]  # only the average reads the highest layer
    assert top == pytest.approx(stack[diagnose.OUTPUT, "gradient"] / len(layers))
