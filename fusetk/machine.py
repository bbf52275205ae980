"""The device, the chosen ways to compute, and settings that make PyTorch fast on this machine.

The ways and the settings change speed and rounding only.
"""

import ctypes
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch

from fusetk.errors import ConfigError, first_line, quantity
from fusetk.files import cache_folders, locked, read_json, replace_file
from fusetk.nn.fused import decoding as fused_decoding
from fusetk.nn.fused import products
from fusetk.nn.fused.build import sources_hash
from fusetk.nn.precision import float32_by_default
from fusetk.processor import processor, usable_processors
from fusetk.spinning import adapt_spinning
from fusetk.ways import (
    INFERENCE_PRODUCTS,
    OPERATIONS,
    PRODUCTS,
    Operation,
    Undo,
    Way,
    measurements_hash,
    product_error,
    use_precision,
)


def without_auto(name: str) -> str:
    """Return the name of a device; for ``auto`` it is cuda if this machine has it, else cpu."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_of(name: str) -> torch.device:
    """Return the device ``cpu``, ``cuda``, ``cuda:1``, ... or ``auto``.

    Also limit PyTorch's threads to the processors that this process may use, unless OMP_NUM_THREADS
    is set. For ``cpu``, also configure the memory allocator, adapt spinning to other programs and
    use ``chosen_ways``. Raises ConfigError if the device does not exist, is not supported or fails.
    """
    name = without_auto(name)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"there is no device {name!r}: write auto, cpu, cuda or cuda:N") from None
    index = int(name.partition(":")[2] or 0)  # torch keeps only 8 bits of a number
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and index):
        raise ConfigError(f"device {name} is not supported: write auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and index >= torch.cuda.device_count():
        raise ConfigError(
            f"there is no device {name}: this machine has "
            f"{quantity(torch.cuda.device_count(), 'CUDA device')}"
        )
    if device.type == "cuda":
        try:
            torch.empty(1, device=device)
        except RuntimeError as error:  # for example, another program uses the GPU alone
            raise ConfigError(
                f"device {name} cannot be used ({first_line(error)}): end other programs on it, or "
                "choose another device"
            ) from None
    _limit_threads()
    if device.type == "cpu":
        configure_allocator()
        adapt_spinning(torch.get_num_threads())
        _use(chosen_ways(), "highest", INFERENCE_PRODUCTS)
    return device


def _limit_threads() -> None:
    """Limit PyTorch's threads to the usable processors, unless OMP_NUM_THREADS is set.

    PyTorch does not know the limit of a container.
    """
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > usable_processors():
        torch.set_num_threads(usable_processors())


def describe_device(device: torch.device) -> str:
    """Return the name of a device, with the name of its GPU."""
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    return f"{device}{name}"


def has_kernels(device: torch.device) -> bool | None:
    """Return whether compiled kernels are available; None on a GPU, which does not use them."""
    return products.available() if device.type == "cpu" else None


@cache
def revision() -> str | None:
    """Return the git revision of this code, with a + if its files have uncommitted changes.

    Returns None if the code is not in a git checkout.
    """
    folder = Path(__file__).parent
    try:
        commands = (
            ["ls-files", "--error-unmatch", __file__],
            ["rev-parse", "--short", "HEAD"],
            ["status", "--porcelain", "--", "."],
        )
        results = [
            subprocess.run(["git", "-C", str(folder), *command], capture_output=True, timeout=10)
            for command in commands
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    if any(result.returncode for result in results):
        return None
    _, head, status = (result.stdout.strip() for result in results)
    return head.decode("ascii") + ("+" if status else "")


@dataclass(frozen=True)
class ChosenWays:
    """The fastest ways to compute on this machine, by the names of ``OPERATIONS``."""

    processor: str
    threads: int
    ways: dict[str, Way]

    def differences(self, other: "ChosenWays") -> list[str]:
        """Return a description of each setting that differs in ``other``."""
        before, after = (
            {"processor": c.processor, "threads": c.threads, **c.ways} for c in (self, other)
        )
        return [
            f"{name}: {value} -> {after[name]}"
            for name, value in before.items()
            if value != after[name]
        ]


def chosen_ways(matmul: str = "highest") -> ChosenWays:
    """Return the ways for the current number of threads and a value of ``training.matmul``.

    They are measured once on each machine and stored in the cache folder, so that later processes
    use the same ways. A new entry of ``OPERATIONS`` or a change of the kernels makes new
    measurements necessary.
    """
    return _chosen_ways(matmul, torch.get_num_threads())


@cache
def _chosen_ways(matmul: str, threads: int) -> ChosenWays:
    name = _file_name(matmul, threads)
    for folder in cache_folders():
        if stored := read_chosen_ways(folder / name):
            return stored
    measured: ChosenWays | None = None
    for folder in cache_folders():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with locked(folder):  # parallel processes wait for the first one
                if stored := read_chosen_ways(folder / name):
                    return stored
                measured = measured or _measure(matmul)
                write_chosen_ways(folder / name, measured)
                return measured
    return measured or _measure(matmul)


def _file_name(matmul: str, threads: int) -> str:
    """Return the name of the file with the chosen ways. It has a hash of what they depend on."""
    conditions = {
        "matmul": matmul,
        "threads": threads,
        "torch": torch.__version__,
        "processor": processor(),
        "choices": [operation.name for operation in OPERATIONS],
        "kernels": [
            name
            for dtype, name in fused_decoding.NAMES.items()
            if fused_decoding.has_products(dtype)
        ],
        "products": list(map(products.available, products.used_in_training)),
        "sources": sources_hash(),
        "measurements": measurements_hash(),
    }
    return f"machine-{hashlib.sha256(json.dumps(conditions).encode()).hexdigest()[:16]}.json"


def forget_chosen_ways() -> None:
    """Delete the stored ways for this machine and the current number of threads.

    The number of threads is limited first, as in ``device_of``. Ways that runs record remain.
    Raises OSError if a file cannot be deleted.
    """
    _limit_threads()
    for folder in cache_folders():
        for matmul in ("highest", "high", "medium"):
            (folder / _file_name(matmul, torch.get_num_threads())).unlink(missing_ok=True)
    _chosen_ways.cache_clear()


def read_chosen_ways(path: Path) -> ChosenWays | None:
    """Read a file of ``write_chosen_ways``; return None if it is missing or damaged.

    Operations that the file lacks get their default way, and unknown names are ignored. So other
    versions of fusetk can write the file.
    """
    values = read_json(path)
    try:
        ways = values["ways"]
        stored = ChosenWays(
            str(values["processor"]),
            int(values["threads"]),
            {each.name: ways.get(each.name, each.ways[0]) for each in OPERATIONS},
        )
    except (ValueError, OverflowError, TypeError, AttributeError, KeyError):
        return None
    is_valid = all(_is_way_of(each, stored.ways[each.name]) for each in OPERATIONS)
    return stored if is_valid else None


def _is_way_of(operation: Operation, way: Way) -> bool:
    """Whether an operation has this way. If its ways are numbers, it has all numbers from 0."""
    if isinstance(operation.ways[0], str):
        return way in operation.ways
    return type(way) is int and 0 <= way < 2**31


def write_chosen_ways(path: Path, values: ChosenWays) -> None:
    """Write chosen ways as JSON. The write is atomic: it never leaves an incomplete file.

    Raises OSError if the file cannot be written.
    """
    replace_file(path, json.dumps(asdict(values), indent=1) + "\n")


@contextmanager
def computing(
    device: torch.device,
    matmul: str,
    recorded: ChosenWays | None = None,
    precision: str = "fp32",
    compiled: bool = False,
) -> Iterator[str]:
    """Apply the settings of a training on ``device``; restore the old ones at the end.

    ``matmul`` and ``precision`` are keys of ``training``. On CPU, the operations are computed in
    the ways ``recorded``, by default ``chosen_ways``. In exact float32 and in bf16, PyTorch's
    operators may use the kernels of ``fusetk.nn.fused.products`` in the whole process. They do not
    if the layers are ``compiled``, because ``torch.compile`` does not use the kernels. Yields a
    description of the products for the log.
    """

    def uses_kernels(dtype: torch.dtype) -> bool:
        return products.used_in_training[dtype] and not compiled

    with ExitStack() as undo:
        if device.type != "cpu":
            undo.callback(use_precision(matmul))
            description = "exact"
        else:
            chosen = recorded or chosen_ways(matmul)
            for restore in _use(chosen, matmul, PRODUCTS):
                undo.callback(restore)
            description = f"by {way_name(chosen.ways[PRODUCTS])}"
            if precision == "fp32" and matmul == "highest" and uses_kernels(torch.float32):
                undo.callback(products.replace(torch.float32))
                description += " and kernels"
        if matmul != "highest":
            result = "rounded" if product_error(device) > 1e-5 else "exact"
            description = f"{matmul}, in fact {result}"
        if device.type == "cpu" and precision == "bf16" and uses_kernels(torch.bfloat16):
            undo.callback(products.replace(torch.bfloat16))
            description += ", bf16 products by kernels"
        yield description


def _use(chosen: ChosenWays, matmul: str, products_name: str) -> list[Undo]:
    """Use the chosen ways. Return functions that restore the settings; call the last one first.

    ``products_name`` is PRODUCTS in training and INFERENCE_PRODUCTS in inference. The way of the
    other one is not used. A ``matmul`` other than highest replaces the way of ``products_name``.
    """
    unused = {PRODUCTS, INFERENCE_PRODUCTS} - {products_name}
    undo = [each.use(chosen.ways[each.name]) for each in OPERATIONS if each.name not in unused]
    if matmul != "highest":
        undo.append(use_precision(matmul))
    return undo


def _measure(matmul: str) -> ChosenWays:
    """Measure the operations in order. Use the way of each while the next ones are measured."""
    ways = {}
    with ExitStack() as undo:
        for operation in OPERATIONS:
            # Some operations have a backward pass.
            with torch.inference_mode(False), float32_by_default():
                ways[operation.name] = operation.measure()
            undo.callback(operation.use(ways[operation.name]))
            if matmul != "highest":
                undo.callback(use_precision(matmul))
    return ChosenWays(processor(), torch.get_num_threads(), ways)


def way_name(way: Way) -> Way:
    """Return the name of a way for the user.

    The way "MKL" computes products with PyTorch's default library, which is MKL on x86 only.
    """
    return "PyTorch's BLAS" if way == "MKL" and not torch.backends.mkl.is_available() else way


@cache
def configure_allocator() -> None:
    """Set memory options, once per process.

    Make glibc keep freed memory. By default it returns each large tensor to the operating system,
    which must zero the pages of the next one. Make oneDNN keep the compiled products of the last
    256 shapes instead of 1,024, because each has its own buffers of up to a megabyte. PyTorch has a
    second cache of compiled products. Make it keep 64 of each kind, which is enough for the shapes
    of one update.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "64")
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_threshold, 1 << 25)


def use_huge_pages() -> None:
    """Make PyTorch ask for huge pages for each tensor of 2 MB or more, unless the user decided.

    PyTorch reads the variable at its first allocation. In training this lowers the peak memory by
    14 to 19 % (docs/benchmarks.md). In decoding the additional system calls cost up to 11 % of the
    speed, so decoding does not use it.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
