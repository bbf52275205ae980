"""Types of option values, and groups of options."""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from fusetk.errors import ConfigError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Options = TypeVar("Options")


class Parsed(click.ParamType):
    """The type of an option whose text a function parses.

    The function raises ValueError, with a message for the user, if the text is not valid.
    """

    def __init__(self, name: str, parse: Callable[[str], Any]):
        """``name`` is the value in the help."""
        self.name = name
        self.parse = parse

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return self.name  # click would write it in capitals

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Any:
        if not isinstance(value, str):  # a default value
            return value
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), parameter, context)


class FilePath(click.Path):
    """Names of files and folders. A shell does not expand the ~ of --run=~/x; this type does.

    An empty name is an error. It is the value of a variable that is not set.
    """

    def convert(
        self,
        value: str | os.PathLike[str],
        parameter: click.Parameter | None,
        context: click.Context | None,
    ) -> Any:
        if value == "":
            option = max(parameter.opts, key=len) if parameter else "a file name"
            raise ConfigError(f"{option} is empty: name a file or a folder")
        return super().convert(os.path.expanduser(value), parameter, context)


class FiniteRange(click.FloatRange):
    """Numbers of a range without NaN and infinity."""

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        number: float = click.FLOAT.convert(value, parameter, context)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", parameter, context)
        return super().convert(number, parameter, context)


def check_utf8(text: str, advice: str) -> None:
    """Raise ConfigError if a word of the command line or a path is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        word = os.fsencode(text)
        try:
            shown, reason = word.decode(), "cannot be read in this locale: set PYTHONUTF8=1"
        except UnicodeDecodeError:
            shown, reason = word.decode(errors="backslashreplace"), f"is not UTF-8: {advice}"
        raise ConfigError(f"{shown} {reason}") from None


def check_paths(*paths: str | Path) -> None:
    """Raise ConfigError if an absolute path is not UTF-8: files of a run and JSON name it."""
    for path in paths:
        check_utf8(os.path.abspath(path), "rename the folder")


def flag_of(name: str) -> str:
    """Return the long option of a parameter: `n_best` becomes `--n-best`."""
    return f"--{name.replace('_', '-')}"


def all_of(options: Iterable[Decorator]) -> Decorator:
    """Return a decorator that adds all options to a command, in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(list(options)):
            command = option(command)
        return command

    return decorate


def select(group: type[Options], values: Mapping[str, Any]) -> Options:
    """Build an object of a dataclass from the values of all options of a command."""
    names = [field.name for field in fields(group)]  # type: ignore[arg-type]
    return group(**{name: values[name] for name in names})
