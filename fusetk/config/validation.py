"""Validation of a config: one sentence for each error, with its place and the nearest known key."""

import difflib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

import pydantic
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fusetk.config import messages
from fusetk.config.foreign_keys import fusetk_key, system_kind, value_advice
from fusetk.config.schema import (
    NULL_WORDS,
    Config,
    component,
    nullable,
    outside_error,
    outside_kinds,
)
from fusetk.config.source import Document, Place, dotted, long_form
from fusetk.errors import ConfigError, FusetkError, ImportFailed

C = TypeVar("C", bound=Config)

# Names in the path of a pydantic error that are not keys of the config: names of pydantic's
# validators, and plain types in a union.
NOT_KEYS = re.compile(r"(function-|constrained-).*|.*\[.*\]|int|float|str|bool")


def parse(document: Document, config: type[C], subject: str = "the config has") -> C:
    """Validate a document. ``subject`` begins the error.

    Raises ConfigError that lists every error with its path, the place where the key was written
    and, for a misspelt key, the nearest known key. It is ImportFailed if a component outside fusetk
    cannot be imported. If a check of a config class outside fusetk fails, the error names the
    class. Warns of ``unused_values``.
    """
    try:
        parsed = config.model_validate(document.values)
    except pydantic.ValidationError as error:
        nested = list(_flatten(config, error.errors()))
        sentences = [_sentence(document, *details) for details in nested]
        failed_import = any(details["type"] == "import" for _, _, details in nested)
        kind = ImportFailed if failed_import else ConfigError
        raise config_error(sentences, subject, kind) from None
    except (Exception, SystemExit) as error:
        kinds = sorted(outside_kinds(document.values))
        if not kinds or isinstance(error, FusetkError):
            raise
        raise ConfigError(
            f"a config with {' or '.join(kinds)} cannot be checked: {outside_error(error)}: "
            "correct the methods of the config class"
        ) from error
    for sentence in unused_values(document, parsed):
        warnings.warn(sentence, stacklevel=1)  # commands print warnings of this package
    return parsed


def unused_values(document: Document, parsed: Config) -> Iterator[str]:
    """Yield a sentence for each mapping that replaced one with another ``kind``.

    It names the values of the old mapping that the user may expect in the config: the new kind has
    their keys, no file gives them, and their defaults are other values.
    """
    for place, (old, origin) in document.replaced.items():
        written: Any = document.values
        now: Any = parsed
        for key in place:
            written, now = written.get(key, {}), getattr(now, str(key), None)
        written = long_form(written)
        if not isinstance(now, Config):
            continue
        others = {key: value for key, value in old.items() if key != "kind"}
        unused = list(_unused(others, written, now.model_dump(mode="json"), place))
        if unused:
            name = dotted((*place, "kind"))
            yield (
                f"{document.where((*place, 'kind')).text}: {name} is {written['kind']}, not "
                f"{old['kind']} as in {origin}, so values of the other config are not used: "
                f"{', '.join(unused)}; write these keys to choose their values"
            )


def _unused(
    old: Mapping[str, Any], written: Any, now: Mapping[str, Any], place: Place
) -> Iterator[str]:
    """Yield the keys of ``old`` that are not in ``written`` and have other values in ``now``."""
    for key, value in old.items():
        has_key = isinstance(written, dict) and key in written
        below = (*place, key)
        if key not in now or (has_key and not isinstance(written[key], dict)):
            continue
        if isinstance(now[key], dict):
            values = long_form(value)
            if isinstance(values, dict):
                yield from _unused(values, written[key] if has_key else {}, now[key], below)
            continue
        old_value = None if now[key] is None and value in NULL_WORDS else value
        if not has_key and old_value != now[key]:
            before, after = (messages.shown(each) for each in (value, now[key]))
            yield f"{dotted(below)} {before} (now {after})"


def config_error(
    sentences: Sequence[str],
    subject: str = "the config has",
    kind: type[ConfigError] = ConfigError,
) -> ConfigError:
    """Return one error that lists a sentence for each wrong key."""
    lines = list(dict.fromkeys(sentences))
    if len(lines) == 1:
        return kind(f"{subject} an error: {lines[0]}")
    return kind(f"{subject} {len(lines)} errors:\n" + "\n".join(f"  {s}" for s in lines))


