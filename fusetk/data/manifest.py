"""What a prepared folder was made from: `manifest.json`, and what of it is out of date."""

import codecs
import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fusetk.data.text import BOM, Pair, open_bytes, read_lines, unequal
from fusetk.errors import DataError
from fusetk.files import BLOCK, checksum, digest, replace_file

NAME = "manifest.json"
FORMAT = 1
SMALL, PIECES, PIECE = 1 << 24, 256, 1 << 16  # larger files have a checksum of pieces, too
READ = ("train.", "valid.", "text/")  # what training reads of a folder
Record = dict[str, Any]  # size, mtime_ns, sha256, for inputs lines, and for large outputs sample


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a complete folder; raises DataError when there is none or it cannot be read."""
    path = folder / NAME
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{folder} has no {NAME}: it is not prepared, or prep was interrupted; run fusetk prep"
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise DataError(f"{path} is damaged; run fusetk prep again") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataError(f"{path} was written by another version of fusetk; run fusetk prep again")
    return found


def write(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest; a complete one is there at any time, or none."""
    replace_file(folder / NAME, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")


def sample(path: Path) -> str:
    """The SHA-256 of pieces that are spread over a file, its first and its last among them."""
    total = hashlib.sha256()
    last = max(path.stat().st_size - PIECE, 0)
    with open(path, "rb") as file:
        for i in range(PIECES):
            file.seek(last * i // (PIECES - 1))
            total.update(file.read(PIECE))
    return total.hexdigest()


def versions() -> dict[str, str]:
    """What the output depends on beside settings and inputs."""
    found = {"python": platform.python_version()}
    for package in ("fusetk", "sacremoses", "subword-nmt", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


# Inputs --------------------------------------------------------------------------------------------------------------


def same(path: Path, record: Record | None) -> bool:
    """Whether a file is as recorded: by size and time, and by checksum when only the time differs."""
    if record is None:
        return False
    try:
        stat = path.stat()
    except OSError:
        return False
    if stat.st_size != record["size"]:
        return False
    return stat.st_mtime_ns == record["mtime_ns"] or checksum(path) == record["sha256"]


def record(path: Path) -> Record:
    """What is recorded of a file."""
    stat = path.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": checksum(path)}


def written(path: Path) -> Record:
    """What is recorded of an output."""
    found = record(path)
    return {**found, "sample": sample(path)} if found["size"] > SMALL else found


def inspect(path: Path, known: Record | None) -> Record:
    """Record an input and count its lines, which is skipped when it is as known.

    Raises DataError for a file that is empty, damaged or not UTF-8.
    """
    if known and "lines" in known and same(path, known):
        return {**known, "mtime_ns": path.stat().st_mtime_ns}
    lines = count_lines(path)
    if not lines:
        raise DataError(f"{path} is empty; give a file with text in it")
    return {**record(path), "lines": lines}


def count_lines(path: Path) -> int:
    """The lines of a text file; raises DataError for bytes that are not UTF-8."""
    lines, ends = 0, True
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_bytes(path) as file:
        try:
            head = file.read(len(BOM))
            block = head.removeprefix(BOM) or file.read(BLOCK)
            while block:
                decoder.decode(block)
                lines += block.count(b"\n")
                ends = block.endswith(b"\n")
                block = file.read(BLOCK)
            decoder.decode(b"", True)
        except (OSError, EOFError, UnicodeDecodeError, ValueError) as error:
            for _ in read_lines(path):  # finds the line, and raises
                pass
            raise DataError(f"{path} cannot be read: {error}") from None
        except Exception as error:  # zlib.error is no OSError
            for _ in read_lines(path):
                pass
            raise DataError(f"{path} cannot be unpacked: {error}") from None
    return lines + (not ends)


def check_pairs(pairs: list[Pair], inputs: Mapping[str, Record]) -> None:
    """Raise DataError for files of a pair with unequal numbers of lines."""
    for pair in pairs:
        source, target = inputs[str(pair.source)]["lines"], inputs[str(pair.target)]["lines"]
        if source != target:
            raise unequal(pair, source, target)


# What changed --------------------------------------------------------------------------------------------------------


def training_fingerprint(manifest: Mapping[str, Any]) -> str:
    """A checksum of all that training reads: ids and vocabularies, but no test set and no path."""
    outputs = {
        name: record["sha256"]
        for stage in manifest["stages"].values()
        for name, record in stage["outputs"].items()
    }
    return digest({name: found for name, found in outputs.items() if name.startswith(READ)})


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Each setting that changed: `bpe.merges: 8000 -> 10000`."""
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(
                old.get(key), new.get(key), f"{place}.{key}" if place else str(key)
            )
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (first, second) in enumerate(zip(old, new, strict=True)):
            yield from differences(first, second, f"{place}.{i}")
    else:
        yield f"{place}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = "none" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
