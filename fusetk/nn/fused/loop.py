"""A recurrence: matrix products, the kernels between them, and backpropagation through time written out.

Products that need no order are made once for all steps: gradients of weights, of the input's map, of the values of attention.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fusetk.nn.additive import AdditiveAttention
from fusetk.nn.cells import Cell
from fusetk.nn.fused import cpu, gpu


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
    weights: bool  # of attention are wanted, or a backward pass will read them


class Kernels(Protocol):
    """What stands between the products, of a ``Forward`` and of its ``Backward``; ``c`` is a cell, ``t`` a step."""

    def cell(self, c: int, t: int) -> None: ...
    def attend(self, t: int) -> None: ...
    def back(self, backward: "Backward") -> None: ...
    def cell_back(self, c: int, t: int) -> None: ...
    def attend_back(self, t: int) -> None: ...
    def values_back(self, values: Tensor) -> None: ...


def usable(x: Tensor, h: Tensor, attention: AdditiveAttention | None) -> bool:
    """Whether there are kernels for it here."""
    if h.dtype != torch.float32 or x.dtype not in (torch.float32, torch.bfloat16):
        return False
    return (
        cpu.usable()
        if x.device.type == "cpu"
        else x.device.type == "cuda" and gpu.usable(attention)
    )


def run(
    plan: Plan, x: Tensor, h: Tensor, across: Sequence[Tensor] = ()
) -> tuple[tuple[Tensor, ...], Tensor | None, Tensor | None]:
    """Mapped inputs (R, N, columns) and the state before them (R, rows, D); ``across``: keys, values, and the map of what is found.

    Returns the states of each cell (R, N, D), what was found (N, C), and the weights of attention (N, n * S, H) without a gradient.
    """
    attention = plan.attention
    own = (attention.query, attention.vector) if attention else ()
    weights = [p for cell in plan.cells for p in (cell.state, *_vectors(cell))]
    states = _Loop.apply(plan, x, h, *across, *own, *weights)
    count = len(plan.cells)
    contexts, found = states[count:] if attention else (None, None)
    return states[:count], contexts, found if plan.weights else None


class _Loop(torch.autograd.Function):
    """What the backward pass reads lies on a ``Forward`` of its own, where nothing refers to the outputs: those would refer back to it.
    Inputs and outputs are saved besides, so that autograd notices when one of them was changed since.
    """

    @staticmethod
    def forward(ctx: Any, plan: Plan, x: Tensor, h: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        with _here(x):
            made = Forward(plan, x, h, rest)
            made.run()
        found = [
            tensor.detach()
            for tensor in (*made.states, *((made.contexts, made.weights) if made.attention else ()))
        ]
        if any(ctx.needs_input_grad):
            ctx.made = made
            ctx.save_for_backward(x, h, *rest, *found)
        if made.attention:
            ctx.mark_non_differentiable(found[-1])
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        made, ctx.made = ctx.made, None
        if made is None:
            raise RuntimeError(
                "a recurrence on fused kernels has one backward pass; for several, set FUSETK_KERNELS=off"
            )
        assert ctx.saved_tensors
        with _here(made.x):
            return None, *Backward(made, grads).run()


@contextmanager
def _here(x: Tensor) -> Iterator[None]:
    """Products in the type that they have, kernels on the device of ``x``."""
    with (
        torch.autocast(x.device.type, enabled=False),
        torch.cuda.device(x.device) if x.is_cuda else nullcontext(),
    ):
        yield


def _multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """(R, n, D) (R, D, E) -> (R, n, E)."""
    if len(a) == 1:
        torch.mm(a[0], b[0], out=out[0])
    else:
        torch.bmm(a, b, out=out)


def _vectors(cell: Cell) -> tuple[Tensor | None, ...]:
    return cell.bias, cell.linear_bias, cell.gain, cell.shift


class Forward:
    """Buffers of all N slots: what is computed step by step, and what the backward pass reads of it."""

    def __init__(self, plan: Plan, x: Tensor, h: Tensor, rest: Sequence[Tensor]):
        self.plan, self.x, self.h, self.attention = (
            plan,
            x.contiguous(),
            h.contiguous(),
            plan.attention,
        )
        self.starts = [0]
        for size in plan.sizes:
            self.starts.append(self.starts[-1] + size)
        directions, positions, _ = x.shape
        width, mixed = h.shape[-1], x.dtype != h.dtype
        self.maps = [cell.state.to(x.dtype) for cell in plan.cells]
        # The kernels want all else of a cell in float32.
        self.own = [
            [p if p is None else p.float().contiguous() for p in _vectors(cell)]
            for cell in plan.cells
        ]
        self.states = [h.new_empty(directions, positions, width) for _ in plan.cells]
        self.mapped = [x.new_empty(directions, positions, map_.shape[-1]) for map_ in self.maps]
        # What each product reads: of the lowest cell the highest one's state a step before, of others that of the cell below. Where
        # products have a type of their own, all are copies.
        self.copies = [mixed or not c for c in range(len(plan.cells))]
        self.reads = [
            x.new_empty(directions, positions, width) if copy else self.states[c - 1]
            for c, copy in enumerate(self.copies)
        ]
        self.reads[0][:, : plan.sizes[0]] = h[:, : plan.sizes[0]]
        behind = slice(
            self.starts[-1], None
        )  # of the last step: what is not computed must be a number, for products over all slots
        for buffer in (*self.reads, *self.states):
            buffer[:, behind] = 0
        if plan.attention is not None:
            self.keys, self.values, self.map, self.query = (
                tensor.to(x.dtype).contiguous() for tensor in rest[:4]
            )
            self.vector = rest[4].float().contiguous()
            self.queries, self.contexts = (
                x.new_empty(positions, width),
                x.new_empty(positions, self.values.shape[-1]),
            )
            self.weights = h.new_empty(
                positions if plan.weights else plan.sizes[0],
                self.keys.shape[1],
                plan.attention.heads,
            )
            self.read = x.new_empty(1, positions, self.map.shape[-1])
            self.contexts[behind] = 0
            if plan.weights:
                self.weights[behind] = 0
        self.kernels: Kernels = cpu.Kernels(self) if x.device.type == "cpu" else gpu.Kernels(self)

    def input_of(self, c: int) -> Tensor | None:
        """The mapped input of a cell."""
        return self.x if not c else self.read if c == self.plan.first else None

    def before(self, c: int, t: int) -> tuple[Tensor, int]:
        """The state that a cell reads at a step: where it stands, and from which slot on."""
        if c or t:
            return self.states[c - 1], self.starts[t if c else t - 1]
        return self.h, 0

    def weights_at(self, t: int) -> int:
        """The slot from which on a step's weights of attention stand."""
        return self.starts[t] if self.plan.weights else 0

    def after(self, c: int, t: int) -> tuple[Tensor | None, int, int]:
        """Where the state that a cell makes is wanted for a product, from which slot on, and of how many rows."""
        sizes, upper = self.plan.sizes, c + 1
        if upper < len(self.reads):
            return (
                (self.reads[upper], self.starts[t], sizes[t])
                if self.copies[upper]
                else (None, 0, 0)
            )
        return (
            (self.reads[0], self.starts[t + 1], sizes[t + 1])
            if t + 1 < len(sizes)
            else (None, 0, 0)
        )

    def run(self) -> None:
        plan, kernels = self.plan, self.kernels
        for t, start in enumerate(self.starts[:-1]):
            end = self.starts[t + 1]
            for c, weight in enumerate(self.maps):
                read = self.reads[c][:, start:end]
                if self.attention and c == plan.first:
                    torch.mm(read[0], self.query, out=self.queries[start:end])
                    kernels.attend(t)
                    torch.mm(self.contexts[start:end], self.map, out=self.read[0, start:end])
                _multiply(read, weight, self.mapped[c][:, start:end])
                kernels.cell(c, t)


