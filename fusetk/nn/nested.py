"""Functions for nested tuples (named or not), lists and dicts of tensors."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

# A Tensor; a tuple, list or dict of NestedTensors; or an object with a `map_tensors` method.
NestedTensors = Any


def map_tensors(function: Callable[[Tensor], Tensor], tree: NestedTensors) -> NestedTensors:
    """Return the same structure with ``function`` applied to every tensor; None stays None."""
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return function(tree)
    if hasattr(tree, "map_tensors"):
        return tree.map_tensors(function)
    if isinstance(tree, dict):
        return {key: map_tensors(function, value) for key, value in tree.items()}
    values = [map_tensors(function, value) for value in tree]
    return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)


def select(tree: NestedTensors, index: Tensor) -> NestedTensors:
    """Select the rows ``index`` of axis 0 in every tensor."""
    return map_tensors(lambda tensor: tensor.index_select(0, index), tree)