def _flatten(
    config: type[Config], errors: Sequence[Any], base: Place = ()
) -> Iterator[tuple[type[Config], Place, Any]]:
    """Yield each error with the config class that reported it and the path of that class's values.

    A ``component`` reports the errors of the class that its ``kind`` chose as one nested error.
    """
    for error in _without_other_members(config, errors):
        if error["type"] == "nested":
            context = error["ctx"]
            yield from _flatten(context["kind"], context["errors"], (*base, *error["loc"]))
        else:
            yield config, base, error


def _without_other_members(config: type[Config], errors: Sequence[Any]) -> list[Any]:
    """Remove the errors of those union members that the user did not mean.

    pydantic reports the errors of every member of a union (``list[str] | Every | Sample``). The
    user meant a member whose type fits. Among several, it is the one with the fewest errors, then
    the one whose missing keys are most similar to the unknown ones.
    """
    groups: dict[Place, dict[str | int, list[Any]]] = {}
    for error in errors:
        place, member = _member(config, error["loc"])
        groups.setdefault(place, {}).setdefault(member, []).append(error)
    result: list[Any] = []
    for place, members in groups.items():
        if "" in members or len(members) == 1:
            result += [error for group in members.values() for error in group]
            continue
        fitting = [
            group
            for group in members.values()
            if not any(
                error["type"] in messages.TYPES and len(error["loc"]) == len(place) + 1
                for error in group
            )
        ]
        if fitting:
            best = min(fitting, key=_misfit)
            result += best
        else:
            result.append(_type_error(config, place, list(members.values())))
    return result


def _type_error(config: type[Config], place: Place, members: Sequence[Sequence[Any]]) -> Any:
    """Return one error for a value whose type fits no member of a union.

    ``members`` are the errors of each member.
    """
    value = members[0][0]["input"]
    requirements = [messages.TYPES[errors[0]["type"]] for errors in members]
    kinds = dict.fromkeys(text.removeprefix("must be ") for text in requirements)
    known = [key for inner in _walk(config, place)[0] for key in _required(inner)]
    keys = f" with the key {' or '.join(known)}" if known else ""
    text = f"must be {' or '.join(kinds)}{keys}, but it is {messages.shown(value)}"
    return {"type": "value_error", "loc": place, "msg": text, "input": value}


def _member(config: type[Config], location: Place) -> tuple[Place, str | int]:
    """Return the place of a value whose type is a union, and the name of its member.

    The name is empty if no part of ``location`` names a member of a union.
    """
    for i, part in enumerate(location):
        if not isinstance(part, str):
            continue
        classes, _ = _walk(config, location[:i])
        is_key = any(part in known.model_fields for known in classes)
        names = [known.__name__ for known in classes]
        if not is_key and (NOT_KEYS.fullmatch(part) or part in names):
            return location[:i], part
    return location, ""


def _misfit(errors: list[Any]) -> tuple[int, float]:
    """Return how little a member of a union fits.

    The first number is the number of its errors. The second one is the greatest similarity of an
    unknown key to a missing one, negated.
    """
    unknown = [str(error["loc"][-1]) for error in errors if error["type"] == "extra_forbidden"]
    missing = [str(error["loc"][-1]) for error in errors if error["type"] == "missing"]
    similar = max(
        (
            difflib.SequenceMatcher(None, key, required).ratio()
            for key in unknown
            for required in missing
        ),
        default=0.0,
    )
    return len(errors), -similar


def _required(config: type[BaseModel]) -> list[str]:
    return [key for key, field in config.model_fields.items() if field.is_required()]


