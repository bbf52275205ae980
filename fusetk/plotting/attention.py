"""Attention weights of one sentence pair: recorded by forced decoding, selected and labelled."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fusetk.data.vocab import BOS, EOS, SPECIAL
from fusetk.errors import DataError, Diverged
from fusetk.plotting.panel import Panel

if TYPE_CHECKING:
    from fusetk.decoding.target_scores import IdPair
    from fusetk.models.seq2seq import Seq2Seq

# The values of --what: their sides and their kind of attention.
SIDES_AND_KINDS: dict[str, tuple[tuple[str, ...], str]] = {
    "cross": (("decoder",), "cross"),
    "self": (("encoder", "decoder"), "self"),
    "encoder-self": (("encoder",), "self"),
    "decoder-self": (("decoder",), "self"),
    "mixed": (("decoder",), "mixed"),
}
NAMES = {"cross": "cross-attention", "self": "self-attention", "mixed": "mixed attention"}

MEASURE = "attention weight (a row sums to 1)"
# Names of the columns (keys) and of the rows (queries).
AXES = {
    "cross": ("source", "target"),
    "self": ("key", "query"),
    "mixed": ("source | target prefix", "target"),
}

_NAME = re.compile(r"(encoder|decoder)\.layer(\d+)\.(self|cross|mixed)")


class TokenPair(NamedTuple):
    """The tokens of a sentence and its translation, without BOS and EOS."""

    source: Sequence[str]
    target: Sequence[str]
    words: Sequence[tuple[int, str]] = ()
    """The index of the first token and the text of each target word. Only ``row`` reads them."""

    def labels(self, side: str, kind: str) -> tuple[list[str], list[str]]:
        """Return the column labels and the row labels of one kind of attention.

        The rows of cross-attention and mixed attention are the tokens that the decoder predicts,
        including EOS. The rows and columns of self-attention are the tokens that the side reads;
        the decoder reads BOS first. The columns of mixed attention are the source tokens, then
        the tokens that the decoder reads.
        """
        source = [*self.source, SPECIAL[EOS]]
        decoder_input = [SPECIAL[BOS], *self.target]
        if kind == "self":
            tokens = source if side == "encoder" else decoder_input
            return tokens, tokens
        columns = source if kind == "cross" else source + decoder_input
        return columns, self.predicted

    @property
    def predicted(self) -> list[str]:
        """The tokens that the decoder predicts: the target and EOS."""
        return [*self.target, SPECIAL[EOS]]

    def row(self, step: int | str) -> int:
        """Return the row in which the decoder predicts ``step``.

        ``step`` is the number of a token, counted from 1, or a complete word, which means its first
        occurrence. Raises DataError if the translation does not have that token or word.
        """
        tokens = self.predicted
        if isinstance(step, int):
            if not 1 <= step <= len(tokens):
                raise DataError(
                    f"--step {step} is out of range: the translation has {len(tokens)} tokens, "
                    f"counted from 1: {' '.join(tokens)}"
                )
            return step - 1
        words = [*self.words, (len(self.target), SPECIAL[EOS])]
        for start, word in words:
            if word == step:
                return start
        text = " ".join(word for _, word in words)
        raise DataError(f"--step {step}: the translation does not contain {step!r}: it is {text}")


def record(model: "Seq2Seq", pair: "IdPair") -> dict[str, np.ndarray]:
    """Return all attention weights in forced decoding: trace name -> (H, T, S), float32.

    Each row of S weights sums to 1. Raises DataError if a sentence is longer than the
    model's positions, and Diverged if weights are NaN.
    """
    from fusetk.evaluation.forward_trace import trace_forward

    recorded = trace_forward(model, [pair], "*.layer*").recorded
    weights = {
        name: values[0].float().cpu().numpy()
        for name, values in recorded.items()
        if _NAME.fullmatch(name)
    }
    if any(np.isnan(values).any() for values in weights.values()):
        raise Diverged("attention weights")
    return weights


def heads_of_layers(weights: Mapping[str, np.ndarray], what: str) -> dict[int, int]:
    """Return the number of heads of each layer that has attention of the kind ``what``.

    ``weights`` is the result of ``record``, and ``what`` is a key of SIDES_AND_KINDS.
    """
    sides, kind = SIDES_AND_KINDS[what]
    heads = {
        layer: len(weights[name])
        for side in sides
        for layer, name in _layer_names(weights, side, kind).items()
    }
    return dict(sorted(heads.items()))


class _HeadMatrix(NamedTuple):
    """The weights of one head, or the mean over heads."""

    suffix: str  # of the panel's name
    text: str  # for the panel's title
    matrix: np.ndarray  # (T, S)
    row_labels: list[str]


def panels(
    weights: Mapping[str, np.ndarray],
    tokens: TokenPair,
    what: str = "cross",
    layer: int | None = None,
    head: int | str = "mean",
    step: int | str | None = None,
) -> list[Panel]:
    """Return a panel for each layer and each head, the lowest layer first.

    ``what`` is a key of SIDES_AND_KINDS. Layers and heads count from 1. ``layer=None`` means all
    layers. ``head`` is a number, ``mean`` (over heads) or ``all``. With a ``step`` (see
    ``TokenPair.row``) only the decoder is drawn, each panel has only the row of that step, and its
    columns end at the last token read at that step; with ``head="all"`` the rows are the heads.
    Raises DataError if the model does not have that kind of attention, or if a layer, head or step
    is out of range.
    """
    sides, kind = SIDES_AND_KINDS[what]
    row = None if step is None else tokens.row(step)
    if row is not None:
        sides = ("decoder",)
    layer_panels: list[Panel] = []
    for side in sides:
        names = _layer_names(weights, side, kind)
        if not names:
            raise _missing(weights, side, kind)
        if layer is not None and layer not in names:
            raise DataError(
                f"--layer {layer} is out of range: the {side} has {NAMES[kind]} in layers "
                f"{_ranges(names)}"
            )
        x, y = tokens.labels(side, kind)
        for number in sorted(names) if layer is None else [layer]:
            name = names[number]
            title = f"{side} layer {number}, {NAMES[kind]}"
            heads = _heads(weights[name], head, y)
            layer_panels += _panels_of_layer(
                name, title, heads, x, tokens, kind, row, head == "all"
            )
    return layer_panels


def _layer_names(weights: Mapping[str, np.ndarray], side: str, kind: str) -> dict[int, str]:
    """Return the trace name of each layer, by the layer's number."""
    return {
        int(match[2]): name
        for name in weights
        if (match := _NAME.fullmatch(name)) and match.group(1, 3) == (side, kind)
    }


