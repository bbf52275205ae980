"""Kernels in C++, compiled on the machine on which they run, once."""

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from functools import lru_cache
from pathlib import Path

SOURCE = Path(__file__).with_name("kernels.cpp")
# -march=native is not known everywhere, nor is OpenMP, without which there is one thread.
FLAGS: tuple[list[str], ...] = (["-march=native", "-fopenmp"], ["-mcpu=native", "-fopenmp"], ["-march=native"], [])
COMMON = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fPIC", "-shared"]


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The kernels; None, with a warning, where they cannot be compiled, and without one where ``FUSETK_KERNELS`` is ``off``."""
    if os.environ.get("FUSETK_KERNELS") == "off":
        return None
    compiler = next((found for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name and (found := shutil.which(name))), None)
    if compiler is None:
        _warn("there is no C++ compiler (c++, g++, clang++, or the one that CXX names)")
        return None
    key = hashlib.sha256(SOURCE.read_bytes() + repr((compiler, FLAGS, COMMON, _machine())).encode()).hexdigest()[:16]
    path = _folder() / f"kernels-{key}.so"
    why = None if path.exists() else _compile(compiler, path)
    try:
        if not why:
            return ctypes.CDLL(str(path))
    except OSError as error:
        why = str(error)
    _warn(why)
    return None


def _warn(why: str) -> None:
    warnings.warn(f"recurrent models run without fused kernels, several times slower on CPU: {why}", stacklevel=3)


def _compile(compiler: str, path: Path) -> str | None:
    """What went wrong, if it did."""
    why = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            for flags in FLAGS:
                done = subprocess.run(
                    [compiler, *COMMON, *flags, "-o", str(made), str(SOURCE)], capture_output=True, text=True, timeout=120
                )
                if done.returncode == 0:
                    os.replace(made, path)  # whole or not at all, where several processes compile at once
                    return None
                why = why or f"{compiler} says {' '.join(done.stderr.split())[:300]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    return why


def _folder() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "fusetk"


def _machine() -> str:
    """What -march=native goes by: on a shared home, each kind of machine has kernels of its own."""
    flags = ""
    with contextlib.suppress(OSError):
        flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("flags", "Features"))), "")
    return " ".join((platform.machine(), platform.system(), platform.processor(), flags))
