"""The manual, made from the code: ``python -m fusetk.cli.manual FOLDER`` writes a page for each command and one for the config.

Nothing in a page depends on when or where it was made, so a test can compare the pages of the project with the code.
"""

import argparse
import inspect
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import click
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fusetk.cli.main import COMMANDS
from fusetk.cli.main import main as fusetk_command
from fusetk.cli.options import Sections
from fusetk.cli.troff import bold, escape, italic, page, prose
from fusetk.config import ComponentConfig, Config
from fusetk.errors import DiskFull, FusetkError, Interrupted
from fusetk.fusion import FUSIONS
from fusetk.models import MODELS
from fusetk.models.stack import ATTENDS, CONNECTIONS
from fusetk.recipe import Recipe
from fusetk.training.optim import OPTIMIZERS
from fusetk.training.schedule import SCHEDULES

# Fields whose `kind` chooses a class, and what they choose from.
REGISTRIES: dict[str, Mapping[str, type]] = {
    "model": MODELS,
    "connect": CONNECTIONS,
    "fuse": FUSIONS,
    "attend": ATTENDS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
}
# Exit codes of some commands only.
SPECIAL: dict[type[FusetkError], set[str]] = {
    DiskFull: {"train", "average"},
    Interrupted: {"train"},
}
PRIMITIVES = {int: "whole number", float: "number", str: "string", bool: "true or false"}
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


# Commands ------------------------------------------------------------------------------------------------------------


def commands() -> dict[str, click.Command]:
    """Every command by its name, in the order of the help."""
    return {
        name: command
        for name in COMMANDS
        if (command := fusetk_command.get_command(click.Context(fusetk_command), name))
    }


def context_of(command: click.Command) -> click.Context:
    """As when the command is called, with the settings that all commands share."""
    top = click.Context(fusetk_command, info_name="fusetk", **fusetk_command.context_settings)
    return top if command is fusetk_command else click.Context(command, parent=top)


def command_page(name: str, command: click.Command) -> str:
    """``fusetk-<name>(1)``."""
    full = f"fusetk {name}"
    if isinstance(command, click.Group):
        context = context_of(command)
        members = [
            (sub, command.get_command(context, sub)) for sub in command.list_commands(context)
        ]
        body = [
            ".SH SYNOPSIS",
            f"{bold(full)} {italic('COMMAND')} [{italic('OPTIONS')}] ...",
            ".SH DESCRIPTION",
            prose(command.help or ""),
        ]
        body.append(".SH COMMANDS")
        for sub, member in members:
            assert member is not None
            body += [
                f".SS {bold(f'{full} {sub}')}",
                prose(member.help or ""),
                ".PP",
                synopsis(f"{full} {sub}", member),
                *options(member),
            ]
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


def main_page() -> str:
    """``fusetk(1)``."""
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
    """One line: the command, required options, arguments."""
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
    """What stands for an option's value."""
    return option.make_metavar(click.Context(fusetk_command)).replace(" RANGE", "")


def options(command: click.Command) -> Iterator[str]:
    """Every option with its help and default, under headings where the command has them."""
    context = context_of(command)
    if isinstance(command, Sections):
        for title, members in command.by_section(context).items():
            yield f".SS {escape(title)}"
            yield from entries_of(members, context)
    else:
        yield from entries_of(
            [option for option in command.get_params(context) if isinstance(option, click.Option)],
            context,
        )


def entries_of(members: Iterable[click.Option], context: click.Context) -> Iterator[str]:
    """Each option with its help and default."""
    for option in members:
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
    """EXIT STATUS, with those that only some commands have; all of them without a name."""
    found = {
        0: "All went well.",
        FusetkError.exit_code: "An error that you can mend; standard error says what, where and how.",
    }
    for error, those in SPECIAL.items():
        if not name or name in those:
            found[error.exit_code] = inspect.getdoc(error) or ""
    body = [".SH EXIT STATUS"]
    for code, text in found.items():
        body += [".TP", bold(str(code)), prose(text)]
    return body


def see_also(name: str) -> list[str]:
    """Other pages."""
    others = ["fusetk", *(f"fusetk-{other}" for other in COMMANDS if other != name)] if name else []
    pages_of = [f"\\fB{escape(other)}\\fR(1)" for other in others]
    return [".SH SEE ALSO", ", ".join([*pages_of, f"{bold('fusetk-config')}(5)"])]


# The config ----------------------------------------------------------------------------------------------------------


