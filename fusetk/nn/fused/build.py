"""Kernels in C++, compiled on the machine on which they run, once."""

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import warnings
from functools import lru_cache
from pathlib import Path

from fusetk.nn.fused import wanted

SOURCE = Path(__file__).with_name("kernels.cpp")
# -march=native is not known everywhere, nor is OpenMP, without which there is one thread.
FLAGS: tuple[list[str], ...] = (
    ["-march=native", "-fopenmp"],
    ["-mcpu=native", "-fopenmp"],
    ["-march=native", "-fopenmp-simd"],
    [],
)
COMMON = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fPIC", "-shared"]


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The kernels; None, with a warning, where they cannot be had, and without one where they are not wanted."""
    if not wanted():
        return None
    given = shlex.split(os.environ.get("CXX", ""))
    found = [shutil.which(name) for name in (given[:1] or ("c++", "g++", "clang++"))]
    if not any(found):
        _warn(
            f"there is no compiler {given[0]}, which CXX names"
            if given
            else "there is no C++ compiler (c++, g++ or clang++)"
        )
        return None
    compiler = [next(name for name in found if name), *given[1:]]
    key = hashlib.sha256(
        SOURCE.read_bytes() + repr((compiler, FLAGS, COMMON, _machine())).encode()
    ).hexdigest()[:16]
    why = ""
    for folder in cache_folders():
        try:
            return _load(compiler, folder / f"kernels-{key}.so")
        except (OSError, AttributeError, subprocess.SubprocessError) as error:
            why = why or " ".join(str(error).split())[:400]
    _warn(why)
    return None


def _warn(why: str) -> None:
    warnings.warn(
        f"recurrent models run without fused kernels, several times slower on CPU: {why}",
        stacklevel=2,
    )


def _load(compiler: list[str], path: Path) -> ctypes.CDLL:
    """The library at ``path``, compiled where it is not there or not what was compiled."""
    digest = path.with_suffix(".sha256")
    if not (
        path.exists()
        and digest.exists()
        and digest.read_text() == hashlib.sha256(path.read_bytes()).hexdigest()
    ):
        _compile(compiler, path, digest)
    found = ctypes.CDLL(str(path))
    assert found.cell and found.attention
    return found


def _compile(compiler: list[str], path: Path, digest: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if hasattr(os, "getuid") and path.parent.stat().st_uid != os.getuid():
        raise OSError(f"{path.parent} is another user's")
    why = ""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made, sum_ = Path(folder) / path.name, Path(folder) / digest.name
        for flags in FLAGS:
            command = [*compiler, *COMMON, *flags, "-o", str(made), str(SOURCE)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if done.returncode == 0:
                sum_.write_text(hashlib.sha256(made.read_bytes()).hexdigest())
                os.replace(
                    made, path
                )  # whole or not at all, where several processes compile at once
                os.replace(sum_, digest)
                return
            why = why or f"{' '.join(compiler)} says {done.stderr}"
    raise OSError(why)


def cache_folders() -> list[Path]:
    """Folders for what is made once a machine, best first: the user's cache folder, then one for temporary files."""
    found = []
    with contextlib.suppress(RuntimeError):  # a user without a home
        given = os.environ.get("XDG_CACHE_HOME")
        found.append((Path(given) if given else Path.home() / ".cache") / "fusetk")
    return [
        *found,
        Path(tempfile.gettempdir())
        / f"fusetk-{os.getuid() if hasattr(os, 'getuid') else 'kernels'}",
    ]


def _machine() -> str:
    """What -march=native goes by: on a shared home, each kind of machine has kernels of its own."""
    flags = ""
    with contextlib.suppress(OSError):
        flags = next(
            (
                line
                for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith(("flags", "Features"))
            ),
            "",
        )
    return " ".join((platform.machine(), platform.system(), platform.processor(), flags))
