"""The layers of a model, which are compiled and sharded one by one."""

from torch import nn

from fusetk.models.stack import Stack

CALLS = ("source", "attended")  # methods besides ``forward`` by which models run a layer


def layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of all stacks, summary layers included; none for a model without stacks."""
    return [
        layer for stack in model.modules() if isinstance(stack, Stack) for layer in stack.layers
    ]
