"""Errors about options and arguments as one sentence, like the errors about configs."""

import ast
import difflib
import re
import shlex
from contextlib import suppress
from pathlib import Path

import click
from click.exceptions import NoArgsIsHelpError

from fusetk import runs
from fusetk.cli.common_options import INPUT
from fusetk.cli.foreign import option_advice
from fusetk.config.messages import NUMBER, WHOLE_NUMBER, unknown_choice
from fusetk.errors import FusetkError


def usage_sentence(error: click.UsageError, context: click.Context) -> str | None:
    """Return an error of click as one sentence.

    ``context`` is that of the ``fusetk`` command. Returns None for an error that prints the help
    instead.
    """
    context = error.ctx or context
    if isinstance(error, NoArgsIsHelpError):
        return None
    if isinstance(error, click.NoSuchOption):
        return _unknown_option(error.option_name, context)
    if isinstance(error, click.MissingParameter):
        return _missing(error, context)
    if isinstance(error, click.BadOptionUsage):
        return _bad_option(error, context)
    if isinstance(error, click.BadParameter) and error.param is not None:
        return f"{parameter_name(error.param)}: {_bad_value(error)}"
    message = error.format_message().rstrip(".")
    if extra := re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", message):
        return f"unexpected argument {extra[1]}; {_help_advice(context)}"
    if unknown := re.match(r"No such command '(.*?)'", message):
        known = getattr(context.command, "commands", {})
        near = difflib.get_close_matches(unknown[1], known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        name = f"{_command(context)} {unknown[1]}".removeprefix("fusetk ")
        return f"unknown command {name!r}; {hint}"
    return message


def parameter_name(parameter: click.Parameter) -> str:
    """Return the longest name of an option, without its synonyms, or the name of an argument."""
    if isinstance(parameter, click.Option):
        return next((name for name in parameter.opts if name.startswith("--")), parameter.opts[0])
    metavar = parameter.make_metavar(click.Context(click.Command(None))).removesuffix("...")
    return re.sub(r"^\[(.*)\]$", r"\1", metavar)


def _unknown_option(name: str, context: click.Context) -> str:
    advice = option_advice(name, context)
    if advice is None:
        # A name of one letter resembles all others.
        known = [option for parameter in context.command.params for option in parameter.opts]
        near = difflib.get_close_matches(name, known, 1, 0.7) if len(name) > 2 else []
        advice = f"did you mean {near[0]}?" if near else _help_advice(context)
    return f"unknown option {name}; {advice}"


def _missing(error: click.MissingParameter, context: click.Context) -> str:
    parameter = error.param
    if parameter is None:
        return error.format_message().rstrip(".")
    name = parameter_name(parameter)
    if name == "--model" and (run := _run_argument(context)):
        return f"{run} is a run: give it with -m: {_command(context)} -m {shlex.quote(run)}"
    if isinstance(parameter, click.Argument):
        arguments = [each for each in context.command.params if isinstance(each, click.Argument)]
        value = f"{name}: {_command(context)} {' '.join(map(parameter_name, arguments))}"
    else:
        value = f"{name} {parameter.make_metavar(context).strip('[].')}"
    return f"give {value}; {_help_advice(context)}"


def _run_argument(context: click.Context) -> str | None:
    """Return the first argument that is a run or a checkpoint, although it should be a text."""
    for file in (context.meta.get(INPUT), *context.params.get("files", ())):
        with suppress(FusetkError):
            if file:
                runs.run_and_checkpoint(Path(file))
                return str(file)
    return None


def _bad_option(error: click.BadOptionUsage, context: click.Context) -> str:
    command = context.command
    if isinstance(command, click.Group) and context.invoked_subcommand:
        # click does not say which command reported that an option needs a value.
        command = command.get_command(context, context.invoked_subcommand) or command
    options = [option for option in command.params if error.option_name in option.opts]
    if "requires" not in error.message:
        return error.format_message().rstrip(".")
    value = options[0].make_metavar(context) if options else "VALUE"
    return f"{error.option_name} needs a value: {error.option_name} {value}"


def _bad_value(error: click.BadParameter) -> str:
    """Return the error of the value of an option or argument."""
    assert error.param is not None
    kind = error.param.type
    text = error.message.rstrip(".")
    if isinstance(kind, click.Choice) and (value := re.match(r"'(.*?)' is not (one of|')", text)):
        return unknown_choice("value", value[1], [str(choice) for choice in kind.choices])
    if outside := re.fullmatch(r"(\S+) is not in the range (.*)", text):
        return f"must be {_range(outside[2])}, but it is {outside[1]}"
    if wrong := re.fullmatch(r"('.*') is not a valid (integer|float)( range)?", text):
        return f"{WHOLE_NUMBER if wrong[2] == 'integer' else NUMBER}, but it is {wrong[1]}"
    if path := re.fullmatch(r"(?:Directory|File|Path) (['\"].*['\"]) is a (file|directory)", text):
        run_config = Path(ast.literal_eval(path[1])) / runs.CONFIG
        if error.param.name == "config" and run_config.is_file():
            return f"{path[1]} is a folder; give its config, {run_config}"
        kinds = {"file": "a file; give a folder", "directory": "a folder; give a file"}
        return f"{path[1]} is {kinds[path[2]]}"
    if path := re.fullmatch(r"\S+ (['\"].*['\"]) is not (readable|writable)", text):
        verb = "read" if path[2] == "readable" else "written"
        advice = "change its permissions, or choose another path"
        return f"{path[1]} cannot be {verb} (Permission denied): {advice}"
    return text


def _range(text: str) -> str:
    """Return click's ``1<=x<=3`` or ``x>=1`` in words."""
    if both := re.fullmatch(r"(\S+?)<(=?)x<(=?)(\S+)", text):
        low = f"{'at least' if both[2] else 'greater than'} {both[1]}"
        return f"{low} and {'at most' if both[3] else 'less than'} {both[4]}"
    words = {">=": "at least", ">": "greater than", "<=": "at most", "<": "less than"}
    match = re.fullmatch(r"x(>=|>|<=|<)(\S+)", text)
    return f"{words[match[1]]} {match[2]}" if match else text


def _help_advice(context: click.Context) -> str:
    return f"{_command(context)} --help lists the options"


def _command(context: click.Context) -> str:
    """Return the words of the command without the path of the program."""
    words = []
    while context.parent is not None:
        words.append(context.info_name or "")
        context = context.parent
    return " ".join(["fusetk", *reversed(words)])
