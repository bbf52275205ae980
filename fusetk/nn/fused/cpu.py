"""The kernels of ``kernels.cpp``."""

import ctypes
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusetk.nn.fused import KINDS
from fusetk.nn.fused.build import library

if TYPE_CHECKING:
    from fusetk.nn.fused.loop import Backward, Forward

_INT, _POINTER, _FLOAT = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float


def _struct(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    return type(
        name,
        (ctypes.Structure,),
        {"_fields_": [(field, kind) for names, kind in fields for field in names.split()]},
    )


# As in kernels.cpp.
Cell = _struct(
    "Cell",
    ("threads kind bf16 norm directions rows width positions", _INT),
    ("x a h", _POINTER),
    ("h_positions", _INT),
    ("out next", _POINTER),
    ("next_rows next_positions", _INT),
    ("words", _POINTER),
    ("threshold", _INT),
    ("scale", _FLOAT),
    ("bias linear_bias gain shift grad", _POINTER),
    ("grad_positions", _INT),
    ("product", _POINTER),
    ("product_positions", _INT),
    ("extra da dx partial", _POINTER),
)
Attention = _struct(
    "Attention",
    ("threads bf16 rows hypotheses heads width value_width sources length", _INT),
    (
        "queries keys values mask vector weights found product extra grad by_queries by_keys by_vector starts sizes",
        _POINTER,
    ),
    ("steps sentences", _INT),
    ("by_values", _POINTER),
)
ATTEND, ATTEND_BACK, VALUES_BACK = range(3)


def usable() -> bool:
    """Whether they could be compiled."""
    return library() is not None


def _at(tensor: Tensor | None, position: int = 0) -> int | None:
    """Where a row of the last dimension but one begins."""
    return (
        None
        if tensor is None
        else tensor.data_ptr() + position * tensor.shape[-1] * tensor.element_size()
    )


class Kernels:
    """What stands between the products of a ``Forward`` and of its ``Backward``."""

    def __init__(self, made: "Forward"):
        self.made, self.plan = (
            weakref.proxy(made),
            made.plan,
        )  # buffers are to go as soon as the run is over
        found = library()
        assert found is not None
        self.library = found
        self.bf16, self.threads = made.x.dtype == torch.bfloat16, torch.get_num_threads()
        self.cells = [self._cell(c) for c in range(len(made.maps))]
        self.attention: Any = self._attention() if made.attention else None

    def _cell(self, c: int) -> Any:
        """What does not change from step to step."""
        cell, (directions, positions, _), call = self.plan.cells[c], self.made.x.shape, Cell()
        call.threads, call.kind, call.bf16, call.norm = (
            self.threads,
            KINDS[cell.kind],
            self.bf16,
            cell.gain is not None,
        )
        call.directions, call.width, call.positions, call.next_positions = (
            directions,
            cell.width,
            positions,
            positions,
        )
        call.threshold, call.scale = self.plan.threshold, self.plan.scale
        call.bias, call.linear_bias, call.gain, call.shift = map(_at, self.made.own[c])
        return call

    def _attention(self) -> Any:
        made, plan, call = self.made, self.plan, Attention()
        assert plan.attention is not None and plan.mask is not None
        call.threads, call.bf16, call.heads, call.sources = (
            self.threads,
            self.bf16,
            plan.attention.heads,
            plan.attention.sources,
        )
        call.width, call.value_width, call.length = (
            made.keys.shape[-1],
            made.values.shape[-1],
            plan.mask.shape[1],
        )
        call.sentences, call.hypotheses = len(made.keys), plan.sizes[0] // len(made.keys)
        call.keys, call.values, call.vector, call.mask = map(
            _at, (made.keys, made.values, made.vector, plan.mask)
        )
        return call

    def _place(self, c: int, t: int) -> Any:
        made, call = self.made, self.cells[c]
        call.rows, start = self.plan.sizes[t], made.starts[t]
        before, place = made.before(c, t)
        call.x, call.a = _at(made.input_of(c), start), _at(made.mapped[c], start)
        call.h, call.h_positions = _at(before, place), before.shape[1]
        call.words = _at(self.plan.words[c] if self.plan.words else None, start)
        return call

    def _place_attention(self, t: int) -> Any:
        made, call = self.made, self.attention
        call.rows, start = self.plan.sizes[t], made.starts[t]
        call.queries, call.found = _at(made.queries, start), _at(made.contexts, start)
        call.weights = _at(made.weights, made.weights_at(t) * made.weights.shape[1])
        return call

    def cell(self, c: int, t: int) -> None:
        call = self._place(c, t)
        after, place, call.next_rows = self.made.after(c, t)
        call.out, call.next = _at(self.made.states[c], self.made.starts[t]), _at(after, place)
        self.library.cell(ctypes.byref(call), 0)

    def attend(self, t: int) -> None:
        self.library.attention(ctypes.byref(self._place_attention(t)), ATTEND)

    def back(self, backward: "Backward") -> None:
        """Get ready for the gradients."""
        self.backward, made = weakref.proxy(backward), self.made
        for cell, call in zip(self.plan.cells, self.cells, strict=True):
            norms = (
                None
                if cell.gain is None
                else made.h.new_zeros(self.threads, call.directions, 2, cell.gates, cell.width)
            )
            backward.norms.append(norms)
            call.grad, call.grad_positions = _at(backward.state), backward.state.shape[1]
            call.product, call.product_positions, call.partial = (
                _at(backward.product),
                backward.product.shape[1],
                _at(norms),
            )
        if self.plan.attention is not None:
            call, backward.vector = (
                self.attention,
                made.h.new_zeros(self.threads, len(self.plan.attention.vector)),
            )
            call.product, call.by_keys, call.by_vector = map(
                _at, (backward.context_product, backward.keys, backward.vector)
            )

    def cell_back(self, c: int, t: int) -> None:
        call, back, start = self._place(c, t), self.backward, self.made.starts[t]
        call.extra, call.da, call.dx = (
            _at(back.extra[c], start),
            _at(back.mapped[c], start),
            _at(back.input_of(c), start),
        )
        self.library.cell(ctypes.byref(call), 1)

    def attend_back(self, t: int) -> None:
        call, back, start = self._place_attention(t), self.backward, self.made.starts[t]
        call.extra, call.grad, call.by_queries = (
            _at(back.extra_contexts, start),
            _at(back.contexts, start),
            _at(back.queries, start),
        )
        self.library.attention(ctypes.byref(call), ATTEND_BACK)

    def values_back(self, values: Tensor) -> None:
        call, made = self.attention, self.made
        starts, sizes = torch.tensor(made.starts), torch.tensor(self.plan.sizes)
        call.starts, call.sizes, call.steps = starts.data_ptr(), sizes.data_ptr(), len(sizes)
        call.weights, call.grad, call.by_values = (
            _at(made.weights),
            _at(self.backward.contexts),
            _at(values),
        )
        self.library.attention(ctypes.byref(call), VALUES_BACK)
