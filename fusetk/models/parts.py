"""The parts of a model to which its parameters belong."""

from torch import nn

from fusetk.fusion.base import Fusion
from fusetk.models.seq2seq import Seq2Seq
from fusetk.models.stack import Stack
from fusetk.nn.cells import Transition

# Submodules of a top-level module that are parts of their own.
_PARTS = ("fuse", "connect", "tokens", "positions")


def parts(model: Seq2Seq) -> dict[str, str]:
    """Return the part of each parameter, by the parameter's name.

    A part is a top-level module. The layers of a side, its fusion, its connection and its
    embeddings are parts of their own: ``encoder.layers``, ``encoder.fuse``. A shared parameter
    belongs to the first part that has it.
    """
    layers = set(model.layers())
    stacks = {name.rpartition(".")[0] for name, module in model.named_modules() if module in layers}
    part_by_name = {}
    for name, _ in model.named_parameters():
        top, *below = name.split(".")
        part = f"{top}.{below[0]}" if below else top
        if part not in stacks and not (below and below[0] in _PARTS):
            part = top
        part_by_name[name] = part
    return part_by_name


def layers_and_parts(model: Seq2Seq) -> dict[nn.Parameter, tuple[str, str]]:
    """Return a group and the name of a layer or part for each parameter.

    The group of a layer is its stack: ("encoder", "l1"), ("decoder", "summary1"). That of a cell is
    its transition: ("decoder", "cell1"). The others are the parts of ``parts``, whose group is "".
    A fusion has its own name there: ``decoder.fuse``.
    """
    part_by_parameter: dict[nn.Parameter, tuple[str, str]] = {}
    for name, module in model.named_modules():
        members: list[tuple[str, str, nn.Module]] = []
        if isinstance(module, Stack):
            labels = (label.replace("layer", "l") for label in module.labels)
            members = [
                (module.name, label, layer)
                for label, layer in zip(labels, module.layers, strict=True)
            ]
        elif isinstance(module, Transition):
            members = [(name, f"cell{i}", cell) for i, cell in enumerate(module.cells, 1)]
        elif isinstance(module, Fusion):
            members = [("", module.name, module)]
        for group, label, member in members:
            for parameter in member.parameters():
                part_by_parameter.setdefault(parameter, (group, label))
    part_by_name = parts(model)
    return {
        parameter: part_by_parameter.get(parameter, ("", part_by_name[name]))
        for name, parameter in model.named_parameters()
    }
