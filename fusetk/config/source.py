"""Reading and writing of configs: ``extends``, overrides, and the place of each key."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import yaml

from fusetk.config.messages import shortened, shown
from fusetk.config.schema import NULL_WORDS, Config
from fusetk.config.yaml_errors import line_and_reason
from fusetk.config.yaml_text import Dumper, load_yaml, yaml_error
from fusetk.errors import ConfigError, quantity
from fusetk.files import is_stream, similar_names

Place = tuple[str | int, ...]  # keys and list indices, from the top of the config
# Keys that exclude each other, by the place of their mapping.
Alternatives = Mapping[Place, Set[str]]
# Other names of keys, and the keys, by the place of their mapping.
Aliases = Mapping[Place, Mapping[str, str]]
STANDARD_INPUT = Path("-")
DEEPEST = 100  # levels of a config; Python's recursion allows more
LONGEST_CHAIN = 100  # configs in a chain of `extends`; Python's recursion allows more
KEY_TYPES = ("str", "merge")  # YAML's types of keys: text, and the key <<
VARIABLE = re.compile(r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*)|\{([^}]*)\})")


class Origin(NamedTuple):
    """The place where a key was written."""

    text: str  # "file, line n", or the option of the command line
    folder: Path  # the folder that relative paths in the value start from


class Replaced(NamedTuple):
    """A mapping of an extended config that a mapping with another ``kind`` replaced."""

    values: dict[str, Any]
    origin: str  # of its ``kind``


class Document:
    """A config as nested dicts and lists, and the origin of each key."""

    def __init__(self, values: dict[str, Any], origins: dict[Place, Origin]):
        self.values = values
        self.origins = origins
        self.replaced: dict[Place, Replaced] = {}

    def where(self, place: Place) -> Origin:
        """Return the origin of a key, or of the nearest key above it, or of the file."""
        while place and place not in self.origins:
            place = place[:-1]
        return self.origins.get(place, Origin("", Path()))


def load(
    path: Path | str,
    overrides: Sequence[str] = (),
    alternatives: Alternatives | None = None,
    aliases: Aliases | None = None,
) -> Document:
    """Read a YAML file and the files that it extends, then apply overrides ``a.b=value``.

    The path - is standard input; paths in it start from the current folder. Later values win, key
    by key, also if one of them has another name of the key (``aliases``). A mapping with another
    ``kind``, or with another of its ``alternatives``, replaces the earlier mapping.

    Raises ConfigError for a file that cannot be read or parsed, and for an override without ``=``.
    """
    document = _read(Path(os.path.normpath(path)), (), alternatives or {}, aliases or {})
    for override in overrides:
        _override(document, override, alternatives or {}, aliases or {})
    return document


def dump(config: Config, paths: Sequence[Place] = ()) -> str:
    """Return the config with all its defaults as YAML that ``load`` can read.

    `$` in the values of the keys ``paths`` is escaped, so that ``expand_path`` returns them.
    """
    values = config.model_dump(mode="json")
    for *above, key in paths:
        section = mapping_at(values, above)
        if key in section:
            section[key] = _escape(section[key])
    return yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def _escape(value: Any) -> Any:
    """Return a path, or a list or mapping of paths, with `$$` for each `$`."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, list):
        return [_escape(item) for item in value]
    if isinstance(value, dict):
        return {key: _escape(item) for key, item in value.items()}
    return value


