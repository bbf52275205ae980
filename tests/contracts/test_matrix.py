"""Every connection, residual connection, fusion and attention in every backbone that has its site.

The other contract tests take each kind in a few systems. These tests build all pairs of a kind and
a backbone with default options, and check the results that depend on both.
"""

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from fusetk.fusion import FUSIONS
from fusetk.models import MODELS, Seq2Seq
from fusetk.models.attend import ATTENDS
from fusetk.models.connect import CONNECTIONS
from fusetk.models.residual import RESIDUALS
from fusetk.training.update import batch_loss
from tests.contracts.systems import BACKBONES, CONNECTS, FUSES, GROUPS, MUDD_1, build, sides
from tests.contracts.test_decoding import LENGTH, SOURCES, begin, close, forced, prefixes, read
from tests.helpers.batches import random_batch

SITES: dict[str, dict[str, Any]] = {
    "connect": CONNECTIONS,
    "residual": RESIDUALS,
    "fuse": FUSIONS,
    "attend": ATTENDS,
}
# The first norm that a kind accepts is tested.
NORMS = ("pre", "post", "none")
# Pairs that a backbone rejects: only layers of the Transformer read separate queries, keys and
# values, and a recurrent decoder has one attention and layers that exchange no source layers.
REJECTED = {
    ("coordinated", "connect", "cross"),
    ("conv", "connect", "cross"),
    ("coordinated", "residual", "value-residual"),
    ("recurrent", "attend", "layerwise"),
}


def options(kind: str, site: str, name: str) -> dict[str, Any]:
    """The options of a kind that small stacks need."""
    if name == "groups":
        return GROUPS
    if name == "mudd" and kind != "transformer":
        return MUDD_1
    table = {"connect": CONNECTS, "fuse": FUSES}.get(site, {})
    return {"kind": name, **table.get(name, [{}])[0]}


def pairs() -> list[tuple[str, str, str]]:
    combinations: list[tuple[str, str, str]] = []
    for kind in MODELS:
        side = MODELS[kind].Config.model_validate({**BACKBONES[kind].sizes, "kind": kind})
        for site, registered in SITES.items():
            if any(hasattr(getattr(side, key), site) for key in sides(kind)):
                combinations += [(kind, site, name) for name in registered]
    return combinations


def system(kind: str, site: str, name: str) -> Seq2Seq:
    """Build a model with a kind at each stack that has the site. Raises ValidationError."""
    default = MODELS[kind].Config.model_validate({**BACKBONES[kind].sizes, "kind": kind})
    chosen = {
        side: {site: options(kind, site, name)}
        for side in sides(kind)
        if hasattr(getattr(default, side), site)
    }
    norms = [{"norm": norm} for norm in NORMS] if hasattr(default, "norm") else [{}]
    for norm in norms[:-1]:
        try:
            return build(kind, **norm, **chosen)
        except ValidationError:
            continue
    return build(kind, **norms[-1], **chosen)


@pytest.mark.parametrize(("kind", "site", "name"), pairs(), ids="-".join)
def test_every_kind_in_every_backbone(kind: str, site: str, name: str) -> None:
    """Cached decoding equals forced decoding, and the gradients are finite."""
    if (kind, site, name) in REJECTED:
        with pytest.raises(ValidationError, match=name):
            system(kind, site, name)
        return
    model = system(kind, site, name)
    tokens = prefixes(len(SOURCES))
    with torch.inference_mode():
        for sizes in ([1] * LENGTH, [1, 4, 1]):
            logits, _ = read(model, tokens, begin(model), sizes)
            close(logits, forced(model, tokens))
    batch_loss(model, random_batch(), 0.1).smoothed.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients and all(grad.isfinite().all() for grad in gradients)