def _sentence(document: Document, config: type[Config], base: Place, error: Any) -> str:
    """Return the path of a wrong key, its error and the place where it was written."""
    loc = error["loc"]
    unknown = loc[-1:] if error["type"] == "extra_forbidden" else ()  # it may have any name
    if not unknown and loc:
        union, member = _member(config, loc)
        loc = union if loc == (*union, member) else loc  # the error of the whole member
    known = loc[: len(loc) - len(unknown)]
    path = (*(part for part in known if not NOT_KEYS.fullmatch(str(part))), *unknown)
    classes, keys = _walk(config, path[:-1])
    place = _as_written(document, (*base, *keys, *path[-1:]), classes)
    name = dotted(place)
    if error["type"] == "extra_forbidden":
        related = _related_keys(config, base, path)
        elsewhere = [dotted(other) for other, _ in related if other[-1] == path[-1]]
        reason = "unknown key" + _hint(name, config, classes, elsewhere)
    elif error["type"] == "choice" and (site := _kind_advice(config, base, path, error["input"])):
        reason = site
    else:
        reason = _reason(error, path, classes)
    selector = "kind" if error["type"] in ("choice", "import") else ""
    if error["type"] == "union_tag_invalid":
        selector = error["ctx"]["discriminator"].strip("'")
    origin = document.where((*place, selector) if selector else place).text
    if error["type"] == "value_error" and origin:
        origin = "; ".join(_origins_of_named_keys(document, place, reason)) or origin
    suffix = f"  [{origin}]" if origin else ""
    return f"{name}: {reason}{suffix}".removeprefix(": ")


def _as_written(document: Document, place: Place, classes: Sequence[type[BaseModel]]) -> Place:
    """Return the path of a key with the name that the user gave, the key or one of its aliases."""
    for known in classes:
        for alias, key in known.aliases.items() if issubclass(known, Config) else ():
            if place[-1:] == (key,) and (*place[:-1], alias) in document.origins:
                return (*place[:-1], alias)
    return place


def _origins_of_named_keys(document: Document, section: Place, text: str) -> list[str]:
    """Return the origins of the keys below ``section`` that ``text`` names.

    The name of a key is at the start of the text, or before a colon or a number: "connect: dense",
    "heads 3", but not "3 layers: ...".
    """
    origins = []
    for place, origin in document.origins.items():
        below = place[len(section) :]
        key = re.escape(dotted(below))
        named = re.search(rf"^{key}(?![\w.])|(?<![\w.])(?<!\d ){key}(: | \d)", text)
        if below and place[: len(section)] == section and named:
            origins.append(origin.text)
    return list(dict.fromkeys(origins))


def _reason(error: Any, path: Place, classes: Sequence[type[BaseModel]]) -> str:
    """Return the text of an error in the last key of ``path``.

    ``classes`` are the config classes that may have this key.
    """
    if error["type"] == "missing":
        return "the list has too few items" if isinstance(path[-1], int) else "must be given"
    fields = [config.model_fields.get(str(path[-1])) for config in classes] if path else []
    may_be_null = any(field is not None and nullable(field.annotation) for field in fields)
    text = messages.reason(error, may_be_null)
    if error["type"] == "model_attributes_type":
        return text + _write_advice(_mapping_with_tag(classes, error["input"]))
    if error["type"] in ("list_type", "tuple_type", "dict_type"):
        examples = [_example(field.annotation, error["input"]) for field in fields if field]
        return text + _write_advice(*dict.fromkeys(examples))
    return text


def _write_advice(*examples: str) -> str:
    return f": write {examples[0]}" if len(examples) == 1 and examples[0] else ""


def _example(annotation: Any, value: Any) -> str:
    """Return ``value`` in the form that its key needs, a list or a mapping.

    The result is empty if ``value`` is not a text or if the form is unknown.
    """
    if not isinstance(value, str) or messages.space_advice(value):
        return ""
    members = [member for member in get_args(annotation) if member is not NoneType]
    if nullable(annotation) and len(members) == 1:
        annotation = members[0]
    if get_origin(annotation) is dict:
        _, item = get_args(annotation)
        if get_origin(item) is list:
            return f"{{NAME: [{value}]}} with any name"
        return f"{{NAME: {value}}} with any name" if item is str else ""
    if classes := _classes(annotation):
        item = _mapping_with_tag(classes, value)
        return item and f"[{item}]"
    types = {part for argument in get_args(annotation) for part in (argument, *get_args(argument))}
    if types & {int, float}:
        return f"[{', '.join(re.split('[, ]+', value.strip()))}]"
    return f"[{value}]"


