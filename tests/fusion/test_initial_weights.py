"""Fusions before training."""

from typing import Any

import pytest
import torch

from fusetk.models import MODELS
from tests.contracts.systems import BACKBONES


@pytest.mark.parametrize(("normalize", "initial"), [("none", 1 / 4), ("softmax", 0.0)])
def test_linear_fusion_starts_as_the_mean_of_embedding_and_layers(
    normalize: str, initial: float
) -> None:
    fuse = {"kind": "linear", "normalize": normalize}
    options = {**BACKBONES["transformer"].sizes, "decoder": {"layers": 3, "fuse": fuse}}
    model = MODELS["transformer"](MODELS["transformer"].Config.model_validate(options), 11, 9)
    weights = dict(model.named_parameters())["decoder.fuse.combine.weight"]
    torch.testing.assert_close(weights.detach(), torch.full((4,), initial))


@pytest.mark.parametrize(
    ("fuse", "name", "initial"),
    [
        ({"kind": "groups", "groups": 2}, "decoder.fuse.weight", [0.0, 0.0]),
        ({"kind": "tree"}, "beta", 1.0),
    ],
    ids=str,
)
def test_new_weights_of_groups_and_trees(
    fuse: dict[str, Any], name: str, initial: float | list[float]
) -> None:
    options = {**BACKBONES["transformer"].sizes, "decoder": {"layers": 4, "fuse": fuse}}
    model = MODELS["transformer"](MODELS["transformer"].Config.model_validate(options), 11, 9)
    values = [weight.tolist() for key, weight in model.named_parameters() if key.endswith(name)]
    assert values and all(value == initial for value in values)
