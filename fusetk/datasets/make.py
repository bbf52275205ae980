"""Raw text from the files of a data set."""

import fnmatch
import glob
import json
import os
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fusetk.data.text import cannot_write, writer
from fusetk.datasets import formats
from fusetk.datasets.fetch import check, fetch
from fusetk.datasets.table import DatasetConfig, TextConfig
from fusetk.errors import DataError, one_line
from fusetk.files import digest, locked, replace_file

PACKED = (".tgz", ".tar.gz", ".tar", ".zip")
ARCHIVES = "archives"  # default folder of the archives, below that of the raw text
UNPACKED = ".unpacked"  # folder of the members of archives, below that of the raw text
ORIGINS = ".origins.json"  # the origin of each file of raw text, in its folder


def make(
    dataset: DatasetConfig,
    raw: Path,
    files: Path,
    fetching: bool,
    report: Callable[[str], None],
    any_data: bool = False,
) -> dict[str, int]:
    """Write the raw text of a data set, and return the number of pairs of each text.

    ``files`` is the folder of the archives or their unpacked files. With ``fetching``, missing
    archives are downloaded into it. Texts that exist in ``raw`` are not made again. Raises
    DataError if a file is missing or damaged, if the sides of a text differ in length, if a text
    does not have its published length and ``any_data`` is not set, or if ``raw`` has another file
    with the name of a text.
    """
    raw.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    with locked(raw):
        check_origins(dataset, raw)
        missing = [text for text in dataset.texts if not _exists(text, dataset, raw)]
        _check_unknown_files(missing, dataset, raw)
        if not missing:
            return counts
        shutil.rmtree(raw / UNPACKED, ignore_errors=True)  # a killed call may have left it
        try:
            _unpack(dataset, missing, files, raw / UNPACKED, fetching, report)
            for text in missing:
                counts[text.name] = _make_text(text, dataset, raw, files, any_data)
                report(f"{raw / text.name}: {counts[text.name]:,} pairs")
        finally:
            shutil.rmtree(raw / UNPACKED, ignore_errors=True)
    return counts


def _exists(text: TextConfig, dataset: DatasetConfig, raw: Path) -> bool:
    return all(
        _has_file(raw, f"{text.name}.{language}") for language in (dataset.source, dataset.target)
    )


def _has_file(raw: Path, name: str) -> bool:
    return any((raw / f"{name}{ending}").is_file() for ending in ("", ".gz"))


# Origins ------------------------------------------------------------------------------------------


def check_origins(dataset: DatasetConfig, raw: Path) -> None:
    """Raise DataError if ``raw`` has a text of another data set with the name of one of this set.

    Files that ``make`` did not write have no known origin, and are accepted.
    """
    origins = _read_origins(raw)
    for text in dataset.texts:
        for path, name, origin in _existing_files(text, dataset, raw):
            existing = origins.get(name, origin)
            if existing["digest"] == origin["digest"]:
                continue
            reason = "was made from another file or with other settings: delete it, or"
            if existing["dataset"] != dataset.title:
                reason = f"is a text of {existing['dataset']}, and {dataset.title} has another text"
                reason += " of this name:"
            raise DataError(f"{path} {reason} choose another folder with --raw")


def _check_unknown_files(texts: Iterable[TextConfig], dataset: DatasetConfig, raw: Path) -> None:
    """Raise DataError if a text would replace a file that ``make`` did not write."""
    origins = _read_origins(raw)
    for text in texts:
        for path, name, _ in _existing_files(text, dataset, raw):
            if name not in origins:
                raise DataError(
                    f"{path} exists, and no data set made it: move it, or add the other side of "
                    f"{text.name}"
                )


def _existing_files(
    text: TextConfig, dataset: DatasetConfig, raw: Path
) -> Iterator[tuple[Path, str, dict[str, str]]]:
    """Yield the files of a text, their names without .gz, and the origins that ``make`` records."""
    for path in sorted(raw.glob(f"{glob.escape(text.name)}.*")):
        name = path.name.removesuffix(".gz")
        language = name.removeprefix(f"{text.name}.")
        is_reference = re.fullmatch(re.escape(dataset.target) + "[0-9]*", language)
        if path.is_file() and (language == dataset.source or is_reference):
            yield path, name, _origin(text, dataset, language)


def _origin(text: TextConfig, dataset: DatasetConfig, side: str) -> dict[str, str]:
    """Return the title of the data set, and a digest of the file and the settings of a side.

    ``side`` is a language, with a number for further references. The digest of plain lines includes
    the data set, because a name such as train.en does not identify the content. Other formats have
    unique file names, so data sets can share them.
    """
    values = text.model_dump(exclude={"name", "source", "target", "pairs"}, exclude_defaults=True)
    values["file"] = text.source if side == dataset.source else text.target
    if text.format == "lines":
        values["dataset"] = dataset.title
    return {"dataset": dataset.title, "digest": digest(values)}


