"""Options of the commands of ``fusetk text``, and commands that change each line."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from fusetk.cli.common_options import input_argument, input_or_argument
from fusetk.cli.parameters import Decorator, FilePath, all_of
from fusetk.cli.text_streams import Watch, change_lines

Change = Callable[[str], str]


def flag(*names: str, help: str) -> Decorator:
    """Return an option without a value."""
    return click.option(*names, is_flag=True, help=help)


def path_option(*names: str, **settings: Any) -> Decorator:
    """Return an option that is a path."""
    return click.option(*names, type=FilePath(path_type=Path), **settings)


def count_option(*names: str, **settings: Any) -> Decorator:
    """Return an option that is a number from 1 with a default value."""
    return click.option(*names, show_default=True, type=click.IntRange(1), **settings)


output_option = path_option(
    "-o", "--output", default="-", help="Write to this file instead of standard output."
)
input_option = path_option(
    "-i",
    "--input",
    default="-",
    callback=input_or_argument,
    help="Read this file instead of standard input. It can also be given without -i.",
)
language_option = click.option(
    "-l",
    "--language",
    default="en",
    show_default=True,
    metavar="LANG",
    help="Language of the text.",
)


class LineCommand(NamedTuple):
    """A command that changes each line."""

    function: Callable[..., Change]  # maps the values of the options to the change
    options: Sequence[Decorator]
    watch: Watch = iter  # inspects the lines of the input


def make_command(name: str, entry: LineCommand) -> click.Command:
    """Return the click command of an entry of the table."""

    def run(input: Path, output: Path, **options: Any) -> None:
        change_lines(entry.function(**options), input, output, entry.watch)

    run.__doc__ = entry.function.__doc__
    return click.command(name)(
        all_of([input_argument("input"), input_option, output_option, *entry.options])(run)
    )
