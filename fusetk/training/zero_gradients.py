"""Warning about parameters of classes outside fusetk that the first updates do not train."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fusetk.errors import WARNING, first_names, is_own
from fusetk.nn.shape_check import is_outside
from fusetk.training.update import UpdateStats

UPDATES = 32  # before the warning


class ZeroGradientCheck:
    """Search for parameters whose gradients are 0 in several updates.

    For example, two factors that are both 0 at the start remain 0. One update is not enough: while
    a gate is 0, the layer behind it has no gradient, as in ReZero. Only parameters that a class
    outside fusetk defines are checked, because tests check the others.
    """

    def __init__(self, model: nn.Module):
        self._names = {parameter: name for name, parameter in _outside_parameters(model)}
        self._parameters: list[nn.Parameter] = []
        self._norms: list[Tensor] = []

    def add(self, stats: UpdateStats) -> str | None:
        """Add an update, and return a warning after ``UPDATES`` updates if it is necessary.

        Skipped updates do not count.
        """
        if not self._names or not math.isfinite(stats.grad_norm):
            return None
        self._parameters += stats.parameters
        self._norms.append(stats.grad_norms)
        if len(self._norms) < UPDATES:
            return None
        norms = torch.cat(self._norms).tolist()
        for parameter, norm in zip(self._parameters, norms, strict=True):
            if norm:
                self._names.pop(parameter, None)
        names, self._names = [*self._names.values()], {}
        if not names:
            return None
        return (
            f"{WARNING}parameters without a gradient, or with a gradient of 0, in {UPDATES} "
            f"updates: {first_names(names)}; they are not trained unless a later batch gives them "
            "another gradient"
        )


def _outside_parameters(
    module: nn.Module, prefix: str = "", outside: bool = False
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the trainable parameters of classes outside fusetk, and of PyTorch's classes in them.

    ``outside`` says whether a class outside fusetk contains the module.
    """
    outside = is_outside(module) or (outside and not is_own(module))
    for name, parameter in module.named_parameters(recurse=False):
        if outside and parameter.requires_grad:
            yield prefix + name, parameter
    for name, child in module.named_children():
        yield from _outside_parameters(child, f"{prefix}{name}.", outside)