def expand_path(path: str) -> str:
    """Replace `~`, `~USER`, `$NAME` and `${NAME}` in a path as a shell does, and `$$` by `$`.

    Raises ValueError for an environment variable that is not set or empty, and for a user without a
    home folder.
    """

    def value_of(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        name = match[2] or match[3]
        if not os.environ.get(name):
            raise ValueError(
                f"the environment variable {name} in {path!r} is not set or is empty; "
                "set it, or write the path in full, with $$ for a dollar sign"
            )
        return os.environ[name]

    if path.startswith("~") and os.path.expanduser(path) == path:
        user = path.partition("/")[0]
        raise ValueError(
            f"{user} in {path!r} has no home folder; write ./~ for a name that begins with ~"
        )
    home, slash, rest = path.partition("/") if path.startswith("~") else ("", "", path)
    return os.path.expanduser(home).rstrip(slash) + slash + VARIABLE.sub(value_of, rest)


# Files -------------------------------------------------------------------------------------------


def _read(
    path: Path, extended_by: tuple[Path, ...], alternatives: Alternatives, aliases: Aliases
) -> Document:
    if path in extended_by:
        chain = " -> ".join(str(file) for file in (*extended_by, path))
        raise ConfigError(f"{path} extends itself: {chain}")
    if len(extended_by) >= LONGEST_CHAIN:
        raise ConfigError(
            f"{extended_by[-1]}: this config is at the end of a chain of {LONGEST_CHAIN} configs "
            f"that starts at {extended_by[0]}, and cannot extend another one: combine some of them"
        )
    text = _read_text(path, extended_by)
    path = Path("standard input") if path == STANDARD_INPUT else path  # its name in errors
    document = _parse_yaml(path, text)
    parents = document.values.pop("extends", None)
    if not isinstance(parents, list):
        parents = [] if parents is None else [parents]
    merged = Document({}, {})
    for parent in parents:
        extended = _read(_parent_path(path, parent), (*extended_by, path), alternatives, aliases)
        _merge(merged, extended, alternatives, aliases)
    _merge(merged, document, alternatives, aliases)
    return merged


def _read_text(path: Path, extended_by: tuple[Path, ...]) -> str:
    """Return the text of a config. Raises ConfigError if it cannot be read."""
    try:
        if not is_stream(path):
            return path.read_text(encoding="utf-8-sig")
        if extended_by:
            raise ConfigError(
                f"{extended_by[-1]}: extends: {path} is not a regular file; name a config file"
            )
        return _read_once(path, sys.stdin)
    except (OSError, UnicodeDecodeError) as error:
        source = f" (named by `extends` in {extended_by[-1]})" if extended_by else ""
        reason = error.strerror if isinstance(error, OSError) else _not_utf8(error)
        if isinstance(error, FileNotFoundError) and (near := similar_names(path, 1)):
            reason = f"{reason}; did you mean {path.with_name(near[0])}?"
        raise ConfigError(f"config {path}{source} cannot be read: {reason}") from None


@lru_cache(maxsize=1)
def _read_once(path: Path, standard_input: TextIO) -> str:
    """Return the content of a stream, also if a command reads its config again."""
    if path != STANDARD_INPUT:
        text = path.read_text(encoding="utf-8")
    elif hasattr(standard_input, "buffer"):  # the encoding of the stream may be another one
        text = standard_input.buffer.read().decode("utf-8")
    else:
        text = standard_input.read()
    return text.removeprefix("\ufeff")


def _not_utf8(error: UnicodeDecodeError) -> str:
    """Return why a config cannot be read as UTF-8, and what to do."""
    if error.object.startswith(b"\x1f\x8b"):
        return "it is a gzip file; unpack it first"
    line = error.object.count(b"\n", 0, error.start) + 1
    return f"line {line} has a byte that is not UTF-8; save the file as UTF-8"


def _parse_yaml(path: Path, text: str) -> Document:
    """Return one file's keys and their lines, without the files that it extends."""
    origins: dict[Place, Origin] = {(): Origin(str(path), path.parent)}
    try:
        node, values = load_yaml(text)
        _record_origins(node, (), path, origins)
    except RecursionError:
        raise ConfigError(f"{path}: a config may have at most {DEEPEST} levels") from None
    except (yaml.YAMLError, ValueError) as error:
        line, reason = line_and_reason(error, text)
        place = f"{path}, line {line}" if line else str(path)
        raise ConfigError(f"{place}: not valid YAML: {reason}") from None
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: a config must be a mapping of sections (model: ..., training: ...), "
            f"but the file holds {shortened(shown(values))}"
        )
    return Document(values, origins)


