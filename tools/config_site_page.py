"""Generation of the page of config keys: ``python -m tools.config_site_page docs/config-keys.md``.

The page has the texts of the manual page ``fusetk-config(5)``, and an anchor for each key. The
manual page describes a key of several kinds once. This page describes it at each kind, so that all
keys of a kind are together.
"""

import argparse
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

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
from tools.markdown import escape, prose

INTRO = """\
<!-- made by `make man`, do not edit -->

All keys of a config, with type, default and meaning. [The config](config.md) explains inheritance,
changes on the command line, kinds and values. `man fusetk-config` has the same texts.

The name of a key is a link to its place on this page. `[]` in a name is any entry of a list."""


def site_page() -> str:
    """Return the page in Markdown: every key of a config, from the config classes."""
    body = ["# Config keys", INTRO]
    for section, field in Recipe.model_fields.items():
        body += [f"## {section}", *prose(text_of(Recipe, section))]
        if is_choice(field):
            body += kinds(section)
        else:
            body += listed(entries(config_of(field.annotation)[0], section))
    for key in REGISTRIES:
        if key not in Recipe.model_fields:
            body += [f"## Kinds of {key}", *kinds(key)]
    return "\n\n".join(body) + "\n"


def kinds(key: str) -> Iterator[str]:
    """Yield the kinds of a key as Markdown, each with all of its keys."""
    for kind, component in REGISTRIES[key].items():
        yield f"### {key}: {kind}"
        yield from prose(inspect.getdoc(component) or "")
        config = component.Config  # type: ignore[attr-defined]
        yield from listed(entries(config, key, skip="kind"), kind)


def listed(items: Iterable[Item], kind: str = "") -> Iterator[str]:
    """Yield the items of a list in Markdown. The keys of an alternative are a list in its item."""
    alternative = ""
    for item in merged(items):
        if isinstance(item, Heading):
            alternative = f"{item.path}."
            yield list_item([f"`{item.path}: {{{item.tag}}}`", *prose(item.text)])
        else:
            inner = bool(alternative) and item.paths[0].startswith(alternative)
            yield list_item(list(entry(item, kind)), "  " if inner else "")


def entry(item: Entry, kind: str) -> Iterator[str]:
    """Yield the paragraphs of a key. The first one has an anchor for each of its names."""
    anchors = [anchor(path, kind) for path in item.paths]
    names = ", ".join(
        f"[`{path}`](#{name})" for path, name in zip(item.paths, anchors, strict=True)
    )
    type_ = escape(item.type)
    if item.is_choice:
        type_ = " | ".join(f"[{name}](#{item.name}-{name})" for name in REGISTRIES[item.name])
    lines = [*(f'<a id="{name}"></a>' for name in anchors), f"{names} ({type_}"]
    yield "\n".join(lines) + f"{escape(item.default)})"
    yield from prose(item.text)


def anchor(path: str, kind: str = "") -> str:
    """Return the anchor of a key: training-seed for ``training.seed``, fuse-attention-hops for
    ``fuse.hops`` of the kind ``attention``.
    """
    first, _, rest = path.partition(".")
    return re.sub(r"[^a-z0-9]+", "-", f"{first}.{kind}.{rest}" if kind else path)


def list_item(paragraphs: Iterable[str], indent: str = "") -> str:
    """Return paragraphs as an item of a list in Markdown."""
    text = "\n\n".join(paragraphs).replace("\n", f"\n{indent}  ")
    return f"{indent}- {text}".replace(f"\n{indent}  \n", "\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="write the page of config keys")
    parser.add_argument("file", type=Path)
    parser.parse_args().file.write_text(site_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
