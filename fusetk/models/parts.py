"""Names of the parts of a model, by parameter."""

import re

from torch import nn

from fusetk.models.seq2seq import Seq2Seq
from fusetk.models.stack import Stack

# Submodules of a top-level module that are parts of their own.
_PARTS = ("fuse", "connect", "tokens", "positions")
_CELL = re.compile(r"(?P<side>\w+)\.cells\.(?P<number>\d+)\.")


def parts(model: Seq2Seq) -> dict[str, str]:
    """Return the part of each parameter, by the parameter's name.

    A part is a module of the top level of the tree. The layers of a side, its fusion, its
    connection and its embeddings are parts of their own: ``encoder.layers``, ``encoder.fuse``. A
    shared parameter belongs to the first part that has it.
    """
    layers = set(model.layers())
    stacks = {name.rpartition(".")[0] for name, module in model.named_modules() if module in layers}
    of_parameters = {}
    for name, _ in model.named_parameters():
        top, *below = name.split(".")
        part = f"{top}.{below[0]}" if below else top
        if part not in stacks and not (below and below[0] in _PARTS):
            part = top
        of_parameters[name] = part
    return of_parameters


def layers_and_parts(model: Seq2Seq) -> dict[nn.Parameter, str]:
    """Return the part of each parameter, with each layer as a part of its own.

    The layers have the names of traces, such as ``encoder.layer1`` and ``decoder.summary1``. The
    cells of a recurrence are ``decoder.cell1`` and so on. The other parts are those of ``parts``.
    """
    of_layers = {
        parameter: f"{name}.{label}"
        for name, stack in model.named_modules()
        if isinstance(stack, Stack)
        for label, layer in zip(stack.labels, stack.layers, strict=True)
        for parameter in layer.parameters()
    }
    of_names = parts(model)
    named = {}
    for name, parameter in model.named_parameters():
        cell = _CELL.match(name)
        of_cell = f"{cell['side']}.cell{int(cell['number']) + 1}" if cell else of_names[name]
        named[parameter] = of_layers.get(parameter, of_cell)
    return named
