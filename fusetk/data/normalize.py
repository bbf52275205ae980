"""Punctuation normalisation with the rules of sacremoses.

Rules that cannot apply to a line are skipped.
"""

import re
from collections.abc import Callable

from sacremoses import MosesPunctNormalizer

# Parts of a pattern that match texts without a common character: character classes, escapes for
# classes, optional or repeated characters, and the parentheses of groups.
OPTIONAL = re.compile(r"\[[^\]]*\][+*?]?|\\[sd][+*?]?|\\?.[+*?]|(?<!\\)[()]")
# This rule moves a quotation mark before the periods that precede it. The regular expression is
# tried at each period, so its time is quadratic in the length of a run of periods.
PERIODS_QUOTE = r'(\.+)"(\s*[^<])'
# An expression that matches each run of periods once, with or without a quotation mark after it.
ANY_PERIODS = r'(\.+)(?:"(\s*[^<]))?'


class Normalizer:
    """A faster version of sacremoses' punctuation normaliser for one language; same output."""

    def __init__(self, language: str):
        rules = MosesPunctNormalizer(lang=language).substitutions
        self.rules = [
            (required_literal(pattern), *compiled(pattern, replacement))
            for pattern, replacement in rules
        ]

    def __call__(self, line: str) -> str:
        for literal, pattern, replacement in self.rules:
            if literal in line:
                line = pattern.sub(replacement, line)
        return line.strip()


def has_rules(language: str) -> bool:
    """Whether sacremoses has rules for the language besides the rules for all languages."""
    rules = MosesPunctNormalizer(lang=language).substitutions
    general_rules = MosesPunctNormalizer(lang="").substitutions
    return bool(rules != general_rules)


def compiled(
    pattern: str, replacement: str
) -> tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]:
    """Return a compiled substitution whose time is linear in the length of the line."""
    if pattern == PERIODS_QUOTE:
        return re.compile(ANY_PERIODS), _quote_before_periods
    return re.compile(pattern), replacement


def _quote_before_periods(match: re.Match[str]) -> str:
    return match[0] if match[2] is None else f'"{match[1]}{match[2]}'


def required_literal(pattern: str) -> str:
    """Return a string that is in every text that the rule changes; empty if there is none."""
    if pattern == " +":  # the replacement is one space
        return "  "
    literals = OPTIONAL.sub("", pattern.replace("\\r", "\r")).replace("\\", "")
    return max(literals, default="")
