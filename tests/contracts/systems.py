"""Tiny models of everything that is registered, for the contract tests: register something and it is covered."""

from collections.abc import Callable
from typing import Any

import torch

from fusetk.fusion import FUSIONS
from fusetk.models import MODELS, Seq2Seq
from fusetk.models.stack import ATTENDS, CONNECTIONS

SOURCE_SIZE, TARGET_SIZE = 11, 9

# Options without which a kind cannot be built.
SIZES: dict[str, dict[str, Any]] = {
    "transformer": {"width": 16, "heads": 2, "ffn": 24, "encoder": {"layers": 2}, "decoder": {"layers": 2}},
}


def build(kind: str, seed: int = 7, scale: float = 3.0, **options: Any) -> Seq2Seq:
    """A model with weights scaled up, so that a wrong cache or a wrong row shows in the output; in evaluation mode."""
    sizes = SIZES[kind]
    merged = {**sizes, **options, "kind": kind}
    for side in ("encoder", "decoder"):
        merged[side] = {**sizes.get(side, {}), **options.get(side, {})}
    model = MODELS[kind].Config.model_validate(merged)
    torch.manual_seed(seed)
    built = MODELS[kind](model, SOURCE_SIZE, TARGET_SIZE)
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return built.eval()


def _system(kind: str, **options: Any) -> Callable[[], Seq2Seq]:
    return lambda: build(kind, **options)


def _systems() -> dict[str, Callable[[], Seq2Seq]]:
    found = {}
    for kind in MODELS:
        found[kind] = _system(kind)
        for connect in CONNECTIONS:
            for side in ("encoder", "decoder"):
                found[f"{kind}, {side} connect {connect}"] = _system(kind, **{side: {"connect": connect}})
        for fuse in FUSIONS:
            for side in ("encoder", "decoder"):
                found[f"{kind}, {side} fuse {fuse}"] = _system(kind, **{side: {"fuse": fuse}})
        for attend in ATTENDS:
            found[f"{kind}, attend {attend}"] = _system(kind, decoder={"attend": attend})
    found["transformer, pre-norm, learned positions, tied"] = _system("transformer", norm="pre", positions="learned", tie="target")
    return found


SYSTEMS = _systems()
