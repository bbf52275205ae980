"""Convolutional models in fused kernels on CPU: calls of ``convolution.cpp``, with gradients."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fusetk.nn.dropout_mask import DropoutMask
from fusetk.nn.fused.dropout import DropoutArgument, dropout_argument
from fusetk.nn.fused.structs import (
    BACKWARD,
    FORWARD,
    INT,
    LANES,
    POINTER,
    call,
    computes,
    fill,
    struct,
)
from fusetk.nn.precision import product_dtype

# The structs have the same members in the same order as in convolution.cpp.
_Windows = struct(
    "_Windows",
    ("threads bf16 x_bf16 sentences length width kernel before", INT),
    ("x", POINTER),
    ("sentence_step step", INT),
    ("earlier mask", POINTER),
    ("drop", DropoutArgument),
    ("windows by_x", POINTER),
)
_Attention = struct(
    "_Attention",
    ("threads bf16 sentences sources queries length size", INT),
    ("q keys values", POINTER),
    ("sentence_step source_step", INT),
    ("lengths contexts normalizers grad by_q by_keys by_values", POINTER),
)
_Gated = struct("_Gated", ("threads bf16 rows width", INT), ("x out grad by_x", POINTER))

usable = partial(computes, "convolution")
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
    return _MakeWindows.apply(x, kernel, before, earlier, mask, dropout_mask)


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
    return _GatedUnit.apply(x)


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


def can_attend(q: Tensor, mask: Tensor) -> bool:
    """Whether ``attend`` computes with these queries and this mask (B, S) of the source.

    The features must fill vectors, and the tokens of a sentence must precede its padding.
    """
    return usable(q) and q.shape[-1] % LANES == 0 and bool((mask[:, 1:] <= mask[:, :-1]).all())


def attend(q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    """Return the sum over the sources j of softmax(q k_j^T) v_j: (B, Q, E).

    The shapes are q (B, Q, E), keys and values (B, n, S, E). ``lengths`` (B,) int64 are the numbers
    of source tokens. The result has the type of products. Call it only if ``can_attend``.
    """
    dtype = product_dtype(q)
    return _SourceAttention.apply(q.to(dtype), keys.to(dtype), values.to(dtype), lengths)


class _SourceAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        q = q.contiguous()
        if keys.stride() != values.stride() or keys.stride()[2:] != (keys.shape[-1], 1):
            keys = keys.contiguous()
            values = values.contiguous()
        contexts = torch.empty_like(q)
        shape = *keys.shape[:2], q.shape[1], 2
        normalizers = torch.empty(shape, dtype=torch.float32, device=q.device)
        arguments = _attention_arguments(q, keys, values, lengths, normalizers)
        _call("attention", fill(arguments, contexts=contexts), FORWARD)
        ctx.save_for_backward(q, keys, values, lengths, normalizers)
        return contexts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: hooks may make new tensors at each access
        q, keys, *_ = saved
        if not q.numel():
            return torch.zeros_like(q), *keys.new_zeros(2, *keys.shape), None
        grad = grads[0].contiguous()
        by_q = torch.empty_like(q)
        by_keys, by_values = keys.new_empty(2, *keys.shape)
        arguments = fill(_attention_arguments(*saved), grad=grad, by_q=by_q)
        _call("attention", fill(arguments, by_keys=by_keys, by_values=by_values), BACKWARD)
        return by_q, by_keys, by_values, None


def _attention_arguments(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, normalizers: Tensor
) -> Any:
    """Return the arguments that both passes have."""
    sentences, sources, length, size = keys.shape
    arguments = fill(_Attention(), bf16=q.dtype == torch.bfloat16, sentences=sentences)
    fill(arguments, sources=sources, queries=q.shape[1], length=length, size=size)
    fill(arguments, sentence_step=keys.stride(0), source_step=keys.stride(1))
    fill(arguments, q=q, keys=keys, values=values, lengths=lengths)
    return fill(arguments, normalizers=normalizers)
