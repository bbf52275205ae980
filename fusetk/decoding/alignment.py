"""Alignments of a translation with its source, from the attention of the decoder.

Attention weights have the shape (T + 1, S) for a target of T tokens and a source of S positions.
Each target token has a row, and EOS has the last row. Each source token has a column, and EOS has
the last column. A row holds the attention of the decoder when it predicts the token of that row.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fusetk.errors import ConfigError, plural

# Pattern for trace.listen: cross-attention, and mixed attention to source and target.
PATTERN = "decoder.layer*.[cm]*"
_NAME = re.compile(r"decoder\.layer(\d+)\.(cross|mixed)")
_HEADS = re.compile(r"(mean|-?[1-9][0-9]{0,3})(?:\.(mean|-?[1-9][0-9]{0,3}))?")


class AttentionHeads(NamedTuple):
    """A layer and a head of the decoder's attention, both counted from 1, the lowest layer first.

    A negative number counts from the highest layer or the last head. None is the mean over all
    layers or heads. If a layer attends to several encoder layers, the heads for the first of them
    come first.
    """

    layer: int | None = None
    head: int | None = None


def parse(text: str) -> AttentionHeads:
    """Parse ``mean``, ``LAYER`` or ``LAYER.HEAD``; LAYER and HEAD are numbers or ``mean``.

    Raises ConfigError for any other text.
    """
    match = _HEADS.fullmatch(text.strip())
    if not match:
        raise ConfigError(
            f"{text!r} is not a choice of attention: give mean, a layer (3, or -1 for the "
            "highest), or a layer and a head (3.2 or mean.2), counted from 1"
        )
    layer, head = (None if part in (None, "mean") else int(part) for part in match.groups())
    return AttentionHeads(layer, head)


def attention(
    recorded: Mapping[str, Sequence[Tensor]], heads: AttentionHeads, rows: int, positions: int
) -> Tensor:
    """Return the attention to the source, (rows, T, positions), float32; each (r, t) sums to 1.

    ``recorded`` holds the values that one call of a model's ``decode`` recorded under ``PATTERN``.
    ``rows`` is the number of hypotheses, B * K; those of one sentence are adjacent. ``positions``
    is the source length S. If one softmax covers source and target, only the weights of the source
    count, so a head that attends mostly to the target has little influence on a mean. Raises
    ConfigError if the model does not have the layer or head.
    """
    layers = {
        int(match[1]): values[-1]
        for name, values in recorded.items()
        if (match := _NAME.fullmatch(name))
    }
    if not layers:
        raise ConfigError("this model has no attention to the source, so it has no alignments")
    numbers = sorted(layers)
    if heads.layer is not None:
        numbers = [_resolve(heads.layer, numbers, "layer")]
    weights = [_of_head(layers[number], heads.head, positions) for number in numbers]
    mean = torch.stack(weights).mean(0)  # (B, K * T, S)
    mean = mean.view(rows, -1, positions)
    return mean / mean.sum(-1, keepdim=True).clamp_min(torch.finfo(mean.dtype).tiny)


def _of_head(weights: Tensor, head: int | None, positions: int) -> Tensor:
    """Return the weights of a head, or the mean over the heads, as (B, K * T, S).

    ``weights`` has the shape (B, H, K * T, S or more).
    """
    weights = weights[..., :positions]
    if head is None:
        return weights.mean(1, dtype=torch.float32)
    return weights[:, _resolve(head, range(1, weights.shape[1] + 1), "head") - 1].float()


def _resolve(number: int, known: Sequence[int], kind: str) -> int:
    """Resolve a layer or head that may count from the end. Raises ConfigError if it is unknown."""
    if number in known:
        return number
    if -len(known) <= number < 0:
        return known[number]
    kinds = plural(len(known), kind)
    if len(known) == known[-1] - known[0] + 1 > 1:
        listed = f"{known[0]} to {known[-1]}"
    else:
        listed = ", ".join(map(str, known))
    raise ConfigError(
        f"attention to the source has no {kind} {number}; this model has {kinds} {listed}"
    )


def hard(weights: np.ndarray) -> list[tuple[int, int]]:
    """Return each target token with its source token of the highest weight: pairs (source, target).

    Tokens are counted from 0. ``weights`` has the shape (T + 1, S). EOS is not aligned: the last
    row and the last column are ignored.
    """
    inner = weights[:-1, :-1]
    if not inner.size:
        return []
    return [(int(source), target) for target, source in enumerate(inner.argmax(1))]


def pharaoh(pairs: Iterable[tuple[int, int]]) -> str:
    """Format (source, target) pairs as ``0-0 1-2``, sorted by source, then by target."""
    return " ".join(f"{source}-{target}" for source, target in sorted(pairs))


def soft(weights: np.ndarray) -> str:
    """Format weights (T + 1, S) as Marian's soft alignment.

    Spaces separate the target tokens and EOS. Commas separate the weights of the source positions.
    """
    return " ".join(",".join(f"{weight:.6g}" for weight in row) for row in weights.tolist())