def _parent_path(path: Path, name: Any) -> Path:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{path}: extends must name a file or a list of files, not {name!r}")
    try:
        return Path(os.path.normpath(path.parent / expand_path(name)))
    except ValueError as error:
        raise ConfigError(f"{path}: extends: {error}") from None


def _record_origins(
    node: yaml.Node | None, place: Place, path: Path, origins: dict[Place, Origin]
) -> None:
    if len(place) > DEEPEST:
        raise RecursionError
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.tag.rpartition(":")[2] not in KEY_TYPES:
                raise yaml_error(key, f"the key {key.value} is not text: write it in quotes")
            origins[(*place, key.value)] = Origin(f"{path}, line {line}", path.parent)
            _record_origins(value, (*place, key.value), path, origins)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            line = value.start_mark.line + 1
            origins[(*place, i)] = Origin(f"{path}, line {line}", path.parent)
            _record_origins(value, (*place, i), path, origins)


# Merging -----------------------------------------------------------------------------------------


def _merge(base: Document, top: Document, alternatives: Alternatives, aliases: Aliases) -> None:
    """Merge ``top`` into ``base``. If both have a key, the value of ``top`` wins."""
    for place in aliases:
        _remove_other_names(base, place, mapping_at(top.values, place).keys(), aliases)
    for place, old, new in _merge_values(base.values, top.values, (), alternatives):
        origin = base.where((*place, "kind")).text
        _forget_origins(base, place)
        if _has_other_kind(long_form(new), old):
            base.replaced[place] = Replaced(old, origin)
    base.origins.update(top.origins)
    base.replaced.update(top.replaced)


def _remove_other_names(document: Document, place: Place, new: Set[str], aliases: Aliases) -> None:
    """Remove the other names of the keys ``new`` from the mapping at ``place``."""
    mapping = mapping_at(document.values, place)
    for alias, key in aliases.get(place, {}).items():
        for name, other_name in ((alias, key), (key, alias)):
            if name in new and other_name not in new:
                mapping.pop(other_name, None)
                _forget_origins(document, (*place, other_name))


def dotted(place: Sequence[str | int]) -> str:
    """Return a place as it is written in an override: ``a.b.0``."""
    return ".".join(map(str, place))


def mapping_at(values: Any, place: Sequence[str | int]) -> dict[Any, Any]:
    """Return the mapping at a place of nested mappings; an empty one if there is none."""
    for key in place:
        values = values.get(key) if isinstance(values, dict) else None
    return values if isinstance(values, dict) else {}


def _forget_origins(document: Document, place: Place) -> None:
    """Forget the origins of a value and of the values in it, because it is replaced."""
    records: Sequence[dict[Place, Any]] = (document.origins, document.replaced)
    for record in records:
        for known in [known for known in record if known[: len(place)] == place]:
            del record[known]


def _merge_values(
    base: dict[str, Any], top: dict[str, Any], place: Place, alternatives: Alternatives
) -> Iterator[tuple[Place, Any, Any]]:
    """Merge ``top`` into ``base``. A mapping is merged key by key, or replaces the one in ``base``.

    Yield the place, the old value and the new value of each key whose value is replaced.
    """
    for key, value in top.items():
        before = base.get(key)
        if isinstance(before, dict) and isinstance(value, str) and value == before.get("kind"):
            continue  # the short form of {kind: ...}
        old = long_form(before)
        below = (*place, key)
        if (
            isinstance(old, dict)
            and isinstance(value, dict)
            and not _replaces(value, old, alternatives.get(below, set()))
        ):
            base[key] = old
            yield from _merge_values(old, value, below, alternatives)
        else:
            base[key] = _copy(value)
            yield below, old, value


