"""The names of result files, which follow from the recipes."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fusetk.errors import DataError
from fusetk.files import write_if_changed
from fusetk.reporting.deviations import SECTIONS, config_overrides, flat_values, short_keys
from fusetk.reporting.result_files import (
    RunResult,
    missing_text,
    read_results,
    result_text,
    translations_path,
)
from fusetk.reporting.tables import PaperRow

SHORT_VALUE = re.compile(r"[\w.+-]{1,24}")  # values that a file name can contain
LONGEST_STEM = 180  # characters; file systems allow 255, with the test set and the endings


def file_stem(result: RunResult, row: PaperRow) -> str:
    """Return the name of a result file without its ending.

    The values that differ from the recipe follow the seed. Their keys are shortened as far as they
    are unique in the recipe; a value that is not short is replaced by its checksum. If the name is
    longer than ``LONGEST_STEM``, the checksum of all these values replaces them.
    """
    parts = [f"{result.system}.seed{result.seed}"]
    keys = list(flat_values({section: row.config.get(section) for section in SECTIONS}))
    names = short_keys(list(result.overrides), keys)
    for key, value in result.overrides.items():
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        if not SHORT_VALUE.fullmatch(text):
            text = hashlib.sha256(text.encode()).hexdigest()[:8]
        parts.append(f"{names[key]}={text}")
    stem = ".".join(parts)
    if len(stem) > LONGEST_STEM:
        values = json.dumps(result.overrides, sort_keys=True)
        stem = f"{parts[0]}.{hashlib.sha256(values.encode()).hexdigest()[:8]}"
    return stem


class _Change(NamedTuple):
    """A result file whose content or name does not suit the current recipes."""

    path: Path
    target: Path  # the file with the new name
    result: RunResult  # the new content


def rename_results(folder: Path, systems: Mapping[str, PaperRow]) -> list[tuple[Path, Path]]:
    """Compare the results in the folder with the current recipes, and rename those that changed.

    ``systems`` are the rows by the file names of their recipes. Returns the old and new paths of
    the renamed files. For example, a run with another config becomes a result of its row if the
    recipe adopted its values. If this process is killed, each result is complete under its old or
    its new name, and the next call continues. Raises DataError if two results would have the same
    name, or if a file is damaged or missing, and OSError if one cannot be written.
    """
    renamed: list[tuple[Path, Path]] = []
    results = read_results(folder)
    changes = _changes(results, systems)
    _check_targets(results, changes)
    waiting = {
        change.path: change
        for change in changes
        # A process that was killed before it removed the old file has copied it.
        if results.get(change.target) != change.result
    }
    texts = {
        path: {
            name: _read_translations(translations_path(folder, path.stem, name))
            for name in change.result.translations
        }
        for path, change in waiting.items()
    }
    while waiting:
        path = _replaces_no_other(waiting)
        change = waiting.pop(path)
        for name, content in texts[path].items():
            write_if_changed(translations_path(folder, change.target.stem, name), content)
        write_if_changed(change.target, result_text(change.result).encode())
        if change.target != path:
            renamed.append((path, change.target))
    targets = {change.target for change in changes}
    for change in changes:
        if change.path not in targets:
            for name in change.result.translations:
                translations_path(folder, change.path.stem, name).unlink(missing_ok=True)
            change.path.unlink()
    return renamed


def _changes(results: Mapping[Path, RunResult], systems: Mapping[str, PaperRow]) -> list[_Change]:
    """Return the changes of the results of these systems that follow from their recipes."""
    changes = []
    for path, result in results.items():
        row = systems.get(result.system)
        if row is None:
            continue
        current = result.model_copy(
            update={**row_fields(row), "overrides": config_overrides(result.config, row.config)}
        )
        target = path.with_name(f"{file_stem(current, row)}.json")
        if current != result or target != path:
            changes.append(_Change(path, target, current))
    return changes


def _check_targets(results: Mapping[Path, RunResult], changes: Sequence[_Change]) -> None:
    """Raise DataError if two results would have the same name."""
    moved = {change.path for change in changes}
    path_of: dict[Path, Path] = {}  # by target
    for path, target, result in changes:
        other = path_of.setdefault(target, path)
        if other != path:
            raise _equal_results(other, path)
        # A file that keeps its name may be the copy that a killed process made.
        if target in results.keys() - moved and results[target] != result:
            raise _equal_results(path, target)


def _equal_results(first: Path, second: Path) -> DataError:
    return DataError(
        f"{first} and {second} have the same system, seed and config: remove one of them"
    )


def _replaces_no_other(waiting: Mapping[Path, _Change]) -> Path:
    """Return a file whose new name is not that of another file that waits for its new name.

    If there is none, return the first file.
    """
    for path, change in waiting.items():
        if change.target not in waiting.keys() - {path}:
            return path
    return next(iter(waiting))


def _read_translations(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise missing_text(path) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def row_fields(row: PaperRow) -> dict[str, Any]:
    """Return the fields of a result that its recipe determines."""
    return {
        "table": row.paper.table,
        "row": row.name,
        "line": row.paper.line,
        "compared_with": row.paper.compared_with,
    }
