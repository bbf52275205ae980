r"""Moses tokenisation and detokenisation as sacremoses does them, with a cache of words.

sacremoses works on whole lines, but all it does to a word (a run of characters between white space) depends on the word, on
whether it is the first or last of its line, and, for a period at its end, on whether a word follows and begins with a lower
case letter or a digit. Three facts carry that, each visible in sacremoses' expressions:

- none of them matches across white space, but for single spaces next to a comma or an apostrophe;
- a comma's match takes at most the space on one side, and no other comma's match needs that space;
- the match of an apostrophe takes the characters on both sides, so two words share a space only when the first ends and
  the second begins with an apostrophe. Such words stay together and are handled as one.

Lines with control characters that are no white space, which sacremoses removes after it has merged white space, go to
sacremoses whole. Output is words separated by one space; sacremoses itself leaves a second or trailing space in a few
cases (a line that ends in `.'`), its list of tokens is the same.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

from sacremoses import MosesDetokenizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

CACHED_WORDS = 500_000  # entries of one cache; it is emptied when full
CACHED_LENGTH = 60  # longer words are handled and forgotten
JUNK = re.compile(r"[\0-\x08\x0e-\x1b]")
END, LOWER, DIGIT, OTHER = range(4)  # what follows a word


class Open(NamedTuple):
    """A word whose final period stays or parts according to what follows: its form for each of END, LOWER, DIGIT, OTHER."""

    forms: tuple[str, ...]


class Words(dict[str, "str | Open"]):
    """Finished words by their raw form, made when first asked for."""

    def __init__(self, make: Callable[[str], "str | Open"]):
        super().__init__()
        self.make = make

    def __missing__(self, word: str) -> "str | Open":
        made = self.make(word)
        if len(word) <= CACHED_LENGTH:
            if len(self) >= CACHED_WORDS:
                self.clear()
            self[word] = made
        return made


class Tokenizer:
    """sacremoses' Moses tokeniser for one language, several times faster, with the same tokens."""

    def __init__(self, language: str, escape: bool = True, aggressive_hyphens: bool = False):
        self.moses = _moses(language)
        self.escape = escape
        self.aggressive = aggressive_hyphens
        self.alpha = frozenset(self.moses.IsAlpha)
        self.alnum = frozenset(self.moses.IsAlnum)
        self.lower = frozenset(self.moses.IsLower)
        numeric = frozenset(self.moses.NUMERIC_ONLY_PREFIXES)
        self.numeric_prefixes = numeric
        self.prefixes = frozenset(self.moses.NONBREAKING_PREFIXES) - numeric
        self.first = Words(lambda word: self._word(word, "", " "))
        self.middle = Words(lambda word: self._word(word, " ", " "))
        self.last = Words(lambda word: self._word(word, " ", ""))

    def __call__(self, line: str) -> str:
        """A raw line to words separated by one space."""
        if not line.isprintable() and JUNK.search(line):
            return " ".join(self.moses.tokenize(line, self.aggressive, escape=self.escape))
        words = line.split()
        if "'" in line and "' '" in " ".join(words):
            words = _glue(words)
        if len(words) < 2:
            made: list[str | Open] = [self._word(word, "", "") for word in words]
        else:
            middle = self.middle
            made = [
                self.first[words[0]],
                *[middle[word] for word in words[1:-1]],
                self.last[words[-1]],
            ]
        try:
            return " ".join(made)  # type: ignore[arg-type]
        except TypeError:  # an open word, in few lines
            return self._close(words, made)

    def _close(self, words: list[str], made: list["str | Open"]) -> str:
        """Choose the form of the open words by the word that follows; its first character is never moved or dropped."""
        following = [*(self._begins(word) for word in words[1:]), END]
        return " ".join(
            item.forms[what] if isinstance(item, Open) else item
            for item, what in zip(made, following, strict=True)
        )

    def _begins(self, text: str) -> int:
        if text[0] in self.lower:
            return LOWER
        return DIGIT if "0" <= text[0] <= "9" else OTHER

    def _word(self, word: str, before: str, after: str) -> "str | Open":
        """A word between its neighbours' spaces, which are missing at the ends of a line."""
        core, mark = (word[:-1], word[-1]) if word[-1] in ".," else (word, "")
        if core and self.alnum.issuperset(core):  # nothing to part but a comma or a period
            tokens = [core, ","] if mark == "," else [word]
        else:
            tokens = self._tokens(before + word + after)
        final = tokens.pop()
        forms = {
            what: self._period(final, what)
            for what in ((END, LOWER, DIGIT, OTHER) if after else (END,))
        }
        finished = {
            form: self._finish([*tokens, form], last=not after) for form in set(forms.values())
        }
        if len(finished) == 1:
            return finished.popitem()[1]
        return Open(tuple(finished[forms[what]] for what in (END, LOWER, DIGIT, OTHER)))

    def _tokens(self, text: str) -> list[str]:
        """sacremoses' expressions on one word; periods are parted but at the end of the last token."""
        moses = self.moses
        text = _sub(moses.PAD_NOT_ISALNUM, text)
        if self.aggressive:
            text = _sub(moses.AGGRESSIVE_HYPHEN_SPLIT, text)
        text = moses.replace_multidots(text)
        for rule in (moses.COMMA_SEPARATE_1, moses.COMMA_SEPARATE_2, moses.COMMA_SEPARATE_3):
            text = _sub(rule, text)
        for rule in _apostrophes(moses):
            text = _sub(rule, text)
        tokens = text.split()
        for i, token in enumerate(tokens[:-1]):
            tokens[i] = self._period(token, self._begins(tokens[i + 1]))
        return tokens

    def _period(self, token: str, following: int) -> str:
        """Part a final period, unless the token is a known or dotted abbreviation or what follows forbids it."""
        prefix = token[:-1]
        if not prefix or token[-1] != ".":
            return token
        if (
            ("." in prefix and not self.alpha.isdisjoint(prefix))
            or prefix in self.prefixes
            or following == LOWER
        ):
            return token
        if prefix in self.numeric_prefixes and following == DIGIT:
            return token
        return prefix + " ."

    def _finish(self, tokens: list[str], last: bool) -> str:
        """Tokens to text: dots restored, special characters escaped."""
        text = " ".join(tokens)
        if last and text.endswith(".'"):
            text = " ".join(_sub(self.moses.TRAILING_DOT_APOSTROPHE, text).split())
        if "MULTI" in text:
            text = self.moses.restore_multidots(text)
        return self.moses.escape_xml(text) if self.escape and not text.isalnum() else text


