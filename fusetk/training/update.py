"""An update: accumulation of the gradients of some batches, clipping, and an optimiser step."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fusetk.data.batch import Batch
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.additional_loss import collect
from fusetk.nn.fused import products
from fusetk.processes import ALONE, World
from fusetk.training.loss import Loss, loss
from fusetk.training.parallel import all_reduce_gradients
from fusetk.training.sharding import clip_gradients, local


class UpdateStats(NamedTuple):
    """Sums over the target tokens of an update, and its gradient norms.

    With several processes, the losses are those of this process, and the norms are those of all
    processes.
    """

    smoothed: Tensor  # (), see training.loss.Loss
    nll: Tensor  # ()
    grad_norm: float  # before clipping; not finite if the update was skipped
    parameters: Sequence[nn.Parameter]  # those with a gradient
    grad_norms: Tensor  # (parameters,) before clipping
    additional: Mapping[str, Tensor] = {}  # (), the additional losses


def autocast(device: torch.device, precision: str) -> AbstractContextManager[None]:
    """Within this context matrix products are in bf16 or fp16, unless ``precision`` is fp32.

    The weights stay float32. On the device `meta` it has no effect.
    """
    if device.type == "meta":
        return nullcontext()
    return torch.autocast(
        device.type,
        torch.float16 if precision == "fp16" else torch.bfloat16,
        enabled=precision != "fp32",
    )


def length_multiple(device: torch.device, precision: str, cuda_graphs: bool = False) -> int:
    """Return the multiple to which the lengths of training batches are padded.

    With padding, shapes recur. In bf16 on CPU, PyTorch's library compiles a matrix product of a new
    shape first, which takes 3 ms; the kernels compile nothing. On a GPU, ``cuda_graphs`` records a
    graph for each shape.
    """
    if device.type == "cpu":
        return 4 if precision == "bf16" and not products.replaced(torch.bfloat16) else 1
    return 8 if cuda_graphs else 1


def batch_loss(model: Seq2Seq, batch: Batch, smoothing: float) -> Loss:
    """Return the loss of a batch, summed over its target tokens without padding.

    It has additional losses only if gradients are computed.
    """
    collection: AbstractContextManager[dict[str, Tensor]] = nullcontext({})
    if torch.is_grad_enabled():
        collection = collect(batch.src_mask, batch.tgt_out, batch.target_index)
    with collection as additional:
        features = model(batch.src, batch.src_mask, batch.tgt_in, batch.target_index, batch.lengths)
    targets = batch.tgt_out.flatten()[batch.target_index]
    return loss(features, model.output, targets, smoothing)._replace(additional=additional)


def add_gradients(
    model: Seq2Seq, batch: Batch, smoothing: float, precision: str, factor: float | Tensor
) -> Loss:
    """Add the gradients of the batch's loss times ``factor``, and return the loss."""
    with autocast(batch.src.device, precision):
        sums = batch_loss(model, batch, smoothing)
    (sums.objective * factor).backward()
    return sums.detach()


def accumulate_gradients(
    model: Seq2Seq,
    batches: Iterable[Batch],
    smoothing: float,
    precision: str,
    tokens: int,
    scale: float = 1.0,
) -> list[Loss]:
    """Add the gradients of the batches' losses times ``scale / tokens``. Return the losses."""
    factor = scale / tokens
    return [add_gradients(model, batch, smoothing, precision, factor) for batch in batches]


def optimizer_step(
    model: Seq2Seq,
    optimizer: torch.optim.Optimizer,
    losses: Sequence[Loss],
    rate: float,
    clip: float,
    world: World = ALONE,
    scale: float = 1.0,
    keep_gradients: bool = False,
) -> UpdateStats:
    """Sum the gradients of all processes, unscale and clip them, and take an optimiser step.

    ``losses`` are those of this process. ``scale`` is the loss scale, by which the gradients are
    divided. Afterwards, the gradients are None. With ``keep_gradients`` they are zeros in the same
    memory; then the optimiser also changes parameters that an update does not use. If the gradient
    norm is not finite, weights and optimiser state do not change.
    """
    all_reduce_gradients(world, model)
    updated = (p for group in optimizer.param_groups for p in group["params"])
    parameters = [p for p in updated if p.grad is not None]
    if scale != 1:
        torch._foreach_mul_([local(p.grad) for p in parameters], 1 / scale)
    norms = clip_gradients(parameters, clip or math.inf)
    if math.isfinite(norms.total):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    if keep_gradients:
        torch._foreach_zero_([local(p.grad) for p in parameters])
    else:
        optimizer.zero_grad(set_to_none=True)
    zero = torch.zeros((), device=world.device if world.size > 1 else parameters[0].device)
    smoothed = sum((sums.smoothed for sums in losses), zero)
    nll = sum((sums.nll for sums in losses), zero)
    additional: dict[str, Tensor] = {}
    for name, value in (item for sums in losses for item in sums.additional.items()):
        additional[name] = additional.get(name, zero) + value
    return UpdateStats(smoothed, nll, norms.total, parameters, norms.parameters, additional)
