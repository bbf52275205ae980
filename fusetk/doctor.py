"""A description of this machine: its limits, ways to compute, and causes of slow computation."""

import importlib.metadata
import os
import platform
import re
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fusetk import __version__, machine
from fusetk.errors import first_line, quantity
from fusetk.files import cache_folders
from fusetk.nn.fused import build, enabled
from fusetk.processor import control_group_memory, instructions, processor
from fusetk.ways import slower_than_float32

PACKAGES = ("torch", "numpy", "sacremoses", "subword-nmt", "sacrebleu", "safetensors", "pydantic")
KERNELS = sorted(path.stem for path in build.FOLDER.glob("*.cpp"))
# Instructions that decide on the speed of products, as Linux names them.
INSTRUCTIONS = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "bf16",
    "i8mm",
    "sve",
)
MEMINFO = Path("/proc/meminfo")
SIZE = 1024  # rows and columns of the matrices of a large product
UNUSABLE = "cannot be written"  # state of a cache folder
BUSY = 0.8  # load from which other programs may disturb
SECONDS = 0.3  # duration of the measurement of a product


def examine(
    processors: int, threads: int | None = None, measure_again: bool = False
) -> dict[str, Any]:
    """Return a description of this machine as nested values for JSON.

    ``processors`` is the number that this process may use, and ``threads`` the number of threads of
    the products, by default PyTorch's. The key ``advice`` lists what is slow and what to do. With
    ``measure_again``, the stored ways for this number of threads are deleted first; raises
    OSError if that is impossible.
    """
    load = _load()  # before the measurements
    if threads:
        torch.set_num_threads(threads)
    if measure_again:
        machine.forget_chosen_ways()
    machine.device_of("cpu")
    description: dict[str, Any] = {
        "fusetk": __version__ + (f" ({revision})" if (revision := machine.revision()) else ""),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "processor": processor(),
        "instructions": [name for name in INSTRUCTIONS if name in instructions().split()],
        "threads": torch.get_num_threads(),
        "processors": processors,
        "load": load,
        "memory_gb": _memory(),
        "gpus": _gpus(),
        "kernels": {name: _kernel(name) for name in KERNELS},
        "cache": {str(folder): _cache_state(folder) for folder in cache_folders()},
        "choices": {
            name: machine.way_name(way) for name, way in machine.chosen_ways().ways.items()
        },
        "gflops": {name: _rate(*make) for name, make in PRODUCTS.items()},
    }
    return {**description, "advice": _advice(description)}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _load() -> float | None:
    """Return the mean number of processes in the last minute that ran or waited for a processor.

    None if it is unknown.
    """
    with suppress(OSError, AttributeError):  # not on this system
        return round(os.getloadavg()[0], 1)
    return None


def _memory() -> dict[str, float | None]:
    """Return the total and the available memory in GB. Control groups may limit both."""
    fields = {}
    with suppress(OSError, ValueError):
        for line in MEMINFO.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            fields[name] = int(value.split()[0]) * 1024
    limits = control_group_memory()
    total, available = (
        round(min(fields[name], limit) / 1e9, 1) if name in fields else None
        for name, limit in (("MemTotal", limits.total), ("MemAvailable", limits.available))
    )
    return {"total": total, "available": available}


def _gpus() -> list[str]:
    """Return the name and the memory of each GPU, or the reason why CUDA fails."""
    if not torch.cuda.is_available():
        return []
    try:
        properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    except RuntimeError as error:
        return [f"cannot be used ({first_line(error)})"]
    return [f"{gpu.name}, {gpu.total_memory / 1e9:.0f} GB" for gpu in properties]


def _kernel(name: str) -> str:
    """Return ``compiled``, or the reason why the kernels are missing."""
    if not enabled():
        return "disabled by FUSETK_KERNELS"
    build.library.cache_clear()  # an earlier call has already printed the warning
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if build.library(name) is not None:
            return "compiled"
    return str(caught[-1].message) if caught else "not compiled"


