"""Each dropout rate of a config changes a training pass, and no pass in evaluation."""

from typing import Any

import pytest
import torch

from fusetk.fusion import FUSIONS
from fusetk.models.residual import RESIDUALS
from fusetk.models.seq2seq import Seq2Seq
from tests.contracts.systems import FUSES, SOURCE_SIZE, TARGET_SIZE, build, variants

NONE = {
    "dropout": 0.0,
    "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}
RATES = [
    *((kind, {**NONE, rate: 0.5}) for kind in ("transformer", "coordinated") for rate in NONE),
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


def passes(model: Seq2Seq) -> list[torch.Tensor]:
    """Return the features of two passes with the same input."""
    torch.manual_seed(3)
    src = torch.randint(4, SOURCE_SIZE, (3, 6))
    target = torch.randint(4, TARGET_SIZE, (3, 5))
    mask = torch.ones_like(src, dtype=torch.bool)
    with torch.no_grad():
        return [model(src, mask, target) for _ in range(2)]


def is_random(model: Seq2Seq) -> bool:
    assert torch.equal(*passes(model.eval()))
    return not torch.allclose(*passes(model.train()))


@pytest.mark.parametrize(("kind", "rates"), RATES, ids=str)
def test_rates_of_a_model(kind: str, rates: dict[str, float]) -> None:
    assert is_random(build(kind, **rates))
    assert not is_random(build(kind, **dict.fromkeys(rates, 0.0)))


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
