"""Which source words a translation comes from, by the attention of the decoder.

Weights are (T + 1, S) for a target of T tokens and a source of S positions: a row for each target token and one for the end
mark, a column for each source token and, the last, one for the end mark. A row is what the decoder attended to when it
predicted that token.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fusetk.errors import ConfigError

PATTERN = "decoder.layer*.[cm]*"  # for trace.listen: cross-attention, and mixed attention to source and target
_NAME = re.compile(r"decoder\.layer(\d+)\.(cross|mixed)")
_WHICH = re.compile(r"(mean|-?[1-9][0-9]{0,3})(?:\.(mean|-?[1-9][0-9]{0,3}))?")


class Which(NamedTuple):
    """Whose attention is taken: a layer and a head as ``plot-attention`` counts them, from 1, the lowest layer first.

    A negative number counts from the top, or from the last head; None is the mean over all. Where a layer attends to several encoder
    layers, its heads for one follow those for the other.
    """

    layer: int | None = None
    head: int | None = None


def parse(text: str) -> Which:
    """``mean``, ``LAYER`` or ``LAYER.HEAD``, each a number or ``mean``. Raises ConfigError for anything else."""
    match = _WHICH.fullmatch(text.strip())
    if not match:
        raise ConfigError(
            f"{text!r} names no attention: give mean, a layer (3, or -1 for the highest), or a layer and a head (3.2 or mean.2), "
            "counted from 1"
        )
    layer, head = (None if part in (None, "mean") else int(part) for part in match.groups())
    return Which(layer, head)


def attention(
    found: Mapping[str, Sequence[Tensor]], which: Which, rows: int, positions: int
) -> Tensor:
    """What one call of a model's ``decode`` recorded under ``PATTERN`` -> (rows, T, positions), float32, each (r, t) summing to 1.

    ``rows`` are the hypotheses that it read, B * K, those of a sentence together; ``positions`` those of the source, S. Attention to
    source and target in one softmax counts by what it gives to the source, so a head that looks at the target says little. Raises
    ConfigError for a layer or head that the model does not have.
    """
    layers = {
        int(match[1]): values[-1]
        for name, values in found.items()
        if (match := _NAME.fullmatch(name))
    }
    if not layers:
        raise ConfigError(
            "this model has no attention to the source, so nothing is known of alignments"
        )
    numbers = (
        sorted(layers) if which.layer is None else [_number(which.layer, sorted(layers), "layer")]
    )
    mean = torch.stack([_heads(layers[number], which.head, positions) for number in numbers]).mean(
        0
    )  # (B, K * T, S)
    mean = mean.view(rows, -1, positions)
    return mean / mean.sum(-1, keepdim=True).clamp_min(torch.finfo(mean.dtype).tiny)


def _heads(weights: Tensor, head: int | None, positions: int) -> Tensor:
    """(B, H, K * T, S or more) -> (B, K * T, S)."""
    weights = weights[..., :positions]
    if head is None:
        return weights.mean(1, dtype=torch.float32)
    return weights[:, _number(head, range(1, weights.shape[1] + 1), "head") - 1].float()


def _number(asked: int, there: Sequence[int], what: str) -> int:
    """The number of a layer or head; raises ConfigError where there is none."""
    if asked in there:
        return asked
    if -len(there) <= asked < 0:
        return there[asked]
    known = (
        f"{there[0]} to {there[-1]}"
        if len(there) == there[-1] - there[0] + 1 > 1
        else ", ".join(map(str, there))
    )
    raise ConfigError(
        f"there is no {what} {asked} of attention to the source; the model has {known}"
    )


def hard(weights: np.ndarray) -> list[tuple[int, int]]:
    """Weights (T + 1, S) -> for each target token the source token with the highest weight, as (source, target), from 0.

    End marks are aligned to nothing: the last row and the last column do not count.
    """
    inner = weights[:-1, :-1]
    if not inner.size:
        return []
    return [(int(source), target) for target, source in enumerate(inner.argmax(1))]


def pharaoh(pairs: Iterable[tuple[int, int]]) -> str:
    """``0-0 1-2``: source and target token, by source, then by target."""
    return " ".join(f"{source}-{target}" for source, target in sorted(pairs))


def soft(weights: np.ndarray) -> str:
    """Marian's soft alignment of weights (T + 1, S): for each target token, then for the end mark, the weights of all source
    positions with commas between them.
    """
    return " ".join(",".join(f"{weight:.6g}" for weight in row) for row in weights.tolist())
