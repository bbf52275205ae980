"""Sharding: parameters, gradients and optimiser state are split over the processes.

PyTorch's ``fully_shard`` does this (FSDP2; Zhao et al. 2023). Each process holds its shard of every
parameter. The parameters of a layer are gathered when it runs, forward and backward. Its gradients
are reduced and scattered after each batch, so a process never holds the gradients of all layers.
Parameters outside the layers (embeddings, output, fusions, a recurrence) are gathered for an entire
pass. Parameter names and values are those of the unsharded model.
"""

import math
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fusetk.errors import ConfigError
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.attention import CrossAttention
from fusetk.processes import World

PROJECTION = "source_keys_values"  # a method of ``CoordinatedLayer``


def shard(model: Seq2Seq, world: World) -> None:
    """Shard a model that is equal in all processes. Each shard is on the device of its process.

    Raises ConfigError if torch is too old.
    """
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import (
            FSDPModule,
            fully_shard,
            register_fsdp_forward_method,
        )
        from torch.distributed.tensor import Shard

        supported = hasattr(FSDPModule, "set_force_sum_reduction_for_comms")
    except ImportError:
        supported = False
    if not supported:
        raise ConfigError(
            f"training.shard does not work with torch {torch.__version__}: install torch 2.13"
        )
    # The warning concerns views that are changed in place, which does not happen here.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    mesh = init_device_mesh(world.device.type, (world.size,))
    replicated = {
        parameter
        for parameter in model.parameters()
        if _shard_dimension(parameter, world.size) is None
    }

    def split(module: nn.Module, root: bool = False) -> None:
        own_class = type(module)
        fully_shard(
            module,
            mesh=mesh,
            reshard_after_forward=not root,
            ignored_params=replicated,
            shard_placement_fn=lambda parameter: Shard(
                _shard_dimension(parameter, world.size) or 0
            ),
        )
        # The module now has a subclass of its class. `is_own` and `is_outside` read this attribute.
        type(module).__module__ = own_class.__module__

    for layer in model.layers():
        for module in layer.modules():
            # The keys and values of the source are computed before their layer runs, in
            # coordinated models by PROJECTION.
            if isinstance(module, CrossAttention):
                for projection in module.project:
                    split(projection)
        split(layer)
        if hasattr(layer, PROJECTION):
            register_fsdp_forward_method(layer, PROJECTION)
    split(model, root=True)
    for parameter in replicated:
        parameter.data = parameter.data.to(world.device)
    # Gradients are summed, as without sharding. The default is their mean.
    for unit in _units(model):
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)


def _shard_dimension(parameter: Tensor, processes: int) -> int | None:
    """Return the dimension along which a parameter is split; None if it is too small.

    This is the first dimension if each process gets a part of it. Otherwise it is a later dimension
    whose size is a multiple of the number of processes, as torch requires.
    """
    if parameter.dim() and len(parameter) >= processes:
        return 0
    return next((d for d in range(1, parameter.dim()) if parameter.shape[d] % processes == 0), None)


def _units(model: nn.Module) -> list[Any]:
    """Return the modules whose parameters are gathered together."""
    return [module for module in model.modules() if hasattr(module, "unshard")]


def sharded(tensor: Tensor | None) -> bool:
    """Whether a tensor is a ``DTensor``.

    An attribute is tested, because the import of the class takes seconds.
    """
    return hasattr(tensor, "placements")


def local(tensor: Any) -> Tensor:
    """Return this process' shard of a tensor, without a copy; the tensor if it is not sharded."""
    return tensor.to_local() if sharded(tensor) else tensor


def gather(tensors: Mapping[str, Any], keep: bool) -> dict[str, Tensor]:
    """Return full tensors, on the CPU if they were sharded; an empty dict if ``keep`` is False.

    All processes must call it with the same names.
    """
    full_tensors = {}
    for name, tensor in tensors.items():
        full = tensor.full_tensor() if sharded(tensor) else tensor
        if keep:
            full_tensors[name] = full.cpu() if sharded(tensor) else full
    return full_tensors


def shard_like(full: Tensor, like: Any) -> Tensor:
    """Return this process' shard of ``full`` if the parameter ``like`` is sharded, else ``full``.

    ``full`` is split along the same dimension as ``like``. It is replicated if it has another size
    in this dimension, for example as a statistic of Adafactor.
    """
    if not sharded(like) or not full.dim():
        return full
    from torch.distributed.tensor import Replicate, distribute_tensor

    [placement] = like.placements
    if full.shape[placement.dim] != like.shape[placement.dim]:
        placement = Replicate()
    return distribute_tensor(
        full.to(like.device), like.device_mesh, [placement], src_data_rank=None
    )


def optimizer_groups(parameters: Iterable[nn.Parameter]) -> list[Any]:
    """Return parameter groups for an optimiser.

    Sharded and unsharded parameters have separate groups, because torch cannot mix them.
    """
    parameters = list(parameters)
    if not any(map(sharded, parameters)):
        return parameters
    groups = (
        [parameter for parameter in parameters if sharded(parameter)],
        [parameter for parameter in parameters if not sharded(parameter)],
    )
    return [{"params": group} for group in groups if group]


class GradientNorms(NamedTuple):
    """The norms of the gradients before clipping. They are equal in every process."""

    total: float
    parameters: Tensor  # (P,) of each parameter


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float) -> GradientNorms:
    """Multiply all gradients by one factor, so that their joint norm is at most ``max_norm``."""
    gradients = [local(parameter.grad) for parameter in parameters]
    norms = torch.stack(torch._foreach_norm(gradients))
    split = torch.tensor([sharded(parameter) for parameter in parameters])
    if split.any():
        split = split.to(norms.device)
        squares = torch.where(split, norms.square(), 0.0)
        dist.all_reduce(squares)
        norms = torch.where(split, squares.sqrt(), norms)
    total = norms.norm()
    if max_norm < math.inf:
        torch._foreach_mul_(gradients, (max_norm / (total + 1e-6)).clamp(max=1.0))
    return GradientNorms(float(total), norms)


@contextmanager
def unsharded(model: nn.Module) -> Iterator[None]:
    """Within this context every process has all parameters and may run any part of the model.

    Processes may run different parts. For this, the hooks that gather and split parameters are
    removed within the context: they require the same order of layers in all processes. The same
    holds for the wrapper of ``PROJECTION``. The modules have the classes that they had before
    ``shard``, because kernels compute modules of exactly these classes.
    """
    units = _units(model)
    classes = [type(unit) for unit in units]
    attributes = [dict(vars(unit)) for unit in units]
    try:  # the memory may not suffice for all parameters
        for unit in units:
            unit.unshard()
            unit._forward_pre_hooks = OrderedDict()
            unit._forward_hooks = OrderedDict()
            vars(unit).pop(PROJECTION, None)
            unit.__class__ = type(unit).__mro__[2]  # the first two are those of torch
        yield
    finally:
        for unit, cls, before in zip(units, classes, attributes, strict=True):
            unit.__class__ = cls
            for name in ("_forward_pre_hooks", "_forward_hooks", PROJECTION):
                if name in before:
                    vars(unit)[name] = before[name]
            unit.reshard()
