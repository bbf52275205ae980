"""What fusions do on average over many sentences, and in which part of a sentence."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fusetk.decoding.target_scores import batches
from fusetk.fusion.base import Fusion
from fusetk.plotting.forward_trace import Pairs
from fusetk.plotting.fusion import BY_GRADIENT, HOPS, SHARE, Fused, choose, fused, learned
from fusetk.plotting.panel import Panel

if TYPE_CHECKING:
    from fusetk.models.seq2seq import Seq2Seq

PARTS = ["first", "1/5", "2/5", "3/5", "4/5", "5/5", "last"]
TOKENS = 4096  # positions of a batch, both sides and the padding counted


class Means:
    """Sums over sentences, from which ``panels`` makes means: memory does not grow with the corpus."""

    def __init__(self, model: "Seq2Seq", chosen: Sequence[Fusion]):
        self.model, self.chosen = model, chosen
        self.sentences = 0
        self.last: list[Fused] = []  # of the last batch: what is the same for all
        self.sums: list[np.ndarray] = []  # for each fusion (parts, H, L)
        self.counts: list[np.ndarray] = []  # for each fusion (parts,) positions

    def add(self, pairs: Pairs) -> None:
        """Read pairs of source and target ids without marks, sorted by length into batches."""
        for batch in batches(
            [(len(source) + 1, len(target) + 1) for source, target in pairs], TOKENS
        ):
            self.last = fused(self.model, [pairs[i] for i in batch], self.chosen)
            self.sentences += len(batch)
            if not self.sums:
                self.sums = [np.zeros((len(PARTS), *one.weights.shape[2:])) for one in self.last]
                self.counts = [np.zeros(len(PARTS)) for _ in self.last]
            for one, sums, counts in zip(self.last, self.sums, self.counts, strict=True):
                part = parts(one.lengths, one.weights.shape[1])
                for i in range(len(PARTS)):
                    here = part == i
                    sums[i] += one.weights[here].sum(0, dtype=np.float64)
                    counts[i] += here.sum()

    def panels(self, hop: int | str = "all") -> list[Panel]:
        """Means over all positions, then by part of the sentence, then what was learned. Call ``add`` before."""
        shown: list[Panel] = []
        for one, sums, counts in zip(self.last, self.sums, self.counts, strict=True):
            mean = sums.sum(0) / counts.sum()  # (H, L)
            with np.errstate(invalid="ignore"):
                by_part = sums / counts[:, None, None]  # NaN for a part that no sentence has
            shown += _hops(one, mean, by_part, hop) if one.hops else _shares(one, mean, by_part)
            shown += learned(one)
        return shown


def _hops(one: Fused, mean: np.ndarray, by_part: np.ndarray, hop: int | str) -> list[Panel]:
    names = [f"hop {h}" for h in range(1, len(mean) + 1)]
    title = f"{one.side} fusion, mean over all positions"
    shown = [
        Panel(
            f"{one.side}.fuse.hops.mean",
            title,
            mean.T,
            names,
            one.layers,
            HOPS,
            ("hop", "layer"),
            True,
        )
    ]
    for name, text, hops in choose(one, hop):
        matrix = by_part[:, hops].mean(1).T
        shown.append(
            Panel(
                f"{name}.parts",
                text,
                matrix,
                PARTS,
                one.layers,
                HOPS,
                ("part of the sentence", "layer"),
                True,
            )
        )
    return shown


def _shares(one: Fused, mean: np.ndarray, by_part: np.ndarray) -> list[Panel]:
    name, title = f"{one.side}.fuse.contribution", f"{one.side} fusion, {BY_GRADIENT}"
    axes = ("part of the sentence", "layer")
    return [
        Panel(f"{name}.parts", title, by_part[:, 0].T, PARTS, one.layers, SHARE, axes, True),
        Panel(
            f"{name}.mean",
            f"{one.side} fusion, mean over all positions",
            mean.T,
            ["mean"],
            one.layers,
            SHARE,
            ("", "layer"),
            True,
        ),
    ]


def parts(lengths: np.ndarray, longest: int) -> np.ndarray:
    """The part of the sentence (an index of PARTS) at each of ``longest`` positions: (B,) -> (B, longest), -1 behind the end.

    The first position and the last are parts of their own; what is between them is cut into five equal ones.
    """
    place = np.arange(longest)[None]
    count = lengths[:, None]
    between = np.maximum(count - 2, 1)
    found = 1 + np.minimum((place - 1) * 5 // between, 4)
    found = np.where(place == count - 1, len(PARTS) - 1, found)
    found = np.where(place == 0, 0, found)
    return np.where(place < count, found, -1)
