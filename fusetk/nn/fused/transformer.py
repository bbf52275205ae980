"""Transformer layers in fused kernels on CPU: calls of ``transformer.cpp``, with their gradients.

Each function computes the same as the modules of ``fusetk.nn`` that call it, in fewer passes over
memory. The functions accept float32 tensors. With autocast to bf16, they compute products in bf16.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fusetk.errors import ConfigError
from fusetk.nn.dropout_mask import DropoutMask
from fusetk.nn.fused.dropout import DropoutArgument, dropout_argument
from fusetk.nn.fused.products import unrounded_matmul
from fusetk.nn.fused.structs import (
    BACKWARD,
    FLOAT,
    FORWARD,
    INT,
    POINTER,
    call,
    computes,
    fill,
    struct,
)
from fusetk.nn.packed_layout import AttentionLayout, PackedLayout
from fusetk.nn.precision import product_dtype

# The structs have the same members in the same order as in transformer.cpp.
_Residual = struct(
    "_Residual",
    ("threads bf16 rows width", INT),
    ("x y", POINTER),
    ("drop", DropoutArgument),
    ("gain shift", POINTER),
    ("eps", FLOAT),
    ("sum out means inverse_deviations grad by_x by_y partial", POINTER),
)
_Activation = struct(
    "_Activation",
    ("threads bf16 rows width", INT),
    ("h bias", POINTER),
    ("drop", DropoutArgument),
    ("grad partial", POINTER),
)
_ColumnSum = struct("_ColumnSum", ("threads bf16 rows width", INT), ("x partial", POINTER))
_Addition = struct("_Addition", ("threads bf16 count", INT), ("total x", POINTER))
_Segment = struct("_Segment", ("keys_values", POINTER), ("stride", INT), ("offsets grad", POINTER))
_Attention = struct(
    "_Attention",
    ("threads bf16 sentences heads size causal", INT),
    ("queries", POINTER),
    ("stride", INT),
    ("offsets", POINTER),
    ("segments", INT),
    ("segment", _Segment * 2),
    ("scale", FLOAT),
    ("drop", DropoutArgument),
    ("random_stride", INT),
    ("contexts normalizers grad by_queries", POINTER),
)
_Loss = struct(
    "_Loss",
    ("threads bf16 rows vocabulary training", INT),
    ("logits bias targets", POINTER),
    ("gap other", FLOAT),
    ("log_p log_p_all correct partial", POINTER),
)


def usable(x: Tensor, parameters: Iterable[Tensor] = ()) -> bool:
    """Whether the kernels compute on ``x`` with these parameters.

    The parameters must be float32 and contiguous.
    """
    return computes("transformer", x) and all(
        p.dtype == torch.float32 and p.is_contiguous() for p in parameters
    )


_call = partial(call, "transformer")


def _fill_shape(arguments: Any, products: Tensor, rows: int, width: int) -> Any:
    """Set the members that most structs have, and return the struct.

    ``products`` has the type of the products.
    """
    return fill(arguments, bf16=products.dtype == torch.bfloat16, rows=rows, width=width)


def _partial(*shape: int) -> Tensor:
    """Return zeros for the partial sums of each thread."""
    return torch.zeros(torch.get_num_threads(), *shape, dtype=torch.float32)


def column_sum(x: Tensor) -> Tensor:
    """Return the sum of the rows of x (N, D) in float32."""
    partial = _partial(x.shape[1])
    _call("column_sum", fill(_fill_shape(_ColumnSum(), x, *x.shape), x=x, partial=partial))
    return partial.sum(0)


def add(total: Tensor, x: Tensor) -> None:
    """Add ``x`` (M, N), in float32 or bf16, to ``total`` (M, N). Both are contiguous.

    PyTorch's ``total.add_(x)`` first copies an x of bf16 to float32.
    """
    bf16 = x.dtype == torch.bfloat16
    _call("add", fill(_Addition(), bf16=bf16, count=x.numel(), total=total, x=x))


def residual(
    x: Tensor, y: Tensor, dropout_mask: DropoutMask | None, norm: nn.LayerNorm | None
) -> Tensor:
    """Return norm(x + dropout(y)), or x + dropout(y) without ``norm``: (..., D) -> (..., D)."""
    parameters = (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    return _ResidualSum.apply(x, y, dropout_mask, *parameters)


class _ResidualSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        dropout_mask: DropoutMask | None,
        gain: Tensor | None,
        shift: Tensor | None,
        eps: float,
    ) -> Tensor:
        x = x.contiguous()
        y = y.contiguous()
        total = torch.empty_like(x)
        rows = x.numel() // x.shape[-1]
        arguments = _fill_shape(_Residual(), y, rows, x.shape[-1])
        fill(arguments, x=x, y=y, drop=dropout_argument(dropout_mask), sum=total)
        ctx.dropout_mask = dropout_mask
        ctx.y_dtype = y.dtype
        if gain is None:
            _call("residual", arguments, FORWARD)
            return total
        out = torch.empty_like(x)
        means, inverse_deviations = torch.empty(2, rows, dtype=torch.float32)
        fill(arguments, gain=gain, shift=shift, eps=eps, out=out)
        fill(arguments, means=means, inverse_deviations=inverse_deviations)
        _call("residual", arguments, FORWARD)
        ctx.save_for_backward(total, gain, means, inverse_deviations)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0].contiguous()
        width = grad.shape[-1]
        arguments = _Residual()
        by_x, by_gain, by_shift = grad, None, None
        partial = _partial(2, width)
        saved = ctx.saved_tensors
        if saved:
            total, gain, means, inverse_deviations = saved
            by_x = torch.empty_like(grad)
            fill(arguments, sum=total, gain=gain)
            fill(arguments, means=means, inverse_deviations=inverse_deviations)
        if ctx.dropout_mask is None and ctx.y_dtype == grad.dtype:
            by_y = by_x
            if not saved:
                return grad, grad, None, None, None, None
        else:
            by_y = torch.empty_like(grad, dtype=ctx.y_dtype)
            fill(arguments, by_y=by_y)
        _fill_shape(arguments, by_y, grad.numel() // width, width)
        fill(
            arguments,
            drop=dropout_argument(ctx.dropout_mask),
            grad=grad,
            by_x=by_x,
            partial=partial,
        )
        _call("residual", arguments, BACKWARD)
        if saved:
            by_gain, by_shift = partial.sum(0)
        return by_x, by_y, None, by_gain, by_shift, None


def feed_forward(
    x: Tensor, hidden: nn.Linear, out: nn.Linear, dropout_mask: DropoutMask | None
) -> Tensor:
    """Return out(dropout(relu(hidden(x)))): (..., D) -> (..., D')."""
    return _FeedForward.apply(x, hidden.weight, hidden.bias, out.weight, out.bias, dropout_mask)


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w1: Tensor,
        b1: Tensor,
        w2: Tensor,
        b2: Tensor,
        dropout_mask: DropoutMask | None,
    ) -> Tensor:
        dtype = product_dtype(x)
        with torch.autocast("cpu", enabled=False):
            inputs = x.reshape(-1, x.shape[-1]).to(dtype)
            w1 = w1.to(dtype)
            w2 = w2.to(dtype)
            h = inputs @ w1.T
            _activation(h, b1, dropout_mask)
            y = torch.addmm(b2.to(dtype), h, w2.T)
        ctx.save_for_backward(inputs, w1, h, w2)
        ctx.dropout_mask = dropout_mask
        ctx.x_dtype = x.dtype
        return y.view(*x.shape[:-1], len(w2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, w1, h, w2 = ctx.saved_tensors
        grad = grads[0].reshape(-1, grads[0].shape[-1]).to(h.dtype).contiguous()
        by_a = grad @ w2
        by_b1 = _activation_backward(h, by_a, ctx.dropout_mask)
        by_x = (by_a @ w1).to(ctx.x_dtype).view(*grads[0].shape[:-1], w1.shape[1])
        by_w1 = unrounded_matmul(by_a.T, inputs)
        by_w2 = unrounded_matmul(grad.T, h)
        return by_x, by_w1, by_b1, by_w2, column_sum(grad), None


def _activation(h: Tensor, bias: Tensor, dropout_mask: DropoutMask | None) -> None:
    arguments = _fill_shape(_Activation(), h, *h.shape)
    _call(
        "activation", fill(arguments, h=h, bias=bias, drop=dropout_argument(dropout_mask)), FORWARD
    )


def _activation_backward(h: Tensor, grad: Tensor, dropout_mask: DropoutMask | None) -> Tensor:
    """Replace the gradient of h by that of the activation's input; return that of the bias (D,)."""
    partial = _partial(h.shape[1])
    arguments = _fill_shape(_Activation(), h, *h.shape)
    fill(arguments, h=h, drop=dropout_argument(dropout_mask), grad=grad, partial=partial)
    _call("activation", arguments, BACKWARD)
    return partial.sum(0)


def attend(
    layout: AttentionLayout,
    projected: Tensor,
    keys_values: Tensor | None,
    dropout_mask: DropoutMask | None,
) -> Tensor:
    """Return the contexts (1, N, D) of packed queries; see ``nn.packed_attention``."""
    _check_rows(projected, layout.queries)
    if keys_values is not None and layout.source is not None:
        _check_rows(keys_values, layout.source)
    return _Attend.apply(projected, keys_values, layout, dropout_mask)


def _check_rows(x: Tensor, layout: PackedLayout) -> None:
    """Raise ConfigError unless x has the rows of its layout, which the kernels read."""
    if x.shape[:2] != (1, len(layout.places)):
        raise ConfigError(
            f"attention in training received the shape {tuple(x.shape)} instead of (1, "
            f"{len(layout.places)}, {x.shape[-1]}): a part of the model returned another number of "
            "positions than it received"
        )


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        projected: Tensor,
        keys_values: Tensor | None,
        layout: AttentionLayout,
        dropout_mask: DropoutMask | None,
    ) -> Tensor:
        projected = projected.contiguous()
        if keys_values is not None:
            keys_values = keys_values.to(projected.dtype).contiguous()
        contexts = projected.new_empty(*projected.shape[:-1], layout.width)
        shape = projected.shape[1], layout.heads, 2
        normalizers = torch.empty(shape, dtype=torch.float32, device=projected.device)
        arguments = _attention_arguments(layout, projected, keys_values, dropout_mask)
        fill(arguments, contexts=contexts, normalizers=normalizers)
        _call("packed_attention", arguments, FORWARD)
        contexts[:, layout.queries.tokens :] = 0
        ctx.save_for_backward(projected, keys_values, normalizers)
        ctx.layout = layout
        ctx.dropout_mask = dropout_mask
        return contexts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        projected, keys_values, normalizers = ctx.saved_tensors
        grad = grads[0].to(projected.dtype).contiguous()
        by_projected = torch.empty_like(projected)
        by_keys_values = None if keys_values is None else torch.empty_like(keys_values)
        arguments = _attention_arguments(ctx.layout, projected, keys_values, ctx.dropout_mask)
        fill(arguments, normalizers=normalizers, grad=grad, by_queries=by_projected)
        segments = _segments(ctx.layout, by_projected, by_keys_values)
        for i, (start, _, _) in enumerate(segments):
            arguments.segment[i].grad = start
        _call("packed_attention", arguments, BACKWARD)
        by_projected[:, ctx.layout.queries.tokens :] = 0
        if by_keys_values is not None and ctx.layout.source is not None:
            by_keys_values[:, ctx.layout.source.tokens :] = 0
        return by_projected, by_keys_values, None, None


def _attention_arguments(
    layout: AttentionLayout,
    projected: Tensor,
    keys_values: Tensor | None,
    dropout_mask: DropoutMask | None,
) -> Any:
    """Return the arguments that both passes have."""
    size = layout.width // layout.heads
    # The kernel applies `causal` to the last segment, which is the source without `own`.
    causal = layout.causal and layout.own
    arguments = fill(_Attention(), bf16=projected.dtype == torch.bfloat16, causal=causal)
    fill(arguments, sentences=layout.queries.sentences, offsets=layout.queries.offsets)
    fill(arguments, heads=layout.heads, size=size, scale=size**-0.5)
    fill(arguments, queries=projected, stride=projected.shape[-1])
    fill(arguments, drop=dropout_argument(dropout_mask), random_stride=layout.random_stride)
    segments = _segments(layout, projected, keys_values)
    fill(arguments, segments=len(segments))
    for i, (start, stride, keys) in enumerate(segments):
        fill(arguments.segment[i], keys_values=start, stride=stride, offsets=keys.offsets)
    return arguments


def _segments(
    layout: AttentionLayout, projected: Tensor, keys_values: Tensor | None
) -> list[tuple[int, int, PackedLayout]]:
    """Return the address, the columns and the layout of each tensor of keys and values."""
    segments = []
    if keys_values is not None and layout.source is not None:
        segments.append((keys_values.data_ptr(), keys_values.shape[-1], layout.source))
    if layout.own:
        start = projected.data_ptr() + layout.width * projected.element_size()
        segments.append((start, projected.shape[-1], layout.queries))
    return segments


def _checked_targets(targets: Tensor, vocabulary: int) -> Tensor:
    """Return ``targets`` as the kernels read them. Raises IndexError if one is out of range."""
    if targets.numel() and not 0 <= targets.min() <= targets.max() < vocabulary:
        raise IndexError(
            f"a target is outside the vocabulary: give indices from 0 to {vocabulary - 1}"
        )
    return targets.to(torch.int64).contiguous()


def cross_entropy(
    logits: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    gap: float,
    other: float,
    bias_grad: Tensor | None,
    training: bool,
) -> Tensor:
    """Return sums over the rows of ``logits`` (n, V) + ``bias`` (V,): (3,).

    The sums are the log-probabilities of the targets (n,), the log-probabilities of all tokens, and
    the number of targets with the largest logit. In training, this number is not counted, the
    gradients of the loss replace the logits, and those of the bias are added to ``bias_grad`` (V,).
    The target distribution is ``other`` for each token, and ``gap`` more for the target.
    """
    rows, vocabulary = logits.shape
    targets = _checked_targets(targets, vocabulary)
    sums = torch.zeros(3, rows, dtype=torch.float32)
    log_p, log_p_all, correct = sums
    partial = _partial(vocabulary) if training and bias is not None else None
    arguments = fill(_Loss(), bf16=logits.dtype == torch.bfloat16, training=training)
    fill(arguments, rows=rows, vocabulary=vocabulary, logits=logits, bias=bias)
    fill(arguments, targets=targets, gap=gap, other=other)
    fill(arguments, log_p=log_p, log_p_all=log_p_all, correct=correct, partial=partial)
    _call("loss", arguments)
    if partial is not None and bias_grad is not None:
        bias_grad += partial.sum(0)
    return sums.sum(1)
