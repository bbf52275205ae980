"""Stacks: the plan of their modules, and the list of all layers of a model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusetk.models import MODELS, Seq2Seq
from fusetk.models.connect import DenseConnectionConfig, PlannedModule
from fusetk.models.stack import Layer
from tests.contracts.systems import SYSTEMS, build, sides
from tests.helpers.batches import random_batch

STACKED = [name for name in SYSTEMS if name in MODELS or "summaries" in name]


@pytest.mark.parametrize("make", [SYSTEMS[name] for name in STACKED], ids=STACKED)
def test_a_model_lists_all_its_layers(make: Callable[[], Seq2Seq]) -> None:
    model = make()
    layers = model.layers()
    assert len(set(layers)) == len(layers)
    assert set(layers) == {module for module in model.modules() if isinstance(module, Layer)}


def test_a_layer_may_be_a_summary() -> None:
    config = DenseConnectionConfig(growth=3, summary_every=2)
    plan = config.plan([8, 9, 10, 11], adds_input=False)
    assert plan == [
        PlannedModule(0, 3, is_added=False, is_summary=False, adds_input=False),
        PlannedModule(1, 10, is_added=False, is_summary=True, adds_input=True),
        PlannedModule(2, 3, is_added=False, is_summary=False, adds_input=False),
    ]
    assert config.summarised_layers(3) == 2


def test_a_summary_may_be_added_after_a_layer() -> None:
    config = DenseConnectionConfig(growth=3, summary_every=2, summary_layer="added")
    plan = config.plan([8, 9, 10, 11], adds_input=False)
    assert [planned.layer for planned in plan] == [0, 1, 1, 2]
    assert plan[2] == PlannedModule(1, 8, is_added=True, is_summary=True, adds_input=True)


def test_values_of_layers_are_aligned_with_modules() -> None:
    connect = {"kind": "dense", "growth": 6, "summary_every": 1, "summary_layer": "added"}
    stack = build("transformer", encoder={"connect": connect}).encoder
    assert stack.depth == 2 and len(stack.layers) == 3
    assert stack.per_module("ab") == ["a", None, "b"]


def test_recomputed_layers_keep_no_caches() -> None:
    """The caches would take the memory that recomputation saves."""
    for recomputes in (False, True):
        model = build("transformer", decoder={"checkpoint": recomputes}).train()
        ids = torch.tensor([[4, 5, 6]])
        memory = model.encode(ids, torch.ones_like(ids, dtype=torch.bool))
        _, state = model.decode(ids, model.start(memory))
        _, _, caches = state.per_sentence
        assert len(caches) == (0 if recomputes else 2)
        assert not model.eval().decoder.recomputes, "a search reads the caches"


@pytest.mark.parametrize(
    ("kind", "connect"),
    [
        ("transformer", "linear"),
        ("coordinated", "linear"),
        ("conv", {"kind": "dense", "growth": 3}),
    ],
)
def test_recomputation_changes_no_gradient(kind: str, connect: Any) -> None:
    """All layers are recomputed, with dropout."""
    batch = random_batch()
    gradients = []
    for recomputes in (False, True):
        stacks = {side: {"checkpoint": recomputes, "connect": connect} for side in sides(kind)}
        model = build(kind, **stacks).double().train()
        torch.manual_seed(5)
        features = model(batch.src, batch.src_mask, batch.tgt_in)
        model.output(features).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)
