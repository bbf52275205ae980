"""The layers of a model, for what is done with each of them by itself: compiled, split over processes."""

from torch import nn

from fusetk.models.stack import Stack

CALLS = ("source", "attended")  # methods by which models run a layer, besides its forward


def layers(model: nn.Module) -> list[nn.Module]:
    """Those of all stacks, summaries among them; none where a model has no stacks."""
    return [
        layer for stack in model.modules() if isinstance(stack, Stack) for layer in stack.layers
    ]
