"""Punctuation normalisation as sacremoses does it, skipping the substitutions that cannot apply to a line."""

import re

from sacremoses import MosesPunctNormalizer

# What needs no literal character of the text: classes, escaped kinds and repeated characters, and the marks of groups.
OPTIONAL = re.compile(r"\[[^\]]*\][+*?]?|\\[sd][+*?]?|\\?.[+*?]|(?<!\\)[()]")


class Normalizer:
    """sacremoses' punctuation normaliser for one language, with the same output."""

    def __init__(self, language: str):
        rules = MosesPunctNormalizer(lang=language).substitutions
        self.rules = [(needed(pattern), re.compile(pattern), replacement) for pattern, replacement in rules]

    def __call__(self, line: str) -> str:
        for literal, pattern, replacement in self.rules:
            if literal in line:
                line = pattern.sub(replacement, line)
        return line.strip()


def needed(pattern: str) -> str:
    """A string that stands in every text that the pattern changes; empty when none is found."""
    if pattern == " +":  # replaced by one space
        return "  "
    literals = OPTIONAL.sub("", pattern.replace("\\r", "\r")).replace("\\", "")
    return max(literals, default="")
