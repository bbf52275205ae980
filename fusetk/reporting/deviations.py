"""Differences between the config of a run and its recipe."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fusetk.runs import CHECKPOINTS

SECTIONS = ("data", "model", "training", "decoding")  # parts of a config that affect scores
FILE_KEYS = ("train", "valid", "test")  # keys of the section data that name files
# Keys with files in the parts of the section data.
NESTED_FILE_KEYS = {"bpe": ("codes",), "vocabulary": ("source", "target")}
SELECTORS = ("kind", "step")  # keys whose value decides which other keys a part of a config has


class Difference(NamedTuple):
    """The values of a key in two configs.

    For lists of different lengths, the values are the complete lists.
    """

    key: str
    actual: Any
    expected: Any

    def __str__(self) -> str:
        if isinstance(self.actual, list) and isinstance(self.expected, list):
            lengths = len(self.actual), len(self.expected)
            if not self.key.startswith(("data.valid", "data.test")):
                return f"{self.key} has {lengths[0]} entries, not {lengths[1]}"
        return f"{self.key} {json.dumps(self.actual)}, not {json.dumps(self.expected)}"


def config_deviations(run: Mapping[str, Any], recipe: Mapping[str, Any]) -> list[str]:
    """Return each key of a run's config whose value differs from the recipe, with both values.

    Both are the plain values of complete configs. The seed, the folders of files, and keys that
    cannot change a score may differ.
    """
    return list(map(str, _config_differences(run, recipe)))


def config_overrides(run: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a run's config that ``config_deviations`` lists, by key."""
    return {difference.key: difference.actual for difference in _config_differences(run, recipe)}


def _config_differences(run: Mapping[str, Any], recipe: Mapping[str, Any]) -> list[Difference]:
    from fusetk.recipe import NEUTRAL_KEYS

    neutral = re.compile("|".join([r"training\.seed", *NEUTRAL_KEYS]))
    actual = without_folders(run)
    expected = without_folders(recipe)
    return [
        difference
        for section in SECTIONS
        for difference in _differences(actual.get(section), expected[section], section)
        if not neutral.fullmatch(difference.key)
    ]


def without_folders(config: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the paths of a config by names, because a text or a run may be in any folder."""
    values = dict(config)
    data, training = config.get("data"), config.get("training")
    if isinstance(data, dict):
        others = {key: value for key, value in data.items() if key != "folder"}
        parts = {
            name: _with_file_names(data[name], keys)
            for name, keys in NESTED_FILE_KEYS.items()
            if isinstance(data.get(name), dict)
        }
        values["data"] = {**_with_file_names(others, FILE_KEYS), **parts}
    if isinstance(training, dict) and isinstance(training.get("start_from"), str):
        values["training"] = {**training, "start_from": _run_name(training["start_from"])}
    return values


def _run_name(path: str) -> str:
    """Return the name of a run folder, or the end of a path that names a checkpoint in it."""
    parts = Path(path).parts
    return "/".join(parts[-3:] if parts[-2:-1] == (CHECKPOINTS,) else parts[-1:])


def _with_file_names(values: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Replace the paths in the values of ``keys`` by file names."""
    return {key: _file_names(value) if key in keys else value for key, value in values.items()}


def _file_names(value: Any) -> Any:
    """Replace each path in a string, a list or a dict by its file name."""
    if isinstance(value, dict):
        return {key: _file_names(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_file_names(inner) for inner in value]
    return Path(value).name if isinstance(value, str) else value


def _differences(actual: Any, expected: Any, key: str) -> list[Difference]:
    """Return each key with different values in the two configs.

    If the two configs select different components, all keys of the first one are compared: without
    its options, two configs of a component would be equal. If they select the same one, a key
    that only one config has is from another version of fusetk. It is ignored, except below
    `data.test`. `data.valid` and each list below `data.test` are compared as one value.
    """
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(actual, dict) and isinstance(expected, dict) and key != "data.valid":
        names = [name for name in actual if name in expected]
        if key == "data.test":
            names = list(actual | expected)
        elif any(actual.get(name) != expected.get(name) for name in SELECTORS):
            names = list(actual)
        pairs = [(name, actual.get(name), expected.get(name)) for name in names]
    elif (
        isinstance(actual, list)
        and isinstance(expected, list)
        and not key.startswith(("data.valid", "data.test"))
    ):
        if len(actual) != len(expected):
            return [Difference(key, actual, expected)]
        pairs = [(str(i), *values) for i, values in enumerate(zip(actual, expected, strict=True))]
    elif actual != expected:
        return [Difference(key, actual, expected)]
    return [
        difference
        for name, one, other in pairs
        for difference in _differences(one, other, f"{key}.{name}")
    ]


def flat_values(values: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings and lists by dotted keys: `training.stages.0.clip`."""
    if isinstance(values, Mapping):
        items: list[tuple[Any, Any]] = list(values.items())
    elif isinstance(values, list):
        items = list(enumerate(values))
    else:
        return {prefix: values}
    flat: dict[str, Any] = {}
    for name, value in items:
        flat |= flat_values(value, f"{prefix}.{name}" if prefix else str(name))
    return flat


def short_keys(keys: Sequence[str], others: Sequence[str] = ()) -> dict[str, str]:
    """Return for each key its shortest end that no other key and none of ``others`` has."""
    return {key: _short_key(key, [*keys, *others]) for key in keys}


def _short_key(key: str, keys: Sequence[str]) -> str:
    names = key.split(".")
    for start in range(len(names) - 1, 0, -1):
        end = ".".join(names[start:])
        if not any(other.endswith(f".{end}") for other in keys if other != key):
            return end
    return key
