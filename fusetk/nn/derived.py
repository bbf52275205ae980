"""Modules with a tensor that depends on their parameters only."""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T", bound="DerivedTensor")


class DerivedTensor(nn.Module):
    """A module whose tensor ``derived`` depends on its parameters only.

    In evaluation without gradients, the tensor is computed once and cached. A change of the mode,
    the number type or the device discards it, and so does ``load_state_dict``. A change of the
    parameters in place does not: call ``train()`` after it.
    """

    _cached: Tensor | None = None

    def _derive(self) -> Tensor:
        raise NotImplementedError

    @property
    def derived(self) -> Tensor:
        if self.training or torch.is_grad_enabled():
            return self._derive()
        if self._cached is None:
            self._cached = self._derive()
        return self._cached

    def train(self: T, mode: bool = True) -> T:
        self._cached = None
        return super().train(mode)

    def _apply(self: T, *args: Any, **kwargs: Any) -> T:  # to() and similar call it
        self._cached = None
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:  # load_state_dict calls it
        self._cached = None
        super()._load_from_state_dict(*args, **kwargs)
