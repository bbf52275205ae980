"""Data parallelism: each process computes a part of an update, and the gradients are summed.

The content of a batch does not depend on the number of processes. Gradients are summed after the
backward passes, not during them as in ``DistributedDataParallel``. So a process may repeat a batch,
or have no batch, independently of the others. If the model is sharded (``sharding.py``), all
processes run the same number of batches.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fusetk.data.sampler import Indices
from fusetk.processes import World
from fusetk.training.sharding import sharded

BUCKET = 1 << 24  # gradient elements in one all-reduce: 64 MB in float32


def local_batches(world: World, batches: Sequence[Indices]) -> list[Indices]:
    """Return this process' part of the batches of an update.

    If the number of batches is a multiple of the number of processes, these are entire batches.
    Otherwise they are a part of each batch.
    """
    if len(batches) % world.size == 0:
        return list(batches[world.rank :: world.size])
    return [indices[world.rank :: world.size] for indices in batches]


def all_reduce_gradients(world: World, model: nn.Module) -> None:
    """Replace each gradient by its sum over all processes. Sharded gradients are sums already.

    A parameter that has a gradient in no process has none afterwards.
    """
    if world.size == 1:
        return
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    unused = [index for index, parameter in enumerate(parameters) if parameter.grad is None]
    # After the sum, these are the numbers of processes with a gradient.
    uses = torch.tensor([float(p.grad is not None) for p in parameters], device=world.device)
    for index in unused:
        parameters[index].grad = torch.zeros_like(parameters[index])
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    summed = [gradient for gradient in gradients if not sharded(gradient)]
    for bucket in _buckets([*summed, uses]):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in bucket])
        for gradient, total in zip(bucket, parts, strict=True):
            gradient.copy_(total.view_as(gradient))
    # Only a process without one of the gradients waits for the values, which may be on a GPU.
    for index in unused:
        if not uses[index]:
            parameters[index].grad = None


def _buckets(tensors: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """Yield lists of consecutive tensors with at most BUCKET elements, or a single larger one."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and size + tensor.numel() > BUCKET:
            yield bucket
            bucket = []
            size = 0
        bucket.append(tensor)
        size += tensor.numel()
    if bucket:
        yield bucket
