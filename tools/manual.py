"""Generation of the manual pages: ``python -m tools.manual FOLDER``.

There is a page for each command and one for the config. A page depends only on the code, not on the
time or the machine, so a test can compare the pages in the repository with the code.
"""

import argparse
import inspect
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import click
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fusetk.cli.main import COMMANDS
from fusetk.cli.main import main as fusetk_command
from fusetk.cli.sections import Sections
from fusetk.config import ComponentConfig, Config
from fusetk.errors import DiskFull, FusetkError, Interrupted
from fusetk.fusion import FUSIONS
from fusetk.models import MODELS
from fusetk.models.residual import RESIDUALS
from fusetk.models.stack import ATTENDS, CONNECTIONS
from fusetk.recipe import Recipe
from fusetk.training.optim import OPTIMIZERS
from fusetk.training.schedule import SCHEDULES
from tools.troff import bold, escape, italic, page, prose

# The config keys whose `kind` selects a class, and the classes.
REGISTRIES: dict[str, Mapping[str, type]] = {
    "model": MODELS,
    "connect": CONNECTIONS,
    "residual": RESIDUALS,
    "fuse": FUSIONS,
    "attend": ATTENDS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
}
# The errors with their own exit codes, and the commands that can end with them.
SPECIAL: dict[type[FusetkError], set[str]] = {
    DiskFull: {"train", "average"},
    Interrupted: {"train"},
}
PRIMITIVES = {int: "whole number", float: "number", str: "string", bool: "true or false"}
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


# Commands -----------------------------------------------------------------------------------------


def commands() -> dict[str, click.Command]:
    """Return every command by its name, in the order of the help."""
    return {
        name: command
        for name in COMMANDS
        if (command := fusetk_command.get_command(click.Context(fusetk_command), name))
    }


def context_of(command: click.Command) -> click.Context:
    """Return a click context as in a call, with the settings that all commands share."""
    top = click.Context(fusetk_command, info_name="fusetk", **fusetk_command.context_settings)
    return top if command is fusetk_command else click.Context(command, parent=top)


def command_page(name: str, command: click.Command) -> str:
    """Return the page ``fusetk-<name>(1)``."""
    full = f"fusetk {name}"
    if isinstance(command, click.Group):
        body = group_body(full, command)
    else:
        body = [
            ".SH SYNOPSIS",
            synopsis(full, command),
            ".SH DESCRIPTION",
            prose(command.help or ""),
            ".SH OPTIONS",
            *options(command),
        ]
    if command.epilog:
        example = command.epilog.removeprefix("Example: ")
        body += [
            ".SH EXAMPLES",
            prose(command.epilog if example == command.epilog else f"`{example}`"),
        ]
    return page(f"fusetk-{name}", 1, COMMANDS[name], [*body, *exit_codes(name), *see_also(name)])


