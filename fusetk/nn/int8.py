"""Linear maps with weights and inputs of 8 bits, for inference on CPU.

Each output feature's weights have one scale, and so has each input vector. A scale maps the largest
absolute value to 127. Scales of weights may map it to a lower number (see ``quantize_weight``). The
products of integers are exact. Only the rounding of the weights and of the inputs changes the
result.
"""

import math
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fusetk.nn.fused import decoding as fused_decoding
from fusetk.nn.inference_linear import ALL, InferenceLinear, KernelLinear
from fusetk.nn.precision import without_autocast

LARGEST = 127.0
# Lower limit of a row's largest absolute value, so that no scale is 0. int8.h has the same number.
SMALLEST = 1e-35


class Int8Linear(InferenceLinear):
    """Linear map with 8-bit W and x."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        """``weight`` (out, width) and ``bias`` (out,) are those of the map to replace."""
        rounded, scale = quantize_weight(weight.detach().float())
        super().__init__(rounded, bias)
        self.register_buffer("scale", scale)
        self.scale: Tensor  # (out,)

    def sums(self, x: Tensor, part: slice = ALL) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return integers (R, out) and their scales (R,) and (out,): x W^T for x (R, width).

        ``part`` selects output features.
        """
        if fused_decoding.usable(x):
            rounded, row_scale = fused_decoding.quantize(x.contiguous())
        else:
            rounded, row_scale = quantize(x.float())
        return integer_product(rounded, self.matrix[part]), (row_scale, self.scale[part])

    def product(
        self, x: Tensor, bias: Tensor | None = None, relu: bool = False, part: slice = ALL
    ) -> Tensor:
        sums, (row_scale, scale) = self.sums(x, part)
        if fused_decoding.usable(x):
            return fused_decoding.rescale(sums, row_scale, scale, bias, relu)
        return _rescale(sums, row_scale, scale, bias, relu)


class Int8KernelLinear(KernelLinear):
    """Linear map with 8-bit W and x in the kernels. The results are those of ``Int8Linear``."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        """``weight`` (out, width) and ``bias`` (out,) are those of the map to replace."""
        rounded, scale = quantize_weight(weight.detach().float())
        super().__init__(rounded, bias, scale)
        self._fits_16_bits = fused_decoding.sums_have_16_bits()

    @property
    def has_product(self) -> bool:
        # A pickled map may come from a processor whose sums have 32 bits.
        fits = self._fits_16_bits or not fused_decoding.sums_have_16_bits()
        return super().has_product and fits

    def _plain(self, x: Tensor, bias: Tensor | None, relu: bool, part: slice) -> Tensor:
        rounded, row_scale = quantize(x.float())
        assert self.blocked.scale is not None
        scale = self.blocked.scale[: self.blocked.size][part]
        sums = integer_product(rounded, self._cached_weight()[part])
        return _rescale(sums, row_scale, scale, bias, relu)


class ScreenedLinear(KernelLinear):
    """``KernelLinear`` of float32 or bf16 that finds its best outputs with products of int8.

    The best outputs are those of the exact product. After the first use, the map also has W in
    int8.
    """

    @cached_property
    def screen(self) -> fused_decoding.Screen:
        weight = self.weight.float()
        rounded, scale = quantize_weight(weight)
        error = (weight - rounded * scale[:, None]).norm(dim=1).amax()
        return fused_decoding.Screen(
            fused_decoding.to_blocks(rounded, scale),
            float(error),
            float(weight.norm(dim=1).amax()),
            0.0 if self.bias is None else float(self.bias.abs().amax()),
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without ``screen``, which may overflow on another processor."""
        return {name: value for name, value in vars(self).items() if name != "screen"}

    def screens(self, x: Tensor) -> bool:
        """Whether ``best`` can find the best outputs for x (R, width), with work for all threads.

        In a product of a few rows, the threads share the outputs. In ``best`` they share the rows.
        """
        if len(x) < fused_decoding.BLOCK_ROWS * torch.get_num_threads():
            return False
        if not all(map(fused_decoding.has_products, (self.matrix.dtype, torch.int8))):
            return False
        # The squares of smaller numbers would underflow in the norms.
        return all(map(math.isfinite, self.screen[1:])) and self.screen.norm > 1e-15

    def best(self, x: Tensor, forbidden: Tensor, only: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return ``fused_decoding.screened_best`` for float32 x (R, width)."""
        return fused_decoding.screened_best(
            x, self.blocked, self.bias, self.screen, forbidden, only
        )


def _rescale(
    sums: Tensor, row_scale: Tensor, scale: Tensor, bias: Tensor | None, relu: bool
) -> Tensor:
    """Compute ``fused_decoding.rescale`` by PyTorch."""
    out = sums.float() * row_scale[:, None] * scale
    if bias is not None:
        out = out + bias
    return out.relu() if relu else out


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x (R, D) as int8, and the scales (R,) of its rows: x is about int8 * scale.

    With NaN in a row, its scale is NaN.
    """
    return _round(x, x.abs().amax(1))


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``quantize`` of W (V, D), with larger scales if sums of the kernels have 16 bits.

    The kernels add the products of the inputs k, k + 1, k + 4 and k + 5, for k = 0, 2, 8, 10, ...,
    in 16 bits. Each such four has two sums: the positive weights, and the absolute values of the
    negative ones. The larger scale of a row maps its largest sum to LARGEST. Rounding adds at most
    2 to a sum. If a sum is not finite, the scale is not finite either.
    """
    if not fused_decoding.sums_have_16_bits():
        return quantize(weight)
    size, width = weight.shape
    fours = F.pad(weight, (0, -width % 8)).view(size, -1, 2, 2, 2)
    sums = [signed.clamp_min(0).sum((2, 4)).flatten(1).amax(1) for signed in (fours, -fours)]
    return _round(weight, torch.maximum(*sums))


def _round(x: Tensor, highest: Tensor) -> tuple[Tensor, Tensor]:
    """Return x (R, D) as int8 and its scales (R,), which map ``highest`` (R,) to LARGEST."""
    highest = highest.clamp_min(SMALLEST)
    rounded = (x * (LARGEST / highest)[:, None]).round().to(torch.int8)
    return rounded, highest / LARGEST


def integer_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a b^T (M, N) for int8 a (M, K) and b (N, K): exact integers, as int32 or floats."""
    # PyTorch 2.13 returns undefined numbers for K = 1.
    if _has_exact_products() and a.shape[1] > 1:
        return torch._int_mm(a, b.t())
    exact = torch.float32 if a.shape[1] * LARGEST**2 < 2**24 else torch.float64
    with without_autocast(a):
        return a.to(exact) @ b.to(exact).t()


@cache
def _has_exact_products() -> bool:
    """Whether this processor's products of int8 are exact; some saturate at 16 bits."""
    a = torch.full((32, 64), int(LARGEST), dtype=torch.int8)
    a[::2] = -a[::2]
    try:
        return bool((torch._int_mm(a, a.t()).abs() == 64 * LARGEST**2).all())
    except RuntimeError:  # this version of torch has none for this processor
        return False