class Detokenizer:
    """sacremoses' Moses detokeniser for one language; it joins hyphens marked `@-@`."""

    def __init__(self, language: str, unescape: bool = True):
        self.moses = MosesDetokenizer(lang=language)
        self.plain = MosesDetokenizer(lang="en")
        self.unescape = unescape

    def __call__(self, words: str) -> str:
        tokens = words.split(" ")
        try:
            return self.moses.detokenize(tokens, unescape=self.unescape)
        except TypeError:  # sacremoses' rule for Czech `-li` ends so
            return self.plain.detokenize(tokens, unescape=self.unescape)


def _sub(rule: tuple[re.Pattern[str], str], text: str) -> str:
    return rule[0].sub(rule[1], text)


def _apostrophes(moses: MosesTokenizer) -> Sequence[tuple[re.Pattern[str], str]]:
    if moses.lang == "en":
        return moses.ENGLISH_SPECIFIC_APOSTROPHE
    return (
        moses.FR_IT_SPECIFIC_APOSTROPHE
        if moses.lang in ("fr", "it")
        else [moses.NON_SPECIFIC_APOSTROPHE]
    )


def _glue(words: list[str]) -> list[str]:
    """Keep together each run of words in which one ends and the next begins with an apostrophe."""
    glued: list[list[str]] = [[words[0]]]
    for word in words[1:]:
        if word[0] == "'" and glued[-1][-1][-1] == "'":
            glued[-1].append(word)
        else:
            glued.append([word])
    return [" ".join(run) for run in glued]


def has_rules(language: str) -> bool:
    """Whether sacremoses has abbreviations of the language, or adds its characters to the letters."""
    return language in NonbreakingPrefixes().available_langs or language in ("ja", "ko", "cjk")


@cache
def _moses(language: str) -> MosesTokenizer:
    return MosesTokenizer(lang=language)  # takes a second for its character classes
