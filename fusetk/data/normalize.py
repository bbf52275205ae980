"""Punctuation normalisation as sacremoses does it, skipping the substitutions that cannot apply to a line."""

import re
from collections.abc import Callable

from sacremoses import MosesPunctNormalizer

# What needs no literal character of the text: classes, escaped kinds and repeated characters, and the marks of groups.
OPTIONAL = re.compile(r"\[[^\]]*\][+*?]?|\\[sd][+*?]?|\\?.[+*?]|(?<!\\)[()]")
# Quotation marks change places with the periods before them; tried at each period, it takes time quadratic in a run of periods.
PERIODS_QUOTE = r'(\.+)"(\s*[^<])'
ANY_PERIODS = r'(\.+)(?:"(\s*[^<]))?'  # takes every run whole, quoted or not


class Normalizer:
    """sacremoses' punctuation normaliser for one language, with the same output."""

    def __init__(self, language: str):
        rules = MosesPunctNormalizer(lang=language).substitutions
        self.rules = [
            (needed(pattern), *compiled(pattern, replacement)) for pattern, replacement in rules
        ]

    def __call__(self, line: str) -> str:
        for literal, pattern, replacement in self.rules:
            if literal in line:
                line = pattern.sub(replacement, line)
        return line.strip()


def has_rules(language: str) -> bool:
    """Whether sacremoses does more for the language than for an unknown one."""
    rules, general = (MosesPunctNormalizer(lang=name).substitutions for name in (language, ""))
    return bool(rules != general)


def compiled(
    pattern: str, replacement: str
) -> tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]:
    """A substitution that takes time linear in the line."""
    if pattern == PERIODS_QUOTE:
        return re.compile(
            ANY_PERIODS
        ), lambda match: match[0] if match[2] is None else f'"{match[1]}{match[2]}'
    return re.compile(pattern), replacement


def needed(pattern: str) -> str:
    """A string that stands in every text that the pattern changes; empty when none is found."""
    if pattern == " +":  # replaced by one space
        return "  "
    literals = OPTIONAL.sub("", pattern.replace("\\r", "\r")).replace("\\", "")
    return max(literals, default="")
