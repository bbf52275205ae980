"""The processor, as /proc/cpuinfo describes it."""

import hashlib
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path


@cache
def _fields() -> dict[str, str]:
    """Return the fields of the first processor; none where the file does not exist."""
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    pairs = (line.partition(":") for line in reversed(lines))
    return {name.strip(): value.strip() for name, _, value in pairs}


def instructions() -> str:
    """Return the names of the instruction sets, separated by spaces."""
    return _fields().get("flags") or _fields().get("Features") or ""


@cache
def processor() -> str:
    """Return the processor's name with a checksum of its instruction sets.

    Different processors may have the same name.
    """
    name = _fields().get("model name") or platform.processor() or platform.machine()
    return f"{name}, instructions {hashlib.sha256(instructions().encode()).hexdigest()[:8]}"
