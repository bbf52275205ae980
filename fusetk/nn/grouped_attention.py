"""Self-attention with rotary positions, grouped queries, or separate inputs."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fusetk.nn.attention import SelfAttention
from fusetk.nn.cache import Cache
from fusetk.nn.heads import join_heads, split_heads
from fusetk.nn.inference_linear import linear_part
from fusetk.nn.packed_layout import PackedLayout, PackedSides


class AttentionInputs(NamedTuple):
    """Separate inputs of self-attention, each (B, T, D)."""

    query: Tensor
    key: Tensor
    value: Tensor


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate each pair of features of x (B, H, T, d) by an angle that grows with its position (T,).

    The features 2i and 2i + 1 are rotated by the position times 10000^(-2i / d) (Su et al. 2021,
    Equation 15). The product of a rotated query and a rotated key depends on the distance of their
    positions only. The rotation is computed in float32, or in float64 if x is float64.
    """
    size = x.shape[-1]
    dtype = torch.promote_types(x.dtype, torch.float32)
    exponents = torch.arange(0, size, 2, dtype=dtype, device=x.device) / size
    angles = positions.unsqueeze(-1) * 10000.0**-exponents  # (T, d / 2)
    even, odd = x.to(dtype).unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angles.cos(), angles.sin()
    rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
    return rotated.flatten(-2).to(x.dtype)


class GroupedSelfAttention(SelfAttention):
    """Self-attention in which groups of heads share keys and values (Ainslie et al. 2023).

    With as many groups as heads it is the usual attention. Queries and keys may be rotated by their
    positions (Su et al. 2021). The input is one tensor, or ``AttentionInputs``.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float,
        name: str,
        bias: bool = True,
        groups: int | None = None,
        rotary: bool = False,
    ):
        """``groups`` is the number of heads of keys and values, by default ``heads``."""
        super().__init__(width, heads, dropout, name, bias)
        self.groups = groups or heads
        self.keys_width = width // heads * self.groups
        self.rotary = rotary
        features = sum(self.projection_widths)
        if features != 3 * width:
            self.project = nn.Linear(width, features, bias)

    def with_keys_values(
        self, x: Any, mask: Tensor | PackedLayout | None, name: str
    ) -> tuple[Tensor, Tensor]:
        q, k, v = self._projections(x, mask.positions if isinstance(mask, PackedLayout) else 0)
        if isinstance(mask, PackedLayout):
            projected = self._beside(q, k, v)
            y = self._packed(projected, mask, causal=False)
            return self._output(y, x, v), projected[..., self.width :]
        keys_values = torch.cat((k, v), -1)
        return self._output(self._mix(q, keys_values, mask, name), x, v), keys_values

    def step(
        self,
        x: Any,
        cache: Cache,
        mask: Tensor | PackedLayout | PackedSides | None,
        name: str | None = None,
        start: int = 0,
    ) -> tuple[Any, Cache]:
        """See ``SelfAttention.step``. ``start`` is the position of the first new token."""
        assert not isinstance(mask, PackedSides), "coordinated has no grouped attention"
        if isinstance(mask, PackedLayout):
            q, k, v = self._projections(x, mask.positions)
            y = self._packed(self._beside(q, k, v), mask, causal=True)
            return self._output(y, x, v), cache
        sentences = len(cache.buffer)
        q, k, v = self._projections(x, start)
        keys_values = torch.cat((k, v), -1)
        cache = cache.append(keys_values.reshape(sentences, -1, 2 * self.keys_width))
        y = self._mix(q.reshape(sentences, -1, self.width), cache.read(), mask, name or self.name)
        return self._output(y.reshape(q.shape), x, v), cache

    def single_step(self, x: Any, attend: Callable[[Tensor], Tensor], start: int) -> Any:
        q, k, v = self._projections(x, start)
        y = self.out(attend(self._beside(q, k, v).flatten(0, 1)).view(q.shape))
        return self._output(y, x, v)

    def _output(self, y: Tensor, x: Any, v: Tensor) -> Any:
        """Return the output for the result y (B, T, D), the input x and its values v."""
        return y

    def _beside(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return queries, and the keys and values of each head, in one tensor: (..., 3D)."""
        if self.groups == self.heads:
            return torch.cat((q, k, v), -1)
        return torch.cat((q, self._shared(torch.cat((k, v), -1))), -1)

    def _shared(self, keys_values: Tensor) -> Tensor:
        """Copy the keys and values of each group for its heads: (..., 2 groups d) -> (..., 2D)."""
        heads = keys_values.unflatten(-1, (2 * self.groups, -1))
        return heads.repeat_interleave(self.heads // self.groups, -2).flatten(-2)

    def _projections(self, x: Any, start: int | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, T, D), keys and values (B, T, groups d), rotated if required.

        ``start`` is the position of the first token, or the positions of all tokens (T,).
        """
        widths = self.projection_widths
        if isinstance(x, Tensor):
            q, k, v = self.project(x).split(widths, -1)
        else:
            q, k, v = (
                linear_part(self.project, part, slice(end - width, end))
                for part, width, end in zip(x, widths, accumulate(widths), strict=True)
            )
        return *self._rotated(q, k, start), v

    def _rotated(self, q: Tensor, k: Tensor, start: int | Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries and keys of ``_projections``, rotated if required."""
        if not self.rotary:
            return q, k
        if isinstance(start, Tensor):
            positions = start
        else:
            positions = torch.arange(start, start + q.shape[1], device=q.device)
        q = join_heads(rotate(split_heads(q, self.heads), positions))
        k = join_heads(rotate(split_heads(k, self.groups), positions))
        return q, k

    def _mix(self, q: Tensor, keys_values: Tensor, mask: Tensor | None, name: str) -> Tensor:
        if self.groups != self.heads:
            keys_values = self._shared(keys_values)
        return super()._mix(q, keys_values, mask, name)
