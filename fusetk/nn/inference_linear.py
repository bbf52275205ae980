"""Linear maps that replace those of a model for inference on CPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk.nn.fused import decoding as fused_decoding

ALL = slice(None)
# Whether the kernels of fusetk are the fastest way to compute linear maps and the output
# projection, by type of the weights; fusetk.ways measures it.
kernels_are_faster = {
    torch.float32: {"maps": False, "projection": False},
    torch.bfloat16: {"maps": False, "projection": False},
    torch.int8: {"maps": False, "projection": False},
}
# Whether products of int8 exclude tokens in greedy search without scores, by type of the weights of
# the output projection. This needs a projection in the kernels. fusetk.ways measures it.
screens = {torch.float32: False, torch.bfloat16: False}


def uses_kernels(dtype: torch.dtype, kind: str) -> bool:
    """Whether new maps of the kind "maps" or "projection" with this type use the kernels."""
    return kernels_are_faster[dtype][kind] and fused_decoding.has_products(dtype)


class InferenceLinear(nn.Module):
    """x W^T + b: (..., width) -> (..., out), float32. W and x may be rounded."""

    bias: Tensor | None
    """(out,), float32."""

    def __init__(self, matrix: Tensor, bias: Tensor | None):
        """``matrix`` is W in the order and type in which the map stores it.

        ``bias`` (out,) is that of the replaced map.
        """
        super().__init__()
        self.register_buffer("matrix", matrix)
        self.register_buffer("bias", None if bias is None else bias.detach().float().contiguous())
        self.matrix: Tensor

    @property
    def weight(self) -> Tensor:
        """W (out, width), in the type of the products."""
        return self.matrix

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any) -> "InferenceLinear":
        """Refuse other types and devices; ``to`` and similar methods call this one."""
        for buffer in self.buffers():
            changed = fn(buffer)
            if (changed.dtype, changed.device) != (buffer.dtype, buffer.device):
                raise RuntimeError(
                    "the model was loaded for inference on CPU: to use another device or number "
                    "type, load it with other values of device and precision"
                )
        return super()._apply(fn, *args)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("the model was loaded for inference: its weights cannot be replaced")

    def forward(self, x: Tensor) -> Tensor:
        out = self.product(x.reshape(-1, x.shape[-1]), self.bias)
        return out.view(*x.shape[:-1], out.shape[-1])

    @property
    def in_features(self) -> int:
        return self.matrix.shape[1]

    @property
    def out_features(self) -> int:
        return self.matrix.shape[0]

    def product(
        self, x: Tensor, bias: Tensor | None = None, relu: bool = False, part: slice = ALL
    ) -> Tensor:
        """Return x W^T + ``bias`` for x (R, width); with ``relu``, negative results become 0.

        ``part`` selects output features; ``bias`` is that of the selected ones.
        """
        raise NotImplementedError

    def hidden_units(self, x: Tensor, relu: bool) -> Tensor:
        """Return x W^T + b for x (R, width), in a type that the next map rounds to its own type.

        With ``relu``, negative results become 0.
        """
        return self.product(x, self.bias, relu)


class KernelLinear(InferenceLinear):
    """Linear map in the kernels, for W of float32, bf16 or int8.

    x is rounded to the type of W. The sums (except for int8), b and the result are float32. The map
    stores W in the order of the kernels, so each access to ``weight`` computes a copy.
    """

    blocked: fused_decoding.BlockedMatrix

    def __init__(self, weight: Tensor, bias: Tensor | None, scale: Tensor | None = None):
        """``weight`` (out, width) already has the type of the products.

        If it is int8, ``scale`` (out,) multiplies its rows.
        """
        blocked = fused_decoding.to_blocks(weight.detach(), scale)
        super().__init__(blocked.matrix, bias)
        self.blocked = blocked
        self._weight_cache: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        return fused_decoding.from_blocks(self.blocked)

    @property
    def in_features(self) -> int:
        return self.blocked.width

    @property
    def out_features(self) -> int:
        return self.blocked.size

    @property
    def has_product(self) -> bool:
        """Whether this processor has the product; a pickled map may come from another one."""
        return fused_decoding.has_products(self.matrix.dtype)

    def product(
        self, x: Tensor, bias: Tensor | None = None, relu: bool = False, part: slice = ALL
    ) -> Tensor:
        if x.dtype == torch.bfloat16:
            x = x.float()
        if not (fused_decoding.usable(x) and self.has_product):
            return self._plain(x, bias, relu, part)
        start, stop, _ = part.indices(self.out_features)
        extra = start % fused_decoding.BLOCK  # outputs before the part, in its first block
        if extra and bias is not None:
            bias = F.pad(bias, (extra, 0))
        out = fused_decoding.product(x, self.blocked.part(start - extra, stop), bias, relu)
        return out[:, extra:].contiguous()

    def _cached_weight(self) -> Tensor:
        """Return ``weight`` for products by PyTorch. The first call computes it for all calls."""
        if self._weight_cache is None:
            self._weight_cache = self.weight
        return self._weight_cache

    def _plain(self, x: Tensor, bias: Tensor | None, relu: bool, part: slice) -> Tensor:
        """Compute ``product`` by PyTorch."""
        weight = self._cached_weight()[part].float()
        out = F.linear(x.to(self.matrix.dtype).float(), weight, bias)
        return out.relu() if relu else out


class Bf16Linear(InferenceLinear):
    """Linear map in PyTorch's products of bf16, which round W, x, b and the result to bf16."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        """``weight`` (out, width) and ``bias`` (out,) are those of the map to replace."""
        super().__init__(weight.detach().bfloat16(), bias)

    def product(
        self, x: Tensor, bias: Tensor | None = None, relu: bool = False, part: slice = ALL
    ) -> Tensor:
        return self._in_bf16(x, bias, relu, part).float()

    def hidden_units(self, x: Tensor, relu: bool) -> Tensor:
        return self._in_bf16(x, self.bias, relu)

    def _in_bf16(self, x: Tensor, bias: Tensor | None, relu: bool, part: slice = ALL) -> Tensor:
        bias = None if bias is None else bias.bfloat16()
        out = F.linear(x.bfloat16(), self.matrix[part], bias)
        return out.relu_() if relu else out


def linear_part(linear: nn.Linear | InferenceLinear, x: Tensor, part: slice) -> Tensor:
    """Return the output features ``part`` of a linear map: (..., width) -> (..., features)."""
    bias = None if linear.bias is None else linear.bias[part]
    if isinstance(linear, InferenceLinear):
        out = linear.product(x.reshape(-1, x.shape[-1]), bias, part=part)
        return out.view(*x.shape[:-1], out.shape[-1])
    return F.linear(x, linear.weight[part], bias)
