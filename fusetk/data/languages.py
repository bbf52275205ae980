"""Checks for languages without rules of Moses, and for text without spaces between words."""

import re
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

SAMPLE = 1000  # lines of a file that are inspected


# Languages without rules -------------------------------------------------------------------------


def without_tokenizer_rules(language: str) -> str | None:
    """Return a warning if the tokeniser has no rules for a language."""
    from fusetk.data import tokenize  # sacremoses is slow to import

    if tokenize.has_rules(language):
        return None
    if (code := tokenize.code_of(language)) != language:
        return (
            f"the tokeniser has only abbreviations for {language!r}: "
            f"its other rules need the code {code!r}"
        )
    return (
        f"the tokeniser has no rules for {language!r}: "
        f"it uses the abbreviations of English{_hint(language)}"
    )


def without_normalizer_rules(language: str) -> str | None:
    """Return a warning if neither the normaliser nor the tokeniser has rules for a language.

    The general rules of the normaliser suit most of the languages that Moses knows.
    """
    from fusetk.data import normalize, tokenize

    if normalize.has_rules(language) or tokenize.has_rules(language):
        return None
    return (
        f"the punctuation normaliser has no rules for {language!r}: "
        f"it uses the rules for all languages{_hint(language)}"
    )


def _hint(language: str) -> str:
    """Return a hint if the tokeniser has rules for a similar code, such as `pt` for `pt-BR`."""
    from fusetk.data import tokenize

    base = tokenize.code_of(re.split("[-_]", language)[0].lower())
    return f", not those of {base!r}" if base != language and tokenize.has_rules(base) else ""


# Text without spaces -----------------------------------------------------------------------------


class Script(NamedTuple):
    """A script that is written without spaces between words."""

    name: str
    run: re.Pattern[str]  # consecutive characters of the script
    longest: int  # characters; the mean length of separated words is smaller


SCRIPTS = (
    Script(
        "Chinese or Japanese",
        re.compile(
            "[\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
            "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]+"
        ),
        3,
    ),
    Script("Thai", re.compile("[\u0e01-\u0e4f]+"), 10),
    Script("Lao", re.compile("[\u0e81-\u0ecf]+"), 10),
    Script("Burmese", re.compile("[\u1000-\u1049\u1050-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f]+"), 10),
    Script("Khmer", re.compile("[\u1780-\u17d3]+"), 10),
)


def without_spaces(lines: Iterable[str]) -> str | None:
    """Return a warning if the text is in one of ``SCRIPTS`` and has no spaces between words.

    Only the first ``SAMPLE`` lines are checked. The text has no spaces if at least half of its
    letters belong to the script and the runs of its characters are too long for words.
    """
    text = "\n".join(islice(lines, SAMPLE))
    if text.isascii():
        return None
    letters = sum(map(str.isalpha, text))
    for script in SCRIPTS:
        runs = script.run.findall(text)
        size = sum(map(len, runs))
        if 2 * size >= max(letters, 1) and size >= script.longest * len(runs):
            return (
                f"the {script.name} text has on average {size / len(runs):.1f} characters between "
                "spaces: its words are not separated, and the tokeniser cannot find them"
            )
    return None
