"""Similarity of the layers of a stack: the mean cosine of their outputs."""

from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from fusetk.errors import DataError
from fusetk.evaluation.forward_trace import Pairs, batches, trace_forward
from fusetk.evaluation.layer_shares import layer_names
from fusetk.models.stack import Stack
from fusetk.plotting.panel import Panel

if TYPE_CHECKING:
    from fusetk.models.seq2seq import Seq2Seq

MEASURE = "cosine of two layers (mean over the positions)"


class SimilarityMeans:
    """Sums of the cosines over the positions of many sentences, and the panels of their means."""

    def __init__(self, model: "Seq2Seq"):
        """Raise DataError if the model has no stack of layers."""
        self.model = model
        self.stacks = {stack.name: stack for stack in model.modules() if isinstance(stack, Stack)}
        if not self.stacks:
            raise DataError("no layers to compare: this model has no stack of layers")
        self.sentences = 0
        self.layers: dict[str, list[str]] = {}  # names of the layers of each side
        self.sums: dict[str, np.ndarray] = {}  # of each side: (L, L)
        self.positions: dict[str, int] = {}  # of each side

    def add(self, pairs: Pairs) -> None:
        """Add pairs of source and target ids without BOS and EOS, in batches of similar length.

        Raises DataError if a sentence is longer than the model's positions.
        """
        for batch in batches(pairs):
            traced = trace_forward(self.model, batch, "", dict(self.stacks))
            self.sentences += len(batch)
            for name, stack in self.stacks.items():
                outputs = traced.outputs[name]
                # A coordinated model computes both sides with one stack, the source first.
                sides = ("encoder", "decoder") if len(outputs) == 2 else (name,)
                for side, output in zip(sides, outputs, strict=True):
                    names = layer_names(len(stack.history_widths), stack.depth)
                    self._add(side, output.history, traced.lengths[side], names)

    def _add(
        self, side: str, history: Sequence[Tensor], lengths: np.ndarray, names: list[str]
    ) -> None:
        layers = [history[i].float() for i in range(len(history))]
        inside = np.arange(layers[0].shape[1]) < lengths[:, None]
        rows = [F.normalize(layer.cpu()[inside], dim=-1) for layer in layers]
        sums = np.full((len(rows), len(rows)), np.nan)
        for i, j in combinations_with_replacement(range(len(rows)), 2):
            if rows[i].shape == rows[j].shape:  # layers of different widths have no cosine
                sums[i, j] = sums[j, i] = float((rows[i] * rows[j]).sum())
        self.layers[side] = names[: len(rows)]  # a highest layer without output is missing
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
            for side in ("encoder", "decoder")
        ]
