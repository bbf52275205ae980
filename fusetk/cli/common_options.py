"""Options of every command, -q and --debug, and completion of file names in a shell."""

import itertools
import os
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from fusetk.cli.parameters import Parsed
from fusetk.errors import WARNING

QUIET, DEBUG, INPUT = "fusetk.quiet", "fusetk.debug", "fusetk.input"  # keys of Context.meta
QUIET_HELP = "Print only warnings and errors to standard error."

# Names of values that are paths, or may be paths, in the help of options and arguments.
FILES = ("FILE", "PREFIX", "RUN", "CONFIG", "HYP", "REF", "DICTIONARY", "SRC", "TGT", "MODEL")
DEVICES = ("auto", "cpu", "cuda")
LONG_NAME = re.compile(r"-[A-Za-z][\w-]{2,}")

debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=lambda context, parameter, value: context.meta.update({DEBUG: value}),
    help="Print the traceback of an error.",
)


def keep_quiet(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    """Store for ``inform`` whether the user gave -q."""
    context.meta[QUIET] = value
    return value


quiet_messages_option = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=keep_quiet,
    help=QUIET_HELP,
)


def with_common_options(command: click.Command) -> click.Command:
    """Add -q and --debug to a command or to each member of a group, if it does not have them.

    A command without an option -q prints its messages with ``inform``.
    """
    if isinstance(command, click.Group):
        for member in command.commands.values():
            with_common_options(member)
        return command
    names = {name for parameter in command.params for name in parameter.opts}
    if "--quiet" not in names:
        quiet_messages_option(command)
    if "--debug" not in names:
        debug_option(command)
        _refuse_long_names_after_one_dash(command)
    for parameter in command.params:
        _complete_and_expand(parameter, command)
    return command


def _refuse_long_names_after_one_dash(command: click.Command) -> None:
    """Make ``-output FILE``, as OpenNMT-py writes options, an error.

    click would read it as the option -o with the value ``utput``.
    """
    parse = command.parse_args
    long_names = {name[1:] for option in command.params for name in option.opts if name[:2] == "--"}

    def parse_args(context: click.Context, arguments: list[str]) -> list[str]:
        for argument in itertools.takewhile(lambda word: word != "--", arguments):
            name = argument.partition("=")[0]
            # Completion in a shell parses incomplete words.
            if LONG_NAME.fullmatch(name) and not context.resilient_parsing:
                from fusetk.cli.foreign import option_advice

                if name.replace("_", "-") in long_names or option_advice(name, context):
                    raise click.NoSuchOption(name, ctx=context)
        return parse(context, arguments)

    command.parse_args = parse_args  # type: ignore[assignment, method-assign]


def inform(message: str) -> None:
    """Print a message to standard error; with -q only a warning."""
    if message.startswith(WARNING) or not is_quiet():
        # click.echo would write through the stream that an open display puts in place.
        print(message, file=sys.stderr, flush=True)


def inform_of_warning(message: str) -> None:
    """Print a message to standard error if it is a warning."""
    if message.startswith(WARNING):
        inform(message)


def print_warning(text: str) -> None:
    """Print a warning to standard error."""
    click.echo(f"{WARNING}{text}", err=True)


def is_quiet() -> bool:
    """Whether the user gave -q."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def print_traceback(context: click.Context) -> None:
    """Print the traceback of the current error if the user gave --debug."""
    if context.meta.get(DEBUG):
        click.echo(traceback.format_exc(), err=True, nl=False)


def input_argument(option: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a decorator that adds an argument FILE, which means the same as ``-i FILE``.

    ``option`` is the parameter of -i, whose callback is ``input_or_argument``.
    """

    def store(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is None:
            return
        if context.get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"the input is given twice, as {value} and with -i: give it once"
            )
        context.meta[INPUT] = value

    return click.argument(
        "file", required=False, expose_value=False, callback=store, metavar="[FILE]"
    )


def input_or_argument(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Return the file that was given as an argument, or the value of -i."""
    return parameter.type_cast_value(context, context.meta.get(INPUT, value))


def _complete_and_expand(parameter: click.Parameter, command: click.Command) -> None:
    """Let a shell complete the names of files and devices where the type is plain text.

    The home folder ~ of a file's name is expanded, as ``FilePath`` does.
    """
    if not isinstance(parameter.type, click.types.StringParamType):
        return
    names = re.findall("[A-Z]+", parameter.make_metavar(click.Context(command)))
    if parameter.name == "device":
        parameter._custom_shell_complete = _devices
    elif set(names) & set(FILES):
        parameter._custom_shell_complete = _files
        parameter.type = Parsed("text", os.path.expanduser)


def _files(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def _devices(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(name) for name in DEVICES if name.startswith(incomplete)]
