"""Text that the Moses steps are not made for: unknown languages, and words that are not separated by spaces."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from fusetk.data.config import NormalizePunctuation, Step, Tokenize
from fusetk.data.steps import concerns
from fusetk.data.text import Pair, read_lines

SAMPLE = 1000  # lines of a file that are looked at


# Languages without rules ---------------------------------------------------------------------------------------------


def without_tokenizer_rules(language: str) -> str | None:
    """What the tokeniser does with a language that it has no rules for; None for the others."""
    from fusetk.data import tokenize  # sacremoses takes a while to import

    if tokenize.has_rules(language):
        return None
    return f"the tokeniser has no rules for {language!r}: it uses the abbreviations of English{_base(language)}"


def without_normalizer_rules(language: str) -> str | None:
    """The same for punctuation, of a language that the tokeniser does not know either.

    The general rules of the normaliser are meant for most of the languages that Moses knows.
    """
    from fusetk.data import normalize, tokenize

    if normalize.has_rules(language) or tokenize.has_rules(language):
        return None
    return f"the normaliser of punctuation has no rules for {language!r}: it uses those for all languages{_base(language)}"


def _base(language: str) -> str:
    """A hint at the rules of `pt` for `pt-BR`."""
    from fusetk.data import tokenize

    base = re.split("[-_]", language)[0].lower()
    return f", not those of {base!r}" if base != language and tokenize.has_rules(base) else ""


# Text without spaces -------------------------------------------------------------------------------------------------


class Script(NamedTuple):
    """A script that is written without spaces between words."""

    name: str
    run: re.Pattern[str]  # of its characters, with nothing between them
    longest: int  # characters; words that are separated are shorter on average


SCRIPTS = (
    Script(
        "Chinese or Japanese",
        re.compile(
            "[\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]+"
        ),
        3,
    ),
    Script("Thai", re.compile("[\u0e01-\u0e4f]+"), 10),
    Script("Lao", re.compile("[\u0e81-\u0ecf]+"), 10),
    Script("Burmese", re.compile("[\u1000-\u1049\u1050-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f]+"), 10),
    Script("Khmer", re.compile("[\u1780-\u17d3]+"), 10),
)


def without_spaces(lines: Iterable[str]) -> str | None:
    """What is wrong with text in one of these scripts whose words are not separated; None for other text.

    The first ``SAMPLE`` lines decide: at least half of the letters are of the script, and its characters
    stand together in runs that are too long for words.
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
                f"the {script.name} text has {size / len(runs):.1f} characters on average without a space: its words are not "
                "separated, and the tokeniser cannot find them"
            )
    return None


# Preparation ---------------------------------------------------------------------------------------------------------


def doubts(
    languages: Mapping[str, str], steps: Sequence[Step], texts: Iterable[Pair]
) -> Iterator[str]:
    """Sentences on what the steps are not made for; ``languages`` by side."""
    for i, (side, language) in enumerate(languages.items()):
        mine = [step for step in steps if concerns(step, side)]
        asked = {Tokenize: without_tokenizer_rules, NormalizePunctuation: without_normalizer_rules}
        for kind, check in asked.items():
            step = next((step for step in mine if isinstance(step, kind)), None)
            if step and (doubt := check(language)):
                yield (
                    f"data.{side}: {doubt}; check the code, or prepare this side with a tool for the language "
                    f"and leave it out of the step {step.step}"
                )
        for path in dict.fromkeys(pair[i] for pair in texts):
            if doubt := without_spaces(read_lines(path)):
                leave = (
                    " and leave it out of the step tokenize"
                    if any(isinstance(step, Tokenize) for step in mine)
                    else ""
                )
                yield f"{path}: {doubt}; segment this side with a tool for the language before prep{leave}"
