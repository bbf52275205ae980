"""Gated convolutions in fused kernels on CPU: calls of ``convolution.cpp``, with gradients."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fusetk.nn.dropout_mask import DropoutMask
from fusetk.nn.fused.build import library
from fusetk.nn.fused.dropout import Dropout, dropout_argument
from fusetk.nn.fused.structs import BACKWARD, FORWARD, INT, POINTER, call, fill, struct, transformed
from fusetk.nn.precision import product_dtype

# The structs have the same members in the same order as in convolution.cpp.
_Windows = struct(
    "_Windows",
    ("threads bf16 x_bf16 sentences length width kernel before", INT),
    ("x", POINTER),
    ("sentence_step step", INT),
    ("earlier mask", POINTER),
    ("drop", Dropout),
    ("windows by_x", POINTER),
)
_Gated = struct("_Gated", ("threads bf16 rows width", INT), ("x out grad by_x", POINTER))


def usable(x: Tensor) -> bool:
    """Return whether the kernels compute on ``x``: on CPU, in float32 or bf16."""
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.bfloat16)
        and product_dtype(x) in (torch.float32, torch.bfloat16)
        and not torch.compiler.is_compiling()
        and not transformed()
        and library("convolution") is not None
    )


_call = partial(call, "convolution")


def windows(
    x: Tensor,
    kernel: int,
    before: int,
    earlier: Tensor | None,
    mask: Tensor | None,
    dropout_mask: DropoutMask | None,
) -> Tensor:
    """Return the windows (B, T, kernel * D) of x (B, T, D); see ``GatedConvolution.windows``.

    They have the type of products. ``earlier`` receives no gradient.
    """
    result: Tensor = _MakeWindows.apply(x, kernel, before, earlier, mask, dropout_mask)
    return result


class _MakeWindows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        kernel: int,
        before: int,
        earlier: Tensor | None,
        mask: Tensor | None,
        dropout_mask: DropoutMask | None,
    ) -> Tensor:
        sentences, length, width = x.shape
        if x.stride(-1) != 1:
            x = x.contiguous()
        if earlier is not None:
            earlier = earlier.to(x.dtype).contiguous()
        if mask is not None:
            mask = mask.contiguous()
        out = x.new_empty(sentences, length, kernel * width, dtype=product_dtype(x))
        arguments = fill(_Windows(), sentences=sentences, length=length, width=width)
        fill(arguments, bf16=out.dtype == torch.bfloat16, x_bf16=x.dtype == torch.bfloat16)
        fill(arguments, kernel=kernel, before=before, drop=dropout_argument(dropout_mask))
        fill(arguments, x=x, sentence_step=x.stride(0), step=x.stride(1))
        _call("windows", fill(arguments, earlier=earlier, mask=mask, windows=out), FORWARD)
        ctx.arguments = arguments
        ctx.mask = mask
        ctx.x_shape = x.shape
        ctx.x_dtype = x.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0].contiguous()
        by_x = grad.new_empty(ctx.x_shape, dtype=ctx.x_dtype)
        _call("windows", fill(ctx.arguments, windows=grad, by_x=by_x), BACKWARD)
        return by_x, None, None, None, None, None


def gated(x: Tensor) -> Tensor:
    """Return a * sigmoid(b) for x = [a; b]: (..., 2 D) -> (..., D)."""
    result: Tensor = _GatedUnit.apply(x)
    return result


class _GatedUnit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
        _call("gated", fill(_gated_arguments(x), out=out), FORWARD)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        grad = grads[0].contiguous()
        by_x = torch.empty_like(x)
        _call("gated", fill(_gated_arguments(x), grad=grad, by_x=by_x), BACKWARD)
        return by_x


def _gated_arguments(x: Tensor) -> Any:
    """Return the arguments that both passes have."""
    width = x.shape[-1] // 2
    rows = x.numel() // x.shape[-1]
    return fill(_Gated(), bf16=x.dtype == torch.bfloat16, rows=rows, width=width, x=x)