def group_body(full: str, group: click.Group) -> list[str]:
    """Return the body of the page of a command with subcommands."""
    body = [
        ".SH SYNOPSIS",
        f"{bold(full)} {italic('COMMAND')} [{italic('OPTIONS')}] ...",
        ".SH DESCRIPTION",
        prose(group.help or ""),
        ".SH COMMANDS",
    ]
    context = context_of(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        body += [
            f".SS {bold(f'{full} {name}')}",
            prose(command.help or ""),
            ".PP",
            synopsis(f"{full} {name}", command),
            *options(command),
        ]
    return body


def main_page() -> str:
    """Return the page ``fusetk(1)``."""
    body = [
        ".SH SYNOPSIS",
        f"{bold('fusetk')} {italic('COMMAND')} [{italic('OPTIONS')}] ...",
        ".SH DESCRIPTION",
    ]
    summary, _, rest = inspect.cleandoc(fusetk_command.help or "").partition("\n")
    body += [prose(rest), ".SH COMMANDS"]
    for name, text in COMMANDS.items():
        body += [".TP", f"\\fBfusetk\\-{escape(name)}\\fR(1)", prose(text)]
    body += [".SH OPTIONS", *options(fusetk_command), *exit_codes(""), *see_also("")]
    return page("fusetk", 1, summary, body)


def synopsis(full: str, command: click.Command) -> str:
    """Return one line with the command, its required options and its arguments."""
    words = [bold(full)]
    for option in command.params:
        if isinstance(option, click.Option) and option.required:
            words.append(f"{bold(option.opts[0])} {italic(metavar(option))}")
    words.append(f"[{italic('OPTIONS')}]")
    for argument in command.params:
        if isinstance(argument, click.Argument):
            words.append(italic(argument.make_metavar(context_of(command))))
    return " ".join(words)


def metavar(option: click.Option) -> str:
    """Return the placeholder of an option's value."""
    return option.make_metavar(click.Context(fusetk_command)).replace(" RANGE", "")


def options(command: click.Command) -> Iterator[str]:
    """Yield every option with its help and default, under the command's headings if it has any."""
    context = context_of(command)
    if isinstance(command, Sections):
        for title, members in command.by_section(context).items():
            yield f".SS {escape(title)}"
            yield from option_entries(members, context)
    else:
        parameters = command.get_params(context)
        members = [option for option in parameters if isinstance(option, click.Option)]
        yield from option_entries(members, context)


def option_entries(options: Iterable[click.Option], context: click.Context) -> Iterator[str]:
    for option in options:
        if option.hidden:
            continue
        names = ", ".join(bold(name) for name in sorted(option.opts, key=len))
        if option.secondary_opts:
            names += " / " + ", ".join(bold(name) for name in option.secondary_opts)
        value = "" if option.is_flag or option.count else f" {italic(metavar(option))}"
        extra = option.get_help_extra(context)
        notes = [f"Default: {extra['default']}."] if "default" in extra else []
        notes += [f"Range: {extra['range']}."] if "range" in extra else []
        notes += ["Required."] if option.required else []
        yield ".TP"
        yield names + value
        yield " ".join([prose(option.help or ""), *map(escape, notes)])


def exit_codes(name: str) -> list[str]:
    """Return the section EXIT STATUS of a command; an empty name means all commands."""
    texts = {
        0: "Success.",
        FusetkError.exit_code: "A user error; standard error says what it is and what to do.",
    }
    for error, special_commands in SPECIAL.items():
        if not name or name in special_commands:
            texts[error.exit_code] = inspect.getdoc(error) or ""
    body = [".SH EXIT STATUS"]
    for code, text in texts.items():
        body += [".TP", bold(str(code)), prose(text)]
    return body


def see_also(name: str) -> list[str]:
    """Return the section SEE ALSO; the main page lists the commands elsewhere."""
    others = ["fusetk", *(f"fusetk-{other}" for other in COMMANDS if other != name)] if name else []
    references = [f"{bold(other)}(1)" for other in others]
    return [".SH SEE ALSO", ", ".join([*references, f"{bold('fusetk-config')}(5)"])]


# The config ---------------------------------------------------------------------------------------


def config_page() -> str:
    """Return the page ``fusetk-config(5)``: every key of a config, from the config classes."""
    intro = """
        A config is a YAML file with the sections below. `extends: FILE` (or a list of files) starts
        from another config. The keys of this file override it; mappings are merged key by key.
        `--set a.b=VALUE` on the command line overrides the file. Unknown keys are errors. If a key
        can be null, the word none also means null, unless none is a value of that key.

        If a `kind` selects a class, `key: NAME` is short for `key: {kind: NAME}`. The kind can also
        be `package.module:Name`, a class outside fusetk.
        """
    body = [".SH DESCRIPTION", prose(intro)]
    for section, field in Recipe.model_fields.items():
        body += [f".SH {escape(section)}", prose(text_of(section, field))]
        if not is_choice(field):
            body += entries(config_of(field.annotation)[0], section)
    for key, table in REGISTRIES.items():
        body.append(f'.SH "KINDS OF {escape(key)}"')
        for kind, component in table.items():
            config: type[Config] = component.Config  # type: ignore[attr-defined]
            body += [
                f".SS {escape(kind)}",
                prose(inspect.getdoc(component) or ""),
                *entries(config, "", skip="kind"),
            ]
    example = (
        "model:\n  kind: transformer\n  width: 256\n  encoder: {layers: 3}\n  decoder: {layers: 3}"
    )
    body += [
        ".SH EXAMPLES",
        prose(f"\b\n{example}"),
        ".SH SEE ALSO",
        f"{bold('fusetk-describe')}(1), {bold('fusetk-train')}(1)",
    ]
    return page("fusetk-config", 5, "the config file of a run", body)


def entries(config: type[Config], place: str, skip: str = "") -> Iterator[str]:
    """Yield the keys of a config class and of nested ones: full path, type, default and text."""
    for name, field in config.model_fields.items():
        if name == skip:
            continue
        path = f"{place}.{name}" if place else name
        yield from (
            ".TP",
            f"{bold(path)} ({escape(kind_of(name, field))}{escape(default_of(field))})",
            prose(text_of(name, field)).replace("\n.PP\n", "\n.IP\n"),
        )
        nested = [] if is_choice(field) else config_of(field.annotation)
        inner = f"{path}[]" if get_origin(field.annotation) is list else path
        for alternative in nested:
            if len(nested) > 1:
                yield from (
                    ".TP",
                    bold(f"{inner}: {{{tag_of(alternative)}}}"),
                    prose(inspect.getdoc(alternative) or ""),
                )
            yield from entries(alternative, inner, skip="step" if len(nested) > 1 else "")


def is_choice(field: FieldInfo) -> bool:
    """Whether a ``kind`` selects the field's class."""
    return any(issubclass(config, ComponentConfig) for config in config_of(field.annotation))


def text_of(name: str, field: FieldInfo) -> str:
    """Return the field's description, or the first line of its config class's docstring."""
    text = field.description or ""
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
    if origin is list:
        return f"list of {many(inner[0])}"
    if origin is tuple:
        return f"list of {len(inner)}: {', '.join(map(words_of, inner))}"
    if origin is dict:
        return f"mapping of names to {many(inner[1])}"
    if origin in (typing.Union, types.UnionType):
        words = ["null" if member is type(None) else words_of(member) for member in inner]
        return " or ".join(dict.fromkeys(words))
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
    default = (
        field.default
        if field.default is not PydanticUndefined
        else field.get_default(call_default_factory=True)
    )
    if isinstance(default, ComponentConfig):
        return f"; default {default.kind}"
    if isinstance(default, Config):
        return ""
    if isinstance(default, bool) or default is None:
        return f"; default {'null' if default is None else str(default).lower()}"
    if isinstance(default, tuple):
        default = list(default)
    return f"; default {default}"


# Writing ------------------------------------------------------------------------------------------


@cache
def pages() -> dict[str, str]:
    """Return every page by its file name."""
    by_name = {"fusetk.1": main_page()}
    for name, command in commands().items():
        by_name[f"fusetk-{name}.1"] = command_page(name, command)
    by_name["fusetk-config.5"] = config_page()
    return by_name


def write(folder: Path) -> None:
    """Write all pages. Delete the pages of commands that were removed."""
    folder.mkdir(parents=True, exist_ok=True)
    by_name = pages()
    for old in [*folder.glob("fusetk*.1"), *folder.glob("fusetk*.5")]:
        if old.name not in by_name:
            old.unlink()
    for name, text in by_name.items():
        (folder / name).write_text(text, encoding="ascii")


def main() -> None:
    parser = argparse.ArgumentParser(description="write the manual pages")
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)


if __name__ == "__main__":
    main()
