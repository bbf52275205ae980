"""The processes that work together: ranks, broadcast, all-gather, all-reduce.

This module does not depend on models.
"""

import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from fusetk.errors import ConfigError, FusetkError, first_line, out_of_memory
from fusetk.parent import end_with_torchrun

Value = TypeVar("Value")
TIMEOUT = timedelta(minutes=10)  # longest time that a process waits for the others
PATIENCE = 20.0  # seconds after which a process prints that it waits for the others to start
# Messages of gloo about a closed connection, or about a process that does not answer.
CONNECTION_ERRORS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection refused",
    "Timed out waiting",
)


class World:
    """The processes that work together. With one process every method returns its argument."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | None = None):
        self.rank, self.size = rank, size
        self.device = device or torch.device("cpu")

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files and logs."""
        return self.rank == 0

    def broadcast(self, value: Value) -> Value:
        """Return rank 0's value in all processes."""
        if self.size == 1:
            return value
        values: list[Any] = [value]
        dist.broadcast_object_list(values, device=self.device)
        return values[0]

    def all_gather(self, value: Value) -> list[Value]:
        """Return the values of all processes in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def all_sum(self, values: Sequence[float]) -> list[float]:
        """Return the sums of some numbers over all processes, in double precision."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in at least one process."""
        return self.all_sum([float(flag)])[0] > 0

    def close(self) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def __str__(self) -> str:
        return f"process {self.rank} of {self.size} on {socket.gethostname()}"


ALONE = World()


def world_size() -> int:
    """Return the number of processes that torchrun started.

    Raises ConfigError if WORLD_SIZE is not a number.
    """
    size = os.environ.get("WORLD_SIZE") or "1"
    if not size.isdecimal():
        raise ConfigError(
            f"WORLD_SIZE is {size}, not a number of processes: start the processes with torchrun"
        )
    return int(size)


def connect(device: torch.device, timeout: timedelta = TIMEOUT) -> World:
    """Connect the processes that torchrun started.

    Other launchers work, too, if they set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. After the
    start, ``timeout`` limits the time that a process waits for the others. Raises ConfigError if a
    variable is missing or wrong, if a process does not start, or if two processes have one GPU, and
    FusetkError if the memory of the GPU does not suffice.
    """
    if world_size() == 1:
        return World(device=device)
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {', '.join(missing)} is not set: "
            "start the processes with torchrun, or unset WORLD_SIZE if another job has set it"
        )
    _check_rank()
    options: dict[str, Any] = {}
    if device.type == "cuda":
        torch.cuda.set_device(device)  # torch sends pickled objects through the current device
        options["device_id"] = device
    end_with_torchrun()
    backend = "nccl" if device.type == "cuda" else "gloo"
    process = f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        with _waiting(f"fusetk: {process} waits for the others at {place}"):
            store, rank, size = next(dist.rendezvous("env://", timeout=TIMEOUT))
            store = dist.PrefixStore(_agree_on_prefix(store, rank, size), store)
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=timeout, **options
            )
    except dist.DistError as error:
        if out_of_memory(error):
            raise FusetkError(
                f"{process} does not have enough memory on {device} to connect to the others "
                f"({first_line(error)}): end other programs on the device"
            ) from None
        raise same_gpu_error(error, process) or ConfigError(
            f"{process} could not connect to the others at {place} ({first_line(error)}): check "
            "MASTER_ADDR and MASTER_PORT, and read the messages of the other processes"
        ) from None
    return World(dist.get_rank(), dist.get_world_size(), device)


@contextmanager
def _waiting(message: str) -> Iterator[None]:
    """Print a message if the body takes longer than PATIENCE, and let Ctrl-C end the process.

    torch waits in C++, where a signal has no effect until Python continues.
    """
    timer = threading.Timer(PATIENCE, print, [message], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    handler = signal.getsignal(signal.SIGINT)
    replaces = callable(handler) and threading.current_thread() is threading.main_thread()
    if replaces:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        timer.cancel()
        if replaces:
            signal.signal(signal.SIGINT, handler)


def _check_rank() -> None:
    """Raise ConfigError unless RANK is a number below WORLD_SIZE and MASTER_PORT is a port."""
    rank, size, port = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if not (port.isdecimal() and int(port) < 65536):
        raise ConfigError(f"MASTER_PORT is {port}: set it to a port, a number below 65536")
    if not (rank.isdecimal() and int(rank) < int(size)):
        raise ConfigError(
            f"RANK is {rank} and WORLD_SIZE is {size}: RANK is a number from 0 to WORLD_SIZE - 1; "
            "start the processes with torchrun"
        )


def _agree_on_prefix(store: dist.Store, rank: int, size: int) -> str:
    """Return a name that all processes of this start share, and no process of an earlier start.

    A launcher that restarts processes keeps its store, which has the addresses of processes that
    have ended. So each process writes a unique name under "hello". Rank 0 reads these names, which
    may be old, and answers each of them with its own name, until all processes of this start have
    acknowledged it. After TIMEOUT, rank 0 raises ConfigError and the others raise DistStoreError.
    """
    name = uuid.uuid4().hex
    if rank:
        store.set(f"fusetk/hello/{rank}", name)
        prefix = store.get(f"fusetk/answer/{name}").decode()  # waits
        store.set(f"fusetk/taken/{prefix}/{rank}", "")
        return prefix
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    while not store.check([f"fusetk/taken/{name}/{other}" for other in range(1, size)]):
        for other in range(1, size):
            if store.check([f"fusetk/hello/{other}"]):
                greeting = store.get(f"fusetk/hello/{other}").decode()
                store.set(f"fusetk/answer/{greeting}", name)
        if time.monotonic() > deadline:
            raise ConfigError(
                f"not all of the {size} processes started within {TIMEOUT}: read their messages"
            )
        time.sleep(0.05)
    return name


def end_process() -> None:
    """End a process that torchrun started, with status 0; return if there is a single process.

    Python's finalization is skipped. During it, threads of torch.distributed sometimes abort the
    process ("terminate called without an active exception"), and torchrun then reports that a
    complete training has failed.
    """
    if world_size() == 1:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def same_gpu_error(error: Exception, process: str) -> ConfigError | None:
    """Return the error for two processes on one GPU, which NCCL refuses; None for another error."""
    if "Duplicate GPU" not in str(error):
        return None
    return ConfigError(
        f"{process} has the same GPU as another process: give --device cuda without a number, and "
        "start at most one process for each GPU"
    )


def is_peer_failure(error: Exception) -> bool:
    """Whether an error means that another process has ended or does not answer."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in CONNECTION_ERRORS)


def local_device(name: str) -> str:
    """Return the name of the device of this process.

    If several processes run and ``name`` is auto or cuda, each process of a host gets a GPU
    ``cuda:N``. Otherwise ``name`` is returned. Raises ConfigError if torchrun started more
    processes on this host than it has GPUs, unless this process sees a single GPU.
    """
    if world_size() == 1 or name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    local_rank = int(os.environ.get("LOCAL_RANK") or os.environ.get("RANK", "0"))
    gpus = torch.cuda.device_count()
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE") or 0)
    if 1 < gpus < local_size:  # NCCL refuses two processes on one GPU
        raise ConfigError(
            f"there are {local_size} processes on this host and {gpus} GPUs: start one process for "
            "each GPU, or give --device cpu"
        )
    # It is cuda:0 if each process sees a single GPU.
    return f"cuda:{local_rank % gpus}"
