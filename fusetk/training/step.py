"""One update: gradients of a few batches, clipped, applied."""

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fusetk.data.batch import Batch
from fusetk.models.seq2seq import Seq2Seq
from fusetk.processes import ALONE, World
from fusetk.training.loss import Loss, loss
from fusetk.training.parallel import all_reduce_gradients
from fusetk.training.sharding import clip_gradients, local

SMALLEST, LARGEST = 2.0**-4, 2.0**24  # of what fp16 losses are multiplied by


class Sums(NamedTuple):
    """What an update saw, summed over its target tokens; the losses, where several processes train together, over those of this one."""

    smoothed: Tensor
    nll: Tensor
    tokens: int
    grad_norm: float  # before clipping; not finite where the update was skipped


def autocast(device: torch.device, precision: str) -> AbstractContextManager[None]:
    """bf16 or fp16 matrix products with float32 weights, or plain float32."""
    return torch.autocast(
        device.type,
        torch.float16 if precision == "fp16" else torch.bfloat16,
        enabled=precision != "fp32",
    )


def length_multiple(device: torch.device, precision: str) -> int:
    """What lengths of training batches are padded to a multiple of.

    In bf16 on CPU each new shape of a matrix product is compiled first, which takes 3 ms, so shapes had better come again.
    """
    return 4 if device.type == "cpu" and precision == "bf16" else 1


def batch_loss(model: nn.Module, plain: Seq2Seq, batch: Batch, smoothing: float) -> Loss:
    """The loss of a batch's real tokens. ``model`` is what is called, ``plain`` the same one unwrapped."""
    features = model(batch.src, batch.src_mask, batch.tgt_in)
    return loss(
        features.flatten(0, 1)[batch.target_index],
        plain.output,
        batch.tgt_out.flatten()[batch.target_index],
        smoothing,
    )


def update(
    model: Seq2Seq,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    rate: float,
    smoothing: float,
    clip: float,
    precision: str,
) -> Sums:
    """One optimiser step at learning rate ``rate``; the gradient is the mean over all target tokens of the batches."""
    tokens = sum(len(batch.target_index) for batch in batches)
    return apply(
        model,
        optimizer,
        gradients(model, batches, smoothing, precision, tokens),
        rate,
        clip,
        tokens,
    )


def gradients(
    model: Seq2Seq,
    batches: Iterable[Batch],
    smoothing: float,
    precision: str,
    tokens: int,
    scale: float = 1.0,
) -> list[Loss]:
    """Add to the model's gradients those of the batches' losses divided by ``tokens``, times ``scale``; returns the losses."""
    found = []
    for batch in batches:
        with autocast(batch.src.device, precision):
            one = batch_loss(model, model, batch, smoothing)
        (one.smoothed / tokens * scale).backward()
        found.append(Loss(*(value.detach() for value in one)))
    return found


def apply(
    model: Seq2Seq,
    optimizer: torch.optim.Optimizer,
    losses: Sequence[Loss],
    rate: float,
    clip: float,
    tokens: int,
    world: World = ALONE,
    scale: float = 1.0,
) -> Sums:
    """One optimiser step with the gradients of all processes, of ``tokens`` target tokens in all; ``losses`` are this one's.
    Gradients that were made ``scale`` times as large are what they should be before anything is done with them.

    A gradient that is not finite is dropped: weights and optimiser stay as they are.
    """
    all_reduce_gradients(world, model)
    parameters = [p for p in model.parameters() if p.grad is not None]
    if scale != 1:
        torch._foreach_mul_([local(p.grad) for p in parameters], 1 / scale)
    norm = clip_gradients(parameters, clip or math.inf)
    if math.isfinite(norm):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    nothing = torch.zeros((), device=world.device if world.size > 1 else parameters[0].device)
    smoothed, nll = (
        sum((getattr(one, name) for one in losses), nothing) for name in ("smoothed", "nll")
    )
    return Sums(smoothed, nll, tokens, norm)


def next_scale(scale: float, good: int, finite: bool) -> tuple[float, int]:
    """What fp16 losses are multiplied by, and the updates since it last changed: half as much after a gradient that is not finite, twice
    as much after 2,000 that were (Micikevicius et al. 2018, section 3.2).
    """
    if not finite:
        return max(scale / 2, SMALLEST), 0
    return (min(scale * 2, LARGEST), 0) if good + 1 == 2000 else (scale, good + 1)


def out_of_memory(error: Exception) -> bool:
    """Whether it says that a device, or the host, has no more memory."""
    words = "out of memory", "can't allocate memory", "_ALLOC_FAILED"
    return isinstance(error, RuntimeError) and any(one in str(error) for one in words)
