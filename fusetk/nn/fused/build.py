"""Compilation of the C++ kernels in this folder, once on each machine."""

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from fusetk.files import cache_folders, lock, open_lock_file
from fusetk.nn.fused import enabled
from fusetk.processor import instructions

FOLDER = Path(__file__).parent
# The effect of missing kernels, by source file.
EFFECTS = {
    "recurrence": "recurrent models run several times slower on CPU",
    "transformer": "Transformers train about half as fast on CPU",
    "convolution": "convolutional models are about a tenth slower on CPU",
    "streams": "connections with several streams or sources train about half as fast on CPU",
    "decoding": "Transformers translate about half as fast on CPU",
    "products": "training may be about a tenth slower on CPU",
}
# Not every compiler knows -march=native or OpenMP. Without OpenMP the kernels use one thread.
FLAGS: tuple[list[str], ...] = (
    ["-march=native", "-fopenmp"],
    ["-mcpu=native", "-fopenmp"],
    ["-march=native", "-fopenmp-simd"],
    ["-mcpu=native", "-fopenmp-simd"],
    [],
)
LANGUAGE = "-std=gnu++17"  # the default of some compilers is C++98
SPEED = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
COMMON = [LANGUAGE, *SPEED, "-fPIC", "-shared"]
MAX_SECONDS = 120  # for one call of the compiler
WAIT = 0.1  # seconds between two attempts to lock the cache folder
LOCK = "kernels.lock"  # file in the cache folder
TEMPORARY = "compilation-"  # prefix of folders in the cache folder

_compilation = threading.Lock()  # several threads may need the same kernels


@cache
def library(name: str) -> ctypes.CDLL | None:
    """Return the compiled kernels of the source file ``name``.cpp, one of ``EFFECTS``.

    Returns None if FUSETK_KERNELS disables them, or, with a warning, if they cannot be compiled.
    """
    if not enabled():
        return None
    compiler, reason = _compiler()
    source = FOLDER / f"{name}.cpp"
    code = b"".join(file.read_bytes() for file in (source, *sorted(FOLDER.glob("*.h"))))
    stem = f"{name}-{_checksum(code + repr((FLAGS, COMMON, _machine())).encode())}"
    with _compilation:
        if not compiler:
            # Another machine of this kind may have compiled the kernels. A wrong CXX is an error.
            folders = [] if os.environ.get("CXX") else cache_folders()
            paths = [path for folder in folders for path in sorted(folder.glob(f"{stem}-*.so"))]
            if (loaded := _load(paths)) is None:
                _warn(name, reason)
            return loaded
        file = f"{stem}-{_checksum(repr(compiler).encode())}.so"
        paths = [folder / file for folder in cache_folders()]
        if (loaded := _load(paths)) is not None:
            return loaded
        for path in paths:
            try:
                _compile_once(compiler, source, path)
                return ctypes.CDLL(str(path))
            except subprocess.TimeoutExpired:  # another folder does not make the compiler faster
                limit = f"{MAX_SECONDS} seconds, here or in another process"
                reason = f"{' '.join(compiler)} took more than {limit}"
                break
            except OSError as error:
                reason = reason or " ".join(str(error).split())[:400]
        _warn(name, reason or "no folder is writable: set XDG_CACHE_HOME to a writable one")
    return None


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _load(paths: Iterable[Path]) -> ctypes.CDLL | None:
    """Load the first complete library. The first folder may be full, or not allow programs."""
    for path in paths:
        with contextlib.suppress(OSError):
            if _is_complete(path):
                return ctypes.CDLL(str(path))
    return None


@cache
def sources_hash() -> str:
    """Return a hash of the sources of all kernels."""
    files = sorted((*FOLDER.glob("*.cpp"), *FOLDER.glob("*.h")))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _compiler() -> tuple[list[str], str]:
    """Return the path and arguments of the C++ compiler, or an empty list and the reason."""
    try:
        command = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:  # an open quote, or a backslash at the end
        return [], f"CXX cannot be parsed ({error}): {os.environ['CXX']}; correct its quotes"
    for program in command[:1] or ("c++", "g++", "clang++"):
        if path := shutil.which(program):
            return [path, *command[1:]], ""
    if command:
        return [], f"there is no compiler {command[0]}, which CXX names"
    return [], "there is no C++ compiler (c++, g++ or clang++)"


def _warn(name: str, reason: str) -> None:
    warnings.warn(f"{EFFECTS[name]} without compiled kernels: {reason}", stacklevel=2)


