"""The attention weights of one sentence pair: recorded in a forced pass, chosen, and labelled with their words."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fusetk.data.vocab import BOS, EOS, SPECIAL
from fusetk.errors import DataError
from fusetk.plotting.panel import Panel

if TYPE_CHECKING:
    from fusetk.models.seq2seq import Seq2Seq

# What --what names: the sides and the kind of attention.
KINDS: dict[str, tuple[tuple[str, ...], str]] = {
    "cross": (("decoder",), "cross"),
    "self": (("encoder", "decoder"), "self"),
    "encoder-self": (("encoder",), "self"),
    "decoder-self": (("decoder",), "self"),
}

MEASURE = "attention weight (a row sums to 1)"
AXES = {"cross": ("source", "target"), "self": ("looked at", "looking")}

_NAME = re.compile(r"(encoder|decoder)\.layer(\d+)\.(self|cross)")


class Words(NamedTuple):
    """Tokens as the model sees them, without begin and end marks."""

    source: Sequence[str]
    target: Sequence[str]

    def labels(self, side: str, kind: str) -> tuple[list[str], list[str]]:
        """Column and row labels. Rows of cross-attention are the words that the decoder predicts there, the end mark too;
        self-attention has the words that the side reads, which for the decoder begin with the begin mark.
        """
        source = [*self.source, SPECIAL[EOS]]
        if kind == "cross":
            return source, [*self.target, SPECIAL[EOS]]
        read = source if side == "encoder" else [SPECIAL[BOS], *self.target]
        return read, read


def record(model: "Seq2Seq", source: Sequence[int], target: Sequence[int]) -> dict[str, np.ndarray]:
    """Every attention weight of one forced pass: trace name -> (H, T, S), float32, each row of S summing to 1.

    ``source`` and ``target`` are ids without begin and end marks. Raises DataError for a sentence longer than the model's
    positions.
    """
    from fusetk.plotting.forced import forced

    found = forced(model, [(source, target)], "*.layer*").found
    return {name: values[0].float().cpu().numpy() for name, values in found.items() if _NAME.fullmatch(name)}


def panels(
    weights: Mapping[str, np.ndarray], words: Words, what: str = "cross", layer: int | None = None, head: int | str = "mean"
) -> list[Panel]:
    """A panel for each layer (None: all, the lowest first) of ``what`` (a key of KINDS) and each ``head``.

    Layers and heads count from 1; ``head`` is one of them, ``mean`` over them, or ``all``. Raises DataError for a kind of
    attention that the model does not have, and for a layer or head out of range.
    """
    sides, kind = KINDS[what]
    found: list[Panel] = []
    for side in sides:
        layers = {int(match[2]): name for name in weights if (match := _NAME.fullmatch(name)) and match.group(1, 3) == (side, kind)}
        if not layers:
            raise DataError(f"this model has no {kind}-attention in its {side}; it has {', '.join(weights) or 'no attention to draw'}")
        if layer is not None and layer not in layers:
            raise DataError(f"there is no layer {layer}: the {side} has {kind}-attention in layers {_ranges(layers)}")
        x, y = words.labels(side, kind)
        for number in sorted(layers) if layer is None else [layer]:
            name = layers[number]
            for suffix, text, matrix in _heads(weights[name], head):
                title = f"{side} layer {number}, {kind}-attention, {text}"
                found.append(Panel(name + suffix, title, matrix, x, y, MEASURE, AXES[kind]))
    return found


def columns(shown: Sequence[Panel]) -> int:
    """How many panels the layer with the most heads has: with as many side by side, a row is a layer."""
    return max(Counter(panel.name.partition(".head")[0] for panel in shown).values())


def _heads(weights: np.ndarray, head: int | str) -> list[tuple[str, str, np.ndarray]]:
    """Suffix of the name, text for the title, and matrix (T, S) of each chosen head of (H, T, S)."""
    count = len(weights)
    if head == "mean":
        return [("", f"mean of {count} heads" if count > 1 else "1 head", weights.mean(0))]
    if isinstance(head, int) and not 1 <= head <= count:
        raise DataError(f"there is no head {head}: there are {count}, counted from 1")
    chosen = range(1, count + 1) if head == "all" else [int(head)]
    return [(f".head{h}", f"head {h}", weights[h - 1]) for h in chosen]


def _ranges(numbers: Mapping[int, str]) -> str:
    first, last = min(numbers), max(numbers)
    if len(numbers) == last - first + 1:
        return f"{first} to {last}" if last > first else str(first)
    return ", ".join(map(str, sorted(numbers)))
