"""What this machine is, and the settings of the process that make torch fast on it without changing a result."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from fusetk.errors import ConfigError


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
        raise ConfigError(f"device {name} was asked for, this machine has {torch.cuda.device_count()} CUDA devices")
    if device.type == "cpu":
        keep_memory()
        fastest_float32()
    return device


@cache
def revision() -> str | None:
    """The git revision of this code, with a + where files differ from it; None where it is no checkout."""
    folder = Path(__file__).parent
    try:
        commands = ["ls-files", "--error-unmatch", __file__], ["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", "."]
        given = [subprocess.run(["git", "-C", str(folder), *one], capture_output=True, text=True, timeout=10) for one in commands]
    except (OSError, subprocess.SubprocessError):
        return None
    if any(found.returncode for found in given):
        return None
    return given[1].stdout.strip() + ("+" if given[2].stdout.strip() else "")


@cache
def fastest_float32() -> str:
    """Choose the fastest library whose float32 products are true float32; returns its name.

    torch's "medium" precision hands products to oneDNN, about twice as fast on processors for which MKL does not use the
    full vector width. On a processor with bf16 tiles oneDNN would round the factors to bf16, so a product is computed
    both ways and "medium" kept only if it is as exact.
    """
    cpu = torch.device("cpu")
    torch.set_float32_matmul_precision("highest")
    plain = _product_error(cpu)
    torch.set_float32_matmul_precision("medium")
    if _product_error(cpu) <= 2 * plain:
        return "oneDNN"
    torch.set_float32_matmul_precision("highest")
    return "MKL"


@contextmanager
def float32_products(device: torch.device, matmul: str) -> Iterator[str]:
    """Within this context float32 products on a device are as ``training.matmul`` has it; yields what they are, for people."""
    before = torch.get_float32_matmul_precision()
    exact = "medium" if device.type == "cpu" and fastest_float32() == "oneDNN" else "highest"
    torch.set_float32_matmul_precision(exact if matmul == "highest" else matmul)
    try:
        if matmul != "highest":
            yield f"{matmul}, in fact {'rounded' if _product_error(device) > 1e-5 else 'exact'}"
        else:
            yield f"by {fastest_float32()}" if device.type == "cpu" else "exact"
    finally:
        torch.set_float32_matmul_precision(before)


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
