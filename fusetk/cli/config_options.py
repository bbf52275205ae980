"""Options of ``fusetk decode`` that are made from the fields of SearchConfig."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from fusetk.decoding.config import SearchConfig, SearchOption


def search_options(
    **settings: Mapping[str, Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a decorator that adds an option for each field with a ``SearchOption``.

    An option that is not given is None. ``settings`` maps names of fields to arguments of
    ``click.option``, which replace those that follow from the field.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, mark in reversed(search_fields().items()):
            arguments = {**_arguments(name, mark), **settings.get(name, {})}
            command = click.option(*_declarations(name, mark), **arguments)(command)
        return command

    return decorate


def search_fields() -> dict[str, SearchOption]:
    """Return the fields of SearchConfig that are options."""
    return {
        name: mark
        for name, field in SearchConfig.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, SearchOption)
    }


def section(title: str) -> list[str]:
    """Return the fields whose options belong under this heading."""
    return [name for name, mark in search_fields().items() if mark.section == title]


def _declarations(name: str, mark: SearchOption) -> list[str]:
    short = [flag for flag in mark.names if not flag.startswith("--")]
    long = [flag for flag in mark.names if flag.startswith("--")]
    return [*short, _flag(name), *long, name]


def _arguments(name: str, mark: SearchOption) -> dict[str, Any]:
    field = SearchConfig.model_fields[name]
    arguments: dict[str, Any] = {"help": _help(field), "default": None}
    if field.annotation is bool:
        return {**arguments, "is_flag": True}
    if mark.metavar:
        arguments["metavar"] = mark.metavar
    if get_origin(field.annotation) is Literal:
        return {**arguments, "type": click.Choice(get_args(field.annotation))}
    return {**arguments, "type": _range(field)}


def _range(field: FieldInfo) -> click.ParamType:
    """Return the number type of a field with its bounds."""
    bounds: dict[str, Any] = {}
    for constraint in field.metadata:
        for key, bound in (("ge", "min"), ("gt", "min"), ("le", "max"), ("lt", "max")):
            value = getattr(constraint, key, None)
            if value is not None:
                bounds[bound] = value
                bounds[f"{bound}_open"] = key in ("gt", "lt")
    assert field.annotation is not None
    if not bounds:
        return click.types.convert_type(field.annotation)
    return click.IntRange(**bounds) if field.annotation is int else click.FloatRange(**bounds)


def _help(field: FieldInfo) -> str:
    """Return the first paragraph of a field's docstring, with options for names of fields."""
    paragraph = (field.description or "").split("\n\n")[0]
    names = search_fields().keys() - get_args(field.annotation)  # a choice may equal a name
    return re.sub(
        r"`(\w+)`",
        lambda match: f"`{_flag(match[1])}`" if match[1] in names else match[0],
        " ".join(paragraph.split()),
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
