"""The learned weights of ``connect: linear``: what each layer reads from the layers below it."""

import re
from typing import TYPE_CHECKING

import numpy as np

from fusetk.data.vocab import UNK
from fusetk.errors import DataError
from fusetk.models.stack import Stack
from fusetk.plotting.forward_trace import forced
from fusetk.plotting.panel import Panel

if TYPE_CHECKING:
    from fusetk.models.seq2seq import Seq2Seq

_NAME = re.compile(r"(encoder|decoder)\.connect\.layer(\d+)")


def panels(model: "Seq2Seq") -> list[Panel]:
    """For each side a row for every layer that reads and a column for every layer that it may read, l0 the word embedding.

    The last row, ``top``, is what comes after the stack, where that reads like one more layer. The weights are the same for
    every sentence. A layer without a choice may have no row: the first, where weights are
    made to sum to 1. Raises DataError for a model whose layers read the layer below alone.
    """
    found = forced(model, [([UNK], [UNK])], "*.connect.*").found  # any sentence will do
    depths = {
        stack.connect.name.partition(".")[0]: len(stack.layers)
        for stack in model.modules()
        if isinstance(stack, Stack)
    }
    shown = []
    for side in ("encoder", "decoder"):
        weights = {
            int(match[2]): found[name]
            for name in found
            if (match := _NAME.fullmatch(name)) and match[1] == side
        }
        if not weights:
            continue
        matrix = np.full(
            (len(weights), max(len(w) for w in weights.values())), np.nan, dtype=np.float32
        )
        for row, layer in enumerate(sorted(weights)):
            matrix[row, : len(weights[layer])] = weights[layer].float().cpu().numpy()
        x, y = (
            [f"l{i}" for i in range(matrix.shape[1])],
            ["top" if i > depths.get(side, i) else f"l{i}" for i in sorted(weights)],
        )
        title = f"{side}, learned weights of what a layer reads"
        shown.append(
            Panel(
                f"{side}.connect",
                title,
                matrix,
                x,
                y,
                "learned weight",
                ("layer that is read", "layer that reads"),
            )
        )
    if not shown:
        raise DataError(
            "there are no connections to draw: in this model every layer reads the one below it (connect: last)"
        )
    return shown
