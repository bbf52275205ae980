"""A recurrence on CPU: matrix products, the kernels between them, and backpropagation through time written out.

Products that need no order are made once for all steps: gradients of weights, of the input's map, of the values of attention.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusetk.nn.additive import AdditiveAttention
from fusetk.nn.cells import Cell
from fusetk.nn.fused.build import library

KINDS = {"gru": 0, "t-gru": 1, "l-gru": 2, "lau": 3}
_INT, _POINTER, _FLOAT = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float


def _struct(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    named = [(field, kind) for fields_, kind in fields for field in fields_.split()]
    return type(name, (ctypes.Structure,), {"_fields_": named})


# As in kernels.cpp.
CellCall = _struct(
    "CellCall",
    ("threads kind bf16 norm directions rows width positions", _INT), ("x a h", _POINTER), ("h_positions", _INT), ("out next", _POINTER),
    ("next_rows next_positions", _INT), ("words", _POINTER), ("threshold", _INT), ("scale", _FLOAT),
    ("bias linear_bias gain shift grad", _POINTER), ("grad_positions", _INT), ("product", _POINTER), ("product_positions", _INT),
    ("extra da dx partial", _POINTER),
)  # fmt: skip
AttentionCall = _struct(
    "AttentionCall", ("threads bf16 rows hypotheses heads width value_width sources length", _INT),
    ("queries keys values mask vector weights found product extra grad by_queries by_keys by_vector starts sizes", _POINTER),
    ("steps sentences", _INT), ("by_values", _POINTER),
)  # fmt: skip


class Plan(NamedTuple):
    """What a run does; no gradient goes there."""

    cells: Sequence[Cell]
    first: int  # how many of them stand below attention
    sizes: Sequence[int]
    words: Sequence[Tensor] | None
    threshold: int
    scale: float
    attention: AdditiveAttention | None
    mask: Tensor | None


def usable(x: Tensor, h: Tensor) -> bool:
    """Whether the kernels can do it here."""
    fits = x.device.type == "cpu" and h.dtype == torch.float32 and x.dtype in (torch.float32, torch.bfloat16)
    return fits and library() is not None


def run(plan: Plan, x: Tensor, h: Tensor, across: Sequence[Tensor] = ()) -> tuple[tuple[Tensor, ...], Tensor | None, Tensor | None]:
    """Mapped inputs (R, N, columns) and the state before them (R, rows, D); ``across``: keys, values, and the map of what is found.

    Returns the states of each cell (R, N, D), what was found (N, C), and the weights of attention (N, n * S, H) without a gradient.
    """
    attention = plan.attention
    own = (attention.query, attention.vector) if attention else ()
    weights = [p for cell in plan.cells for p in (cell.state, cell.bias, cell.linear_bias, cell.gain, cell.shift)]
    states = _Loop.apply(plan, x, h, *across, *own, *weights)
    count = len(plan.cells)
    return states[:count], *(states[count:] if attention else (None, None))


def _pointer(tensor: Tensor | None, position: int = 0) -> int | None:
    """Where a row of the last dimension but one begins."""
    return None if tensor is None else tensor.data_ptr() + position * tensor.shape[-1] * tensor.element_size()


def _multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """(R, n, D) (R, D, E) -> (R, n, E)."""
    if len(a) == 1:
        torch.mm(a[0], b[0], out=out[0])
    else:
        torch.bmm(a, b, out=out)


class _Loop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, x: Tensor, h: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", enabled=False):
            made = _Forward(plan, x, h, rest)
            made.run()
        if any(ctx.needs_input_grad):
            ctx.made = made
        if made.attention is None:
            return tuple(made.states)
        ctx.mark_non_differentiable(made.weights)
        return *made.states, made.contexts, made.weights

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        made, ctx.made = ctx.made, None
        with torch.autocast("cpu", enabled=False):
            return None, *_Backward(made, grads).run()


class _Forward:
    """Buffers of all steps; of the cells' own tensors those in the type of products are made here."""

    def __init__(self, plan: Plan, x: Tensor, h: Tensor, rest: Sequence[Tensor]):
        self.plan, self.x, self.h = plan, x.contiguous(), h.contiguous()
        self.dtype, self.bf16 = x.dtype, x.dtype == torch.bfloat16
        self.starts = [0]
        for size in plan.sizes:
            self.starts.append(self.starts[-1] + size)
        self.attention = plan.attention
        if plan.attention is not None:
            self.keys, self.values, self.map, self.query = (tensor.to(self.dtype).contiguous() for tensor in rest[:4])
            self.vector = rest[4].contiguous()
        directions, positions, _ = x.shape
        width, count = h.shape[-1], len(plan.cells)
        self.weights_of = [cell.state.to(self.dtype) for cell in plan.cells]
        self.states = [h.new_empty(directions, positions, width) for _ in plan.cells]
        self.mapped = [x.new_empty(directions, positions, cell.state.shape[-1]) for cell in plan.cells]
        # What each product reads. That of the lowest cell is the highest cell's state, a step before; the others read the cell below.
        self.reads = [x.new_empty(directions, positions, width) if self.bf16 or not c else self.states[c - 1] for c in range(count)]
        self.reads[0][:, : plan.sizes[0]] = h[:, : plan.sizes[0]]
        if plan.attention is not None:
            slots, heads = self.keys.shape[1], plan.attention.heads
            self.queries = x.new_empty(positions, width)
            self.contexts = x.new_empty(positions, self.values.shape[-1])
            self.weights = h.new_empty(positions, slots, heads)
            self.read = x.new_empty(1, positions, self.map.shape[-1])

    def cell_call(self, c: int) -> Any:
        """What does not change from step to step."""
        cell, (directions, positions, _) = self.plan.cells[c], self.x.shape
        call: Any = CellCall()
        call.threads, call.kind, call.bf16, call.norm = torch.get_num_threads(), KINDS[cell.kind], self.bf16, cell.gain is not None
        call.directions, call.width, call.positions, call.next_positions = directions, cell.width, positions, positions
        call.threshold, call.scale = self.plan.threshold, self.plan.scale
        call.bias, call.linear_bias, call.gain, call.shift = map(_pointer, (cell.bias, cell.linear_bias, cell.gain, cell.shift))
        return call

    def place(self, call: Any, c: int, t: int) -> None:
        """What cell ``c`` reads at step ``t``."""
        call.rows, start = self.plan.sizes[t], self.starts[t]
        call.x = _pointer(self.input_of(c), start)
        call.a = _pointer(self.mapped[c], start)
        if c or t:
            call.h = _pointer(self.states[c - 1], start if c else self.starts[t - 1])
        else:
            call.h = _pointer(self.h)
        call.h_positions = self.h.shape[1] if c == t == 0 else call.positions
        call.words = _pointer(self.plan.words[c] if self.plan.words else None, start)

    def input_of(self, c: int) -> Tensor | None:
        """The mapped input of a cell."""
        return self.x if not c else self.read if c == self.plan.first else None

    def attention_call(self) -> Any:
        call: Any = AttentionCall()
        assert self.plan.attention is not None and self.plan.mask is not None
        call.threads, call.bf16 = torch.get_num_threads(), self.bf16
        call.heads, call.sources = self.plan.attention.heads, self.plan.attention.sources
        call.width, call.value_width, call.length = self.keys.shape[-1], self.values.shape[-1], self.plan.mask.shape[1]
        call.sentences = len(self.keys)
        call.hypotheses = max(1, self.plan.sizes[0] // len(self.keys))
        call.keys, call.values, call.vector = map(_pointer, (self.keys, self.values, self.vector))
        call.mask = self.plan.mask.data_ptr()
        return call

    def place_attention(self, call: Any, t: int) -> None:
        call.rows, start = self.plan.sizes[t], self.starts[t]
        call.queries, call.found = _pointer(self.queries, start), _pointer(self.contexts, start)
        call.weights = self.weights.data_ptr() + start * self.weights[0].numel() * 4

    def run(self) -> None:
        plan, kernels = self.plan, library()
        assert kernels is not None
        calls = [self.cell_call(c) for c in range(len(plan.cells))]
        attend = self.attention_call() if self.attention else None
        last = len(plan.cells) - 1
        for t in range(len(plan.sizes)):
            start, end = self.starts[t], self.starts[t + 1]
            for c, call in enumerate(calls):
                read = self.reads[c][:, start:end]
                if attend is not None and c == plan.first:
                    torch.mm(read[0], self.query, out=self.queries[start:end])
                    self.place_attention(attend, t)
                    kernels.attention(ctypes.byref(attend), 0)
                    torch.mm(self.contexts[start:end], self.map, out=self.read[0, start:end])
                _multiply(read, self.weights_of[c], self.mapped[c][:, start:end])
                self.place(call, c, t)
                call.out = _pointer(self.states[c], start)
                call.next_rows = 0
                if c < last and self.bf16:
                    call.next, call.next_rows = _pointer(self.reads[c + 1], start), call.rows
                elif c == last and t + 1 < len(plan.sizes):
                    call.next, call.next_rows = _pointer(self.reads[0], end), plan.sizes[t + 1]
                kernels.cell(ctypes.byref(call), 0)


class _Backward:
    """Gradients, from the last step to the first."""

    def __init__(self, made: _Forward, grads: Sequence[Tensor | None]):
        self.made, plan = made, made.plan
        count = len(plan.cells)
        self.extra = [None if grad is None else grad.contiguous() for grad in grads[:count]]
        contexts = grads[count] if made.attention else None
        self.extra_contexts = None if contexts is None else contexts.float().contiguous()
        h, x = made.h, made.x
        self.grad = h.new_zeros(h.shape)  # of the running state, but for
        self.product = x.new_zeros(h.shape)  # what a product adds
        self.mapped = [torch.empty_like(mapped) for mapped in made.mapped]
        self.x = torch.empty_like(x)
        threads = torch.get_num_threads()
        self.partial = [
            None if cell.gain is None else h.new_zeros(threads, x.shape[0], 2, cell.gates, cell.width) for cell in plan.cells
        ]  # fmt: skip
        if made.attention:
            self.queries, self.read = torch.empty_like(made.queries), torch.empty_like(made.read)
            self.contexts = h.new_empty(made.contexts.shape)
            self.context_product = x.new_empty(plan.sizes[0], made.contexts.shape[-1])
            self.keys = h.new_zeros(made.keys.shape)
            self.vector = h.new_zeros(threads, len(made.vector))

    def run(self) -> tuple[Tensor | None, ...]:
        made, plan, kernels = self.made, self.made.plan, library()
        assert kernels is not None
        calls = [made.cell_call(c) for c in range(len(plan.cells))]
        attend = made.attention_call() if made.attention else None
        turned = [weight.mT for weight in made.weights_of]
        for c, call in enumerate(calls):
            call.grad, call.grad_positions = _pointer(self.grad), self.grad.shape[1]
            call.product, call.product_positions = _pointer(self.product), self.product.shape[1]
            call.partial = None if self.partial[c] is None else _pointer(self.partial[c])
        for t in reversed(range(len(plan.sizes))):
            start, end = made.starts[t], made.starts[t + 1]
            product = self.product[:, : plan.sizes[t]]
            for c in reversed(range(len(plan.cells))):
                call = calls[c]
                made.place(call, c, t)
                call.extra, call.da = _pointer(self.extra[c], start), _pointer(self.mapped[c], start)
                reads = self.x if not c else self.read if attend is not None and c == plan.first else None
                call.dx = _pointer(reads, start)
                kernels.cell(ctypes.byref(call), 1)
                _multiply(self.mapped[c][:, start:end], turned[c], product)
                if attend is not None and c == plan.first:
                    torch.mm(self.read[0, start:end], made.map.mT, out=self.context_product[: plan.sizes[t]])
                    made.place_attention(attend, t)
                    attend.product, attend.extra = _pointer(self.context_product), _pointer(self.extra_contexts, start)
                    attend.grad, attend.by_queries = _pointer(self.contexts, start), _pointer(self.queries, start)
                    attend.by_keys, attend.by_vector = _pointer(self.keys), _pointer(self.vector)
                    kernels.attention(ctypes.byref(attend), 1)
                    product[0].addmm_(self.queries[start:end], made.query.mT)
        return self.x, self.grad + self.product, *self._across(attend), *(grad for c in range(len(calls)) for grad in self._cell(c))

    def _across(self, attend: Any) -> tuple[Tensor, ...]:
        """Gradients of keys, values, the map of what is found, the map of queries, the scores' vector."""
        made, kernels = self.made, library()
        if attend is None or kernels is None:
            return ()
        values = torch.empty_like(made.values)
        starts, sizes = torch.tensor(made.starts), torch.tensor(made.plan.sizes)
        attend.starts, attend.sizes, attend.steps = starts.data_ptr(), sizes.data_ptr(), len(sizes)
        attend.weights, attend.grad, attend.by_values = _pointer(made.weights), _pointer(self.contexts), _pointer(values)
        kernels.attention(ctypes.byref(attend), 2)
        read = made.reads[made.plan.first][0]
        return self.keys, values, made.contexts.mT @ self.read[0], read.mT @ self.queries, self.vector.sum(0)

    def _cell(self, c: int) -> tuple[Tensor | None, ...]:
        """Gradients of the map of the state, of the biases, of gain and shift."""
        made, cell, mapped, partial = self.made, self.made.plan.cells[c], self.mapped[c], self.partial[c]
        width = cell.width
        linear = None
        if cell.linear_bias is not None:
            linear = (self.read if c else self.x)[..., -width:].sum(1, dtype=torch.float32)
        gain, shift = (None, None) if partial is None else partial.sum(0).unbind(1)
        return torch.bmm(made.reads[c].mT, mapped), mapped[..., -width:].sum(1, dtype=torch.float32), linear, gain, shift
