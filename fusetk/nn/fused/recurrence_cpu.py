"""The kernels of the recurrence for CPU: calls of ``recurrence.cpp``."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from fusetk.nn.fused import CELL_NUMBERS
from fusetk.nn.fused.build import library
from fusetk.nn.fused.recurrence_buffers import (
    AttentionBuffers,
    BackwardBuffers,
    ForwardBuffers,
    LoopSpec,
)
from fusetk.nn.fused.structs import (
    BACKWARD,
    FLOAT,
    FORWARD,
    INT,
    POINTER,
    VALUES_BACKWARD,
    address,
    fill,
    struct,
)

# The structs have the same members in the same order as in recurrence.cpp.
CellArguments = struct(
    "CellArguments",
    ("threads kind bf16 norm directions rows width positions", INT),
    ("x a h", POINTER),
    ("h_positions", INT),
    ("out next", POINTER),
    ("next_rows next_positions", INT),
    ("random_bits", POINTER),
    ("threshold", INT),
    ("scale", FLOAT),
    ("bias linear_bias gain shift grad", POINTER),
    ("grad_positions", INT),
    ("product", POINTER),
    ("product_positions", INT),
    ("output_grad da dx partial", POINTER),
)
AttentionArguments = struct(
    "AttentionArguments",
    ("threads bf16 rows hypotheses heads width value_width sources length", INT),
    ("queries keys values mask vector weights contexts product output_grad grad", POINTER),
    ("by_queries by_keys by_vector starts sizes", POINTER),
    ("steps sentences", INT),
    ("by_values", POINTER),
)


def usable() -> bool:
    """Whether the kernels are enabled and could be compiled."""
    return library("recurrence") is not None


class CpuKernels:
    """The computations between the products of a recurrence, done by ``recurrence.cpp``."""

    def __init__(self, buffers: ForwardBuffers):
        kernels = library("recurrence")
        assert kernels is not None
        self.library = kernels
        self.buffers = buffers
        self.spec: LoopSpec = buffers.spec
        self.threads = torch.get_num_threads()
        self.norm_parts = self.threads
        self.vector_parts = self.threads
        self.bf16 = buffers.x.dtype == torch.bfloat16
        # Arguments that are the same at all steps are set once.
        self.cell_arguments = [self._cell_arguments(c) for c in range(len(self.spec.cells))]
        self.attention_arguments: Any = None
        if buffers.attention is not None:
            self.attention_arguments = self._attention_arguments(buffers.attention)

    def _cell_arguments(self, c: int) -> Any:
        cell = self.spec.cells[c]
        directions, positions, _ = self.buffers.x.shape
        arguments = fill(CellArguments(), threads=self.threads, bf16=self.bf16)
        fill(arguments, kind=CELL_NUMBERS[cell.kind], norm=cell.gain is not None)
        fill(arguments, directions=directions, width=cell.width)
        fill(arguments, positions=positions, next_positions=positions)
        fill(arguments, threshold=self.spec.threshold, scale=self.spec.scale)
        bias, linear_bias, gain, shift = self.buffers.vectors[c]
        return fill(arguments, bias=bias, linear_bias=linear_bias, gain=gain, shift=shift)

    def _attention_arguments(self, buffers: AttentionBuffers) -> Any:
        spec, keys, values = self.spec, buffers.keys, buffers.values
        assert spec.attention is not None and spec.mask is not None
        arguments = fill(AttentionArguments(), threads=self.threads, bf16=self.bf16)
        fill(arguments, heads=spec.attention.heads, sources=spec.attention.sources)
        fill(arguments, width=keys.shape[-1], value_width=values.shape[-1])
        fill(arguments, sentences=len(keys), hypotheses=spec.sizes[0] // len(keys))
        fill(arguments, keys=keys, values=values, vector=buffers.vector)
        return fill(arguments, mask=spec.mask, length=spec.mask.shape[1])

    def _cell_at(self, c: int, t: int) -> Any:
        """Return the arguments of cell ``c`` with the inputs of step ``t`` set."""
        buffers, arguments = self.buffers, self.cell_arguments[c]
        start = buffers.starts[t]
        before = buffers.state_before(c, t)
        arguments.rows = before.rows
        arguments.x = address(buffers.inputs[c], start)
        arguments.a = address(buffers.projected[c], start)
        arguments.h = address(before.buffer, before.start)
        arguments.h_positions = before.buffer.shape[1]
        if self.spec.random_bits:
            arguments.random_bits = address(self.spec.random_bits[c], start)
        return arguments

    def _attention_at(self, t: int) -> Any:
        """Return the arguments of the attention with the inputs of step ``t`` set."""
        buffers, arguments = self.buffers.attention, self.attention_arguments
        assert buffers is not None
        start = self.buffers.starts[t]
        arguments.rows = self.spec.sizes[t]
        arguments.queries = address(buffers.queries, start)
        arguments.contexts = address(buffers.contexts, start)
        weights_row = self.buffers.weights_start(t) * buffers.weights.shape[1]
        arguments.weights = address(buffers.weights, weights_row)
        return arguments

    def cell(self, c: int, t: int) -> None:
        arguments = self._cell_at(c, t)
        arguments.out = address(self.buffers.states[c], self.buffers.starts[t])
        copy = self.buffers.next_factor(c, t)
        arguments.next = address(copy.buffer, copy.start) if copy else None
        arguments.next_rows = copy.rows if copy else 0
        self.library.cell(ctypes.byref(arguments), FORWARD)

    def attention(self, t: int) -> None:
        self.library.attention(ctypes.byref(self._attention_at(t)), FORWARD)

    def begin_backward(self, gradients: BackwardBuffers) -> None:
        self.gradients = gradients
        for c, arguments in enumerate(self.cell_arguments):
            state, product = gradients.state, gradients.product
            fill(arguments, grad=state, grad_positions=state.shape[1])
            fill(arguments, product=product, product_positions=product.shape[1])
            fill(arguments, partial=gradients.norms[c])
        attention = gradients.attention
        if attention is not None:
            fill(self.attention_arguments, product=attention.product)
            fill(self.attention_arguments, by_keys=attention.keys, by_vector=attention.vector)

    def cell_backward(self, c: int, t: int) -> None:
        arguments, gradients = self._cell_at(c, t), self.gradients
        start = self.buffers.starts[t]
        arguments.output_grad = address(gradients.output_grads[c], start)
        arguments.da = address(gradients.projected[c], start)
        arguments.dx = address(gradients.inputs[c], start)
        self.library.cell(ctypes.byref(arguments), BACKWARD)

    def attention_backward(self, t: int) -> None:
        arguments, gradients = self._attention_at(t), self.gradients.attention
        assert gradients is not None
        start = self.buffers.starts[t]
        arguments.output_grad = address(gradients.output_grad, start)
        arguments.grad = address(gradients.contexts, start)
        arguments.by_queries = address(gradients.queries, start)
        self.library.attention(ctypes.byref(arguments), BACKWARD)

    def values_backward(self, value_grads: Tensor) -> None:
        arguments, buffers = self.attention_arguments, self.buffers.attention
        gradients = self.gradients.attention
        assert buffers is not None and gradients is not None
        starts = torch.tensor(self.buffers.starts)
        sizes = torch.tensor(self.spec.sizes)
        fill(arguments, starts=starts, sizes=sizes, steps=len(sizes))
        fill(arguments, weights=buffers.weights, grad=gradients.contexts, by_values=value_grads)
        self.library.attention(ctypes.byref(arguments), VALUES_BACKWARD)
