"""The keys of a config, read from the config classes."""

import inspect
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from fusetk.config import ComponentConfig, Config, field_docs
from fusetk.errors import join_names
from fusetk.fusion import FUSIONS
from fusetk.models import MODELS
from fusetk.models.attend import ATTENDS
from fusetk.models.connect import CONNECTIONS
from fusetk.models.residual import RESIDUALS
from fusetk.models.self_attention import SELF_ATTENTION_KINDS
from fusetk.training.optim import OPTIMIZERS
from fusetk.training.schedule import SCHEDULES

# The config keys whose `kind` selects a class, and the classes.
REGISTRIES: dict[str, Mapping[str, type]] = {
    "model": MODELS,
    "connect": CONNECTIONS,
    "residual": RESIDUALS,
    "self_attention": SELF_ATTENTION_KINDS,
    "fuse": FUSIONS,
    "attend": ATTENDS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
}
PRIMITIVES = {int: "whole number", float: "number", str: "string", bool: "true or false"}
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


class Heading(NamedTuple):
    """A set of keys that is one of several alternatives, such as a step."""

    path: str
    tag: str
    """The keys that distinguish it, such as "step: nfc"."""
    text: str


class Entry(NamedTuple):
    """A key of a config, or several keys with the same meaning."""

    paths: tuple[str, ...]
    type: str
    default: str
    """Such as "; default 1" or "; required"; empty for a mapping."""
    text: str
    is_choice: bool = False
    """Whether a ``kind`` selects the class of the key. Its last name is then in REGISTRIES."""
    kinds: str = ""
    """Such as "Kinds: adam, adamw.", if the keys of several kinds are one entry."""

    @property
    def name(self) -> str:
        """The last name of the paths."""
        return self.paths[0].rpartition(".")[2]

    @property
    def meaning(self) -> tuple[str, str, str]:
        """The last name of the paths, the type and the text."""
        return self.name, self.type, self.text


Item = Heading | Entry


def merged(items: Iterable[Item]) -> list[Item]:
    """Merge keys with the same last name, type, default and text, such as those of both sides."""
    result: list[Item] = []
    places: dict[tuple[str, ...], int] = {}
    for item in items:
        if isinstance(item, Entry):
            key = (*item.meaning, item.default)
            if key in places:
                first = result[places[key]]
                assert isinstance(first, Entry)
                paths = tuple(dict.fromkeys((*first.paths, *item.paths)))
                result[places[key]] = first._replace(paths=paths)
                continue
            places[key] = len(result)
        result.append(item)
    return result


def entries(config: type[Config], place: str, skip: str = "") -> Iterator[Item]:
    """Yield the keys of a config class and of nested ones: full path, type, default and text."""
    for name, field in config.model_fields.items():
        if name == skip:
            continue
        path = f"{place}.{name}" if place else name
        chosen = is_choice(field)
        type_, text = type_of(name, field), text_of(config, name)
        yield Entry((path,), type_, default_of(field), text, chosen)
        nested = [] if chosen else config_of(field.annotation)
        inner = f"{path}[]" if get_origin(field.annotation) is list else path
        if len(nested) == 1:
            yield from entries(nested[0], inner)
        elif nested:
            yield from alternatives(nested, inner)


def alternatives(configs: Sequence[type[Config]], path: str) -> Iterator[Item]:
    """Yield the keys of alternative classes. Keys that several classes have come first."""
    items = {tag_of(config): list(entries(config, path, skip="step")) for config in configs}
    owners: dict[Item, list[str]] = {}
    for tag, its_items in items.items():
        for item in its_items:
            owners.setdefault(item, []).append(tag)
    for item, tags in owners.items():
        if len(tags) > 1 and isinstance(item, Entry):
            listed = ", ".join(tag.removeprefix("step: ") for tag in tags)
            yield item._replace(text=f"{item.text} Key of {listed}.")
    for config in configs:
        yield Heading(path, tag_of(config), inspect.getdoc(config) or "")
        yield from (item for item in items[tag_of(config)] if len(owners[item]) == 1)


def is_choice(field: FieldInfo) -> bool:
    """Whether a ``kind`` selects the field's class."""
    return any(issubclass(config, ComponentConfig) for config in config_of(field.annotation))


def text_of(config: type[Config], name: str) -> str:
    """Return the field's docstring, or the first line of its config class's docstring."""
    text = field_docs(config).get(name, "")
    field = config.model_fields[name]
    if is_choice(field):
        return f"{text[:1].upper()}{text[1:]}"
    nested = config_of(field.annotation)
    if text or len(nested) != 1:
        return text
    return (inspect.getdoc(nested[0]) or "").split("\n")[0]


def tag_of(config: type[Config]) -> str:
    """Return the keys that distinguish this class from its alternatives.

    These are its ``step``, or else its required keys.
    """
    if step := config.model_fields.get("step"):
        return f"step: {get_args(step.annotation)[0]}"
    return ", ".join(name for name, field in config.model_fields.items() if field.is_required())


def config_of(annotation: Any) -> list[type[Config]]:
    """Return every config class in a type such as Config, list[Config] or A | B."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, Config) else []
    return [config for inner in get_args(annotation) for config in config_of(inner)]


def type_of(name: str, field: FieldInfo) -> str:
    """Return the type in words, with its bounds; for a ``kind``, the names to choose from."""
    if is_choice(field):
        return " | ".join(REGISTRIES[name])
    bounds = [
        f"{word} {number(getattr(item, bound))}"
        for item in field.metadata
        for bound, word in BOUNDS.items()
        if hasattr(item, bound)
    ]
    return ", ".join([words_of(field.annotation), *bounds])


def number(value: float) -> str:
    """Return a bound in words. Integers are exact: a short form such as 4.29497e+09 is not."""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def words_of(annotation: Any) -> str:
    """Return a type in words: ``list[str]`` is a list of strings."""
    if annotation in PRIMITIVES:
        return PRIMITIVES[annotation]
    origin = get_origin(annotation)
    inner = get_args(annotation)
    if origin is Annotated:
        return words_of(inner[0])
    if origin is Literal:
        return " | ".join(str(value) for value in inner)
    if origin is list or (origin is tuple and inner[1:] == (...,)):
        return f"list of {many(inner[0])}"
    if origin is tuple:
        return f"list of {len(inner)}: {', '.join(map(words_of, inner))}"
    if origin is dict:
        return f"mapping of names to {many(inner[1])}"
    if origin in (typing.Union, types.UnionType):
        words = ["null" if member is type(None) else words_of(member) for member in inner]
        # The words of bool contain "or", too.
        return join_names(" or ".join(dict.fromkeys(words)).split(" or "), "or")
    return "mapping"


def many(annotation: Any) -> str:
    """Return a type in words, in the plural."""
    words = words_of(annotation)
    return words.replace("list", "lists", 1) if words.startswith("list") else f"{words}s"


def default_of(field: FieldInfo) -> str:
    """Return the default in words, or that the key is required.

    The text is empty for a mapping, because its keys have their own defaults.
    """
    if field.is_required():
        return "; required"
    default = field.get_default(call_default_factory=True)
    if isinstance(default, ComponentConfig):
        return f"; default {default.kind}"
    if isinstance(default, Config):
        return ""
    if isinstance(default, bool) or default is None:
        return f"; default {'null' if default is None else str(default).lower()}"
    if isinstance(default, tuple):
        default = list(default)
    return f"; default {default}"