def _cache_state(folder: Path) -> str:
    """Return the number of files in a cache folder, or why it cannot be used."""
    try:
        if folder.exists():
            if not _can_be_written(folder):
                return UNUSABLE
            return quantity(sum(path.is_file() for path in folder.iterdir()), "file")
        existing = next(parent for parent in folder.parents if parent.exists())
        return "does not exist" if _can_be_written(existing) else UNUSABLE
    except OSError:  # a folder above it cannot be entered
        return UNUSABLE


def _can_be_written(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK)


def _rate(multiply: Callable[..., object], dtype: torch.dtype) -> float | None:
    """Return billions of operations a second of a large product, two for each multiply-add.

    Returns None if PyTorch does not support the product here.
    """
    a, b = (torch.ones(SIZE, SIZE, dtype=dtype) for _ in range(2))
    try:
        multiply(a, b)
        start = time.perf_counter()
        products = 0
        while products == 0 or time.perf_counter() - start < SECONDS:
            multiply(a, b)
            products += 1
    except (RuntimeError, AttributeError):
        return None
    return round(2 * products * SIZE**3 / (time.perf_counter() - start) / 1e9, 1)


PRODUCTS: dict[str, tuple[Callable[..., object], torch.dtype]] = {
    "float32": (torch.matmul, torch.float32),
    "bf16": (torch.matmul, torch.bfloat16),
    "int8": (getattr(torch, "_int_mm", None) or torch.matmul, torch.int8),
}


def _advice(description: dict[str, Any]) -> list[str]:
    """Return a sentence for each thing that makes fusetk slow here."""
    return [
        *_kernel_advice(description["kernels"].values()),
        *_thread_advice(description["threads"], description["processors"], description["load"]),
        *_rate_advice(description["gflops"]),
        *_memory_advice(description["cache"].values(), description["memory_gb"]["available"]),
    ]


def _kernel_advice(states: Collection[str]) -> Iterator[str]:
    if any("disabled" in state for state in states):
        yield "the compiled kernels are disabled: unset FUSETK_KERNELS"
    elif any(re.search("there is no .*compiler", state) for state in states):
        yield (
            "the C++ kernels are not compiled, so training is several times slower on CPU: install "
            "a C++ compiler (g++ or clang++), or name it in CXX"
        )
    elif any(state != "compiled" for state in states):
        yield (
            "the C++ kernels are not compiled, so training is several times slower on CPU: remove "
            "the cause that is given above"
        )


def _thread_advice(threads: int, processors: int, load: float | None) -> Iterator[str]:
    if threads < processors:
        yield (
            f"PyTorch uses {threads} of {processors} processors: set --threads {processors}, or "
            "OMP_NUM_THREADS"
        )
    # The load is that of the whole machine. This process may use a part of it.
    of_machine = os.cpu_count() or processors
    if threads > 1 and load is not None and load >= BUSY and threads + load > of_machine:
        yield (
            f"the load of the last minute is {load}: if other programs compute now, training and "
            f"decoding with {threads} threads are slower, because threads wait for each other. End "
            "these programs, or give fewer --threads"
        )


def _rate_advice(rates: Mapping[str, float | None]) -> Iterator[str]:
    float32, bf16 = rates["float32"], rates["bf16"]
    assert float32 is not None
    if bf16 is None or bf16 < 1.2 * float32:
        yield (
            "products in bf16 are not faster than in float32 on this processor, which emulates "
            "them: train and decode on CPU with fp32"
        )
    if slower_than_float32(torch.int8):
        yield (
            "products in int8 are slower than in float32 on this processor: decode without "
            "--precision int8"
        )


def _memory_advice(cache_states: Collection[str], available: float | None) -> Iterator[str]:
    if all(state == UNUSABLE for state in cache_states):
        yield (
            "no cache folder can be written, so each process compiles and measures again: set "
            "XDG_CACHE_HOME to a folder that you can write"
        )
    if available is not None and available < 2:
        yield f"only {available} GB of memory are available: end other programs"
