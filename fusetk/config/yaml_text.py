"""YAML texts: reading with the place of each key, checks of keys and numbers, and writing."""

import re
from typing import Any

import yaml

from fusetk.config.yaml_errors import LINE_BREAKS, OUTSIDE_KIND, space_advice

MOST_VALUES = 100_000  # of a config; a value that n aliases repeat counts n + 1 times
# Characters. In a longer text, brackets may be nested so deeply that libyaml's parser overflows a
# stack of 8 MB, which ends the process.
LONGEST_FAST_TEXT = 10_000
# YAML 1.1 reads 010 as 8 and 1:30 as 90.
OCTAL_OR_SEXAGESIMAL = re.compile(r"[-+]?0[0-7_]+|.*:.*")
# U+0000, which no file name can have, and surrogates, which no UTF-8 file can have. In double
# quotes, escapes such as \0 and \uD800 write them. A surrogate pair is one match.
UNUSABLE = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\0\ud800-\udfff]")


def yaml_error(node: yaml.Node, reason: str) -> yaml.YAMLError:
    """Return an error at the place of a node."""
    return yaml.constructor.ConstructorError(None, None, reason, node.start_mark)


def _character_error(unusable: re.Match[str]) -> str:
    """Return what is wrong with a match of ``UNUSABLE``, and what to write instead."""
    first, *second = (f"U+{ord(code):04X}" for code in unusable[0])
    if second:
        character = unusable[0].encode("utf-16", "surrogatepass").decode("utf-16")
        return (
            f"{first} and {second[0]} are a surrogate pair, which YAML does not read as one "
            f"character; write \\U{ord(character):08X} instead of both escapes"
        )
    if unusable[0] == "\0":
        return f"the character {first} is not allowed; remove its escape"
    return (
        f"{first} is a surrogate, which is only half of a character; remove its escape, or write "
        "the complete character instead"
    )


class _ScalarErrors:
    """Errors with a line for scalars that are not valid or usable, and for non-decimal numbers."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)  # type: ignore[misc]
        kind = node.tag.rpartition(":")[2]
        text = node.value[:40]
        try:
            value = super().construct_object(node, deep)  # type: ignore[misc]
        except (ValueError, LookupError, AttributeError):
            raise yaml_error(
                node,
                f"{text!r} is not a valid {kind}; correct it, or write it in quotes if it is text",
            ) from None
        if kind in ("int", "float") and OCTAL_OR_SEXAGESIMAL.fullmatch(node.value):
            raise yaml_error(
                node,
                f"{text!r} is not a decimal number (YAML reads it as {value}); write it without "
                "leading zeros and colons, or in quotes if it is text",
            )
        if isinstance(value, str) and (match := UNUSABLE.search(value)):
            raise yaml_error(node, _character_error(match))
        return value


class _Loader(_ScalarErrors, yaml.SafeLoader):
    """A YAML loader that reads ``1e-9`` as a number.

    PyYAML follows YAML 1.1 and reads it as a string.
    """


_FastParser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _FastLoader(_ScalarErrors, _FastParser):
    """A loader as ``_Loader`` with libyaml's parser, if PyYAML has it: ten times as fast."""


class Dumper(yaml.SafeDumper):
    """A YAML dumper that quotes the strings that ``_Loader`` would read as numbers."""


def _number(loader: yaml.SafeLoader, node: yaml.Node) -> float | str:
    if not isinstance(node, yaml.ScalarNode):
        raise yaml_error(node, "the tag !number needs a number")
    try:
        return float(node.value)
    except ValueError:
        return node.value


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Double quotes escape these characters. `load_yaml` refuses a text that has them unescaped.
    style = '"' if LINE_BREAKS.search(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, _represent_text)
for _class in (_Loader, _FastLoader, Dumper):
    _class.add_implicit_resolver(
        "!number", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )
for _class in (_Loader, _FastLoader):
    _class.add_constructor("!number", _number)


def load_yaml(text: str) -> tuple[yaml.Node | None, Any]:
    """Return the root node of a YAML text and its values. The nodes have the lines of the keys."""
    if match := LINE_BREAKS.search(text):
        raise yaml.reader.ReaderError("", match.start(), ord(match[0]), "unicode", "a line break")
    # libyaml accepts some tabs that PyYAML's parser refuses.
    if len(text) <= LONGEST_FAST_TEXT and "\t" not in text:
        try:
            return _nodes_and_values(_FastLoader(text))
        except (yaml.YAMLError, UnicodeEncodeError):
            pass  # PyYAML's own parser has clearer messages
    return _nodes_and_values(_Loader(text))


def _nodes_and_values(loader: Any) -> tuple[yaml.Node | None, Any]:
    try:
        node = loader.get_single_node()
        _check_keys(node, set())
        if _count_values(node, {}) > MOST_VALUES:
            raise ValueError(f"with its aliases it has more than {MOST_VALUES:,} values")
        return node, None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


BEING_COUNTED = -1


def _count_values(node: yaml.Node | None, known: dict[int, int]) -> int:
    """Return the number of values of a node, with the repetitions by aliases.

    ``known`` has the numbers of the nodes that were counted, by id. Raises ValueError for an alias
    inside its own value.
    """
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        known[id(node)] = BEING_COUNTED
        pairs = isinstance(node, yaml.MappingNode)
        values = [value for _, value in node.value] if pairs else node.value
        known[id(node)] = 1 + sum(_count_values(value, known) for value in values)
    elif known[id(node)] == BEING_COUNTED:
        raise ValueError("an alias is inside its own value; remove it")
    return known[id(node)]


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and not node.value


def _check_keys(node: yaml.Node | None, checked: set[int]) -> None:
    """Raise ConstructorError for a key that a mapping has twice, and for `{key:value}`.

    PyYAML keeps the last value of a repeated key, and reads `{key:value}` as a key without a value.
    """
    if node is None or id(node) in checked:
        return
    checked.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(item, checked)
    elif isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml_error(key, f"the key {key.value!r} occurs twice; remove one")
                if not key.style and _is_empty(value):
                    is_kind = OUTSIDE_KIND.fullmatch(key.value)
                    advice = f"write kind: {key.value}" if is_kind else space_advice(key.value)
                    if advice:
                        raise yaml_error(key, f"the key {key.value!r} has no value; {advice}")
                seen.add(key.value)
            _check_keys(value, checked)
