"""Options of ``fusetk decode`` and ``fusetk rescore`` that are made from fields of SearchConfig."""

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from fusetk.cli.parameters import Decorator, FiniteRange, Parsed, all_of, flag_of
from fusetk.config import field_docs
from fusetk.decoding.config import MOST, SearchConfig, SearchOption


def search_options(**settings: Mapping[str, Any]) -> Decorator:
    """Make a decorator that adds an option for each field with a ``SearchOption``.

    ``settings`` maps names of fields to the ``settings`` of ``search_option``.
    """
    return all_of(search_option(name, **settings.get(name, {})) for name in search_fields())


def search_option(name: str, **settings: Any) -> Decorator:
    """Make the option of a field. An option that the user does not give is None.

    ``settings`` are arguments of ``click.option``, which replace those that follow from the field.
    """
    mark = search_fields()[name]
    return click.option(*_declarations(name, mark), **{**_arguments(name, mark), **settings})


def exponent(hint: str) -> dict[str, Any]:
    """Return the settings of the option of ``normalize``, whose value may be omitted.

    ``hint`` is added to the error about a value that is not a number.
    """

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number; {hint}") from None
        if not 0 <= value <= 10:
            raise ValueError(f"{text.strip()} is not between 0 and 10")
        return value

    return {
        "type": Parsed("ALPHA", parse),
        "is_flag": False,
        "flag_value": 1.0,
        "metavar": "[ALPHA]",
    }


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
    own = flag_of(name)
    if SearchConfig.model_fields[name].annotation is bool:
        own = f"{own}/--no-{own.removeprefix('--')}"
    return [*short, own, *long, name]


def _arguments(name: str, mark: SearchOption) -> dict[str, Any]:
    field = SearchConfig.model_fields[name]
    arguments: dict[str, Any] = {"help": _help(name), "default": None}
    if field.annotation is bool:
        return {**arguments, "type": bool}
    if mark.metavar:
        arguments["metavar"] = mark.metavar
    if get_origin(field.annotation) is Literal:
        return {**arguments, "type": click.Choice(get_args(field.annotation))}
    if get_origin(field.annotation) is tuple:
        return {**arguments, "type": Parsed("W,W", _positive_numbers)}
    return {**arguments, "type": _range(field)}


def _positive_numbers(text: str) -> tuple[float, ...]:
    """Return the numbers of a comma-separated list. Raises ValueError if it is not one."""
    try:
        numbers = tuple(map(float, text.split(",")))
    except ValueError:
        raise ValueError(f"{text!r} is not a list of numbers such as 0.7,0.3") from None
    if not all(0 < number <= MOST for number in numbers):
        raise ValueError(f"{text}: give numbers above 0, at most {MOST:,}")
    return numbers


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
    return click.IntRange(**bounds) if field.annotation is int else FiniteRange(**bounds)


def _help(name: str) -> str:
    """Return the first paragraph of a field's docstring, with options for names of fields."""
    paragraph = field_docs(SearchConfig)[name].split("\n\n")[0]
    choices = get_args(SearchConfig.model_fields[name].annotation)
    names = search_fields().keys() - choices  # a choice may equal a name
    return re.sub(
        r"`(\w+)`",
        lambda match: f"`{flag_of(match[1])}`" if match[1] in names else match[0],
        " ".join(paragraph.split()),
    )
