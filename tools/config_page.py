"""The manual page of the config."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fusetk.config import Config
from fusetk.recipe import Recipe
from tools.config_keys import (
    REGISTRIES,
    Entry,
    Heading,
    Item,
    config_of,
    entries,
    is_choice,
    merged,
    text_of,
)
from tools.markdown import blocks
from tools.troff import bold, escape, page, prose, tagged

TUTORIAL = Path(__file__).resolve().parent.parent / "docs/tutorial.md"


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
        text = text_of(Recipe, section)
        body.append(f".SH {escape(section)}")
        if is_choice(field):
            body.append(prose(with_kinds_of(section, text)))
        else:
            items = entries(config_of(field.annotation)[0], section)
            body += [prose(text), *(line for item in merged(items) for line in lines(item))]
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


def lines(item: Item) -> list[str]:
    """Return a key or a heading as troff."""
    if isinstance(item, Heading):
        return tagged(bold(f"{item.path}: {{{item.tag}}}"), item.text)
    names = ", ".join(map(bold, item.paths))
    text = with_kinds_of(item.name, item.text) if item.is_choice else item.text
    head = f"{names} ({escape(item.type)}{escape(item.default)})"
    return tagged(head, f"{text}\n\n{item.kinds}" if item.kinds else text)


def with_kinds_of(key: str, text: str) -> str:
    """Return the text of a key with the name of the section that describes its kinds."""
    return f"{text.rstrip('.')}; see `KINDS OF {key}`."


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
        yield from lines(common_entry(by_kind, list(table)))
    for kind, component in table.items():
        yield f".SS {escape(kind)}"
        yield prose(inspect.getdoc(component) or "")
        for item in options[kind]:
            if isinstance(item, Heading) or item.meaning not in shared:
                yield from lines(item)


def common_entry(by_kind: Mapping[str, Entry], kinds: Sequence[str]) -> Entry:
    """Return one entry for an option of several kinds; its `kinds` are their names and defaults."""
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
        return first._replace(kinds=f"Kinds: {listed}.")
    listed = "; ".join(
        f"{', '.join(names)} ({default.removeprefix('; ') or 'a mapping'})"
        for default, names in kinds_of.items()
    )
    return first._replace(default="", kinds=f"Kinds: {listed}.")
