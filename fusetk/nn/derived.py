"""Modules with a tensor that depends on their parameters only."""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T", bound="DerivedTensor")


class DerivedTensor(nn.Module):
    """A module whose tensor ``derived`` depends on some of its parameters only.

    In evaluation without gradients, the tensor is computed once and cached. Another or a changed
    parameter discards it, and so does a change of the mode, the number type or the device. Changes
    of ``parameter.data`` and changes under ``torch.inference_mode`` do not: call ``train()`` after
    them.
    """

    _cached: Tensor | None = None
    _cached_state: tuple[Tensor, Tensor, int] | None = None

    def _derive(self) -> Tensor:
        raise NotImplementedError

    def _derived_from(self) -> tuple[Tensor, Tensor]:
        """Return the two parameters that ``_derive`` reads."""
        raise NotImplementedError

    @property
    def derived(self) -> Tensor:
        if self.training or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self._derive()
        first, second = self._derived_from()
        state = self._cached_state
        if (
            self._cached is None
            or state is None
            or state[0] is not first
            or state[1] is not second
            or state[2] != _changes(first, second)
        ):
            self._cached = self._derive()
            self._cached_state = first, second, _changes(first, second)
        return self._cached

    def _discard(self) -> None:
        self._cached = self._cached_state = None

    def train(self: T, mode: bool = True) -> T:
        self._discard()
        return super().train(mode)

    def _apply(self: T, *args: Any, **kwargs: Any) -> T:  # to() and similar call it
        self._discard()
        return super()._apply(*args, **kwargs)


def _changes(first: Tensor, second: Tensor) -> int:
    """Return the number of changes in place of two tensors."""
    try:
        return first._version + second._version
    except RuntimeError:  # tensors of torch.inference_mode do not count their changes
        return 0
