"""Modules with a tensor that depends on their parameters only."""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T", bound="DerivedTensor")


class DerivedTensor(nn.Module):
    """A module whose tensor ``derived`` depends only on two of its parameters.

    In evaluation without gradients, the tensor is cached. It is computed again after a parameter is
    replaced or changed in place, and after a change of the mode, the number type or the device.
    Changes of ``parameter.data`` are not noticed, nor are changes in place of parameters that were
    created under ``torch.inference_mode``. The caller must call ``train()`` after such a change.
    """

    # The parameters, the number of their changes, and the tensor.
    _cache: tuple[Tensor, Tensor, int, Tensor] | None = None

    def _derive(self) -> Tensor:
        """Compute the tensor."""
        raise NotImplementedError

    def _derived_from(self) -> tuple[Tensor, Tensor]:
        """Return the two parameters that ``_derive`` reads."""
        raise NotImplementedError

    @property
    def derived(self) -> Tensor:
        """The tensor: from the cache in evaluation without gradients, else computed now."""
        # torch.compile cannot trace the number of changes.
        if self.training or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self._derive()
        first, second = self._derived_from()
        changes = _changes(first, second)
        cache = self._cache
        if cache is None or cache[0] is not first or cache[1] is not second or cache[2] != changes:
            cache = self._cache = first, second, changes, self._derive()
        return cache[3]

    def train(self: T, mode: bool = True) -> T:
        self._cache = None
        return super().train(mode)

    def _apply(self: T, *args: Any, **kwargs: Any) -> T:  # to() and similar call it
        self._cache = None
        return super()._apply(*args, **kwargs)


def _changes(first: Tensor, second: Tensor) -> int:
    """Return the number of changes in place of two tensors; 0 if they are not counted."""
    try:
        return first._version + second._version
    except RuntimeError:  # tensors of torch.inference_mode
        return 0
