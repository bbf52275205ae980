"""The manual page of the config, made from the config classes."""

import inspect
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
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
from fusetk.recipe import Recipe
from fusetk.training.optim import OPTIMIZERS
from fusetk.training.schedule import SCHEDULES
from tools.markdown import blocks
from tools.troff import bold, escape, page, prose, tagged

TUTORIAL = Path(__file__).resolve().parent.parent / "docs/tutorial.md"
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

    def lines(self) -> list[str]:
        """Return the heading as troff."""
        return tagged(bold(f"{self.path}: {{{self.tag}}}"), self.text)


class Entry(NamedTuple):
    """A key of a config, or several keys with the same meaning."""

    paths: tuple[str, ...]
    type: str
    default: str
    """Such as "; default 1" or "; required"; empty for a mapping."""
    text: str

    @property
    def meaning(self) -> tuple[str, str, str]:
        """The last name of the path, the type and the text."""
        return self.paths[0].rpartition(".")[2], self.type, self.text

    def lines(self) -> list[str]:
        """Return the entry as troff."""
        names = ", ".join(map(bold, self.paths))
        return tagged(f"{names} ({escape(self.type)}{escape(self.default)})", self.text)


Item = Heading | Entry


def config_page() -> str:
    """Return the page ``fusetk-config(5)``: every key of a config, from the config classes."""
    intro = """
        A config is a YAML file with the sections below. `extends: FILE` (or a list of files) starts
        from another config. The keys of this file override it; mappings are merged key by key, but
        a mapping with another `kind` replaces the mapping. `--set a.b=VALUE` on the command line
        overrides the file. Unknown keys are errors. If a key can be null, the word none also means
        null, unless none is a value of that key.

        If a `kind` selects a class, `key: NAME` is short for `key: {kind: NAME}`. The kind, or the
        name of a step, can also be `package.module:Name`, a class outside fusetk.
        """
    body = [".SH DESCRIPTION", prose(intro)]
    for section, field in Recipe.model_fields.items():
        body += [f".SH {escape(section)}", prose(text_of(Recipe, section))]
        if not is_choice(field):
            items = entries(config_of(field.annotation)[0], section)
            body += [line for item in merged(items) for line in item.lines()]
    for key, table in REGISTRIES.items():
        body += [f'.SH "KINDS OF {escape(key)}"', *kinds(table)]
    example = next(blocks(TUTORIAL.read_text(encoding="utf-8"), "yaml"))
    body += [
        ".SH EXAMPLES",
        prose("A complete config, of a small model whose decoder fuses its layers:"),
        prose(f"\b\n{example}"),
        ".SH SEE ALSO",
        f"{bold('fusetk-describe')}(1), {bold('fusetk-train')}(1)",
    ]
    return page("fusetk-config", 5, "the config file of a run", body)


def kinds(table: Mapping[str, type]) -> Iterator[str]:
    """Yield the kinds of a table and their options as troff.

    An option with the same meaning in several kinds is described once, before the kinds.
    """
    options: dict[str, list[Item]] = {}
    for kind, component in table.items():
        config: type[Config] = component.Config  # type: ignore[attr-defined]
        options[kind] = merged(entries(config, "", skip="kind"))
    owners: dict[tuple[str, ...], dict[str, Entry]] = {}
    for kind, items in options.items():
        for item in items:
            if isinstance(item, Entry):
                owners.setdefault(item.meaning, {})[kind] = item
    shared = {key: found for key, found in owners.items() if len(found) > 1}
    if shared:
        yield '.SS "Options of several kinds"'
    for by_kind in shared.values():
        yield from common_entry(by_kind, list(table)).lines()
    for kind, component in table.items():
        yield f".SS {escape(kind)}"
        yield prose(inspect.getdoc(component) or "")
        for item in options[kind]:
            if isinstance(item, Heading) or item.meaning not in shared:
                yield from item.lines()


def common_entry(by_kind: Mapping[str, Entry], kinds: Sequence[str]) -> Entry:
    """Return one entry for an option of several kinds; its text names them and their defaults."""
    first = next(iter(by_kind.values()))
    paths = tuple(dict.fromkeys(path for entry in by_kind.values() for path in entry.paths))
    first = first._replace(paths=paths)
    kinds_of: dict[str, list[str]] = {}
    for kind, entry in by_kind.items():
        kinds_of.setdefault(entry.default, []).append(kind)
    if len(kinds_of) == 1:
        others = [kind for kind in kinds if kind not in by_kind]
        one_misses = len(others) == 1 and len(by_kind) > 3
        listed = f"all but {others[0]}" if one_misses else ", ".join(by_kind)
        return first._replace(text=f"{first.text}\n\nKinds: {listed}.")
    listed = "; ".join(
        f"{', '.join(names)} ({default.removeprefix('; ') or 'a mapping'})"
        for default, names in kinds_of.items()
    )
    return first._replace(default="", text=f"{first.text}\n\nKinds: {listed}.")


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
        yield Entry((path,), kind_of(name, field), default_of(field), text_of(config, name))
        nested = [] if is_choice(field) else config_of(field.annotation)
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
        return f"{text[:1].upper()}{text[1:].rstrip('.')}; see `KINDS OF {name}`."
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


def kind_of(name: str, field: FieldInfo) -> str:
    """Return the type in words, with its bounds; for a ``kind``, the names to choose from."""
    if is_choice(field):
        return " | ".join(REGISTRIES[name])
    bounds = [
        f"{word} {getattr(item, bound):g}"
        for item in field.metadata
        for bound, word in BOUNDS.items()
        if hasattr(item, bound)
    ]
    return ", ".join([words_of(field.annotation), *bounds])


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
