"""Errors of YAML texts: the line of the mistake, and what to write instead."""

import re

import yaml

# YAML 1.1 ends a line at these characters, and reads U+0085 as a space. Other programs do not.
LINE_BREAKS = re.compile("[\x85\u2028\u2029]")
# A key and its value without a space between them.
NO_SPACE = re.compile(r"(?:- )*([\w.-]+):(?!//)([^\s:].*)")
# `package.module:Name`, a kind outside fusetk. It has a dot or a capital letter.
OUTSIDE_KIND = re.compile(r"(?!kind:|step:)([\w.-]+:[A-Z]\w*|[\w-]*\.[\w.-]*:.+)")
BRACKETS = {"while parsing a flow sequence": "[", "while parsing a flow mapping": "{"}
NEEDS_SPACE = "write a space after the colon: {}: {}"
NO_CONTENT = "expected the node content, but found "
# Beginnings of PyYAML's errors about special characters of YAML in a text without quotes.
TEXT_WITHOUT_QUOTES = (
    "expected alphabetic",
    "found character",
    "found undefined alias",
    "could not determine a constructor",
)


def line_and_reason(error: Exception, text: str) -> tuple[int | None, str]:
    """Return the line of a mistake in a YAML text, from 1, and its reason in one line.

    The line is None if it is unknown.
    """
    if isinstance(error, yaml.reader.ReaderError):
        line = len(_lines(text[: error.position]))
        code = f"{error.character:04X}"
        is_line_break = LINE_BREAKS.match(chr(error.character))
        escape = f", or write \\u{code} in double quotes" if is_line_break else ""
        return line, f"the character U+{code} is not allowed; remove it{escape}"
    if not isinstance(error, yaml.MarkedYAMLError):
        return None, str(error)
    place = error.problem_mark or error.context_mark
    if place is None:
        return None, error.problem or error.context or ""
    line, start = place.line + 1, (error.context_mark or place).line + 1
    reason = error.problem or error.context or ""
    lines = _lines(text)
    if "'\\t'" in reason:
        return line, "a line begins with a tab; indent with spaces"
    if reason == "found unexpected end of stream":
        return start, "the quote that begins here does not end"
    if reason == "expected the node content, but found '<stream end>'":
        before_end = text[: max(text.rfind("["), text.rfind("{"))]
        return len(_lines(before_end)), "a bracket is not closed"
    before = lines[line - 1][: place.column].strip()
    if "but got ':'" in reason and re.search(r":\s", before):
        return line, (
            "a comma is missing, or a second colon is in a value; write the value in quotes"
        )
    if bracket := BRACKETS.get(error.context or ""):
        is_before_end = "'<stream end>'" not in reason and line > start
        place_of_end = f" before line {line}" if is_before_end else ""
        return start, f"the bracket {bracket} is not closed, or a comma is missing{place_of_end}"
    if reason == "could not find expected ':'":
        return start, _without_colon(lines[start - 1].strip())
    if reason == "mapping values are not allowed here":
        return _misplaced_colon(lines, line, place.column)
    if reason.startswith("expected <block end>"):
        if before:
            is_closed = before[-1] in "'\"]}"
            value = "closing quote or bracket" if is_closed else "value"
            return line, f"text follows the {value}"
        return _line_without_space(lines, line) or (
            line,
            f"this line does not continue the block that begins in line {start}; correct its "
            "indentation",
        )
    if reason.startswith("expected '<document start>'"):
        return line, "this line does not continue the text above it; correct its indentation"
    if reason == "but found another document":
        return line, "a second document begins here; remove the line ---"
    if reason == "sequence entries are not allowed here":
        return line, (
            "a list cannot begin here; write it in brackets, or each item on a line of its own"
        )
    if reason.startswith(NO_CONTENT):
        return (
            line,
            f"{reason.removeprefix(NO_CONTENT)} is not allowed here; write the text in quotes",
        )
    if reason.startswith(TEXT_WITHOUT_QUOTES):
        return line, f"{reason}; write it in quotes if it is text"
    return line, reason


def _lines(text: str) -> list[str]:
    return re.split("\r\n|[\r\n]", text)


def space_advice(text: str) -> str:
    """Return the advice for `key:value`, which YAML reads as text; otherwise an empty text.

    The text is also empty for a kind outside fusetk, `package.module:Name`.
    """
    match = NO_SPACE.fullmatch(text)
    if match is None or OUTSIDE_KIND.fullmatch(":".join(match.groups())):
        return ""
    return NEEDS_SPACE.format(*match.groups())


def _without_colon(line: str) -> str:
    return space_advice(line) or f"{line[:40]!r} is not a key with a value; write it as key: value"


def _misplaced_colon(lines: list[str], line: int, column: int) -> tuple[int, str]:
    """Return the line and the reason of an error at a colon.

    The colon is in ``line``.
    """
    if re.search(r":\s", lines[line - 1][:column]):
        return line, "a second colon is in the value; write the value in quotes"
    return _line_without_space(lines, line) or (
        line,
        "a key cannot begin here; correct the indentation of this line",
    )


def _line_without_space(lines: list[str], line: int) -> tuple[int, str] | None:
    """Return the number of the nearest line with content above ``line``, and the advice for it.

    Return None if this line is not `key:value`.
    """
    for number in range(line - 1, 0, -1):
        above = lines[number - 1].partition(" #")[0].strip()
        if above and above[0] != "#":
            return (number, advice) if (advice := space_advice(above)) else None
    return None