def _read_origins(raw: Path) -> dict[str, dict[str, str]]:
    """Return the origins of files by name. Raises DataError if their file is damaged."""
    path = raw / ORIGINS
    try:
        origins = json.loads(path.read_text("utf-8"))
        return {
            name: {key: str(each[key]) for key in ("dataset", "digest")}
            for name, each in origins.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        raise DataError(
            f"{path} is damaged; it records the data set of each text: restore it, or make the "
            "texts again in another folder"
        ) from None


# Archives -----------------------------------------------------------------------------------------


def _patterns(texts: Iterable[TextConfig]) -> list[str]:
    return [pattern for text in texts for pattern in (text.source, text.target)]


def _unpack(
    dataset: DatasetConfig,
    texts: list[TextConfig],
    files: Path,
    folder: Path,
    fetching: bool,
    report: Callable[[str], None],
) -> None:
    """Write the members of the archives that the texts need into a folder."""
    needed = [name for name in _patterns(texts) if not _files_of(name, [files])]
    if not needed:
        return
    folder.mkdir(exist_ok=True)
    for archive in dataset.archives:
        if all(_files_of(name, [files, folder]) for name in needed):
            return
        path = files / archive.file
        if path.is_file():
            check(archive, path)
        elif fetching and archive.url:
            fetch(archive, files, report)
        if path.is_file() and path.name.endswith(PACKED):
            _extract(path, needed, folder)


def _extract(path: Path, patterns: list[str], folder: Path) -> None:
    """Write the members of an archive whose names match a pattern.

    Raises DataError if the archive is damaged, if a member cannot be written, or if two members
    have the same file name.
    """
    extracted: dict[str, str] = {}
    try:
        for name, file in _members(path):
            base = name.rpartition("/")[2]
            if any(_matches(base, pattern) for pattern in patterns):
                if (other := extracted.setdefault(base, name)) != name:
                    raise DataError(
                        f"{path} has several files with the name {base}: {other} and {name}; "
                        f"unpack it in {path.parent}, and keep one of them"
                    )
                with open(folder / base, "wb") as output:
                    shutil.copyfileobj(file, output, 1 << 20)
    except RuntimeError as error:  # encrypted, or an unknown compression
        raise DataError(
            f"{path} cannot be unpacked ({error}): unpack it in {path.parent}"
        ) from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an error of the system
            if error.filename == str(path):
                raise DataError(f"{path} cannot be read: {error.strerror}") from None
            raise cannot_write(error.filename or folder, error) from None
        raise DataError(
            f"{path} ({path.stat().st_size:,} bytes) is not a complete archive "
            f"({one_line(error)}): "
            "delete it and get it again"
        ) from None


def _members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the names and contents of the files of an archive."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as zipped:
            for name in zipped.namelist():
                with zipped.open(name) as member:
                    yield name, member
        return
    with tarfile.open(path) as tar:
        for entry in tar:
            try:
                file = tar.extractfile(entry)
            except KeyError:  # a link to a missing file
                continue
            if file:
                yield entry.name, file


def _matches(name: str, pattern: str) -> bool:
    """Whether a file name is that of a pattern, packed or not."""
    return fnmatch.fnmatchcase(name.removesuffix(".gz"), pattern)


def _files_of(pattern: str, folders: Iterable[Path]) -> list[Path]:
    """Return the files below the folders whose names match a pattern."""
    return sorted(
        Path(folder) / name
        for top in folders
        for folder, _, names in os.walk(top)
        for name in names
        if _matches(name, pattern) and (Path(folder) / name).is_file()
    )


def _find(pattern: str, dataset: DatasetConfig, files: Path, unpacked: Path) -> Path:
    """Return the file of a pattern. Raises DataError if there is none, or more than one."""
    paths = _files_of(pattern, [files]) or _files_of(pattern, [unpacked])
    if len(paths) == 1:
        return paths[0]
    if paths:
        listed = ", ".join(map(str, paths))
        raise DataError(f"several files match {pattern}: {listed}; keep one of them")
    sources = [f"{archive.file} ({archive.url or archive.note})" for archive in dataset.archives]
    listed = ", ".join(sources)
    raise DataError(
        f"{pattern} is missing in {files} and in the archives there: put it into this folder"
        f"{f', or one of {listed}' if listed else ''}"
    )


def _make_text(
    text: TextConfig, dataset: DatasetConfig, raw: Path, files: Path, any_data: bool
) -> int:
    """Write the files of a text in one step, and return the number of its pairs."""
    source = _find(text.source, dataset, files, raw / UNPACKED)
    target = _find(text.target, dataset, files, raw / UNPACKED)
    sides: dict[str, Iterable[str]] = {}
    if text.format == "segments":
        source_segments = formats.segments(source, text)
        target_segments = formats.segments(target, text)
        sides[dataset.source] = [segment.text for segment in source_segments]
        found = formats.references(source_segments, target_segments, target)
        for number, lines in enumerate(found):
            sides[f"{dataset.target}{number or ''}"] = lines
    else:
        sides[dataset.source] = formats.plain_lines(source, text)
        sides[dataset.target] = formats.plain_lines(target, text)
    with _new_files(raw, [f"{text.name}.{side}" for side in sides]) as parts:
        counts = [_write(part, lines) for part, lines in zip(parts, sides.values(), strict=True)]
        paths = [source, *[target] * (len(counts) - 1)]
        pairs = formats.same_number(text.name, zip(paths, counts, strict=True))
        if text.pairs is not None and pairs != text.pairs and not any_data:
            raise DataError(
                f"{text.name} has {pairs:,} pairs, but the published text has {text.pairs:,}: "
                "check the files, or use them with --any-data"
            )
        new = {f"{text.name}.{side}": _origin(text, dataset, side) for side in sides}
        origins = _read_origins(raw) | new
        replace_file(raw / ORIGINS, json.dumps(origins, indent=1) + "\n")
    return pairs


@contextmanager
def _new_files(folder: Path, names: list[str]) -> Iterator[list[Path]]:
    """Yield temporary paths for new files, which get their names at the end without error.

    The first file gets its name last. If the process is killed, this file is missing, and the next
    call makes all files again.
    """
    parts = [folder / f".{name}.part" for name in names]
    try:
        yield parts
        for part, name in reversed(list(zip(parts, names, strict=True))):
            part.replace(folder / name)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def _write(path: Path, lines: Iterable[str]) -> int:
    count = 0
    with writer(path) as file:
        for line in lines:
            file.write(f"{line}\n")
            count += 1
    return count
