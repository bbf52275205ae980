"""The device, the processor, and settings that make PyTorch fast on this machine.

The settings change speed and rounding only.
"""

import ctypes
import hashlib
import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from fusetk.errors import ConfigError
from fusetk.files import replace_file
from fusetk.nn import attention
from fusetk.nn.fused.build import cache_folders


def device_of(name: str) -> torch.device:
    """Return the device ``cpu``, ``cuda``, ``cuda:1``, ...; ``auto`` is CUDA if it is available.

    For ``cpu``, also configure the memory allocator and apply ``choices``. Raises ConfigError if
    the device does not exist or is not supported.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"there is no device {name!r}: write auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {name} is not supported: write auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"there is no device {name}: this machine has {torch.cuda.device_count()} CUDA devices"
        )
    if device.type == "cpu":
        configure_allocator()
        _use(choices(), "highest")
    return device


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
            subprocess.run(
                ["git", "-C", str(folder), *command], capture_output=True, text=True, timeout=10
            )
            for command in commands
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    if any(result.returncode for result in results):
        return None
    _, head, status = (result.stdout.strip() for result in results)
    return head + ("+" if status else "")


@dataclass(frozen=True)
class Choices:
    """The fastest ways to compute on this machine. They differ in speed and rounding only."""

    processor: str
    threads: int
    products: str
    """Library of float32 products: ``MKL`` (torch's default) or ``oneDNN``."""
    attention: dict[str, int]
    """Greatest number of attention keys for which plain products replace the fused kernel, for each
    of ``ATTENTION_KINDS``."""

    def __str__(self) -> str:
        keys = ", ".join(f"{kind} {limit}" for kind, limit in self.attention.items())
        return f"by {self.products}, attention by plain products up to this many keys: {keys}"


# The keys of ``attention.plain_up_to``, by name.
ATTENTION_KINDS = {
    "fp32 training": (torch.float32, True),
    "fp32 inference": (torch.float32, False),
    "bf16 training": (torch.bfloat16, True),
    # bf16 inference is missing, because plain products round the attention scores to bf16 and the
    # fused kernel does not.
}
ATTENTION_LENGTHS = (16, 64, 256, 1024)
# PyTorch's default is replaced only if the alternative is this many times as fast.
MIN_SPEEDUP = 1.15


def choices(matmul: str = "highest") -> Choices:
    """Return the choices for the current number of threads and a value of ``training.matmul``.

    They are measured once on each machine (0.5 s) and stored in the cache folder, so that later
    processes make the same choices.
    """
    return _choices(matmul, torch.get_num_threads())


@cache
def _choices(matmul: str, threads: int) -> Choices:
    conditions = {
        "matmul": matmul,
        "threads": threads,
        "torch": torch.__version__,
        "processor": processor(),
    }
    name = f"machine-{hashlib.sha256(json.dumps(conditions).encode()).hexdigest()[:16]}.json"
    for folder in cache_folders():
        if stored := read_choices(folder / name):
            return stored
    measured = _measure(matmul)
    for folder in cache_folders():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_choices(folder / name, measured, replace=False)
            return read_choices(folder / name) or measured  # another process may have been first
    return measured


def read_choices(path: Path) -> Choices | None:
    """Read a file of ``write_choices``; return None if it is missing or damaged."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        stored = Choices(**values)
        complete = set(stored.attention) == set(ATTENTION_KINDS) and all(
            limit >= 0 for limit in stored.attention.values()
        )
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return stored if complete and stored.products in ("MKL", "oneDNN") else None


def write_choices(path: Path, values: Choices, replace: bool = True) -> None:
    """Write choices as JSON. The write is atomic: it never leaves an incomplete file.

    Without ``replace``, a valid file is not changed. Raises OSError if the file cannot be written.
    """
    if replace or not read_choices(path):
        replace_file(path, json.dumps(asdict(values), indent=1) + "\n")


@contextmanager
def computing(device: torch.device, matmul: str, recorded: Choices | None = None) -> Iterator[str]:
    """Apply settings for products and attention on ``device``; restore the old ones at the end.

    ``matmul`` is ``training.matmul``. On CPU the settings are ``recorded``, by default ``choices``.
    Yields a description for the log.
    """
    old_precision = torch.get_float32_matmul_precision()
    old_limits = dict(attention.plain_up_to)
    try:
        if device.type != "cpu":
            torch.set_float32_matmul_precision(matmul)
            description = "exact"
        else:
            chosen = recorded or choices(matmul)
            _use(chosen, matmul)
            description = str(chosen)
        if matmul != "highest":
            result = "rounded" if _product_error(device) > 1e-5 else "exact"
            description = f"{matmul}, in fact {result}"
        yield description
    finally:
        torch.set_float32_matmul_precision(old_precision)
        attention.plain_up_to.clear()
        attention.plain_up_to.update(old_limits)


def _use(chosen: Choices, matmul: str) -> None:
    torch.set_float32_matmul_precision(_precision(matmul, chosen.products))
    attention.plain_up_to.update(
        {ATTENTION_KINDS[kind]: limit for kind, limit in chosen.attention.items()}
    )


def _precision(matmul: str, products: str) -> str:
    """Return PyTorch's precision setting. "medium" selects oneDNN (see ``_fastest_float32``)."""
    if matmul != "highest":
        return matmul
    return "medium" if products == "oneDNN" else "highest"


def _measure(matmul: str) -> Choices:
    before = torch.get_float32_matmul_precision()
    try:
        products = _fastest_float32()
        torch.set_float32_matmul_precision(_precision(matmul, products))
        limits = {kind: _plain_attention_limit(*key) for kind, key in ATTENTION_KINDS.items()}
    finally:
        torch.set_float32_matmul_precision(before)
    return Choices(processor(), torch.get_num_threads(), products, limits)


def _fastest_float32() -> str:
    """Return the faster library, "MKL" or "oneDNN", for exact float32 products.

    With the precision "medium", PyTorch uses oneDNN for products. It is faster on processors for
    which MKL does not use the full vector width. But on a processor with bf16 tiles, oneDNN rounds
    the factors to bf16. Therefore the errors are compared first.
    """
    cpu = torch.device("cpu")
    torch.set_float32_matmul_precision("highest")
    error = _product_error(cpu)
    torch.set_float32_matmul_precision("medium")
    if _product_error(cpu) > 2 * error:
        return "MKL"
    a, b = torch.ones(1024, 256), torch.ones(256, 1024)

    def product(precision: str) -> Callable[[], object]:
        def run() -> object:
            torch.set_float32_matmul_precision(precision)
            return a @ b

        return run

    mkl, onednn = _seconds(product("highest"), product("medium"))
    return "oneDNN" if mkl > MIN_SPEEDUP * onednn else "MKL"


def _plain_attention_limit(dtype: torch.dtype, training: bool) -> int:
    """Return the greatest of ``ATTENTION_LENGTHS`` up to which plain products are faster.

    They must be ``MIN_SPEEDUP`` times as fast as the fused kernel at this length and at all smaller
    ones. Returns 0 if they are not at the smallest length.
    """
    limit = 0
    for length in ATTENTION_LENGTHS:
        shape = max(1, 512 // length), length, 4, 64
        q, k, v = (
            torch.ones(shape, dtype=dtype).transpose(1, 2).requires_grad_(training)
            for _ in range(3)
        )
        mask = torch.ones(shape[0], 1, 1, length, dtype=torch.bool)

        fused, plain = _seconds(
            partial(_attend, q, k, v, mask, 0), partial(_attend, q, k, v, mask, length)
        )
        if fused < MIN_SPEEDUP * plain:
            break
        limit = length
    return limit


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, limit: int) -> None:
    """Run attention with ``limit`` in ``plain_up_to``, and the backward pass if ``q`` needs it."""
    attention.plain_up_to[q.dtype, q.requires_grad] = limit
    with torch.inference_mode(False), torch.set_grad_enabled(q.requires_grad):
        result = attention.scaled_dot_product(q, k, v, mask, 0.0, "")
        if q.requires_grad:
            torch.autograd.grad(result.sum(), (q, k, v))


def _seconds(*functions: Callable[[], object]) -> list[float]:
    """Return the shortest time of each function over five rounds, after one round of warm-up."""
    shortest = [math.inf] * len(functions)
    for round_number in range(6):
        for j, function in enumerate(functions):
            start = time.perf_counter()
            function()
            if round_number:
                shortest[j] = min(shortest[j], time.perf_counter() - start)
    return shortest


@cache
def processor() -> str:
    """Return the processor's name with a checksum of its instruction set.

    Different processors may have the same name.
    """
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    fields = {
        key.strip(): value.strip()
        for key, _, value in (line.partition(":") for line in reversed(lines))
    }
    name = fields.get("model name") or platform.processor() or platform.machine()
    flags = fields.get("flags") or fields.get("Features") or ""
    return f"{name}, instructions {hashlib.sha256(flags.encode()).hexdigest()[:8]}"


def _product_error(device: torch.device) -> float:
    """Return the relative error |AB - exact| / |exact| of a float32 product.

    It is about 3e-7 for exact factors, 3e-4 for factors in tf32, and 2e-3 for factors in bf16.
    """
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(512, 512, generator=generator).to(device) for _ in range(2))
    exact = a.double() @ b.double()
    return float((a @ b - exact).norm() / exact.norm())


@cache
def configure_allocator() -> None:
    """Set memory options, once per process.

    Make glibc keep freed memory. By default it returns each large tensor to the operating system,
    which must zero the pages of the next one. Make oneDNN keep the compiled products of the last
    256 shapes instead of 1,024, because each has its own buffers of up to a megabyte.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_threshold, 1 << 25)
