"""A recurrence as matrix products with kernels between them, and its backward pass.

The gradients of the matrices and of the attention's values do not depend on the order of the steps.
They are computed once for all steps.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fusetk.nn.additive import AdditiveAttention
from fusetk.nn.fused import enabled, products
from fusetk.nn.fused import recurrence_cpu as cpu
from fusetk.nn.fused import recurrence_gpu as gpu
from fusetk.nn.fused.recurrence_buffers import (
    BackwardBuffers,
    ForwardBuffers,
    LoopSpec,
    allocate_backward,
    allocate_forward,
    cell_vectors,
    kept_buffers,
)
from fusetk.nn.fused.recurrence_meta import MetaKernels
from fusetk.nn.fused.structs import transformed
from fusetk.nn.precision import without_autocast


class Kernels(Protocol):
    """The computations between the products; ``c`` is a cell, ``t`` a step."""

    norm_parts: int
    """Number of partial sums in ``BackwardBuffers.norms``."""
    vector_parts: int
    """Number of partial sums in ``AttentionGradients.vector``."""

    def cell(self, c: int, t: int) -> None: ...
    def attention(self, t: int) -> None: ...
    def begin_backward(self, gradients: BackwardBuffers) -> None: ...
    def cell_backward(self, c: int, t: int) -> None: ...
    def attention_backward(self, t: int) -> None: ...
    def values_backward(self, value_grads: Tensor) -> None: ...


KERNELS: dict[str, Callable[[ForwardBuffers], Kernels]] = {
    "cpu": cpu.CpuKernels,
    "cuda": gpu.GpuKernels,
    "meta": MetaKernels,
}


def usable(x: Tensor, h: Tensor, attention: AdditiveAttention | None) -> bool:
    """Whether there are kernels for these tensors on their device.

    They are not used if the operations on these tensors are ``transformed``.
    """
    if h.dtype != torch.float32 or transformed(x, h):
        return False
    if x.device.type == "cpu":
        return x.dtype in (torch.float32, torch.bfloat16) and cpu.usable()
    if x.device.type == "meta":
        return enabled()
    types = (torch.float32, torch.bfloat16, torch.float16)
    return x.device.type == "cuda" and x.dtype in types and gpu.usable(x, attention)


def run(
    spec: LoopSpec, x: Tensor, h: Tensor, attention_inputs: Sequence[Tensor] = ()
) -> tuple[tuple[Tensor, ...], Tensor | None, Tensor | None]:
    """Run the recurrence on projected inputs (R, N, columns) and initial states (R, rows, D).

    ``attention_inputs``: keys, values, and the matrix that projects the contexts; empty without
    attention. Returns the states of each cell (R, N, D), the contexts (N, C), and the attention
    weights (N, n * S, H). The attention weights have no gradient. They are None without
    ``spec.keep_weights``.
    """
    attention = spec.attention
    attention_parameters = (attention.query, attention.vector) if attention else ()
    cell_parameters = [p for cell in spec.cells for p in (cell.state, *cell_vectors(cell))]
    outputs = _Loop.apply(spec, x, h, *attention_inputs, *attention_parameters, *cell_parameters)
    count = len(spec.cells)
    contexts, weights = outputs[count:] if attention else (None, None)
    return outputs[:count], contexts, weights if spec.keep_weights else None


class _Loop(torch.autograd.Function):
    """The recurrence as one operation of autograd.

    The context of the backward pass refers to ``ForwardBuffers``. They do not refer to the outputs:
    the outputs refer to the context, and a reference back would be a cycle. Inputs and outputs are
    saved too, so that autograd notices if one of them was modified in place. The large buffers
    are also saved, so that hooks of saved tensors see their memory.
    """

    @staticmethod
    def forward(
        ctx: Any, spec: LoopSpec, x: Tensor, h: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        with _settings(x):
            buffers = allocate_forward(spec, x, h, rest)
            kernels = KERNELS[x.device.type](buffers)
            _run_forward(buffers, kernels)
        tensors = list(buffers.states)
        if buffers.attention:
            tensors += [buffers.attention.contexts, buffers.attention.weights]
        outputs = tuple(tensor.detach() for tensor in tensors)
        if any(ctx.needs_input_grad):
            ctx.kernels = kernels
            ctx.buffers = buffers
            ctx.save_for_backward(x, h, *rest, *outputs, *kept_buffers(buffers))
        if buffers.attention:
            ctx.mark_non_differentiable(outputs[-1])
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        buffers, kernels = ctx.buffers, ctx.kernels
        ctx.buffers = ctx.kernels = None
        if buffers is None:
            raise RuntimeError(
                "the fused kernels of a recurrence allow one backward pass only; to run several, "
                "set FUSETK_KERNELS=off"
            )
        _ = ctx.saved_tensors  # this access makes autograd check them for changes
        with _settings(buffers.x):
            gradients = allocate_backward(buffers, grads, kernels.norm_parts, kernels.vector_parts)
            kernels.begin_backward(gradients)
            _run_backward(buffers, gradients, kernels)
            return (
                None,
                gradients.inputs[0],
                gradients.state + gradients.product,
                *_attention_grads(buffers, gradients, kernels),
                *(
                    grad
                    for c in range(len(buffers.states))
                    for grad in _cell_grads(buffers, gradients, c)
                ),
            )


@contextmanager
def _settings(x: Tensor) -> Iterator[None]:
    """Disable autocast, and make the device of ``x`` the current one."""
    with (
        without_autocast(x),
        torch.cuda.device(x.device) if x.is_cuda else nullcontext(),
    ):
        yield


def _multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Write the product of ``a`` (R, n, D) and ``b`` (R, D, E) to ``out`` (R, n, E)."""
    if len(a) == 1 or products.in_use(a[0], b[0]):
        for factor, matrix, result in zip(a, b, out, strict=True):
            products.matmul_into(result, factor, matrix)
    else:
        torch.bmm(a, b, out=out)


