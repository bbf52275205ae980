"""Similarity of the layers of a stack: the mean cosine of their outputs."""

from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from fusetk.decoding.target_scores import IdPair
from fusetk.errors import DataError, Diverged
from fusetk.evaluation.forward_trace import batches, is_inside, trace_forward
from fusetk.evaluation.layer_shares import layer_names
from fusetk.models.stack import Stack, stacks_of
from fusetk.plotting.panel import Panel
from fusetk.trace import MODEL_SIDES

if TYPE_CHECKING:
    from fusetk.models.seq2seq import Seq2Seq

MEASURE = "cosine of two layers (mean over the positions)"


def find_stacks(model: "Seq2Seq") -> dict[str, Stack]:
    """Return the stacks of layers by name. Raises DataError if there are none."""
    stacks = {stack.name: stack for stack in stacks_of(model)}
    if not stacks:
        raise DataError(
            "this model has no stack of layers to compare: use a model of kind transformer, conv "
            "or coordinated"
        )
    return stacks


class SimilarityMeans:
    """Sums of the cosines over the positions of many sentences, and the panels of their means."""

    def __init__(self, model: "Seq2Seq", stacks: Mapping[str, Stack]):
        self.model = model
        self.stacks = stacks
        self.sentences = 0
        self.layers: dict[str, list[str]] = {}  # names of the layers of each side
        self.sums: dict[str, np.ndarray] = {}  # of each side: (L, L)
        self.positions: dict[str, int] = {}  # of each side

    def add(self, pairs: Sequence[IdPair]) -> None:
        """Add sentence pairs, in batches of similar length.

        Raises DataError if a sentence is longer than the model's positions, and Diverged if a layer
        returns NaN.
        """
        for batch in batches(pairs):
            traced = trace_forward(self.model, batch, "", self.stacks)
            self.sentences += len(batch)
            for name, stack in self.stacks.items():
                outputs = traced.outputs[name]
                names = layer_names(len(stack.history_widths), stack.depth)
                # A coordinated model may compute both sides with its decoder, the source first.
                sides = MODEL_SIDES if len(outputs) == len(MODEL_SIDES) else (name,)
                for side, output in zip(sides, outputs, strict=True):
                    self._add(side, output.history, traced.lengths[side], names)

    def _add(
        self, side: str, history: Sequence[Tensor], lengths: np.ndarray, names: list[str]
    ) -> None:
        layers = [history[i].float().cpu() for i in range(len(history))]
        inside = is_inside(lengths, layers[0].shape[1])
        rows = [F.normalize(layer[inside], dim=-1) for layer in layers]
        if any(row.isnan().any() for row in rows):
            raise Diverged("outputs of layers")
        sums = np.full((len(rows), len(rows)), np.nan)
        for i, j in combinations_with_replacement(range(len(rows)), 2):
            if rows[i].shape == rows[j].shape:  # layers of different widths have no cosine
                sums[i, j] = sums[j, i] = float((rows[i] * rows[j]).sum())
        # The history has no highest layer if the model uses only the state of that layer.
        self.layers[side] = names[: len(rows)]
        self.sums[side] = self.sums.get(side, 0.0) + sums
        self.positions[side] = self.positions.get(side, 0) + int(inside.sum())

    def panels(self) -> list[Panel]:
        """Return a panel for each side. ``add`` must have been called."""
        return [
            Panel(
                f"{side}.similarity",
                f"{side}, similarity of layers",
                self.sums[side] / self.positions[side],
                self.layers[side],
                self.layers[side],
                MEASURE,
                ("layer", "layer"),
                up=True,
                top=1.0,
            )
            for side in MODEL_SIDES
            if side in self.sums
        ]
