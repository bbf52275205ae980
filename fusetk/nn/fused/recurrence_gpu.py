"""The kernels of the recurrence for CUDA: launches of Triton programs (``recurrence_programs``)."""

import importlib.util
import os
import shutil
import warnings
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fusetk.nn.additive import AdditiveAttention
from fusetk.nn.cells import GATE_EPSILON
from fusetk.nn.fused import CELL_NUMBERS, enabled
from fusetk.nn.fused.recurrence_buffers import (
    AttentionBuffers,
    AttentionGradients,
    BackwardBuffers,
    ForwardBuffers,
    LoopSpec,
)

PARTS = 64  # number of programs per direction that share the rows of a step in the backward pass


@lru_cache(maxsize=1)
def _triton_usable() -> bool:
    """Whether Triton and the C compiler that it needs are installed.

    Triton is installed with PyTorch for CUDA.
    """
    if not enabled() or importlib.util.find_spec("triton") is None:
        return False
    if any(shutil.which(name) for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name):
        return True
    _warn("Triton finds no C compiler")
    return False


def usable(x: Tensor, attention: AdditiveAttention | None) -> bool:
    """Whether the kernels can run on the device of the projected inputs ``x`` with this attention.

    The number of heads and the features of a head must be powers of two. The GPU must have at least
    the compute capability that PyTorch's compiler requires for Triton.
    """
    if not _triton_usable():
        return False
    needed = (8, 0) if x.dtype == torch.bfloat16 else (7, 0)
    capability = torch.cuda.get_device_capability(x.device)
    if capability < needed:
        has, needs = (".".join(map(str, version)) for version in (capability, needed))
        _warn(f"the GPU has the compute capability {has}, and {x.dtype} needs {needs}")
        return False
    if attention is None:
        return True
    heads, size = attention.heads, len(attention.vector)
    if heads == _next_power_of_2(heads) and size == _next_power_of_2(size):
        return True
    _warn(f"the attention has {heads} heads of {size} features, and both must be powers of two")
    return False


@lru_cache
def _warn(reason: str) -> None:
    warnings.warn(
        f"recurrent models run without fused kernels, which is slow on a GPU: {reason}",
        stacklevel=2,
    )


def _next_power_of_2(size: int) -> int:
    return 1 << (size - 1).bit_length()


