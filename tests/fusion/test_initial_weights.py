"""Fusions before training."""

from typing import Any

import pytest
import torch
from torch import nn

from fusetk.errors import ConfigError
from fusetk.fusion.base import LayerFusion
from fusetk.models import MODELS
from fusetk.models.connect.linear import LinearConnection
from fusetk.models.seq2seq import Seq2Seq
from tests.contracts.systems import BACKBONES, sides


def built(kind: str, side: str, options: dict[str, Any]) -> Seq2Seq:
    sizes = BACKBONES[kind].sizes
    config = {**sizes, "kind": kind, side: {**sizes[side], **options}}
    return MODELS[kind](MODELS[kind].Config.model_validate(config), 11, 9)


@pytest.mark.parametrize(("normalize", "initial"), [("none", 1 / 4), ("softmax", 0.0)])
def test_linear_fusion_starts_as_the_mean_of_embedding_and_layers(
    normalize: str, initial: float
) -> None:
    fuse = {"kind": "linear", "normalize": normalize}
    model = built("transformer", "decoder", {"layers": 3, "fuse": fuse})
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
    model = built("transformer", "decoder", {"layers": 4, "fuse": fuse})
    values = [weight.tolist() for key, weight in model.named_parameters() if key.endswith(name)]
    assert values and all(value == initial for value in values)


class Biased(LayerFusion):
    def __init__(self, *args: Any):
        super().__init__(*args)
        self.map = nn.Linear(self.out_width, self.out_width)

    def initialise(self) -> None:
        nn.init.constant_(self.map.bias, 7)

    def fuse(self, layers: list[torch.Tensor]) -> torch.Tensor:
        return self.map(layers[-1])


class BiasedConnection(LinearConnection):
    def initialise(self) -> None:
        for parameter in self.parameters():
            nn.init.constant_(parameter, 7)


@pytest.mark.parametrize("kind", BACKBONES)
def test_a_fusion_sets_initial_weights_of_its_own(kind: str) -> None:
    side = sides(kind)[-1]
    model = built(kind, side, {"fuse": f"{__name__}:Biased"})
    [fusion] = [module for module in model.modules() if isinstance(module, Biased)]
    assert fusion.map.bias.eq(7).all()


def test_a_connection_sets_initial_weights_of_its_own() -> None:
    model = built("transformer", "decoder", {"connect": f"{__name__}:BiasedConnection"})
    connection = model.get_submodule("decoder.connect")
    assert isinstance(connection, BiasedConnection)
    assert all(parameter.eq(7).all() for parameter in connection.parameters())


def test_a_fusion_that_returns_another_shape_is_named() -> None:
    class Shortened(LayerFusion):
        def fuse(self, layers: list[torch.Tensor]) -> torch.Tensor:
            return layers[-1][..., 1:]

    fusion = Shortened(LayerFusion.Config(kind="x"), [4, 4], 4, "decoder.fuse")
    with pytest.raises(ConfigError, match=r"Shortened \(decoder.fuse\) returned .*\(2, 3\)"):
        fusion([torch.zeros(2, 4)] * 2)
