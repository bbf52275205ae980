"""A short description of a model for messages and pages."""

from fusetk.errors import quantity
from fusetk.models.seq2seq import ModelConfig

USUAL = ("last", "top", "plain")  # kinds of connections that the phrase does not name


def summary(config: ModelConfig) -> str:
    """Return the backbone, the depths and the unusual connections of a model as a phrase."""
    parts = [config.kind]
    for side in ("encoder", "decoder", "stack"):
        stack = getattr(config, side, None)
        if stack is None:
            continue
        if hasattr(stack, "layers"):
            phrase = f"{side} of {quantity(stack.layers, 'layer')}"
        else:
            phrase = f"{side} of depth {stack.depth}"
        for site in ("connect", "residual", "self_attention", "fuse", "attend"):
            choice = getattr(stack, site, None)
            if choice is not None and choice.kind not in USUAL:
                phrase += f", {site} {choice.kind}"
        parts.append(phrase)
    return "; ".join(parts)
