"""Texts of errors in a config: one sentence for each kind of error of pydantic."""

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fusetk.config.yaml_errors import space_advice
from fusetk.errors import quantity

MOST_SHOWN = 60  # characters of a value in ``shortened``
WHOLE_NUMBER = "must be a whole number"
NUMBER = "must be a number"
TEXT = "must be text"
LIST = "must be a list"
MAPPING = "must be a mapping of keys to values"
TRUTH = "must be true or false"

# Types of pydantic's errors about the type of a value, and what the value must be.
TYPES: Mapping[str, str] = {
    "int_type": WHOLE_NUMBER,
    "int_parsing": WHOLE_NUMBER,
    "int_from_float": WHOLE_NUMBER,
    "int_parsing_size": "must be a smaller whole number",
    "float_type": NUMBER,
    "float_parsing": NUMBER,
    "finite_number": "must be a finite number",
    "string_type": TEXT,
    "string_sub_type": TEXT,
    "list_type": LIST,
    "tuple_type": LIST,
    "dict_type": MAPPING,
    "model_type": MAPPING,
    "model_attributes_type": MAPPING,
    "bool_type": TRUTH,
    "bool_parsing": TRUTH,
}

# Types of pydantic's errors about the size of a value, with the limit in their context.
LIMITS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("must be greater than", "gt"),
    "greater_than_equal": ("must be at least", "ge"),
    "less_than": ("must be less than", "lt"),
    "less_than_equal": ("must be at most", "le"),
}

YAML_TRUTHS = {True: "yes, on or true", False: "no, off or false"}


def reason(error: Mapping[str, Any], may_be_null: bool = False) -> str:
    """Return the error of a value, and a correct value.

    ``error`` is an error of pydantic. ``may_be_null`` says whether the key may be null.
    """
    kind, value = error["type"], error.get("input")
    context = error.get("ctx", {})
    null = " or null" if may_be_null else ""
    if kind in TYPES:
        return f"{TYPES[kind]}{null}, but it is {shown(value)}{_advice(TYPES[kind], value)}"
    if kind in LIMITS:
        words, limit = LIMITS[kind]
        return f"{words} {context[limit]}{null}, but it is {shown(value)}"
    if kind in ("too_short", "too_long"):
        bound, key = (
            ("at least", "min_length") if kind == "too_short" else ("at most", "max_length")
        )
        items = quantity(context[key], "item")
        return f"must have {bound} {items}, but it has {context['actual_length']}"
    if kind == "literal_error":
        return unknown_choice("value", value, _quoted(context["expected"]))
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        key = context["discriminator"].strip("'")
        if kind == "union_tag_not_found":
            return f"the key {key} must be given"
        known = unknown_choice(key, context["tag"], _quoted(context["expected_tags"]))
        return f"{known}; or package.module:Name"
    if kind == "string_pattern_mismatch":
        return f"has the wrong form: it is {shown(value)} and must match {context['pattern']}"
    text: str = error["msg"].removeprefix("Value error, ")
    explains = kind in ("choice", "import", "value_error")
    if explains or not isinstance(value, str | int | float | bool):
        return text
    return f"{text} (it is {shown(value)})"


def unknown_choice(name: str, value: object, known: Sequence[str]) -> str:
    """Return an error about a value that is not one of ``known``, with the most similar of them."""
    near = difflib.get_close_matches(str(value).lower(), known, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {name} {shown(value)}; {hint}known: {', '.join(known)}"


def shown(value: object) -> str:
    """Return a value as a config would show it; a list or mapping only by its type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return repr(value)


def shortened(text: str) -> str:
    """Return a text, without its end if it is long."""
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _advice(required: str, value: object) -> str:
    """Return a correction of a value of the wrong type, if it is clear."""
    if required == TEXT and isinstance(value, bool):
        return f" (YAML reads {YAML_TRUTHS[value]} without quotes as {shown(value)}): use quotes"
    if required == TEXT and isinstance(value, int | float):
        return f": write it in quotes, {json.dumps(str(value))}"
    if required == MAPPING and isinstance(value, str) and (advice := space_advice(value)):
        return f": {advice}"
    return ""


def _quoted(choices: str) -> list[str]:
    """Return the choices in pydantic's text ``'a', 'b' or 'c'``."""
    return choices.replace(" or ", ", ").replace("'", "").split(", ")
