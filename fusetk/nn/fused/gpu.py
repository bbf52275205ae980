"""The kernels of ``programs.py``."""

import importlib.util
import os
import shutil
import warnings
import weakref
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusetk.nn.additive import AdditiveAttention
from fusetk.nn.cells import EPS
from fusetk.nn.fused import KINDS, wanted

if TYPE_CHECKING:
    from fusetk.nn.fused.loop import Backward, Forward

PARTS = 64  # programs of a direction that share the rows of a step in the backward pass


@lru_cache(maxsize=1)
def _there() -> bool:
    """Whether there is Triton, which torch brings where it has CUDA, and the C compiler that it wants."""
    if not wanted() or importlib.util.find_spec("triton") is None:
        return False
    if any(shutil.which(name) for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name):
        return True
    _warn("Triton finds no C compiler")
    return False


def usable(attention: AdditiveAttention | None) -> bool:
    """Whether the kernels can do it: heads and their features are powers of two."""
    if not _there():
        return False
    if attention is None:
        return True
    heads, size = attention.heads, len(attention.vector)
    if heads == _power_of_2(heads) and size == _power_of_2(size):
        return True
    _warn(f"{heads} heads of {size} features are no powers of two")
    return False


@lru_cache
def _warn(why: str) -> None:
    """Say it once."""
    warnings.warn(
        f"recurrent models run without fused kernels, which is slow on a GPU: {why}", stacklevel=2
    )


def _power_of_2(size: int) -> int:
    """The next one."""
    return 1 << (size - 1).bit_length()


class Kernels:
    """What stands between the products of a ``Forward`` and of its ``Backward``."""

    def __init__(self, made: "Forward"):
        from fusetk.nn.fused import programs

        self.programs = programs
        self.made, self.plan = (
            weakref.proxy(made),
            made.plan,
        )  # buffers are to go as soon as the run is over
        self.nothing = made.h.new_zeros(1)  # stands where a kernel reads nothing
        if self.plan.attention is not None:
            self.scores = made.h.new_empty(
                self.plan.sizes[0], made.keys.shape[1], self.plan.attention.heads
            )

    def _options(self, c: int) -> dict[str, Any]:
        cell = self.plan.cells[c]
        return {
            "KIND": KINDS[cell.kind],
            "NORM": cell.gain is not None,
            "DROP": self.plan.words is not None,
            "EPSILON": EPS,
            "BLOCK": _power_of_2(cell.width),
        }

    def _own(self, c: int) -> tuple[Tensor, ...]:
        """Drawn numbers, biases, gain and shift of a cell."""
        words = self.plan.words
        found = (words[c] if words else None, *self.made.own[c])
        return tuple(self.nothing if tensor is None else tensor for tensor in found)

    def _or_nothing(self, tensor: Tensor | None) -> Tensor:
        return self.nothing if tensor is None else tensor

    def cell(self, c: int, t: int) -> None:
        made, rows = self.made, self.plan.sizes[t]
        directions, positions, _ = made.x.shape
        (before, slot), (after, place, after_rows) = made.before(c, t), made.after(c, t)
        self.programs.cell[directions, rows](
            self._or_nothing(made.input_of(c)),
            made.mapped[c],
            before,
            made.states[c],
            self._or_nothing(after),
            *self._own(c),
            made.starts[t],
            positions,
            slot,
            before.shape[1],
            place,
            after_rows,
            rows,
            made.h.shape[-1],
            self.plan.threshold,
            self.plan.scale,
            **self._options(c),
        )

    def _sizes(self) -> dict[str, int]:
        attention, made = self.plan.attention, self.made
        assert attention is not None
        size = made.values.shape[-1] // attention.heads
        return {"HEADS": attention.heads, "VALUE_SIZE": size, "VALUE_BLOCK": _power_of_2(size)}

    def _read(self) -> tuple[Tensor, ...]:
        made, plan = self.made, self.plan
        assert plan.attention is not None and plan.mask is not None
        return (
            made.queries,
            made.keys,
            made.values,
            plan.mask.view(torch.uint8),
            made.vector,
            made.weights,
        )

    def attend(self, t: int) -> None:
        made, plan = self.made, self.plan
        assert plan.attention is not None and plan.mask is not None
        self.programs.attend[plan.sizes[t],](
            *self._read(),
            self.scores,
            made.contexts,
            made.starts[t],
            made.weights_at(t),
            plan.sizes[0] // len(made.keys),
            plan.mask.shape[1],
            SOURCES=plan.attention.sources,
            SIZE=len(plan.attention.vector),
            **self._sizes(),
        )

    def back(self, backward: "Backward") -> None:
        """Get ready for the gradients."""
        made, self.backward = self.made, weakref.proxy(backward)
        self.parts = min(PARTS, self.plan.sizes[0])
        for cell in self.plan.cells:
            shape = (self.parts, made.x.shape[0], 2, cell.gates, cell.width)
            backward.norms.append(None if cell.gain is None else made.h.new_zeros(shape))
        if self.plan.attention is not None:
            backward.vector = made.h.new_zeros(len(made.keys), len(self.plan.attention.vector))

    def cell_back(self, c: int, t: int) -> None:
        made, back = self.made, self.backward
        directions, positions, _ = made.x.shape
        before, slot = made.before(c, t)
        self.programs.cell_back[directions, self.parts](
            self._or_nothing(made.input_of(c)),
            made.mapped[c],
            before,
            *self._own(c),
            back.state,
            back.product,
            self._or_nothing(back.extra[c]),
            self._or_nothing(back.input_of(c)),
            back.mapped[c],
            self._or_nothing(back.norms[c]),
            made.starts[t],
            positions,
            slot,
            before.shape[1],
            back.state.shape[1],
            self.plan.sizes[t],
            made.h.shape[-1],
            self.plan.threshold,
            self.plan.scale,
            self.parts,
            EXTRA=back.extra[c] is not None,
            **self._options(c),
        )

    def attend_back(self, t: int) -> None:
        made, back, plan = self.made, self.backward, self.plan
        assert plan.attention is not None and plan.mask is not None
        self.programs.attend_back[plan.sizes[t],](
            *self._read(),
            back.context_product,
            self._or_nothing(back.extra_contexts),
            back.contexts,
            back.queries,
            back.keys,
            back.vector,
            self.scores,
            made.starts[t],
            plan.mask.shape[1],
            SOURCES=plan.attention.sources,
            SIZE=len(plan.attention.vector),
            EXTRA=back.extra_contexts is not None,
            **self._sizes(),
        )

    def values_back(self, values: Tensor) -> None:
        made = self.made
        starts, sizes = (
            torch.tensor(found, device=values.device) for found in (made.starts, self.plan.sizes)
        )
        self.programs.values_back[len(values), values.shape[1]](
            made.weights,
            self.backward.contexts,
            starts,
            sizes,
            values,
            len(self.plan.sizes),
            **self._sizes(),
        )
