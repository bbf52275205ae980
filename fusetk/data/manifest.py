"""`manifest.json`: the inputs, settings and outputs of a prepared folder."""

import codecs
import hashlib
import json
import platform
import zlib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError, model_validator

from fusetk import display
from fusetk.data.text import BOM, FilePair, open_bytes, read_lines, unequal
from fusetk.errors import DataError
from fusetk.files import BLOCK, checksum, digest, read_json, replace_file

NAME = "manifest.json"
FORMAT = 1
SMALL = 1 << 24  # bytes; the records of larger outputs also have a checksum of some pieces
PIECES = 256  # number of these pieces
PIECE = 1 << 16  # bytes of a piece
READ = ("train.", "valid.", "text/")  # prefixes of the outputs that training reads
MOST_SHOWN = 80  # characters of a changed value in a message
# size, mtime_ns and sha256. Inputs also have lines, .gz inputs also content, the sha256 of the
# decompressed text, and large outputs also sample.
Record = dict[str, Any]


class FileRecord(BaseModel):
    """Required keys of the record of a file in a manifest."""

    size: int
    mtime_ns: int
    sha256: str


class StageRecord(BaseModel):
    """Required keys of the record of a stage in a manifest."""

    key: str
    settings: dict[str, Any]
    inputs: dict[str, FileRecord]
    needs: list[str]
    outputs: dict[str, FileRecord]
    results: dict[str, Any]


class SideRecord(BaseModel):
    """Required keys of the record of a side of a split in a manifest."""

    language: str
    dtype: str
    sentences: int
    tokens_with_end: int
    largest: int


class SegmentationRecord(BaseModel):
    """Required keys of the record of a segmentation of a split in a manifest."""

    source: SideRecord
    target: SideRecord


class CorpusRecord(BaseModel):
    """Required keys of the record of one of the corpora of a split in a manifest."""

    prefix: str
    pairs: int


class SplitRecord(SegmentationRecord):
    """Keys of the record of a split in a manifest. Corpora and segmentations are optional."""

    corpora: list[CorpusRecord] = []
    segmentations: list[SegmentationRecord] = []

    @model_validator(mode="after")
    def _corpora_have_all_pairs(self) -> "SplitRecord":
        if self.corpora and sum(part.pairs for part in self.corpora) != self.source.sentences:
            raise ValueError("the corpora do not have the pairs of the split")
        return self


class CompleteManifest(BaseModel):
    """Required keys of a manifest."""

    settings: dict[str, Any]
    vocabulary: dict[str, Any]
    splits: dict[str, SplitRecord]
    inputs: dict[str, FileRecord]
    stages: dict[str, StageRecord]


_STAGES = TypeAdapter(dict[str, StageRecord])


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a complete folder.

    Raises DataError if it is missing, unreadable, damaged or of another version of fusetk.
    """
    path = folder / NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except NotADirectoryError:
        raise DataError(
            f"{folder} is not a folder: name the folder of fusetk prep in data.folder"
        ) from None
    except FileNotFoundError:
        raise DataError(
            f"{folder} has no {NAME}: it is not prepared, or prep was interrupted; run fusetk prep"
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _damaged(path) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise DataError(f"{path} was written by another version of fusetk; run fusetk prep again")
    try:
        CompleteManifest.model_validate(data, strict=True)
    except ValidationError:
        raise _damaged(path) from None
    return data


def checked_stages(document: Any) -> dict[str, dict[str, Any]]:
    """Return ``document["stages"]``, records of stages by name.

    Raises ValueError if they are damaged or of another version of fusetk.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("no records of this version")
    stages: dict[str, dict[str, Any]] = document.get("stages", {})
    _STAGES.validate_python(stages, strict=True)
    return stages


def _damaged(path: Path) -> DataError:
    return DataError(f"{path} is damaged; run fusetk prep again")


def is_of_prep(folder: Path) -> bool:
    """Whether a folder has a manifest of this or of another version of prep."""
    data = read_json(folder / NAME)
    return isinstance(data, dict) and "format" in data and "stages" in data


