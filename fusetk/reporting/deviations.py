"""Differences between the config of a run and its recipe."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SECTIONS = ("data", "model", "training", "decoding")  # parts of a config that affect scores
FILE_KEYS = ("train", "valid", "test")  # keys of the section data that name files


def config_deviations(run: Mapping[str, Any], recipe: Mapping[str, Any]) -> list[str]:
    """Return each key of a run's config whose value differs from the recipe, with both values.

    Both are the plain values of complete configs. The seed, the folders of files, and keys that
    cannot change a score may differ.
    """
    from fusetk.recipe import NEUTRAL_KEYS

    neutral = re.compile("|".join([r"training\.seed", *NEUTRAL_KEYS]))
    actual = _without_folders(run)
    expected = _without_folders(recipe)
    return [
        f"{key} {difference}"
        for section in SECTIONS
        for key, difference in _differences(actual.get(section), expected[section], section)
        if not neutral.fullmatch(key)
    ]


def _without_folders(config: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the paths of a config by file names, because a text may be in any folder."""
    data = config.get("data")
    if not isinstance(data, dict):
        return dict(config)
    others = {key: value for key, value in data.items() if key != "folder"}
    files = {key: _file_names(data[key]) for key in FILE_KEYS if key in data}
    return {**config, "data": {**others, **files}}


def _file_names(value: Any) -> Any:
    """Replace each path in a string, a list or a dict by its file name."""
    if isinstance(value, dict):
        return {key: _file_names(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_file_names(inner) for inner in value]
    return Path(value).name if isinstance(value, str) else value


def _differences(actual: Any, expected: Any, key: str) -> list[tuple[str, str]]:
    """Return each key with different values in the two configs, and the difference.

    A key that only one config has exists in one version of fusetk only. It is ignored, except below
    `data.test`. `data.valid` and each list below `data.test` are compared as one value.
    """
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(actual, dict) and isinstance(expected, dict) and key != "data.valid":
        names = [name for name in actual if name in expected]
        if key == "data.test":
            names = list(actual | expected)
        pairs = [(name, actual.get(name), expected.get(name)) for name in names]
    elif (
        isinstance(actual, list)
        and isinstance(expected, list)
        and not key.startswith(("data.valid", "data.test"))
    ):
        if len(actual) != len(expected):
            return [(key, f"has {len(actual)} entries, not {len(expected)}")]
        pairs = [(str(i), *values) for i, values in enumerate(zip(actual, expected, strict=True))]
    elif actual != expected:
        return [(key, f"{json.dumps(actual)}, not {json.dumps(expected)}")]
    return [
        difference
        for name, one, other in pairs
        for difference in _differences(one, other, f"{key}.{name}")
    ]