def _panels_of_layer(
    name: str,
    title: str,
    heads: Sequence[_HeadMatrix],
    x: Sequence[str],
    tokens: TokenPair,
    kind: str,
    row: int | None,
    one_panel: bool,
) -> list[Panel]:
    """Return the panels of one layer; with a ``row``, ``one_panel`` puts all heads in one panel."""
    cut = len(tokens.source) + 1 if kind == "mixed" else 0
    axes = AXES[kind]
    if row is not None:
        axes = (axes[0], "head" if one_panel else "target")
        width = len(x) if kind == "cross" else len(x) - len(tokens.target) + row
        heads = _at_row(row, heads, width, tokens.predicted[row], one_panel)
    return [
        Panel(
            name + head.suffix,
            f"{title}, {head.text}",
            head.matrix,
            x[: head.matrix.shape[1]],
            head.row_labels,
            MEASURE,
            axes,
            cut=cut,
            top=1.0,
        )
        for head in heads
    ]


def _at_row(
    row: int, heads: Sequence[_HeadMatrix], width: int, predicted: str, one_panel: bool
) -> list[_HeadMatrix]:
    """Keep one row and the first ``width`` columns of each matrix."""
    step = f"step {row + 1}: {predicted}"
    if one_panel:
        stacked = np.stack([head.matrix[row, :width] for head in heads])
        return [_HeadMatrix(".heads", step, stacked, [head.text for head in heads])]
    return [
        _HeadMatrix(
            head.suffix, f"{head.text}, {step}", head.matrix[row : row + 1, :width], [predicted]
        )
        for head in heads
    ]


def _missing(weights: Collection[str], side: str, kind: str) -> DataError:
    """Return the error for a kind of attention that the model does not have."""
    recorded = {match.group(1, 3) for name in weights if (match := _NAME.fullmatch(name))}
    message = f"this model has no {NAMES[kind]} in its {side}"
    if side == "decoder" and ("decoder", "mixed") in recorded:
        encoder_self = ("encoder", "self") in recorded and kind == "self"
        other = " or encoder-self" if encoder_self else ""
        return DataError(
            f"{message}; its decoder attends to source and target in one softmax: "
            f"choose --what mixed{other}"
        )
    choices = [
        what
        for what, (sides, kind) in SIDES_AND_KINDS.items()
        if all((side, kind) in recorded for side in sides)
    ]
    if choices:
        return DataError(f"{message}: choose --what {', '.join(choices)}")
    return DataError(f"{message}: it has no attention to draw")


def columns(panels: Sequence[Panel]) -> int:
    """Return the number of panels in a row of the figure, so that a row shows one layer."""
    return max(Counter(panel.name.partition(".head")[0] for panel in panels).values())


def _heads(weights: np.ndarray, head: int | str, row_labels: list[str]) -> list[_HeadMatrix]:
    """Return the matrices (T, S) of the chosen heads of (H, T, S)."""
    count = len(weights)
    if head == "mean":
        text = f"mean of {count} heads" if count > 1 else "1 head"
        return [_HeadMatrix("", text, weights.mean(0), row_labels)]
    if isinstance(head, int) and not 1 <= head <= count:
        raise DataError(f"--head {head} is out of range: choose a head from 1 to {count}")
    numbers = range(1, count + 1) if head == "all" else [int(head)]
    return [
        _HeadMatrix(f".head{number}", f"head {number}", weights[number - 1], row_labels)
        for number in numbers
    ]


def _ranges(numbers: Mapping[int, str]) -> str:
    first = min(numbers)
    last = max(numbers)
    if len(numbers) == last - first + 1:
        return f"{first} to {last}" if last > first else str(first)
    return ", ".join(map(str, sorted(numbers)))
