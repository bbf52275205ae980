"""Validation of a config: one sentence for each error, with its place and the nearest known key."""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, get_args

import pydantic
from pydantic import BaseModel

from fusetk.config.foreign_keys import fusetk_key
from fusetk.config.schema import Config, nullable
from fusetk.config.source import Document, Place
from fusetk.errors import ConfigError

C = TypeVar("C", bound=Config)

# Names in the path of a pydantic error that are not keys of the config: names of pydantic's
# validators, and plain types in a union.
NOT_KEYS = re.compile(r"(function-|constrained-).*|.*\[.*\]|int|float|str|bool")


def parse(document: Document, config: type[C]) -> C:
    """Validate a document.

    Raises ConfigError that lists every error with its path, the place where the key was written
    and, for a misspelt key, the nearest known key.
    """
    try:
        return config.model_validate(document.values)
    except pydantic.ValidationError as error:
        nested = _flatten(config, error.errors())
        raise config_error([_sentence(document, *details) for details in nested]) from None


def config_error(sentences: Sequence[str]) -> ConfigError:
    """Return one error that lists a sentence for each wrong key."""
    lines = list(dict.fromkeys(sentences))
    head = "the config has an error" if len(lines) == 1 else f"the config has {len(lines)} errors"
    return ConfigError(f"{head}:\n" + "\n".join(f"  {line}" for line in lines))


def _flatten(
    config: type[Config], errors: Sequence[Any], base: Place = ()
) -> Iterator[tuple[type[Config], Place, Any]]:
    """Yield each error with the config class that reported it and the path of that class's values.

    A ``component`` reports the errors of the class that its ``kind`` chose as one nested error.
    """
    for error in errors:
        if error["type"] == "nested":
            context = error["ctx"]
            yield from _flatten(context["kind"], context["errors"], (*base, *error["loc"]))
        else:
            yield config, base, error


def _sentence(document: Document, config: type[Config], base: Place, error: Any) -> str:
    """Return the path of a wrong key, its error and the place where it was written."""
    path = tuple(
        part for part in error["loc"] if not (isinstance(part, str) and NOT_KEYS.fullmatch(part))
    )
    classes, keys = _walk(config, path[:-1])
    place = (*base, *keys, *path[-1:])
    name = ".".join(str(part) for part in place) or "(the entire file)"
    origin = document.where(place).text
    suffix = f"  [{origin}]" if origin else ""
    return f"{name}: {_reason(error, path, classes)}{suffix}"


def _reason(error: Any, path: Place, classes: Sequence[type[BaseModel]]) -> str:
    """Return the text of an error in the last key of ``path``.

    ``classes`` are the config classes that may have this key.
    """
    if error["type"] == "extra_forbidden":
        known = [key for config in classes for key in config.model_fields]
        return "unknown key" + _hint(str(path[-1]), known)
    if error["type"] == "missing":
        return "must be given"
    if error["type"] == "union_tag_invalid":
        return _unknown_tag(error["ctx"])
    text: str = error["msg"].removeprefix("Value error, ")
    if error["type"] == "choice" or not isinstance(error.get("input"), str | int | float | bool):
        return text
    fields = [config.model_fields.get(str(path[-1])) for config in classes] if path else []
    may_be_null = any(field is not None and nullable(field.annotation) for field in fields)
    return f"{text} (it is {error['input']!r}{'; null is allowed' if may_be_null else ''})"


def _unknown_tag(context: Any) -> str:
    """Return the text of an error in the key that chooses a member of a union."""
    key = context["discriminator"].strip("'")
    known = [quoted.strip("'") for quoted in context["expected_tags"].split(", ")]
    near = difflib.get_close_matches(context["tag"], known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return f"unknown {key} {context['tag']!r}; {hint}"


def _hint(key: str, known: Sequence[str]) -> str:
    if foreign := fusetk_key(key):
        return f"; fusetk calls it {foreign}"
    near = difflib.get_close_matches(key, known, 1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known keys: {', '.join(known)}" if known else ""


def _walk(config: type[BaseModel], path: Place) -> tuple[list[type[BaseModel]], Place]:
    """Follow ``path`` below a config class.

    Return the possible config classes of the value at its end, and the path without the names of
    members of unions.
    """
    classes: list[type[BaseModel]] = [config]
    keys: list[str | int] = []
    for part in path:
        fields = [known.model_fields[part] for known in classes if part in known.model_fields]
        if fields:
            classes = [inner for field in fields for inner in _classes(field.annotation)]
        elif not isinstance(part, int):
            members = [known for known in classes if part in (known.__name__, *_tags(known))]
            if members:
                classes = members
                continue
            classes = []
        keys.append(part)
    return classes, tuple(keys)


def _classes(annotation: Any) -> list[type[BaseModel]]:
    """Return the config classes inside a type such as ``list[X | Y] | None``."""
    if isinstance(annotation, type) and not get_args(annotation):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [inner for argument in get_args(annotation) for inner in _classes(argument)]


def _tags(config: type[BaseModel]) -> list[Any]:
    """Return the values by which a union recognises a member."""
    return [
        value
        for field in config.model_fields.values()
        for value in get_args(field.annotation)
        if field.is_required()
    ]