def _is_complete(path: Path) -> bool:
    """Whether the library at ``path`` exists and is not damaged.

    Raises OSError if the folder belongs to another user.
    """
    checksum = path.with_suffix(".sha256")
    if path.parent.exists():
        _check_owner(path.parent)
    return (
        path.exists()
        and checksum.exists()
        and checksum.read_bytes() == hashlib.sha256(path.read_bytes()).hexdigest().encode()
    )


def _check_owner(folder: Path) -> None:
    """Raise OSError if the folder belongs to another user, whose libraries are not loaded."""
    if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
        raise OSError(f"{folder} belongs to another user")


def _compile_once(compiler: list[str], source: Path, path: Path) -> None:
    """Make a library, unless another process made it. Parallel processes wait for the first.

    The wait ends when the library is complete. Raises subprocess.TimeoutExpired if the compiler or
    the other process takes too long.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_owner(path.parent)
    start = time.monotonic()
    with open_lock_file(path.parent / LOCK) as file:
        while not lock(file):
            if _is_complete(path):  # the other process now compiles another library
                return
            if time.monotonic() - start > MAX_SECONDS:  # the other process may be stopped
                raise subprocess.TimeoutExpired(compiler, MAX_SECONDS)
            time.sleep(WAIT)
        if _is_complete(path):
            return
        if time.monotonic() - start > MAX_SECONDS / 2:  # it took too long in another process
            raise subprocess.TimeoutExpired(compiler, MAX_SECONDS)
        _compile(compiler, source, path)


def _compile(compiler: list[str], source: Path, path: Path) -> None:
    """Make a library and its checksum; the caller holds the lock of the folder."""
    checksum = path.with_suffix(".sha256")
    for old in path.parent.glob(f"{TEMPORARY}*"):  # of a process that was killed
        shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=path.parent) as folder:
        new_path = Path(folder) / path.name
        new_checksum = Path(folder) / checksum.name
        failure = _try_flags(compiler, FLAGS[0], source, new_path)
        if failure and not new_path.exists() and _accepts(compiler, FLAGS[0], Path(folder)):
            # The flags are not the cause: a signal or short memory may have ended the compiler.
            failure = _try_flags(compiler, FLAGS[0], source, new_path)
        if failure and all(_try_flags(compiler, flags, source, new_path) for flags in FLAGS[1:]):
            raise OSError(failure)
        new_checksum.write_text(hashlib.sha256(new_path.read_bytes()).hexdigest())
        # Other processes may read these files now: each is replaced at once.
        os.replace(new_path, path)
        os.replace(new_checksum, checksum)


def _try_flags(compiler: list[str], flags: Sequence[str], source: Path, path: Path) -> str:
    """Make a library; return why it cannot be compiled or loaded, or an empty text."""
    result = _run_compiler(compiler, flags, source, path)
    if result.returncode:
        path.unlink(missing_ok=True)
        message = result.stderr.decode(errors="replace").strip()
        said = f"reports {message}" if message else f"ended with status {result.returncode}"
        return f"{' '.join(compiler)} {said}"
    return _load_error(path)


def _accepts(compiler: list[str], flags: Sequence[str], folder: Path) -> bool:
    """Whether a compiler accepts these flags for an empty file."""
    source = folder / "empty.cpp"
    source.write_text("")
    return _run_compiler(compiler, flags, source, folder / "empty.so").returncode == 0


def _run_compiler(
    compiler: list[str], flags: Sequence[str], source: Path, path: Path
) -> subprocess.CompletedProcess[bytes]:
    """Run the compiler. Raises subprocess.TimeoutExpired after MAX_SECONDS."""
    command = [*compiler, *COMMON, *flags, "-o", str(path), str(source)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            output = process.communicate(timeout=MAX_SECONDS)
        except BaseException:
            _kill(process)
            raise
    return subprocess.CompletedProcess(command, process.returncode, *output)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, and the processes that it started.

    For example, g++ starts cc1plus, which would continue without it.
    """
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _load_error(path: Path) -> str:
    """Return why a library cannot be loaded, for example because that of OpenMP is missing.

    The text is empty if it can be loaded.
    """
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        return str(error)
    return ""


def _machine() -> str:
    """Return a description of the processor, on which the result of -march=native depends.

    It is part of the library's name, so machines that share a home folder have separate kernels.
    """
    return " ".join((platform.machine(), platform.system(), platform.processor(), instructions()))