class GpuKernels:
    """The computations between the products of a recurrence, done by ``recurrence_programs.py``."""

    def __init__(self, buffers: ForwardBuffers):
        from fusetk.nn.fused import recurrence_programs as programs

        self.programs = programs
        self.buffers = buffers
        self.spec: LoopSpec = buffers.spec
        self.norm_parts = min(PARTS, self.spec.sizes[0])
        self.vector_parts = 0
        self.unused = buffers.h.new_zeros(1)  # argument for pointers that a program does not read
        if self.spec.attention is not None:
            keys = self._attention().keys
            self.vector_parts = len(keys)
            self.scores = buffers.h.new_empty(
                self.spec.sizes[0], keys.shape[1], self.spec.attention.heads
            )

    def _attention(self) -> AttentionBuffers:
        assert self.buffers.attention is not None
        return self.buffers.attention

    def _attention_gradients(self) -> AttentionGradients:
        assert self.gradients.attention is not None
        return self.gradients.attention

    def _pointer(self, tensor: Tensor | None) -> Tensor:
        return self.unused if tensor is None else tensor

    def _cell_options(self, c: int) -> dict[str, Any]:
        cell = self.spec.cells[c]
        return {
            "KIND": CELL_NUMBERS[cell.kind],
            "NORM": cell.gain is not None,
            "DROP": self.spec.random_bits is not None,
            "EPSILON": GATE_EPSILON,
            "BLOCK": _next_power_of_2(cell.width),
        }

    def _cell_tensors(self, c: int) -> tuple[Tensor, ...]:
        """Return the random bits, biases, gain and shift of a cell."""
        random_bits = self.spec.random_bits[c] if self.spec.random_bits else None
        return tuple(map(self._pointer, (random_bits, *self.buffers.vectors[c])))

    def cell(self, c: int, t: int) -> None:
        buffers = self.buffers
        directions, positions, width = buffers.states[c].shape
        before = buffers.state_before(c, t)
        copy = buffers.next_factor(c, t)
        self.programs.cell[before.rows, directions](
            self._pointer(buffers.inputs[c]),
            buffers.projected[c],
            before.buffer,
            buffers.states[c],
            copy.buffer if copy else self.unused,
            *self._cell_tensors(c),
            buffers.starts[t],
            positions,
            before.start,
            before.buffer.shape[1],
            copy.start if copy else 0,
            copy.rows if copy else 0,
            width,
            self.spec.threshold,
            self.spec.scale,
            **self._cell_options(c),
        )

    def _head_sizes(self) -> dict[str, int]:
        assert self.spec.attention is not None
        heads = self.spec.attention.heads
        size = self._attention().values.shape[-1] // heads
        return {"HEADS": heads, "VALUE_SIZE": size, "VALUE_BLOCK": _next_power_of_2(size)}

    def _attention_tensors(self) -> tuple[Tensor, ...]:
        buffers = self._attention()
        assert self.spec.mask is not None
        return (
            buffers.queries,
            buffers.keys,
            buffers.values,
            self.spec.mask.view(torch.uint8),
            buffers.vector,
            buffers.weights,
        )

    def attention(self, t: int) -> None:
        buffers, spec = self._attention(), self.spec
        assert spec.attention is not None and spec.mask is not None
        self.programs.attention[spec.sizes[t],](
            *self._attention_tensors(),
            self.scores,
            buffers.contexts,
            self.buffers.starts[t],
            self.buffers.weights_start(t),
            spec.sizes[0] // len(buffers.keys),
            spec.mask.shape[1],
            SOURCES=spec.attention.sources,
            SIZE=len(spec.attention.vector),
            **self._head_sizes(),
        )

    def begin_backward(self, gradients: BackwardBuffers) -> None:
        self.gradients = gradients

    def cell_backward(self, c: int, t: int) -> None:
        buffers, gradients = self.buffers, self.gradients
        directions, positions, width = buffers.states[c].shape
        before = buffers.state_before(c, t)
        self.programs.cell_backward[directions, self.norm_parts](
            self._pointer(buffers.inputs[c]),
            buffers.projected[c],
            before.buffer,
            *self._cell_tensors(c),
            gradients.state,
            gradients.product,
            self._pointer(gradients.output_grads[c]),
            self._pointer(gradients.inputs[c]),
            gradients.projected[c],
            self._pointer(gradients.norms[c]),
            buffers.starts[t],
            positions,
            before.start,
            before.buffer.shape[1],
            gradients.state.shape[1],
            before.rows,
            width,
            self.spec.threshold,
            self.spec.scale,
            self.norm_parts,
            OUTPUT_GRAD=gradients.output_grads[c] is not None,
            **self._cell_options(c),
        )

    def attention_backward(self, t: int) -> None:
        gradients, spec = self._attention_gradients(), self.spec
        assert spec.attention is not None and spec.mask is not None
        self.programs.attention_backward[spec.sizes[t],](
            *self._attention_tensors(),
            gradients.product,
            self._pointer(gradients.output_grad),
            gradients.contexts,
            gradients.queries,
            gradients.keys,
            gradients.vector,
            self.scores,
            self.buffers.starts[t],
            spec.mask.shape[1],
            SOURCES=spec.attention.sources,
            SIZE=len(spec.attention.vector),
            OUTPUT_GRAD=gradients.output_grad is not None,
            **self._head_sizes(),
        )

    def values_backward(self, value_grads: Tensor) -> None:
        device = value_grads.device
        self.programs.values_backward[len(value_grads), value_grads.shape[1]](
            self._attention().weights,
            self._attention_gradients().contexts,
            torch.tensor(self.buffers.starts, device=device),
            torch.tensor(self.spec.sizes, device=device),
            value_grads,
            len(self.spec.sizes),
            **self._head_sizes(),
        )
