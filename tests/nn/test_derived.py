"""The cached tensors of modules."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from fusetk.nn.weightnorm import NormedLinear


def halve_in_place(layer: NormedLinear) -> None:
    with torch.no_grad():
        layer.g.mul_(0.5)


def halve_in_inference_mode(layer: NormedLinear) -> None:
    with torch.inference_mode():
        layer.g.mul_(0.5)


def replace(layer: NormedLinear) -> None:
    layer.g = nn.Parameter(layer.g.detach() / 2)


def load(layer: NormedLinear) -> None:
    layer.load_state_dict({**layer.state_dict(), "g": layer.g.detach() / 2})


def load_by_assignment(layer: NormedLinear) -> None:
    layer.load_state_dict({**layer.state_dict(), "g": layer.g.detach() / 2}, assign=True)


@pytest.mark.parametrize(
    "change", [halve_in_place, halve_in_inference_mode, replace, load, load_by_assignment]
)
@torch.no_grad()
def test_a_changed_parameter_discards_the_cached_tensor(
    change: Callable[[NormedLinear], None],
) -> None:
    layer = NormedLinear(3, 4, std=1.0).eval()
    x = torch.randn(2, 3)
    before = layer(x)
    change(layer)
    torch.testing.assert_close(layer(x), before / 2)
    torch.testing.assert_close(copy.deepcopy(layer)(x), before / 2)


@torch.no_grad()
def test_a_functional_call_uses_its_parameters() -> None:
    layer = NormedLinear(3, 4, std=1.0).eval()
    x = torch.randn(2, 3)
    before = layer(x)
    other = {"v": layer.v.detach(), "g": layer.g.detach() / 2, "bias": layer.bias}
    torch.testing.assert_close(torch.func.functional_call(layer, other, (x,)), before / 2)
    torch.testing.assert_close(layer(x), before)


@torch.no_grad()
def test_an_unchanged_tensor_is_computed_once() -> None:
    layer = NormedLinear(3, 4, std=1.0).eval()
    computed = layer.weight
    assert layer.weight is computed
    assert layer.train().eval().weight is not computed
