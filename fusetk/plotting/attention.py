"""The attention weights of one sentence pair: recorded in a forced pass, chosen, and labelled with their words."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fusetk.data import bpe
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
    "mixed": (("decoder",), "mixed"),
}
NAMES = {"cross": "cross-attention", "self": "self-attention", "mixed": "mixed attention"}

MEASURE = "attention weight (a row sums to 1)"
AXES = {
    "cross": ("source", "target"),
    "self": ("looked at", "looking"),
    "mixed": ("source | target read", "target"),
}

_NAME = re.compile(r"(encoder|decoder)\.layer(\d+)\.(self|cross|mixed)")


class Words(NamedTuple):
    """Tokens as the model sees them, without begin and end marks."""

    source: Sequence[str]
    target: Sequence[str]

    def labels(self, side: str, kind: str) -> tuple[list[str], list[str]]:
        """Column and row labels. Rows of cross-attention and of mixed attention are the words that the decoder predicts there,
        the end mark too; self-attention has the words that the side reads, which for the decoder begin with the begin mark.
        Columns of mixed attention are the words of the source, then those that the decoder reads.
        """
        source, read = [*self.source, SPECIAL[EOS]], [SPECIAL[BOS], *self.target]
        if kind == "self":
            return (source, source) if side == "encoder" else (read, read)
        return source if kind == "cross" else source + read, self.predicted

    @property
    def predicted(self) -> list[str]:
        return [*self.target, SPECIAL[EOS]]

    def row(self, step: int | str) -> int:
        """The row at which the decoder predicts token ``step``, counted from 1, or a whole word for the first time.

        Raises DataError for what the translation does not have.
        """
        tokens = self.predicted
        if isinstance(step, int):
            if not 1 <= step <= len(tokens):
                raise DataError(
                    f"there is no step {step}: there are {len(tokens)}, counted from 1: {' '.join(tokens)}"
                )
            return step - 1
        starts = [i for i in range(len(tokens)) if not i or not tokens[i - 1].endswith(bpe.JOINER)]
        found = [
            bpe.join(" ".join(tokens[i:j]))
            for i, j in zip(starts, [*starts[1:], len(tokens)], strict=True)
        ]
        if step not in found:
            raise DataError(f"the translation has no word {step!r}: it has {' '.join(found)}")
        return starts[found.index(step)]


def record(model: "Seq2Seq", source: Sequence[int], target: Sequence[int]) -> dict[str, np.ndarray]:
    """Every attention weight of one forced pass: trace name -> (H, T, S), float32, each row of S summing to 1.

    ``source`` and ``target`` are ids without begin and end marks. Raises DataError for a sentence longer than the model's
    positions.
    """
    from fusetk.plotting.forward_trace import forced

    found = forced(model, [(source, target)], "*.layer*").found
    return {
        name: values[0].float().cpu().numpy()
        for name, values in found.items()
        if _NAME.fullmatch(name)
    }


def panels(
    weights: Mapping[str, np.ndarray],
    words: Words,
    what: str = "cross",
    layer: int | None = None,
    head: int | str = "mean",
    step: int | str | None = None,
) -> list[Panel]:
    """A panel for each layer (None: all, the lowest first) of ``what`` (a key of KINDS) and each ``head``.

    Layers and heads count from 1; ``head`` is one of them, ``mean`` over them, or ``all``. With a ``step`` (see ``Words.row``)
    only the decoder, and of each panel only the row of that step, up to the last word that is read there; all heads are then
    rows of one panel. Raises DataError for a kind of attention that the model does not have, and for a layer, head or step
    out of range.
    """
    sides, kind = KINDS[what]
    row = None if step is None else words.row(step)
    found: list[Panel] = []
    for side in sides if row is None else ("decoder",):
        layers = {
            int(match[2]): name
            for name in weights
            if (match := _NAME.fullmatch(name)) and match.group(1, 3) == (side, kind)
        }
        if not layers:
            raise _missing(weights, side, kind)
        if layer is not None and layer not in layers:
            raise DataError(
                f"there is no layer {layer}: the {side} has {NAMES[kind]} in layers {_ranges(layers)}"
            )
        x, y = words.labels(side, kind)
        cut = len(words.source) + 1 if kind == "mixed" else 0
        axes = AXES[kind] if row is None else (AXES[kind][0], "head" if head == "all" else "target")
        for number in sorted(layers) if layer is None else [layer]:
            shown = [
                (suffix, text, matrix, y)
                for suffix, text, matrix in _heads(weights[layers[number]], head)
            ]
            if row is not None:
                seen = len(x) if kind == "cross" else len(x) - len(words.target) + row
                shown = _at(row, shown, seen, words.predicted[row], head == "all")
            for suffix, text, matrix, rows in shown:
                title = f"{side} layer {number}, {NAMES[kind]}, {text}"
                found.append(
                    Panel(
                        layers[number] + suffix,
                        title,
                        matrix,
                        x[: matrix.shape[1]],
                        rows,
                        MEASURE,
                        axes,
                        cut=cut,
                    )
                )
    return found


Shown = tuple[
    str, str, np.ndarray, list[str]
]  # suffix of the name, text for the title, matrix, labels of its rows


def _at(row: int, shown: Sequence[Shown], seen: int, predicted: str, together: bool) -> list[Shown]:
    """One row of each matrix, the first ``seen`` columns, ``together`` in one matrix or not."""
    step = f"step {row + 1}: {predicted}"
    if together:
        return [
            (
                ".heads",
                step,
                np.stack([matrix[row, :seen] for _, _, matrix, _ in shown]),
                [text for _, text, _, _ in shown],
            )
        ]
    return [
        (suffix, f"{text}, {step}", matrix[row : row + 1, :seen], [predicted])
        for suffix, text, matrix, _ in shown
    ]


def _missing(weights: Collection[str], side: str, kind: str) -> DataError:
    """The error for attention that the model does not have, with what it has."""
    there = {match.group(1, 3) for name in weights if (match := _NAME.fullmatch(name))}
    lacks = f"this model has no {NAMES[kind]} in its {side}"
    if side == "decoder" and ("decoder", "mixed") in there:
        other = " or encoder-self" if ("encoder", "self") in there and kind == "self" else ""
        return DataError(
            f"{lacks}, which attends to source and target in one softmax: choose --what mixed{other}"
        )
    whats = [
        what
        for what, (sides, kind) in KINDS.items()
        if all((side, kind) in there for side in sides)
    ]
    return DataError(
        f"{lacks}: "
        + (f"choose --what {', '.join(whats)}" if whats else "it has no attention to draw")
    )


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
