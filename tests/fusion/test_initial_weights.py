"""Fusions before training."""

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
