"""What this machine is, and the settings of the process that make torch fast on it without changing a result."""

import ctypes
from functools import cache

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
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {name} was asked for, this machine has {torch.cuda.device_count()} CUDA devices")
    if device.type == "cpu":
        fastest_float32()
        keep_memory()
    return device


@cache
def fastest_float32() -> str:
    """Choose the fastest library whose float32 products are true float32; returns its name.

    torch's "medium" precision hands products to oneDNN, about twice as fast on processors for which MKL does not use the
    full vector width. On a processor with bf16 tiles oneDNN would round the factors to bf16, so a product is computed
    both ways and "medium" kept only if it is as exact.
    """
    torch.set_float32_matmul_precision("highest")
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(512, 512, generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    plain = (a @ b - exact).norm()
    torch.set_float32_matmul_precision("medium")
    if (a @ b - exact).norm() <= 2 * plain:
        return "oneDNN"
    torch.set_float32_matmul_precision("highest")
    return "MKL"


@cache
def keep_memory() -> None:
    """Have the C library keep freed memory: it would hand each large tensor back and pay for new, zeroed pages each time."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    mmap_max, trim_threshold, top_pad = -4, -1, -2
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(top_pad, 1 << 26)