class Backward:
    """Gradients, from the last step to the first."""

    def __init__(self, made: Forward, grads: Sequence[Tensor | None]):
        self.made, plan, h, x = made, made.plan, made.h, made.x
        count = len(plan.cells)
        self.extra = [
            None if grad is None else grad.contiguous() for grad in grads[:count]
        ]  # of the states that others read
        self.state = h.new_zeros(h.shape)  # of the running state, but for
        self.product = x.new_zeros(h.shape)  # what a product adds
        self.mapped, self.x = (
            [torch.empty_like(mapped) for mapped in made.mapped],
            torch.empty_like(x),
        )
        if made.attention:
            contexts = grads[count]
            self.extra_contexts = None if contexts is None else contexts.float().contiguous()
            self.queries, self.read = torch.empty_like(made.queries), torch.empty_like(made.read)
            self.contexts = h.new_empty(made.contexts.shape)
            self.context_product = x.new_empty(plan.sizes[0], made.contexts.shape[-1])
            self.keys = h.new_zeros(made.keys.shape)
        behind = slice(made.starts[-1], None)
        for buffer in (
            *self.mapped,
            self.x,
            *((self.read, self.queries[None]) if made.attention else ()),
        ):
            buffer[:, behind] = 0
        # Sums over rows, in as many parts as the kernels like: (parts, R, 2, gates, D) of gain and shift, (parts, d) of the vector.
        self.norms: list[Tensor | None] = []
        self.vector: Tensor
        made.kernels.back(self)

    def input_of(self, c: int) -> Tensor | None:
        """The gradient of the mapped input of a cell."""
        return self.x if not c else self.read if c == self.made.plan.first else None

    def run(self) -> tuple[Tensor | None, ...]:
        made, plan, kernels = self.made, self.made.plan, self.made.kernels
        turned = [weight.mT for weight in made.maps]
        for t, size in reversed(list(enumerate(plan.sizes))):
            start, end = made.starts[t], made.starts[t + 1]
            product = self.product[:, :size]
            for c in reversed(range(len(plan.cells))):
                kernels.cell_back(c, t)
                _multiply(self.mapped[c][:, start:end], turned[c], product)
                if made.attention and c == plan.first:
                    torch.mm(self.read[0, start:end], made.map.mT, out=self.context_product[:size])
                    kernels.attend_back(t)
                    product[0].addmm_(self.queries[start:end], made.query.mT)
        return (
            self.x,
            self.state + self.product,
            *self._across(),
            *(grad for c in range(len(turned)) for grad in self._cell(c)),
        )

    def _across(self) -> tuple[Tensor, ...]:
        """Gradients of keys, values, the map of what is found, the map of queries, the scores' vector."""
        made = self.made
        if not made.attention:
            return ()
        values = torch.empty_like(made.values)
        made.kernels.values_back(values)
        read = made.reads[made.plan.first][0]
        return (
            self.keys,
            values,
            made.contexts.mT @ self.read[0],
            read.mT @ self.queries,
            self.vector.sum(0),
        )

    def _cell(self, c: int) -> tuple[Tensor | None, ...]:
        """Gradients of the map of the state, of the biases, of gain and shift."""
        mapped, norms, read = self.mapped[c], self.norms[c], self.input_of(c)
        width = self.state.shape[-1]
        linear = (
            None
            if read is None or self.made.plan.cells[c].linear_bias is None
            else read[..., -width:].sum(1, dtype=torch.float32)
        )
        gain, shift = (None, None) if norms is None else norms.sum(0).unbind(1)
        return (
            torch.bmm(self.made.reads[c].mT, mapped),
            mapped[..., -width:].sum(1, dtype=torch.float32),
            linear,
            gain,
            shift,
        )