def _mapping_with_tag(classes: Sequence[type[BaseModel]], value: Any) -> str:
    """Return the mapping `{step: nfc}` for the value `nfc`.

    The result is empty unless the classes have exactly one required key with fixed values, such as
    ``step``.
    """
    tags = {
        key
        for config in classes
        for key in _required(config)
        if get_origin(config.model_fields[key].annotation) is Literal
    }
    return f"{{{tags.pop()}: {value}}}" if len(tags) == 1 and isinstance(value, str) else ""


def _hint(
    name: str,
    config: type[BaseModel],
    classes: Sequence[type[BaseModel]],
    elsewhere: Sequence[str],
) -> str:
    """Return the advice about an unknown key with the path ``name``.

    ``config`` is the class that reported the error. ``classes`` are the config classes of the
    section of the key. ``elsewhere`` are the paths of the keys with the same name in related
    sections.
    """
    key = name.rpartition(".")[2]
    known = [key for config in classes for key in config.model_fields]
    foreign = fusetk_key(key)
    # The key has the right name and place, but the `kind` of the section does not have it.
    has_other_kind = foreign == re.sub(r"\.\d+\.", ".0.", name)
    if foreign and not has_other_kind:
        stage = re.search(r"\.stages\.\d+\.", name)
        known_as = foreign.replace(".stages.0.", stage.group() if stage else ".stages.0.")
        return f"; fusetk calls it {known_as}{value_advice(key)}"
    if elsewhere:
        return f"; did you mean {' or '.join(dict.fromkeys(elsewhere))}?"
    near = difflib.get_close_matches(key, known, 1)
    if near and not has_other_kind:
        return f"; did you mean {near[0]!r}?"
    fields = [each.model_fields.get("kind") for each in (config, *classes)]
    kinds = dict.fromkeys(field.default for field in fields if field)
    no_key = [f"kind: {kind} has no such key; " for kind in kinds if isinstance(kind, str)]
    return f"; {''.join(no_key)}known keys: {', '.join(known)}" if known else ""


def _kind_advice(config: type[BaseModel], base: Place, path: Place, value: Any) -> str | None:
    """Return the advice about a value that is a kind of another key, or the name of a system.

    Return None for other values.
    """
    name = value.get("kind") if isinstance(value, dict) else value
    if not isinstance(name, str):
        return None
    kind = system_kind(name)
    what = f"{name!r} is" if kind == name else f"{name!r} is called {kind!r},"
    place_of_value = (*base, *(part for part in path if part != "kind"))
    key = place_of_value[-1]
    related = sorted(_related_keys(config, base, path), key=lambda each: each[0][-1] != key)
    for place, field in related:
        tables = [item.table for item in field.metadata if isinstance(item, component)]
        keeps_options = isinstance(value, dict) and place == place_of_value
        written = (*place, "kind") if keeps_options else place
        longer = [name for table in tables for name in table if name.startswith(f"{kind}-")]
        if longer and place[-1] == key:
            return f"unknown kind {name!r}: write {dotted(written)}: {' or '.join(longer)}"
        if any(kind in table for table in tables):
            return f"{what} a kind of `{place[-1]}`: write {dotted(written)}: {kind}"
    return None


def _related_keys(
    config: type[BaseModel], base: Place, path: Place
) -> Iterator[tuple[Place, FieldInfo]]:
    """Yield the places and fields of the keys in the section of ``path`` and in related sections.

    The related sections are those inside the section and those beside it. ``path`` starts at
    ``base``, the place of ``config``.
    """
    section = path[:-1]
    sections = [section, *_sections(config, section)]
    is_nested = len(base) + len(section) > 1  # the sections of the whole config are not related
    if is_nested and section and isinstance(section[-1], str):
        sections += [place for place in _sections(config, section[:-1]) if place != section]
    for place in sections:
        classes, keys = _walk(config, place)
        for known in classes:
            for key, field in known.model_fields.items():
                yield (*base, *keys, key), field


def _sections(config: type[BaseModel], place: Place) -> list[Place]:
    """Return the places of the mappings of keys in the section ``place``."""
    classes, _ = _walk(config, place)
    return [
        (*place, key)
        for known in classes
        for key, field in known.model_fields.items()
        if get_origin(field.annotation) not in (list, tuple, dict) and _classes(field.annotation)
    ]


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
