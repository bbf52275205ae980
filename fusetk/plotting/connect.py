"""The learned weights of ``connect: linear``, with which a layer combines the layers below it."""

import re
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fusetk.data.vocab import UNK
from fusetk.errors import DataError
from fusetk.models.stack import Stack
from fusetk.plotting.forward_trace import trace_forward
from fusetk.plotting.panel import Panel

if TYPE_CHECKING:
    from fusetk.models.seq2seq import Seq2Seq

_NAME = re.compile(r"(encoder|decoder)\.connect\.layer(\d+)")


def panels(model: "Seq2Seq") -> list[Panel]:
    """Return a panel for each side with learned connections.

    A row is a layer, a column is an output that the layer can read; l0 is the word embedding.
    The last row, ``top``, is the stack's output if it is combined like the input of a further
    layer. The weights are the same for every sentence. A layer that can read only one output may
    have no row, for example if weights are normalised to sum to 1. Raises DataError if every
    layer reads only the layer below.
    """
    # The weights do not depend on the sentence: any sentence will do.
    recorded = trace_forward(model, [([UNK], [UNK])], "*.connect.*").recorded
    depths = {
        stack.connect.name.partition(".")[0]: len(stack.layers)
        for stack in model.modules()
        if isinstance(stack, Stack)
    }
    side_panels = []
    for side in ("encoder", "decoder"):
        weights = {
            int(match[2]): values
            for name, values in recorded.items()
            if (match := _NAME.fullmatch(name)) and match[1] == side
        }
        if weights:
            side_panels.append(_panel(side, weights, depths.get(side)))
    if not side_panels:
        raise DataError(
            "there are no connections to draw: every layer of this model reads the layer below it "
            "(connect: last)"
        )
    return side_panels


def _panel(side: str, weights: dict[int, Tensor], depth: int | None) -> Panel:
    """Return the panel of one side from the weights of each reading layer."""
    shape = len(weights), max(len(values) for values in weights.values())
    matrix = np.full(shape, np.nan, dtype=np.float32)
    for row, layer in enumerate(sorted(weights)):
        matrix[row, : len(weights[layer])] = weights[layer].float().cpu().numpy()
    return Panel(
        f"{side}.connect",
        f"{side}, learned weights of each layer's input",
        matrix,
        [f"l{i}" for i in range(matrix.shape[1])],
        ["top" if depth is not None and i > depth else f"l{i}" for i in sorted(weights)],
        "learned weight",
        ("output that is read", "layer that reads"),
    )