def write(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest. Readers see the old or the new file, both complete."""
    replace_file(folder / NAME, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")


def sample(path: Path) -> str:
    """Return the SHA-256 of pieces spread evenly over a file, from its first to its last bytes."""
    total = hashlib.sha256()
    last = max(path.stat().st_size - PIECE, 0)
    with open(path, "rb") as file:
        for i in range(PIECES):
            file.seek(last * i // (PIECES - 1))
            total.update(file.read(PIECE))
    return total.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that prepare data."""
    packages = package_versions(["fusetk", "sacremoses", "subword-nmt", "numpy"])
    return {"python": platform.python_version(), **packages}


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the version of each package."""
    return {package: _version(package) for package in packages}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


# Inputs ------------------------------------------------------------------------------------------


def same(path: Path, record: Record | None) -> bool:
    """Whether a file is unchanged: same size and time, or same size and checksum."""
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
    """Return the record of a file: size, time and checksum."""
    stat = path.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": checksum(path)}


def output_record(path: Path) -> Record:
    """Return the record of an output; large files have a checksum of some pieces as well."""
    entry = record(path)
    if entry["size"] > SMALL:
        entry["sample"] = sample(path)
    return entry


def inspect(path: Path, known: Record | None) -> Record:
    """Return the record of an input with its number of lines.

    An input that is unchanged since its ``known`` record is not read. Raises DataError if the file
    is empty, damaged or not UTF-8.
    """
    compressed = path.suffix == ".gz"
    needed = {"lines", "content"} if compressed else {"lines"}
    if known and needed <= known.keys() and same(path, known):
        return {**known, "mtime_ns": path.stat().st_mtime_ns}
    total = hashlib.sha256() if compressed else None
    lines = count_lines(path, total)
    if not lines:
        raise DataError(f"{path} is empty; give a file that holds text")
    content = {"content": total.hexdigest()} if total else {}
    return {**record(path), **content, "lines": lines}


def count_lines(path: Path, total: "hashlib._Hash | None" = None) -> int:
    """Return the number of lines of a text file; raises DataError if it is not UTF-8.

    The decompressed file is added to the checksum ``total``.
    """
    lines = 0
    complete = True  # whether the last line ends with a line feed
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_bytes(path) as file, display.task(f"reading {path.name}", "lines") as done:
        try:
            head = file.read(len(BOM))
            block = head.removeprefix(BOM)
            if total and not block:
                total.update(head)
            block = block or file.read(BLOCK)
            while block:
                if total:
                    total.update(block)
                decoder.decode(block)
                lines += block.count(b"\n")
                complete = block.endswith(b"\n")
                done.set(lines)
                block = file.read(BLOCK)
            decoder.decode(b"", True)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            for _ in read_lines(path):  # raises an error that names the line
                pass
            raise DataError(f"{path} cannot be read: {error}") from None
    return lines + (not complete)


def check_pairs(pairs: list[FilePair], inputs: Mapping[str, Record]) -> None:
    """Raise DataError if the two files of a pair have unequal numbers of lines."""
    for pair in pairs:
        source = inputs[str(pair.source)]["lines"]
        target = inputs[str(pair.target)]["lines"]
        if source != target:
            raise unequal(*pair, source, target)


def equal_texts(texts: Mapping[str, list[FilePair]], inputs: Mapping[str, Record]) -> Iterator[str]:
    """Yield a warning for each text that is in two places.

    These are equal files of a pair, held-out text that is also training text, and test text that is
    also validation text.
    """
    training = {_checksums(pair, inputs): pair for pair in texts["train"]}
    validation = {_checksums(pair, inputs): pair for pair in texts.get("valid", ())}
    for name, pairs in texts.items():
        for pair in pairs:
            sums = _checksums(pair, inputs)
            if sums[0] == sums[1]:
                yield f"{pair.source} and {pair.target} have the same content; check data.{name}"
            elif name != "train" and sums in training:
                text = training[sums]
                yield (
                    f"{pair.source} and {pair.target} equal the training text {text.source} and "
                    f"{text.target}; check data.{name}"
                )
            elif name not in ("train", "valid") and sums in validation:
                text = validation[sums]
                yield (
                    f"{pair.source} and {pair.target} equal the validation text {text.source} and "
                    f"{text.target}, so training selects the best checkpoint on a test text; check "
                    f"data.valid and data.{name}"
                )


def _checksums(pair: FilePair, inputs: Mapping[str, Record]) -> tuple[str, ...]:
    """Return the checksums of both files, of their decompressed text if they are .gz files."""
    records = [inputs[str(path)] for path in pair]
    return tuple(str(record.get("content", record["sha256"])) for record in records)


# Changes -----------------------------------------------------------------------------------------


def training_fingerprint(manifest: Mapping[str, Any]) -> str:
    """Return a checksum of the outputs that training reads, without test sets and paths."""
    outputs = {
        name: record["sha256"]
        for stage in manifest["stages"].values()
        for name, record in stage["outputs"].items()
    }
    return digest({name: sha256 for name, sha256 in outputs.items() if name.startswith(READ)})


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Yield a line for each setting that changed: `bpe.merges: 8000 -> 10000`."""
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            inner = f"{place}.{key}" if place else str(key)
            yield from differences(old.get(key), new.get(key), inner)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (first, second) in enumerate(zip(old, new, strict=True)):
            yield from differences(first, second, f"{place}.{i}")
    else:
        yield f"{place}: {' -> '.join(_shown(old, new))}"


def _shown(old: Any, new: Any) -> list[str]:
    """Return both values as text. If one is long, return their parts with the first difference."""
    texts = [
        "none" if value is None else json.dumps(value, ensure_ascii=False) for value in (old, new)
    ]
    start = 0
    if max(map(len, texts)) > MOST_SHOWN:
        equal = takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False))
        start = max(0, len(list(equal)) - MOST_SHOWN // 2)
    end = start + MOST_SHOWN
    return [
        f"{'...' if start else ''}{text[start:end]}{'...' if text[end:] else ''}" for text in texts
    ]
