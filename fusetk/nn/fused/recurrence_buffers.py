"""The tensors that the loop of a recurrence and its kernels share.

Symbols: R directions, N slots of all steps, D state features, C context features, H heads, n
sources of S positions each; d = D / H. Rows are sentences in training and hypotheses in search.
"Products" are the matrix products between the kernels. Their type is that of ``x``: float32,
bfloat16 or, on a GPU, float16. States and gradients of states are float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fusetk.nn.additive import AdditiveAttention
from fusetk.nn.cells import Cell


class LoopSpec(NamedTuple):
    """The arguments of the loop for which it returns no gradient."""

    cells: Sequence[Cell]  # the lowest first
    below_attention: int  # number of cells below the attention
    sizes: Sequence[int]  # number of rows of each step
    random_bits: Sequence[Tensor] | None  # (R, N, D) int16 for each cell, for dropout
    threshold: int  # random bits below it drop an element
    scale: float  # factor of the other elements
    attention: AdditiveAttention | None
    mask: Tensor | None  # (sentences, S), contiguous
    keep_weights: bool  # keep the attention weights of all steps, not only of the current one


class BufferRows(NamedTuple):
    """Consecutive rows of a buffer (R, positions, D), from row ``start`` of each direction."""

    buffer: Tensor
    start: int
    rows: int


@dataclass
class AttentionBuffers:
    """Tensors of the attention, in the forward pass."""

    keys: Tensor  # (sentences, n * S, D)
    values: Tensor  # (sentences, n * S, C)
    input_weight: Tensor  # (C, columns), projects a context for the cell above the attention
    query_weight: Tensor  # (D, D)
    vector: Tensor  # (d,) float32
    queries: Tensor  # (N, D)
    contexts: Tensor  # (N, C)
    weights: Tensor  # (N, n * S, H) float32; without ``keep_weights`` only one step's rows
    inputs: Tensor  # (1, N, columns), the projected contexts


@dataclass
class ForwardBuffers:
    """Tensors of the forward pass for all N slots. The backward pass also reads them."""

    spec: LoopSpec
    starts: list[int]  # first slot of each step, then the first slot after the last step
    x: Tensor  # (R, N, columns), the projected inputs of the lowest cell
    h: Tensor  # (R, rows, D), the states before the first step
    state_weights: list[Tensor]  # (R, D, columns) for each cell, in the type of the products
    vectors: list[list[Tensor | None]]  # bias, linear_bias, gain, shift of each cell, float32
    states: list[Tensor]  # (R, N, D) for each cell
    inputs: list[Tensor | None]  # (R, N, columns), projected, for each cell; None for a T-GRU
    projected: list[Tensor]  # (R, N, columns) for each cell: ``factors`` @ ``state_weights``
    # The state that each cell reads. For the lowest cell it is the state of the highest cell one
    # step before; for another cell, the state of the cell below. With products of 16 bits, all are
    # copies.
    factors: list[Tensor]  # (R, N, D) for each cell
    is_copy: list[bool]  # whether the factor of a cell is a copy of the states
    attention: AttentionBuffers | None

    def state_before(self, c: int, t: int) -> BufferRows:
        """Return the state that cell ``c`` reads at step ``t``."""
        rows = self.spec.sizes[t]
        if c:
            return BufferRows(self.states[c - 1], self.starts[t], rows)
        if t:
            return BufferRows(self.states[-1], self.starts[t - 1], rows)
        return BufferRows(self.h, 0, rows)

    def next_factor(self, c: int, t: int) -> BufferRows | None:
        """Return the rows to which the new state of cell ``c`` is copied for the next product.

        Returns None if the next product needs no copy.
        """
        sizes = self.spec.sizes
        above = c + 1
        if above < len(self.factors):
            if not self.is_copy[above]:
                return None
            return BufferRows(self.factors[above], self.starts[t], sizes[t])
        if t + 1 == len(sizes):
            return None
        return BufferRows(self.factors[0], self.starts[t + 1], sizes[t + 1])

    def weights_start(self, t: int) -> int:
        """Return the first row of step ``t`` in ``attention.weights``."""
        return self.starts[t] if self.spec.keep_weights else 0


@dataclass
class AttentionGradients:
    """Gradients of the attention's tensors."""

    output_grad: Tensor | None  # (N, C) float32, gradient of the contexts as outputs of the loop
    product: Tensor  # (rows, C), gradient of a step's contexts from their use in ``inputs``
    contexts: Tensor  # (N, C) float32, the sum of ``output_grad`` and ``product``
    queries: Tensor  # (N, D)
    inputs: Tensor  # (1, N, columns)
    keys: Tensor  # (sentences, n * S, D) float32
    vector: Tensor  # (parts, d), partial sums


@dataclass
class BackwardBuffers:
    """Gradients. The gradient of the current state is ``state`` + ``product``."""

    output_grads: list[Tensor | None]  # (R, N, D) for each cell, of its states as loop outputs
    state: Tensor  # (R, rows, D) float32
    product: Tensor  # (R, rows, D), from the product with a state weight
    projected: list[Tensor]  # (R, N, columns) for each cell
    inputs: list[Tensor | None]  # (R, N, columns) for each cell; None for a T-GRU
    norms: list[Tensor | None]  # (parts, R, gain or shift, gates, D) for each cell: partial sums
    attention: AttentionGradients | None


