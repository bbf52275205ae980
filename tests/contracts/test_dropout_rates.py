"""Each dropout rate of a config changes a training pass, and no pass in evaluation."""

from typing import Any

import pytest
import torch

from fusetk.fusion import FUSIONS
from fusetk.models.residual import RESIDUALS
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.dropout import Dropout
from tests.contracts.systems import FUSES, SOURCE_SIZE, TARGET_SIZE, build, variants

NONE = {
    "dropout": 0.0,
    "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}
RATES = [
    *((kind, {**NONE, rate: 0.5}) for kind in ("transformer", "coordinated") for rate in NONE),
    *(
        ("transformer", {**NONE, "activation_dropout": 0.5, "activation": activation})
        for activation in ("gelu", "swiglu")
    ),
    ("conv", {"dropout": 0.5}),
]
# The rate is that of a feed-forward network, which these do not have.
WITHOUT_NETWORK = [("linear", None), ("tree", "mean")]
FUSED = [
    options
    for kind in FUSIONS
    for options in variants(kind, FUSES)
    if "dropout" in FUSIONS[kind].Config.model_fields
    and (kind, options.get("aggregation")) not in WITHOUT_NETWORK
]
# Residual connections that need a norm of their own.
NORMS = {"deep-norm": "post", "admin": "post", "plain": "post", "rezero": "none"}


def passes(model: Seq2Seq, packed: bool) -> list[torch.Tensor]:
    """Return the features of two passes with the same input."""
    torch.manual_seed(3)
    src = torch.randint(4, SOURCE_SIZE, (3, 6))
    target = torch.randint(4, TARGET_SIZE, (3, 5))
    mask = torch.ones_like(src, dtype=torch.bool)
    tokens = torch.arange(target.numel()) if packed else None
    with torch.no_grad():
        return [model(src, mask, target, tokens) for _ in range(2)]


def is_random(model: Seq2Seq, packed: bool = False) -> bool:
    assert torch.equal(*passes(model.eval(), packed))
    return not torch.allclose(*passes(model.train(), packed))


@pytest.mark.parametrize(("kind", "options"), RATES, ids=str)
def test_rates_of_a_model(kind: str, options: dict[str, Any]) -> None:
    assert is_random(build(kind, **options))
    zero = {name: 0.0 for name in options if name.endswith("dropout")}
    assert not is_random(build(kind, **{**options, **zero}))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["transformer", "coordinated", "conv"])
def test_each_dropout_module_has_an_effect(kind: str, packed: bool) -> None:
    """Training packs the sentences of a batch on CPU, and not on other devices."""
    model = build(kind, **dict.fromkeys(["dropout"] if kind == "conv" else NONE, 0.5))
    dropouts = [module for module in model.modules() if isinstance(module, Dropout)]
    for chosen in dropouts:
        for module in dropouts:
            module.set_rate(0.5 if module is chosen else 0.0)
        assert is_random(model, packed)


@pytest.mark.parametrize("options", FUSED, ids=str)
def test_the_rate_of_a_fusion(options: dict[str, Any]) -> None:
    sides = {"encoder": {"layers": 4}, "decoder": {"layers": 4}}
    for side in sides:
        for rate in (0.5, 0.0):
            fused = {"layers": 4, "fuse": {**options, "dropout": rate}}
            model = build("transformer", **NONE, **{**sides, side: fused})
            assert is_random(model) == bool(rate)


def test_the_rate_of_transparent_attention() -> None:
    for rate in (0.5, 0.0):
        attend = {"kind": "transparent", "dropout": rate}
        assert is_random(build("transformer", **NONE, decoder={"attend": attend})) == bool(rate)


@pytest.mark.parametrize("kind", RESIDUALS)
def test_the_rate_of_a_residual_connection(kind: str) -> None:
    """Without dropout on embeddings, ``dropout`` is that of the sub-layers' results."""
    options: dict[str, Any] = {side: {"residual": kind} for side in ("encoder", "decoder")}
    options["norm"] = NORMS.get(kind, "pre")
    assert is_random(build("transformer", **{**NONE, "dropout": 0.5}, **options))
