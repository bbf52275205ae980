"""A model whose parameters, gradients and optimiser state are split over the processes (torch's ``fully_shard``; Zhao et al. 2023).

Each process holds its part of every parameter. A layer's are gathered when it runs, forward and backward, and its gradients are added up
and split again as soon as they are made, batch by batch, so that nobody ever holds those of all layers. What belongs to no layer
(embeddings, output, fusions, a recurrence) is gathered for a whole pass. Names and values are those of the model that is not split.
"""

import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fusetk.errors import ConfigError
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.attention import CrossAttention
from fusetk.processes import World


def shard(model: Seq2Seq, world: World) -> None:
    """Split a model that is the same in all processes, and put each one's part on its device.

    Raises ConfigError where torch is too old.
    """
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard
        from torch.distributed.tensor import Shard

        found = hasattr(FSDPModule, "set_force_sum_reduction_for_comms")
    except ImportError:
        found = False
    if not found:
        raise ConfigError(
            f"training.shard needs a newer torch than {torch.__version__}: 2.13 has what it takes"
        )
    warnings.filterwarnings(
        "ignore", message="FSDP2-wrapped module .* returned a view"
    )  # which matters where it is changed in place
    mesh = init_device_mesh(world.device.type, (world.size,))
    whole = {
        parameter for parameter in model.parameters() if _dimension(parameter, world.size) is None
    }

    def split(module: nn.Module, root: bool = False) -> None:
        fully_shard(
            module,
            mesh=mesh,
            reshard_after_forward=not root,
            ignored_params=whole,
            shard_placement_fn=lambda parameter: Shard(_dimension(parameter, world.size) or 0),
        )

    for layer in model.layers():
        for module in layer.modules():
            if isinstance(
                module, CrossAttention
            ):  # the source's keys and values are made before its layer runs
                for project in module.project:
                    split(project)
        split(layer)
    split(model, root=True)
    for parameter in whole:
        parameter.data = parameter.data.to(world.device)
    for unit in _units(model):  # gradients are sums, as without sharding
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)


def _dimension(parameter: Tensor, processes: int) -> int | None:
    """Along which a parameter is split: the first where each process gets a part, or one that can be divided evenly, as torch wants the
    later ones; None for small ones that stay whole.
    """
    if parameter.dim() and len(parameter) >= processes:
        return 0
    return next((d for d in range(1, parameter.dim()) if parameter.shape[d] % processes == 0), None)


def _units(model: nn.Module) -> list[Any]:
    """The modules whose parameters are gathered together."""
    return [module for module in model.modules() if hasattr(module, "unshard")]


def sharded(tensor: Tensor | None) -> bool:
    """Whether it is one process' part of a tensor, a ``DTensor`` (importing those takes seconds)."""
    return hasattr(tensor, "placements")


def local(tensor: Any) -> Tensor:
    """This process' part of a tensor, or the tensor itself where it is whole: the same memory."""
    found: Tensor = tensor.to_local() if sharded(tensor) else tensor
    return found


def gather(tensors: Mapping[str, Any], keep: bool) -> dict[str, Tensor]:
    """Whole tensors, on the CPU if they were split, for those who ``keep`` them; all processes take part, with the same names."""
    found = {}
    for name, tensor in tensors.items():
        whole = tensor.full_tensor() if sharded(tensor) else tensor
        if keep:
            found[name] = whole.cpu() if sharded(tensor) else whole
    return found


def part(whole: Tensor, like: Any) -> Tensor:
    """What stands beside ``like``, a parameter or something of its shape: where that is split, this process' part of ``whole``, split
    in the same way if it is as long there.
    """
    if not sharded(like) or not whole.dim():
        return whole
    from torch.distributed.tensor import Replicate, distribute_tensor

    [placement] = like.placements
    same = whole.shape[placement.dim] == like.shape[placement.dim]
    found: Tensor = distribute_tensor(
        whole.to(like.device),
        like.device_mesh,
        [placement if same else Replicate()],
        src_data_rank=None,
    )
    return found


def optimizer_groups(parameters: Iterable[nn.Parameter]) -> list[Any]:
    """Parameters for an optimiser: torch does not take split ones and whole ones together."""
    found = list(parameters)
    if not any(map(sharded, found)):
        return found
    kinds = (
        [parameter for parameter in found if sharded(parameter) is kind] for kind in (True, False)
    )
    return [{"params": kind} for kind in kinds if kind]


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], most: float) -> float:
    """The norm of all gradients, the same in every process; larger ones than ``most`` are scaled down to it."""
    if not any(map(sharded, parameters)):
        return float(nn.utils.clip_grad_norm_(parameters, most))
    grads = [local(parameter.grad) for parameter in parameters]
    squares = torch.stack(torch._foreach_norm(grads)).square()
    split = torch.tensor([sharded(parameter) for parameter in parameters], device=squares.device)
    parts = squares[split].sum()
    dist.all_reduce(parts)
    norm = float(parts + squares[~split].sum()) ** 0.5
    if norm > most:
        torch._foreach_mul_(grads, most / (norm + 1e-6))
    return norm


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Within this context every process has all parameters, and may run any part of the model as often as it likes, or stop amid it. The
    hooks that gather and split are away: what they note of the order of layers must be the same in all processes.
    """
    units = _units(model)
    before = [dict(vars(unit)) for unit in units]
    for unit in units:
        unit.unshard()
        unit._forward_pre_hooks, unit._forward_hooks = OrderedDict(), OrderedDict()
    try:
        yield
    finally:
        for unit, found in zip(units, before, strict=True):
            vars(unit).update(
                {name: found[name] for name in ("_forward_pre_hooks", "_forward_hooks")}
            )
            unit.reshard()