def allocate_forward(
    spec: LoopSpec, x: Tensor, h: Tensor, attention_inputs: Sequence[Tensor]
) -> ForwardBuffers:
    """Allocate the buffers of a forward pass.

    ``attention_inputs``: keys, values, input weight, query weight and vector; empty without
    attention.
    """
    starts = [0]
    for size in spec.sizes:
        starts.append(starts[-1] + size)
    shape = (*x.shape[:2], h.shape[-1])
    state_weights = [cell.state.to(x.dtype) for cell in spec.cells]
    states = [h.new_empty(shape) for _ in spec.cells]
    x = x.contiguous()
    attention = _allocate_attention(spec, x, h, attention_inputs) if spec.attention else None
    is_copy = [x.dtype != h.dtype or not c for c in range(len(spec.cells))]
    buffers = ForwardBuffers(
        spec=spec,
        starts=starts,
        x=x,
        h=h.contiguous(),
        state_weights=state_weights,
        vectors=[
            [None if p is None else p.float().contiguous() for p in cell_vectors(cell)]
            for cell in spec.cells
        ],
        states=states,
        inputs=_inputs_of_cells(spec, x, attention),
        projected=[x.new_empty(*x.shape[:2], weight.shape[-1]) for weight in state_weights],
        factors=[x.new_empty(shape) if copy else states[c - 1] for c, copy in enumerate(is_copy)],
        is_copy=is_copy,
        attention=attention,
    )
    buffers.factors[0][:, : spec.sizes[0]] = h[:, : spec.sizes[0]]
    # Slots after the last step are not computed, but products over all slots read them.
    for buffer in (*buffers.factors, *buffers.states):
        buffer[:, starts[-1] :] = 0
    if attention is not None:
        attention.contexts[starts[-1] :] = 0
        if spec.keep_weights:
            attention.weights[starts[-1] :] = 0
    return buffers


def _inputs_of_cells(
    spec: LoopSpec, x: Tensor, attention: AttentionBuffers | AttentionGradients | None
) -> list[Tensor | None]:
    """Return the projected input of each cell, or its gradient; None for a T-GRU.

    ``x`` is that of the lowest cell.
    """
    inputs: list[Tensor | None] = [None] * len(spec.cells)
    inputs[0] = x
    if attention is not None:
        inputs[spec.below_attention] = attention.inputs
    return inputs


def _allocate_attention(
    spec: LoopSpec, x: Tensor, h: Tensor, attention_inputs: Sequence[Tensor]
) -> AttentionBuffers:
    assert spec.attention is not None
    keys, values, input_weight, query_weight = (
        tensor.to(x.dtype).contiguous() for tensor in attention_inputs[:4]
    )
    slots = x.shape[1]
    weight_rows = slots if spec.keep_weights else spec.sizes[0]
    return AttentionBuffers(
        keys=keys,
        values=values,
        input_weight=input_weight,
        query_weight=query_weight,
        vector=attention_inputs[4].float().contiguous(),
        queries=x.new_empty(slots, h.shape[-1]),
        contexts=x.new_empty(slots, values.shape[-1]),
        weights=h.new_empty(weight_rows, keys.shape[1], spec.attention.heads),
        inputs=x.new_empty(1, slots, input_weight.shape[-1]),
    )


def allocate_backward(
    forward: ForwardBuffers,
    output_grads: Sequence[Tensor | None],
    norm_parts: int,
    vector_parts: int,
) -> BackwardBuffers:
    """Allocate the buffers of a backward pass.

    ``output_grads`` are the gradients of the states of each cell, and of the contexts if there is
    an attention. ``norm_parts`` and ``vector_parts`` are the numbers of partial sums that the
    kernels write.
    """
    spec, x, h = forward.spec, forward.x, forward.h
    count = len(spec.cells)
    attention = None
    if forward.attention is not None:
        attention = _allocate_attention_gradients(
            forward.attention, spec.sizes[0], output_grads[count], vector_parts
        )
    buffers = BackwardBuffers(
        output_grads=[None if grad is None else grad.contiguous() for grad in output_grads[:count]],
        state=h.new_zeros(h.shape),
        product=x.new_zeros(h.shape),
        projected=[torch.empty_like(projected) for projected in forward.projected],
        inputs=_inputs_of_cells(spec, torch.empty_like(x), attention),
        norms=[
            None if gain is None else h.new_zeros(norm_parts, len(x), 2, *gain.shape[1:])
            for gain in (cell.gain for cell in spec.cells)
        ],
        attention=attention,
    )
    for buffer in (*buffers.projected, *buffers.inputs):
        if buffer is not None:
            buffer[:, forward.starts[-1] :] = 0
    if attention is not None:
        attention.queries[forward.starts[-1] :] = 0
    return buffers


def _allocate_attention_gradients(
    attention: AttentionBuffers, rows: int, context_grad: Tensor | None, vector_parts: int
) -> AttentionGradients:
    contexts, weights = attention.contexts, attention.weights
    return AttentionGradients(
        output_grad=None if context_grad is None else context_grad.float().contiguous(),
        product=contexts.new_empty(rows, contexts.shape[-1]),
        contexts=weights.new_empty(contexts.shape),
        queries=torch.empty_like(attention.queries),
        inputs=torch.empty_like(attention.inputs),
        keys=weights.new_zeros(attention.keys.shape),
        vector=weights.new_zeros(vector_parts, len(attention.vector)),
    )


def kept_buffers(buffers: ForwardBuffers) -> list[Tensor]:
    """Return the large tensors that the backward pass of the loop reads."""
    tensors = [*buffers.projected, *buffers.factors, *(buffers.spec.random_bits or ())]
    if buffers.attention is not None:
        attention = buffers.attention
        tensors += [attention.keys, attention.values, attention.queries, attention.inputs]
    return tensors


def cell_vectors(cell: Cell) -> tuple[Tensor | None, ...]:
    """Return the bias, the bias of H, and the gain and shift of the normalisation."""
    return cell.bias, cell.linear_bias, cell.gain, cell.shift
