"""Layer weights of fusions averaged over many sentences, in total and by part of the sentence."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fusetk.decoding.target_scores import IdPair
from fusetk.evaluation.layer_shares import FusionTrace, trace_batches
from fusetk.fusion.base import Fusion
from fusetk.plotting.fusion import (
    BY_GRADIENT,
    HOPS,
    SHARE,
    check_hop,
    choose_hops,
    layer_panel,
    learned_panels,
)
from fusetk.plotting.panel import Panel

if TYPE_CHECKING:
    from fusetk.models.seq2seq import Seq2Seq

# The first position, five equal parts of the positions between, and the last position.
PARTS = ["first", "0-20 %", "20-40 %", "40-60 %", "60-80 %", "80-100 %", "last"]
MEAN = "mean over all positions"


class CorpusMeans:
    """Sums over the positions of many sentences, and the panels of their means.

    The memory does not grow with the number of sentences.
    """

    def __init__(self, model: "Seq2Seq", fusions: Sequence[Fusion]):
        self.model = model
        self.fusions = fusions
        self.sentences = 0
        self.last: list[FusionTrace] = []  # traces of the last batch, for names and learned values
        self.sums: list[np.ndarray] = []  # for each fusion: (parts, H, L)
        self.counts: list[np.ndarray] = []  # for each fusion: (parts,) positions

    def add(self, pairs: Sequence[IdPair]) -> None:
        """Add sentence pairs, in batches of similar length."""
        for traces in trace_batches(self.model, pairs, self.fusions):
            self.last = traces
            self.sentences += len(traces[0].lengths)
            if not self.sums:
                shapes = [traced.weights.shape[2:] for traced in self.last]
                self.sums = [np.zeros((len(PARTS), *shape)) for shape in shapes]
                self.counts = [np.zeros(len(PARTS)) for _ in shapes]
            for traced, sums, counts in zip(self.last, self.sums, self.counts, strict=True):
                _add_positions(traced, sums, counts)

    def panels(self, hop: int | str = "all") -> list[Panel]:
        """Return the means over all positions, the means by part, and the learned values.

        ``add`` must have been called. Raises the errors of ``check_hop``.
        """
        check_hop(self.last, hop)
        all_panels: list[Panel] = []
        for traced, sums, counts in zip(self.last, self.sums, self.counts, strict=True):
            mean = sums.sum(0) / counts.sum()  # (H, L)
            with np.errstate(invalid="ignore"):
                by_part = sums / counts[:, None, None]  # NaN for a part without positions
            if traced.hops:
                all_panels += _hop_panels(traced, mean, by_part, hop)
            else:
                all_panels += _share_panels(traced, mean, by_part)
            all_panels += learned_panels(traced)
        return all_panels


def _add_positions(traced: FusionTrace, sums: np.ndarray, counts: np.ndarray) -> None:
    """Add a batch's weights to ``sums`` and its numbers of positions to ``counts``, in place."""
    part = parts(traced.lengths, traced.weights.shape[1])
    for i in range(len(PARTS)):
        positions = part == i
        sums[i] += traced.weights[positions].sum(0, dtype=np.float64)
        counts[i] += positions.sum()


def _hop_panels(
    traced: FusionTrace, mean: np.ndarray, by_part: np.ndarray, hop: int | str
) -> list[Panel]:
    name, title = f"{traced.side}.fuse.hops.mean", f"{traced.side} fusion, {MEAN}"
    hops = [f"hop {h}" for h in range(1, len(mean) + 1)]
    return [
        layer_panel(name, title, mean, hops, traced.layers, HOPS, "hop"),
        *(
            _part_panel(name, title, by_part[:, chosen].mean(1), traced.layers, HOPS)
            for name, title, chosen in choose_hops(traced, hop)
        ),
    ]


def _share_panels(traced: FusionTrace, mean: np.ndarray, by_part: np.ndarray) -> list[Panel]:
    name, title = f"{traced.side}.fuse.contribution", f"{traced.side} fusion, "
    return [
        _part_panel(name, title + BY_GRADIENT, by_part[:, 0], traced.layers, SHARE),
        layer_panel(f"{name}.mean", title + MEAN, mean, ["mean"], traced.layers, SHARE, axis=""),
    ]


def _part_panel(
    name: str, title: str, weights: np.ndarray, layers: Sequence[str], measure: str
) -> Panel:
    axis = "part of the sentence"
    return layer_panel(f"{name}.parts", title, weights, PARTS, layers, measure, axis)


def parts(lengths: np.ndarray, longest: int) -> np.ndarray:
    """Return the part of the sentence (an index of PARTS) of each position.

    (B,) lengths -> (B, ``longest``); -1 after the end of the sentence. The first and the last
    position are parts of their own. The positions between them form five parts of equal size.
    """
    position = np.arange(longest)[None]
    length = lengths[:, None]
    inner = np.maximum(length - 2, 1)
    part = 1 + np.minimum((position - 1) * 5 // inner, 4)
    part = np.where(position == length - 1, len(PARTS) - 1, part)
    part = np.where(position == 0, 0, part)
    return np.where(position < length, part, -1)