def _run_forward(buffers: ForwardBuffers, kernels: Kernels) -> None:
    spec, attention = buffers.spec, buffers.attention
    for t, start in enumerate(buffers.starts[:-1]):
        end = buffers.starts[t + 1]
        for c, weight in enumerate(buffers.state_weights):
            factor = buffers.factors[c][:, start:end]
            if attention and c == spec.below_attention:
                queries = attention.queries[start:end]
                products.matmul_into(queries, factor[0], attention.query_weight)
                kernels.attention(t)
                contexts, inputs = attention.contexts[start:end], attention.inputs[0, start:end]
                products.matmul_into(inputs, contexts, attention.input_weight)
            _multiply(factor, weight, buffers.projected[c][:, start:end])
            kernels.cell(c, t)


def _run_backward(buffers: ForwardBuffers, gradients: BackwardBuffers, kernels: Kernels) -> None:
    """Compute the gradients step by step, from the last step to the first."""
    spec, attention, attention_grads = buffers.spec, buffers.attention, gradients.attention
    transposed = [weight.mT for weight in buffers.state_weights]
    for t, size in reversed(list(enumerate(spec.sizes))):
        start, end = buffers.starts[t], buffers.starts[t + 1]
        product = gradients.product[:, :size]
        for c in reversed(range(len(spec.cells))):
            kernels.cell_backward(c, t)
            _multiply(gradients.projected[c][:, start:end], transposed[c], product)
            if attention and attention_grads and c == spec.below_attention:
                inputs = attention_grads.inputs[0, start:end]
                context_product = attention_grads.product[:size]
                products.matmul_into(context_product, inputs, attention.input_weight.mT)
                kernels.attention_backward(t)
                queries = attention_grads.queries[start:end]
                product[0].addmm_(queries, attention.query_weight.mT)


def _attention_grads(
    buffers: ForwardBuffers, gradients: BackwardBuffers, kernels: Kernels
) -> tuple[Tensor, ...]:
    """Return the gradients of keys, values, input weight, query weight and vector."""
    attention, attention_grads = buffers.attention, gradients.attention
    if attention is None or attention_grads is None:
        return ()
    value_grads = torch.empty_like(attention.values)
    kernels.values_backward(value_grads)
    factor = buffers.factors[buffers.spec.below_attention][0]
    return (
        attention_grads.keys,
        value_grads,
        attention.contexts.mT @ attention_grads.inputs[0],
        factor.mT @ attention_grads.queries,
        attention_grads.vector.sum(0),
    )


def _cell_grads(
    buffers: ForwardBuffers, gradients: BackwardBuffers, c: int
) -> tuple[Tensor | None, ...]:
    """Return the gradients of a cell's state weight, bias, linear bias, gain and shift."""
    projected, norms, inputs = gradients.projected[c], gradients.norms[c], gradients.inputs[c]
    width = buffers.h.shape[-1]
    factors = buffers.factors[c].mT
    by_weight = factors.new_empty(*factors.shape[:2], projected.shape[-1])
    _multiply(factors, projected, by_weight)
    linear_bias = None
    if inputs is not None and buffers.spec.cells[c].linear_bias is not None:
        linear_bias = inputs[..., -width:].sum(1, dtype=torch.float32)
    gain, shift = (None, None) if norms is None else norms.sum(0).unbind(1)
    return (
        by_weight,
        projected[..., -width:].sum(1, dtype=torch.float32),
        linear_bias,
        gain,
        shift,
    )
