"""A growing buffer of features, without copies of the earlier features."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class FeatureBuffer(NamedTuple):
    """Features (..., n) that grow up to (..., m), in one buffer.

    Each feature is written once. The old value of a buffer must not be used after ``append``,
    except by autograd.
    """

    buffer: Tensor  # (..., m)
    features: Tensor | None  # (..., n), the first columns of the buffer; None if n = 0

    @classmethod
    def empty(
        cls, like: Tensor, features: int, dtype: torch.dtype | None = None
    ) -> "FeatureBuffer":
        """Return an empty buffer for ``features`` features at the positions of ``like`` (..., D).

        ``dtype`` is by default the type of ``like``.
        """
        shape = (*like.shape[:-1], features)
        return cls(like.new_empty(shape, dtype=dtype or like.dtype), None)

    def append(self, new: Tensor) -> "FeatureBuffer":
        """Return the buffer with ``new`` (..., D) at its end."""
        return FeatureBuffer(self.buffer, _Append.apply([self.buffer], self.features, new))

    def layers(self, width: int) -> Tensor:
        """Return the features as vectors of ``width`` features: (..., n / width, width)."""
        assert self.features is not None
        return self.features.unflatten(-1, (-1, width))


class _Append(torch.autograd.Function):
    """Operation that writes ``new`` into the buffer after the columns ``features``.

    It returns ``features`` and ``new`` as one view of the buffer. The write does not change the
    earlier columns, so the views of them that autograd saved stay valid. The write goes through
    ``data``, which hides it from autograd: otherwise autograd would treat it as a change of all
    columns. The buffer is in a list so that autograd does not treat it as an input.
    """

    @staticmethod
    def forward(ctx: Any, buffers: list[Tensor], features: Tensor | None, new: Tensor) -> Tensor:
        start = 0 if features is None else features.shape[-1]
        ctx.start = start
        ctx.dtype = new.dtype
        extended = buffers[0].data[..., : start + new.shape[-1]]
        extended[..., start:] = new
        return extended

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, Tensor]:
        [grad] = grads
        features_grad = grad[..., : ctx.start] if ctx.start else None
        return None, features_grad, grad[..., ctx.start :].to(ctx.dtype)
