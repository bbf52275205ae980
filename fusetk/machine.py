"""What this machine is, and the settings of the process that make torch fast on it without changing a result."""

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
from functools import cache
from pathlib import Path

import torch

from fusetk.errors import ConfigError
from fusetk.files import replace_file
from fusetk.nn import attention
from fusetk.nn.fused.build import cache_folders


def device_of(name: str) -> torch.device:
    """``cpu``, ``cuda``, ``cuda:1``, or ``auto``: CUDA where there is one. Raises ConfigError for what is not there."""
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
            f"device {name} was asked for, this machine has {torch.cuda.device_count()} CUDA devices"
        )
    if device.type == "cpu":
        keep_memory()
        _use(choices(), "highest")
    return device


@cache
def revision() -> str | None:
    """The git revision of this code, with a + where files differ from it; None where it is no checkout."""
    folder = Path(__file__).parent
    try:
        commands = (
            ["ls-files", "--error-unmatch", __file__],
            ["rev-parse", "--short", "HEAD"],
            ["status", "--porcelain", "--", "."],
        )
        given = [
            subprocess.run(
                ["git", "-C", str(folder), *one], capture_output=True, text=True, timeout=10
            )
            for one in commands
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    if any(found.returncode for found in given):
        return None
    return given[1].stdout.strip() + ("+" if given[2].stdout.strip() else "")


@dataclass(frozen=True)
class Choices:
    """How this machine computes fastest. Each choice changes speed and rounding, nothing else."""

    processor: str
    threads: int
    products: str
    """Library of float32 products: MKL, torch's default, or oneDNN."""
    attention: dict[str, int]
    """Greatest number of keys for which plain products replace the fused kernel, by a name in ``ATTENTION_KINDS``."""

    def __str__(self) -> str:
        keys = ", ".join(f"{kind} {limit}" for kind, limit in self.attention.items())
        return f"by {self.products}, attention by plain products up to this many keys: {keys}"


ATTENTION_KINDS = {
    "fp32 training": (torch.float32, True),
    "fp32 inference": (torch.float32, False),
    "bf16 training": (torch.bfloat16, True),
    # Not bf16 inference: plain products round the attention scores to bf16, the fused kernel does not.
}
ATTENTION_LENGTHS = (16, 64, 256, 1024)
CLEARLY = 1.15  # A way that is not torch's default must be this many times as fast.


def choices(matmul: str = "highest") -> Choices:
    """The choices for the current number of threads under a value of ``training.matmul``.

    They are measured once a machine (0.5 s) and kept in the cache folder, so that later processes choose the same.
    """
    return _choices(matmul, torch.get_num_threads())


@cache
def _choices(matmul: str, threads: int) -> Choices:
    known = {
        "matmul": matmul,
        "threads": threads,
        "torch": torch.__version__,
        "processor": processor(),
    }
    name = f"machine-{hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]}.json"
    for folder in cache_folders():
        if stored := read_choices(folder / name):
            return stored
    measured = _measure(matmul)
    for folder in cache_folders():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_choices(folder / name, measured, replace=False)
            return read_choices(folder / name) or measured  # Another process may have been first.
    return measured


def read_choices(path: Path) -> Choices | None:
    """Choices that ``write_choices`` wrote; None if the file is missing or damaged."""
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
    """Write choices as JSON; the file is complete or missing. Without ``replace`` a valid file is kept. Raises OSError."""
    if replace or not read_choices(path):
        replace_file(path, json.dumps(asdict(values), indent=1) + "\n")


@contextmanager
def computing(device: torch.device, matmul: str, kept: Choices | None = None) -> Iterator[str]:
    """Within this context products and attention on ``device`` are computed as ``kept`` or ``choices`` say.

    ``matmul`` is ``training.matmul``. Yields a description for the log.
    """
    before = torch.get_float32_matmul_precision(), dict(attention.plain_up_to)
    try:
        if device.type != "cpu":
            torch.set_float32_matmul_precision(matmul)
            description = "exact"
        else:
            chosen = kept or choices(matmul)
            _use(chosen, matmul)
            description = str(chosen)
        if matmul != "highest":
            description = (
                f"{matmul}, in fact {'rounded' if _product_error(device) > 1e-5 else 'exact'}"
            )
        yield description
    finally:
        torch.set_float32_matmul_precision(before[0])
        attention.plain_up_to.clear()
        attention.plain_up_to.update(before[1])


def _use(chosen: Choices, matmul: str) -> None:
    exact = "medium" if chosen.products == "oneDNN" else "highest"
    torch.set_float32_matmul_precision(exact if matmul == "highest" else matmul)
    attention.plain_up_to.update(
        {ATTENTION_KINDS[kind]: limit for kind, limit in chosen.attention.items()}
    )


def _measure(matmul: str) -> Choices:
    before = torch.get_float32_matmul_precision()
    try:
        products = _fastest_float32()
        torch.set_float32_matmul_precision(
            ("medium" if products == "oneDNN" else "highest") if matmul == "highest" else matmul
        )
        limits = {kind: _plain_attention_limit(*key) for kind, key in ATTENTION_KINDS.items()}
    finally:
        torch.set_float32_matmul_precision(before)
    return Choices(processor(), torch.get_num_threads(), products, limits)


def _fastest_float32() -> str:
    """The fastest library whose float32 products are true float32.

    torch's "medium" precision hands products to oneDNN, which is faster on processors for which MKL does not use the full vector
    width. On a processor with bf16 tiles oneDNN rounds the factors to bf16, so its error is compared first.
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
    return "oneDNN" if mkl > CLEARLY * onednn else "MKL"


def _plain_attention_limit(dtype: torch.dtype, training: bool) -> int:
    """The greatest of ``ATTENTION_LENGTHS`` up to which plain products are clearly faster than the fused kernel; 0 if none is."""
    limit = 0
    for length in ATTENTION_LENGTHS:
        shape = max(1, 512 // length), length, 4, 64
        q, k, v = (
            torch.ones(shape, dtype=dtype).transpose(1, 2).requires_grad_(training)
            for _ in range(3)
        )
        mask = torch.ones(shape[0], 1, 1, length, dtype=torch.bool)

        def way(up_to: int) -> Callable[[], object]:
            def run() -> object:
                attention.plain_up_to[dtype, training] = up_to
                with torch.inference_mode(False), torch.set_grad_enabled(training):
                    result = attention.attend(q, k, v, mask, 0.0, "")  # noqa: B023, called within this pass of the loop
                    return torch.autograd.grad(result.sum(), (q, k, v)) if training else result  # noqa: B023

            return run

        fused, plain = _seconds(way(0), way(length))
        if fused < CLEARLY * plain:
            break
        limit = length
    return limit


def _seconds(*ways: Callable[[], object]) -> list[float]:
    """The least time of each way over five runs in turn, after one that is not counted."""
    least = [math.inf] * len(ways)
    for i in range(6):
        for j, way in enumerate(ways):
            start = time.perf_counter()
            way()
            if i:
                least[j] = min(least[j], time.perf_counter() - start)
    return least


@cache
def processor() -> str:
    """The processor's name, with a checksum of the instructions it knows: different processors may share a name."""
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
    """|AB - exact| / |exact| of a float32 product: about 3e-7, with factors in tf32 3e-4, in bf16 2e-3."""
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(512, 512, generator=generator).to(device) for _ in range(2))
    exact = a.double() @ b.double()
    return float((a @ b - exact).norm() / exact.norm())


@cache
def keep_memory() -> None:
    """Settings of memory, once a process.

    The C library keeps freed memory: by default it hands each large tensor back and pays for new, zeroed pages the next time.
    oneDNN keeps the compiled products of the last 256 shapes and not of 1,024: each holds buffers of its own, up to a megabyte.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_threshold, 1 << 25)
