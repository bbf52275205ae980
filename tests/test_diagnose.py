"""The values that `tools/diagnose.py` prints for each layer."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fusetk import system
from fusetk.data.batch import collate
from fusetk.data.corpus import Corpus
from fusetk.recipe import load
from fusetk.training.update import batch_loss
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


def test_padding_does_not_count(toy: Path) -> None:
    """`conv` computes padding, unlike models that pack the sentences."""
    sides = {side: {"layers": 2} for side in ("encoder", "decoder")}
    recipe = load(toy, [f"model={json.dumps({'kind': 'conv', **sides})}"])
    model = system.build(recipe, 20, 20).eval()
    corpus = Corpus.open(Path(recipe.data.folder), "valid")
    squares: dict[tuple[str, int], list[float]] = {}
    for i in np.linspace(0, len(corpus) - 1, PAIRS).round().astype(np.int64):
        with diagnose.outputs_of(model) as outputs, torch.no_grad():
            batch_loss(model, collate(corpus, np.array([i]), 1), 0.0)  # a pair has no padding
        for name, output in outputs.items():
            for layer, tensor in enumerate(output.history):
                squares.setdefault((name, layer), []).extend(tensor.square().flatten().tolist())
    measured = diagnose.measure(model, corpus, PAIRS)
    for (name, layer), values in squares.items():
        assert measured[name][str(layer), "size"] == pytest.approx(np.mean(values) ** 0.5, rel=1e-4)


def test_an_average_divides_the_gradient_of_its_output_by_the_number_of_layers(toy: Path) -> None:
    stack = values(toy, "model.encoder.fuse={kind: average, embedding: true, norm: false}")[
        "encoder"
    ]
    layers = sorted({layer for layer, _ in stack} - {diagnose.OUTPUT}, key=int)
    top = stack[layers[-1], "gradient"]  # only the average reads the highest layer
    assert top == pytest.approx(stack[diagnose.OUTPUT, "gradient"] / len(layers))