def config_page() -> str:
    """``fusetk-config(5)``: every key of a config, from the classes that read it."""
    intro = """
        A config is a YAML file with the sections below. `extends: FILE` (or a list of files) takes another config as the
        ground; keys given here win, and mappings are laid over each other key by key. `--set a.b=VALUE` on the command
        line wins over the file. Unknown keys are errors. A key that may be null takes the word none for null, too, unless none is a word
        of its own there.

        Where a `kind` chooses, `key: NAME` is short for `key: {kind: NAME}`, and the kind may be `package.module:Name`, a
        class outside fusetk.
        """
    body = [".SH DESCRIPTION", prose(intro)]
    for section, field in Recipe.model_fields.items():
        body += [f".SH {escape(section)}", prose(text_of(section, field))]
        if not is_choice(field):
            body += entries(config_of(field.annotation)[0], section)
    for key, table in REGISTRIES.items():
        body.append(f'.SH "KINDS OF {escape(key)}"')
        for kind, found in table.items():
            config: type[Config] = found.Config  # type: ignore[attr-defined]
            body += [
                f".SS {escape(kind)}",
                prose(inspect.getdoc(found) or ""),
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
    """The keys of a config class and of those inside it, each with its whole path, type, default and text."""
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
        for one in nested:
            if len(nested) > 1:
                yield from (
                    ".TP",
                    bold(f"{inner}: {{{tag_of(one)}}}"),
                    prose(inspect.getdoc(one) or ""),
                )
            yield from entries(one, inner, skip="step" if len(nested) > 1 else "")


def is_choice(field: FieldInfo) -> bool:
    """Whether a ``kind`` chooses the field's class."""
    return any(issubclass(config, ComponentConfig) for config in config_of(field.annotation))


def text_of(name: str, field: FieldInfo) -> str:
    """The field's text, or the first line of the text of the one config class that it holds."""
    text = field.description or ""
    if is_choice(field):
        return f"{text[:1].upper()}{text[1:].rstrip('.')}; see `KINDS OF {name}`."
    nested = config_of(field.annotation)
    return text or ((inspect.getdoc(nested[0]) or "").split("\n")[0] if len(nested) == 1 else "")


def tag_of(config: type[Config]) -> str:
    """What tells this class from others that may stand in its place: its ``step``, or the keys that must be given."""
    if step := config.model_fields.get("step"):
        return f"step: {get_args(step.annotation)[0]}"
    return ", ".join(name for name, field in config.model_fields.items() if field.is_required())


def config_of(annotation: Any) -> list[type[Config]]:
    """Every config class in a type: of Config, list[Config], A | B."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, Config) else []
    return [found for inner in get_args(annotation) for found in config_of(inner)]


def kind_of(name: str, field: FieldInfo) -> str:
    """The type in words, with its bounds."""
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
    """A type in words: ``list[str]`` is a list of text."""
    if annotation in PRIMITIVES:
        return PRIMITIVES[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return words_of(inner[0])
    if origin is Literal:
        return " | ".join(str(value) for value in inner)
    if origin is list:
        return f"list of {many(inner[0])}"
    if origin is tuple:
        return f"list of {len(inner)}: {', '.join(words_of(one) for one in inner)}"
    if origin is dict:
        return f"mapping of names to {many(inner[1])}"
    if origin in (typing.Union, types.UnionType):
        shown = dict.fromkeys("null" if one is type(None) else words_of(one) for one in inner)
        return " or ".join(shown)
    return "mapping"


def many(annotation: Any) -> str:
    """A type in words, in the plural."""
    words = words_of(annotation)
    return words.replace("list", "lists", 1) if words.startswith("list") else f"{words}s"


def default_of(field: FieldInfo) -> str:
    """The default, or that the key must be given; nothing for a mapping whose keys have their own."""
    if field.is_required():
        return "; must be given"
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


# Writing -------------------------------------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """Every page by its file name."""
    found = {"fusetk.1": main_page()}
    found |= {
        f"fusetk-{name}.1": command_page(name, command) for name, command in commands().items()
    }
    found["fusetk-config.5"] = config_page()
    return found


def write(folder: Path) -> None:
    """Write all pages, and delete those of commands that are no more."""
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for old in [*folder.glob("fusetk*.1"), *folder.glob("fusetk*.5")]:
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="ascii")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="write the manual pages")
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)


if __name__ == "__main__":
    main()
