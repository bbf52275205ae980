"""The multiply-adds and the memory of a training batch, counted on the device `meta`.

Tensors on `meta` have shapes but no values, so counting needs neither memory nor a GPU.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fusetk.config import place_outside_libraries
from fusetk.data.batch import Batch, padded_length
from fusetk.errors import ConfigError, first_line
from fusetk.models.seq2seq import Seq2Seq
from fusetk.models.stack import stacks_of
from fusetk.special_tokens import EOS
from fusetk.system import META
from fusetk.training.update import batch_loss


class BatchShape(NamedTuple):
    """The lengths of the sentence pairs of a batch, in tokens with EOS."""

    source: Sequence[int]
    target: Sequence[int]

    @property
    def target_tokens(self) -> int:
        return sum(self.target)

    def batch(self, multiple: int = 1, limit: int | None = None) -> Batch:
        """Return a batch of this shape in the memory of the host. All tokens are EOS.

        The sentences are padded to a multiple of ``multiple`` tokens, unless this exceeds
        ``limit``.
        """
        source, target = map(torch.tensor, self)
        src_mask, tgt_mask = (
            torch.arange(padded_length(int(lengths.max()), multiple, limit)) < lengths[:, None]
            for lengths in (source, target)
        )
        src, tgt = (mask.long() * EOS for mask in (src_mask, tgt_mask))
        return Batch.of(src, src_mask, tgt, tgt, tgt_mask)


class BatchCost(NamedTuple):
    """The cost of the forward and the backward pass of a batch."""

    multiply_adds: int  # of matrix products and convolutions
    # Bytes that the forward pass keeps for the backward pass, and those of the largest layer that
    # the backward pass recomputes.
    activations: int


def batch_cost(model: Seq2Seq, shape: BatchShape, smoothing: float = 0.0) -> BatchCost:
    """Return the cost of a batch. The model must be on `meta`, in training mode.

    Element-wise operations are not counted. Activations are in float32. Raises ConfigError if a
    class outside fusetk reads values of tensors.
    """
    batch = shape.batch().to(META)
    memory = _KeptMemory(model)
    counter = FlopCounterMode(display=False, custom_mapping=_IN_PLACE)
    try:
        with counter:
            with torch.autograd.graph.saved_tensors_hooks(memory.add, lambda tensor: tensor):
                sums = batch_loss(model, batch, smoothing)
            forward_bytes = memory.bytes
            sums.objective.backward()
        activations = forward_bytes + _largest_recomputed_layer(model, batch, smoothing)
    except (NotImplementedError, RuntimeError) as error:
        if "meta tensor" not in str(error):
            raise
        raise ConfigError(
            "the cost of this model cannot be counted, because a class reads values of tensors"
            f"{place_outside_libraries(error)}; remove this read, or measure the speed in a short "
            f"training: {first_line(error)}"
        ) from error
    model.zero_grad(set_to_none=True)
    return BatchCost(counter.get_total_flops() // 2, activations)


def _largest_recomputed_layer(model: Seq2Seq, batch: Batch, smoothing: float) -> int:
    """Return the largest memory that a layer with ``checkpoint`` keeps while it is recomputed."""
    stacks = [stack for stack in stacks_of(model) if stack.gradient_checkpointing]
    if not stacks:
        return 0
    memory = _KeptMemory(model)
    before = largest = 0

    def start(*_: object) -> None:
        nonlocal before
        before = memory.bytes

    def end(*_: object) -> None:
        nonlocal largest
        largest = max(largest, memory.bytes - before)

    with ExitStack() as undo:
        for stack in stacks:
            stack.gradient_checkpointing = False
            undo.callback(setattr, stack, "gradient_checkpointing", True)
            for layer in stack.layers:
                undo.enter_context(layer.register_forward_pre_hook(start))
                undo.enter_context(layer.register_forward_hook(end))
        with torch.autograd.graph.saved_tensors_hooks(memory.add, lambda tensor: tensor):
            batch_loss(model, batch, smoothing)
    return largest


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the memory of the optimiser's state, after a step on `meta`."""
    for group in optimizer.param_groups:
        if "fused" in group:
            group["fused"] = False  # torch has no fused kernels for `meta`
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    tensors = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class _KeptMemory:
    """The memory of the tensors that autograd keeps, except parameters.

    Memory that several tensors share is counted once.
    """

    def __init__(self, model: Seq2Seq):
        self.bytes = 0
        tensors = [*model.parameters(), *model.buffers()]
        self._seen = {tensor.untyped_storage()._cdata for tensor in tensors}

    def add(self, tensor: Tensor) -> Tensor:
        """Count a tensor that is kept, unless its memory was counted."""
        storage = tensor.untyped_storage()
        if tensor.is_meta and storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            self.bytes += storage.nbytes()
        return tensor


def _products_in_place(total: Any, a: Any, b: Any, *args: Any, **options: Any) -> int:
    """Return the floating-point operations of ``addmm_`` from the shapes of its arguments."""
    return int(2 * a[0] * a[1] * b[1])


# Operations of the loss that torch does not count.
_IN_PLACE = {torch.ops.aten.addmm_: _products_in_place}
