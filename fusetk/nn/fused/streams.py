"""Connections of layers and sub-layers in fused kernels on CPU: calls of ``streams.cpp``.

Each function computes the same as the modules that call it, in fewer passes over memory, and keeps
its inputs only for the backward pass. The functions accept float32 tensors.
"""

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fusetk.nn.fused.build import library
from fusetk.nn.fused.structs import (
    BACKWARD,
    FLOAT,
    FORWARD,
    INT,
    POINTER,
    address,
    call,
    fill,
    struct,
    transformed,
)

# The structs have the same members in the same order as in streams.cpp.
_WeightedSums = struct(
    "_WeightedSums",
    ("threads rows sums sources width", INT),
    ("weights", POINTER),
    ("weights_stride", INT),
    ("x", POINTER),
    ("x_stride", INT),
    ("write", POINTER),
    ("write_stride", INT),
    ("y out grad by_weights by_x by_write by_y", POINTER),
)
_NormedProducts = struct(
    "_NormedProducts",
    ("threads rows width outputs centred", INT),
    ("x weights", POINTER),
    ("eps", FLOAT),
    ("out means inverse_deviations grad by_x partial", POINTER),
)
_Sinkhorn = struct(
    "_Sinkhorn",
    ("threads matrices size iterations", INT),
    ("logits out grad by_logits", POINTER),
)
_FeatureSums = struct(
    "_FeatureSums",
    ("threads rows width sums sources", INT),
    ("x fixed dynamic out grads by_x partial", POINTER),
)
_DepthAttention = struct(
    "_DepthAttention",
    ("threads rows sources width", INT),
    ("x", POINTER),
    ("x_stride", INT),
    ("last scales query products weights out grad by_x by_last by_scales partial", POINTER),
)
# Greatest difference between logits for which ``sinkhorn`` needs no logarithms.
LARGEST_RANGE = 40.0


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels compute on these tensors: on CPU, in float32."""
    return (
        all(x.device.type == "cpu" and x.dtype == torch.float32 for x in tensors)
        and not torch.compiler.is_compiling()
        and not transformed(*tensors)
        and library("streams") is not None
    )


_call = partial(call, "streams")


def _addresses(tensors: Sequence[Tensor]) -> Any:
    return (POINTER * len(tensors))(*(address(tensor) for tensor in tensors))


def _rows(x: Tensor, dimensions: int) -> Tensor:
    """Return x (..., one row) as (R, one row), where a row has ``dimensions`` dimensions.

    Each row is contiguous. The result is a view if the rows of x are contiguous.
    """
    rows = x.reshape(-1, *x.shape[-dimensions:])
    return rows if rows.shape[0] == 0 or rows[0].is_contiguous() else rows.contiguous()


def weighted_sums(
    weights: Tensor, x: Tensor, write: Tensor | None = None, y: Tensor | None = None
) -> Tensor:
    """Return weights @ x, or weights @ x + write * y.

    The shapes are (..., m, n), (..., n, D), (..., m) and (..., D) -> (..., m, D). The leading
    dimensions of ``x`` and ``y`` are equal, and those of the weights can be expanded to them.
    """
    leading = x.shape[:-2]
    weights = weights.contiguous().expand(*leading, *weights.shape[-2:])
    if write is not None:
        write = write.contiguous().expand(*leading, write.shape[-1])
    return _WeightedSumsFunction.apply(weights, x, write, y)


class _WeightedSumsFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, x: Tensor, write: Tensor | None, y: Tensor | None
    ) -> Tensor:
        ctx.shapes = [None if t is None else t.shape for t in (weights, x, write, y)]
        shape = (*x.shape[:-2], weights.shape[-2], x.shape[-1])
        weights = _rows(weights, 2)
        x = _rows(x, 2)
        write = None if write is None else _rows(write, 1)
        y = None if y is None else _rows(y, 1).contiguous()
        out = x.new_empty(shape)
        arguments = _weighted_sums_arguments(weights, x, write, y)
        _call("weighted_sums", fill(arguments, out=out), FORWARD)
        ctx.save_for_backward(weights, x, write, y)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        grad = grads[0].contiguous()
        results = [None if shape is None else grad.new_empty(shape) for shape in ctx.shapes]
        by_weights, by_x, by_write, by_y = results
        arguments = fill(_weighted_sums_arguments(*saved), grad=grad)
        fill(arguments, by_weights=by_weights, by_x=by_x, by_write=by_write, by_y=by_y)
        _call("weighted_sums", arguments, BACKWARD)
        return tuple(results)


def _weighted_sums_arguments(
    weights: Tensor, x: Tensor, write: Tensor | None, y: Tensor | None
) -> Any:
    rows, sources, width = x.shape
    arguments = fill(_WeightedSums(), rows=rows, sources=sources, width=width)
    fill(arguments, sums=weights.shape[1], weights=weights, weights_stride=weights.stride(0))
    fill(arguments, x=x, x_stride=x.stride(0))
    if write is not None:
        fill(arguments, write=write, write_stride=write.stride(0), y=y)
    return arguments


def normed_products(x: Tensor, weights: Tensor, eps: float, centred: bool) -> Tensor:
    """Return norm(x) @ weights: (..., D), (D, k) -> (..., k).

    The norm has no parameters. It is layer normalisation if ``centred``, else RMSNorm.
    """
    return _NormedProductsFunction.apply(x, weights.mT.contiguous(), eps, centred)


class _NormedProductsFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, eps: float, centred: bool) -> Tensor:
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], len(weights))
        means, inverse_deviations = x.new_empty(2, x.numel() // x.shape[-1])
        arguments = _normed_products_arguments(x, weights, means, inverse_deviations)
        fill(arguments, centred=centred, eps=eps, out=out)
        _call("normed_products", arguments, FORWARD)
        ctx.save_for_backward(x, weights, means, inverse_deviations)
        ctx.centred = centred
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        x, weights, _, _ = saved
        grad = grads[0].contiguous()
        by_x = torch.empty_like(x)
        partial = x.new_zeros(torch.get_num_threads(), *weights.shape)
        arguments = _normed_products_arguments(*saved)
        fill(arguments, centred=ctx.centred, grad=grad, by_x=by_x, partial=partial)
        _call("normed_products", arguments, BACKWARD)
        return by_x, partial.sum(0), None, None


def _normed_products_arguments(
    x: Tensor, weights: Tensor, means: Tensor, inverse_deviations: Tensor
) -> Any:
    outputs, width = weights.shape
    arguments = fill(_NormedProducts(), rows=len(means), width=width, outputs=outputs)
    return fill(arguments, x=x, weights=weights, means=means, inverse_deviations=inverse_deviations)


def sinkhorn_is_usable(logits: Tensor) -> bool:
    """Whether ``sinkhorn`` is exact for these logits: their exponentials do not underflow."""
    if not usable(logits) or not logits.numel():
        return False
    smallest, largest = logits.detach().aminmax()
    return bool(largest - smallest < LARGEST_RANGE)


def sinkhorn(logits: Tensor, iterations: int) -> Tensor:
    """Return a nearly doubly stochastic matrix for each matrix of logits (..., n, n).

    The backward pass computes the iterations again.
    """
    return _SinkhornFunction.apply(logits, iterations)


class _SinkhornFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, iterations: int) -> Tensor:
        logits = logits.contiguous()
        out = torch.empty_like(logits)
        _call("sinkhorn", fill(_sinkhorn_arguments(logits, iterations), out=out), FORWARD)
        ctx.save_for_backward(logits)
        ctx.iterations = iterations
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        [logits] = ctx.saved_tensors
        grad = grads[0].contiguous()
        by_logits = torch.empty_like(logits)
        arguments = _sinkhorn_arguments(logits, ctx.iterations)
        _call("sinkhorn", fill(arguments, grad=grad, by_logits=by_logits), BACKWARD)
        return by_logits, None


def _sinkhorn_arguments(logits: Tensor, iterations: int) -> Any:
    size = logits.shape[-1]
    matrices = logits.numel() // size**2
    return fill(_Sinkhorn(), matrices=matrices, size=size, iterations=iterations, logits=logits)


def feature_sums(sources: Sequence[Tensor], fixed: Tensor, dynamic: Tensor) -> list[Tensor]:
    """Return the sums sum_i x_i * (fixed_ki + relu(dynamic_k . x_i)), each (..., D).

    ``sources`` are the n tensors x_i (..., D), ``fixed`` is (k, n, D) and ``dynamic`` is (k, D).
    """
    return list(_FeatureSumsFunction.apply(fixed, dynamic, *sources))


class _FeatureSumsFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fixed: Tensor, dynamic: Tensor, *sources: Tensor) -> tuple[Tensor, ...]:
        sources = tuple(source.contiguous() for source in sources)
        sums = tuple(torch.empty_like(sources[0]) for _ in dynamic)
        fixed = fixed.contiguous()
        dynamic = dynamic.contiguous()
        arguments, inputs = _feature_sums_arguments(fixed, dynamic, sources)
        outputs = _addresses(sums)
        fill(arguments, x=ctypes.addressof(inputs), out=ctypes.addressof(outputs))
        _call("feature_sums", arguments, FORWARD)
        ctx.save_for_backward(fixed, dynamic, *sources)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        fixed, dynamic, *sources = ctx.saved_tensors
        grads = tuple(grad.contiguous() for grad in grads)
        by_sources = [torch.empty_like(source) for source in sources]
        arguments, inputs = _feature_sums_arguments(fixed, dynamic, sources)
        partial = fixed.new_zeros(
            torch.get_num_threads(), len(dynamic), len(sources) + 1, dynamic.shape[1]
        )
        sum_grads, results = _addresses(grads), _addresses(by_sources)
        fill(arguments, x=ctypes.addressof(inputs), grads=ctypes.addressof(sum_grads))
        fill(arguments, by_x=ctypes.addressof(results), partial=partial)
        _call("feature_sums", arguments, BACKWARD)
        by_fixed, by_dynamic = partial.sum(0).split((len(sources), 1), 1)
        return by_fixed, by_dynamic.squeeze(1), *by_sources


def _feature_sums_arguments(
    fixed: Tensor, dynamic: Tensor, sources: Sequence[Tensor]
) -> tuple[Any, Any]:
    """Return the arguments that both passes have, and the addresses of the sources."""
    sums, width = dynamic.shape
    arguments = fill(_FeatureSums(), rows=sources[0].numel() // width, width=width)
    fill(arguments, sums=sums, sources=len(sources), fixed=fixed, dynamic=dynamic)
    return arguments, _addresses(sources)


def depth_attention(x: Tensor, last: Tensor | None, scales: Tensor, query: Tensor) -> Tensor:
    """Return the sum of n sources with the weights softmax_i(scales_i query . x_i): (..., D).

    The sources are ``x`` (..., n, D), or ``x`` (..., n - 1, D) and ``last`` (..., D). ``scales`` is
    (..., n) and ``query`` is (D,).
    """
    return _DepthAttentionFunction.apply(x, last, scales, query)


class _DepthAttentionFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, last: Tensor | None, scales: Tensor, query: Tensor) -> Tensor:
        ctx.shape = x.shape
        out = x.new_empty(*x.shape[:-2], x.shape[-1])
        x = _rows(x, 2)
        last = None if last is None else last.contiguous()
        scales = scales.contiguous()
        query = query.contiguous()
        products, weights = torch.empty_like(scales), torch.empty_like(scales)
        arguments = _depth_attention_arguments(x, last, scales, query, products, weights)
        _call("depth_attention", fill(arguments, out=out), FORWARD)
        ctx.save_for_backward(x, last, scales, query, products, weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        _, last, scales, query, _, _ = saved
        grad = grads[0].contiguous()
        by_x = grad.new_empty(ctx.shape)
        by_last = None if last is None else torch.empty_like(last)
        by_scales = torch.empty_like(scales)
        partial = query.new_zeros(torch.get_num_threads(), len(query))
        arguments = fill(_depth_attention_arguments(*saved), grad=grad, partial=partial)
        fill(arguments, by_x=by_x, by_last=by_last, by_scales=by_scales)
        _call("depth_attention", arguments, BACKWARD)
        return by_x, by_last, by_scales, partial.sum(0)


def _depth_attention_arguments(
    x: Tensor,
    last: Tensor | None,
    scales: Tensor,
    query: Tensor,
    products: Tensor,
    weights: Tensor,
) -> Any:
    rows, _, width = x.shape
    arguments = fill(_DepthAttention(), rows=rows, sources=scales.shape[-1], width=width)
    fill(arguments, x=x, x_stride=x.stride(0), last=last, scales=scales, query=query)
    return fill(arguments, products=products, weights=weights)
