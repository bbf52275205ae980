"""Files that are complete or missing, locks on folders, checksums, the folders of caches.

This module imports nothing of fusetk.
"""

import difflib
import glob
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

BLOCK = 1 << 20
TEMPORARY = ".new"  # end of the temporary names of `replace_file`


def similar_names(path: Path, number: int = 3) -> list[str]:
    """Return the names of files and folders beside a missing path that resemble its name."""
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:
        return []
    return difflib.get_close_matches(path.name, names, number)


def is_stream(path: str | Path) -> bool:
    """Whether a path is standard input or output (-), a pipe or a device."""
    file = Path(path)
    return str(path) == "-" or (file.exists() and not (file.is_file() or file.is_dir()))


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; None if it is missing, unreadable or not valid JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def replace_file(path: Path, content: bytes | str) -> None:
    """Write a file under a temporary name, flush it to disk and rename it.

    At any time the old or the new file is complete. Raises OSError, which names the file, if it
    cannot be written; then the old file is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        with open(temporary, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        error.filename = str(path)
        raise


def remove_temporary_files(folder: Path, names: Iterable[str]) -> None:
    """Remove the files that killed processes left in ``folder`` when they replaced ``names``.

    Call it only if no other process writes these files.
    """
    for name in names:
        for path in folder.glob(f".{glob.escape(name)}.*{TEMPORARY}"):
            path.unlink(missing_ok=True)


def write_if_changed(path: Path, content: bytes) -> bool:
    """Replace a file unless it has this content already; return whether it was written.

    Creates its folder if it is missing. Raises OSError if the file cannot be read or written.
    """
    if path.is_file() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
    return True


def flush(path: Path) -> None:
    """Flush a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(file: IO[Any] | int, wait: bool = False) -> bool:
    """Lock an open file or folder until it is closed.

    Return False if another process holds the lock and ``wait`` is not set. Return True without a
    lock if the system or the file system does not support it.
    """
    return try_lock(file, wait) is not False


def try_lock(file: IO[Any] | int, wait: bool = False) -> bool | None:
    """Lock as ``lock`` does, but return None if the lock is not supported.

    NFS supports it only for files that are open for writing, and therefore not for folders.
    """
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Within this context no other process holds the lock of the folder.

    If another process holds the lock, wait until it is released. The lock has no effect on NFS,
    which cannot lock folders. Raises OSError if the folder is missing.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Within this context no other process holds the lock of a file that is created if necessary.

    If another process holds the lock, wait until it is released. Raises OSError if the file cannot
    be opened.
    """
    with open_lock_file(path) as file:
        lock(file, wait=True)
        yield


def open_lock_file(path: Path) -> IO[bytes]:
    """Open a file to lock it; create it if it is missing. Raises OSError."""
    try:
        return open(path, "ab")
    except PermissionError:
        if not path.exists():
            raise
        return open(path, "rb")  # another user of the group created it


def digest(value: Any) -> str:
    """Return the SHA-256 of plain values (dicts, lists, text, numbers) as hexadecimal text."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, ensure_ascii=False).encode()
    ).hexdigest()


def checksum(path: Path, kind: str = "sha256") -> str:
    """Return the checksum of a file's content as hexadecimal text. Raises OSError."""
    # In FIPS mode, a system refuses MD5 unless its use is not for security.
    total = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            total.update(block)
    return total.hexdigest()


def code_checksums(kinds: Iterable[str]) -> dict[str, str]:
    """Return the checksum of the source file of each module, for kinds `package.module:Name`.

    Modules that are not imported, or whose file does not exist, are omitted.
    """
    modules = {kind.partition(":")[0] for kind in kinds}
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in sorted(modules)}
    return {
        name: checksum(Path(file)) for name, file in files.items() if file and Path(file).is_file()
    }


def cache_folders() -> list[Path]:
    """Return folders for files that are made once on a machine, the preferred one first.

    The folders are in the user's cache folder and in the folder of temporary files.
    """
    folders = []
    with suppress(RuntimeError):  # the user may have no home folder
        cache_home = os.environ.get("XDG_CACHE_HOME")
        folders.append((Path(cache_home) if cache_home else Path.home() / ".cache") / "fusetk")
    user = os.getuid() if hasattr(os, "getuid") else "kernels"
    with suppress(OSError):  # no folder of temporary files may be writable
        folders.append(Path(tempfile.gettempdir()) / f"fusetk-{user}")
    return folders
