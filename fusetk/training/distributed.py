"""Many processes that train one model: each does a part of every batch, gradients are added up, the first one writes.

What a batch is does not depend on how many they are. Gradients are added up after the backward passes, not in them (as
``DistributedDataParallel`` would): a process may repeat a batch, or have none, without the others knowing. Not so where the model itself
is split (``sharding.py``): then all go through as many batches.
"""

import ctypes
import os
import signal
import socket
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fusetk.data.sampler import Indices
from fusetk.errors import ConfigError
from fusetk.training.sharding import sharded

Value = TypeVar("Value")
BUCKET = 1 << 24  # elements of gradients that are sent at once: 64 MB in float32
PATIENCE = timedelta(minutes=10)  # how long a process waits for the others
PARTED = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection refused")  # gloo's words


class World:
    """The processes that train together; alone, everything here does nothing."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | None = None):
        self.rank, self.size = rank, size
        self.device = device or torch.device("cpu")

    @property
    def first(self) -> bool:
        """Whether this process writes and speaks."""
        return self.rank == 0

    def share(self, batches: Sequence[Indices]) -> list[Indices]:
        """This process' part of the batches of an update: as many of them as the others have, or its part of each."""
        if len(batches) % self.size == 0:
            return list(batches[self.rank :: self.size])
        return [indices[self.rank :: self.size] for indices in batches]

    def add_gradients(self, model: nn.Module) -> None:
        """Make the gradients of every process the sum of all."""
        if self.size == 1:
            return
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        # Those of a model that is split (``sharding.py``) are sums already.
        grads = [p.grad for p in model.parameters() if p.grad is not None and not sharded(p.grad)]
        for bucket in _buckets(grads):
            flat = torch.cat([grad.flatten() for grad in bucket])
            dist.all_reduce(flat)
            for grad, summed in zip(bucket, flat.split([grad.numel() for grad in bucket]), strict=True):
                grad.copy_(summed.view_as(grad))

    def add(self, values: Sequence[float]) -> list[float]:
        """The sums over all processes of some numbers, in double precision."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        found: list[float] = tensor.tolist()
        return found

    def any(self, found: bool) -> bool:
        """Whether it is so for one of the processes."""
        return self.add([float(found)])[0] > 0

    def tell(self, value: Value) -> Value:
        """What the first process has."""
        if self.size == 1:
            return value
        told: list[Any] = [value]
        dist.broadcast_object_list(told, device=self.device)
        found: Value = told[0]
        return found

    def collect(self, value: Value) -> list[Value]:
        """What each process has, the first one's first."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def leave(self) -> None:
        """The end."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def __str__(self) -> str:
        return f"process {self.rank} of {self.size} on {socket.gethostname()}"


ALONE = World()


def join(device: torch.device, patience: timedelta = PATIENCE) -> World:
    """The world that torchrun, or whoever sets its variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, has started.

    ``patience`` is how long a process then waits for what others tell. Raises ConfigError where some of them are missing.
    """
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    there = [name for name in names if os.environ.get(name)]
    if "WORLD_SIZE" not in there or os.environ["WORLD_SIZE"] == "1":
        return World(device=device)
    missing = [name for name in names if name not in there]
    if missing:
        raise ConfigError(f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {', '.join(missing)} is not set: start it by torchrun")
    options: dict[str, Any] = {}
    if device.type == "cuda":
        torch.cuda.set_device(device)  # what torch tells others of objects goes over the current one
        options["device_id"] = device
    if "TORCHELASTIC_RUN_ID" in os.environ:
        _end_with_parent()
    store, rank, size = next(dist.rendezvous("env://", timeout=PATIENCE))
    store = dist.PrefixStore(_meet(store, rank, size), store)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience, **options)
    return World(dist.get_rank(), dist.get_world_size(), device)


def _meet(store: dist.Store, rank: int, size: int) -> str:
    """A name that the processes of this attempt have in common, and those of no other.

    A launcher that starts processes again keeps its store, and there stand addresses of processes that are gone. So each process says
    hello with a name of its own, and the first one answers whom it finds there with its name, the living and the dead, until all have
    taken it. After PATIENCE the first raises ConfigError, the others DistStoreError.
    """
    name = uuid.uuid4().hex
    if rank:
        store.set(f"fusetk/hello/{rank}", name)
        first = store.get(f"fusetk/answer/{name}").decode()  # waits
        store.set(f"fusetk/taken/{first}/{rank}", "")
        return first
    until = time.monotonic() + PATIENCE.total_seconds()
    while not store.check([f"fusetk/taken/{name}/{other}" for other in range(1, size)]):
        for other in range(1, size):
            if store.check([f"fusetk/hello/{other}"]):
                store.set(f"fusetk/answer/{store.get(f'fusetk/hello/{other}').decode()}", name)
        if time.monotonic() > until:
            raise ConfigError(f"not all of the {size} processes came within {PATIENCE}: look at what they say")
        time.sleep(0.05)
    return name


def _end_with_parent() -> None:
    """Have SIGTERM sent to this process when its launcher is gone, where the system can (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def gone(error: Exception) -> bool:
    """Whether an error is that another process has ended."""
    said = str(error)
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and any(words in said for words in PARTED))


def local_device(name: str) -> str:
    """``cuda:N`` for the N-th process of a host, where ``auto`` or ``cuda`` is asked for and each is to have a GPU of its own."""
    if os.environ.get("WORLD_SIZE", "1") == "1" or name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    place = os.environ.get("LOCAL_RANK") or os.environ.get("RANK", "0")
    return f"cuda:{int(place) % torch.cuda.device_count()}"  # one where the system shows each process its own


def _buckets(tensors: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """Runs of tensors of at most BUCKET elements, or of one."""
    found: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if found and size + tensor.numel() > BUCKET:
            yield found
            found, size = [], 0
        found.append(tensor)
        size += tensor.numel()
    if found:
        yield found