def _copy(value: Any) -> Any:
    """Return a copy without shared parts. A YAML anchor may put one mapping in several places."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def long_form(value: Any) -> Any:
    """Return `{kind: average}` for `average`, the short form of a component."""
    return {"kind": value} if isinstance(value, str) and value not in NULL_WORDS else value


def _has_other_kind(new: Any, old: Any) -> bool:
    """Whether two values are mappings with different kinds."""
    kinds = [value.get("kind") for value in (new, old) if isinstance(value, dict)]
    return len(kinds) == 2 and None not in kinds and kinds[0] != kinds[1]


def _replaces(new: dict[str, Any], old: dict[str, Any], alternatives: Set[str]) -> bool:
    """Whether a mapping has another ``kind``, or another alternative, than the one that it changes.

    Its keys then differ, so the two mappings cannot be merged.
    """
    if "kind" in new and "kind" in old:
        return _has_other_kind(new, old)
    chosen, before = alternatives & new.keys(), alternatives & old.keys()
    return bool(chosen and before) and chosen != before


def _override(
    document: Document, override: str, alternatives: Alternatives, aliases: Aliases
) -> None:
    """Set one key of the document from ``a.b=value``.

    It replaces its alternatives and its other names.
    """
    name, equals, text = override.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set {override}: write it as section.key=value")
    if (corrected := re.sub(r"\[(\d+)\]", r".\1", name)) != name:
        raise ConfigError(f"--set {override}: write an index after a dot: {corrected}={text}")
    try:
        _, value = load_yaml(text)
    except RecursionError:
        raise ConfigError(f"--set {override}: a config may have at most {DEEPEST} levels") from None
    except (yaml.YAMLError, ValueError) as error:
        _, reason = line_and_reason(error, text)
        raise ConfigError(f"--set {override}: the value is not valid YAML: {reason}") from None
    *above, last = name.split(".")
    origin = Origin(f"--set {override}", Path())
    container: Any = document.values
    path: list[str | int] = []
    for part in above:
        key = _key_in(container, part, path, override, alternatives)
        if isinstance(container, dict):
            container[key] = long_form(container.get(key))
            if not isinstance(container[key], dict | list):
                container[key] = {}
                document.origins[(*path, key)] = origin
        container = container[key]
        path.append(key)
        if not isinstance(container, dict | list):
            place = dotted(path)
            raise ConfigError(f"--set {override}: {place} is {container!r}, which has no {last!r}")
    key = _key_in(container, last, path, override, alternatives)
    others = alternatives.get(tuple(path), set())
    for other in others - {key} if key in others else ():
        container.pop(other, None)
    _remove_other_names(document, tuple(path), {str(key)}, aliases)
    container[key] = value
    changed = (*path, key)
    _forget_origins(document, changed)
    document.origins[changed] = origin


def _key_in(
    container: Any,
    part: str,
    path: Sequence[str | int],
    override: str,
    alternatives: Alternatives,
) -> str | int:
    """Return one part of an override's name as a key of a mapping or an index of a list."""
    if not isinstance(container, list):
        return part
    if not re.fullmatch("[0-9]{1,9}", part) or int(part) >= len(container):
        if re.fullmatch("-?[0-9]+", part):
            advice = f"{_index_advice(len(container))} instead of {part!r}"
        else:
            advice = _key_advice(container, path, override, alternatives)
        items = quantity(len(container), "item")
        raise ConfigError(f"--set {override}: {dotted(path)} is a list of {items}; {advice}")
    return int(part)


def _key_advice(
    container: list[Any], path: Sequence[str | int], override: str, alternatives: Alternatives
) -> str:
    """Return the advice about an override that has a key in place of an index of a list.

    A mapping can replace the list only if ``alternatives`` has its keys.
    """
    name, _, value = override.partition("=")
    keys = name.split(".")[len(path) :]
    place = dotted(path)
    if container and all(isinstance(item, dict) for item in container):
        key = f"{place}.0.{'.'.join(keys)}"
        return f"write an index before {keys[0]!r}, such as {key}={value}"
    if len(keys) == 1 and keys[0] in alternatives.get(tuple(path), set()):
        return f"replace the complete value: --set '{place}={{{keys[0]}: {value}}}'"
    return f"set all of it: --set '{place}=[...]'"


def _index_advice(length: int) -> str:
    if length < 2:
        return "write the index 0" if length else "set all of it, in brackets,"
    return f"write an index from 0 to {length - 1}"
