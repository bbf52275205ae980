r"""Moses tokenisation and detokenisation with the results of sacremoses, and a cache of words.

The cache is the reason for this module: it makes tokenisation more than three times as fast as the
command of sacremoses. On 1,015,000 lines, 35 times the German side of Multi30k's 29,000 training
pairs, it takes 7.8 s instead of 66.8 s (8.6 times faster); the output is equal
(``tests/benchmarks/text.py``).

sacremoses works on complete lines. But its result for a word (a run of characters between white
space) depends only on the word itself, on whether the word is the first or last of its line, and,
for a period at its end, on whether a word follows that begins with a lower case letter or a digit.
This follows from three facts, each visible in the regular expressions of sacremoses:

- No expression matches across white space, except single spaces next to a comma or an apostrophe.
- The match of a comma includes at most the space on one side, and no other comma's match needs this
  space.
- The match of an apostrophe includes the characters on both sides, so two words share a space only
  if the first ends and the second begins with an apostrophe. Such words are treated as one word.

sacremoses merges white space before it removes other control characters, so complete lines with
such characters are passed to sacremoses. The output is words separated by one space. In
a few cases (a line that ends in `.'`) sacremoses itself leaves a second or trailing space; its list
of tokens is the same.
"""

import re
from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

from sacremoses import MosesDetokenizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes
from sacremoses.util import is_cjk

from fusetk.data.cache import WordCache

CONTROL = re.compile(r"[\0-\x08\x0e-\x1b]")  # control characters that are not white space
END, LOWER, DIGIT, OTHER = range(4)  # kinds of text after a word
SPACE_BEFORE_IN_FRENCH = frozenset("?!:;\\%")  # marks with a space before them


class ContextWord(NamedTuple):
    """A word whose final period depends on the text after it.

    ``forms`` holds its tokens for END, LOWER, DIGIT and OTHER.
    """

    forms: tuple[str, ...]


Words = WordCache[str | ContextWord]
"""The tokens of each raw word."""


class Tokenizer:
    """A faster version of sacremoses' Moses tokeniser for one language; same tokens."""

    def __init__(self, language: str, escape: bool = True, aggressive_hyphens: bool = False):
        self.moses = _moses(language)
        self.escape = escape
        self.aggressive = aggressive_hyphens
        self.alpha = frozenset(self.moses.IsAlpha)
        self.alnum = frozenset(self.moses.IsAlnum)
        self.lower = frozenset(self.moses.IsLower)
        self.numeric_prefixes = frozenset(self.moses.NUMERIC_ONLY_PREFIXES)
        self.prefixes = frozenset(self.moses.NONBREAKING_PREFIXES) - self.numeric_prefixes
        self.first = Words(partial(self._word, before="", after=" "))
        self.middle = Words(partial(self._word, before=" ", after=" "))
        self.last = Words(partial(self._word, before=" ", after=""))

    def __call__(self, line: str) -> str:
        """Return a raw line as words separated by one space."""
        if not line.isprintable() and CONTROL.search(line):
            return " ".join(self.moses.tokenize(line, self.aggressive, escape=self.escape))
        words = line.split()
        if "'" in line and "' '" in " ".join(words):
            words = _glue(words)
        if len(words) < 2:
            tokens: list[str | ContextWord] = [self._word(word, "", "") for word in words]
        else:
            middle = self.middle
            tokens = [
                self.first[words[0]],
                *[middle[word] for word in words[1:-1]],
                self.last[words[-1]],
            ]
        try:
            return " ".join(tokens)  # type: ignore[arg-type]
        except TypeError:  # the line has a ContextWord, which is rare
            return self._resolve(words, tokens)

    def _resolve(self, words: list[str], tokens: list["str | ContextWord"]) -> str:
        """Choose the form of each ContextWord by the first character of the next word.

        Tokenisation never moves or drops this character.
        """
        kinds = [*(self._kind(word) for word in words[1:]), END]
        return " ".join(
            item.forms[kind] if isinstance(item, ContextWord) else item
            for item, kind in zip(tokens, kinds, strict=True)
        )

    def _kind(self, text: str) -> int:
        """Return the kind of the first character."""
        if text[0] in self.lower:
            return LOWER
        return DIGIT if "0" <= text[0] <= "9" else OTHER

    def _word(self, word: str, before: str, after: str) -> "str | ContextWord":
        """Return a word's tokens.

        ``before`` and ``after`` are spaces, or empty at the start and the end of a line.
        """
        core = word[:-1] if word[-1] in ".," else word
        if core and self.alnum.issuperset(core):  # only a final comma or period can be split off
            tokens = [core, ","] if word[-1] == "," else [word]
        else:
            tokens = self._tokens(before + word + after)
        *start, final = tokens
        kinds = (END, LOWER, DIGIT, OTHER) if after else (END,)
        last_tokens = [self._period(final, kind) for kind in kinds]
        forms = {token: self._finish([*start, token], last=not after) for token in set(last_tokens)}
        if len(forms) == 1:
            return forms.popitem()[1]
        return ContextWord(tuple(forms[token] for token in last_tokens))

    def _tokens(self, text: str) -> list[str]:
        """Apply sacremoses' expressions to one word; the last token keeps its final period."""
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
            tokens[i] = self._period(token, self._kind(tokens[i + 1]))
        return tokens

    def _period(self, token: str, following: int) -> str:
        """Split off a final period.

        The period stays if the token is a known abbreviation, or has a letter and another period.
        It also stays if a lower case letter follows, or if the token is an abbreviation of numbers
        and a digit follows.
        ``following`` is the kind of the text after the token.
        """
        prefix = token[:-1]
        if not prefix or token[-1] != ".":
            return token
        has_inner_period = "." in prefix and not self.alpha.isdisjoint(prefix)
        if has_inner_period or prefix in self.prefixes or following == LOWER:
            return token
        if prefix in self.numeric_prefixes and following == DIGIT:
            return token
        return prefix + " ."

    def _finish(self, tokens: list[str], last: bool) -> str:
        """Join tokens; restore runs of periods and escape special characters."""
        text = " ".join(tokens)
        if last and text.endswith(".'"):
            text = " ".join(_sub(self.moses.TRAILING_DOT_APOSTROPHE, text).split())
        if "MULTI" in text:
            text = self.moses.restore_multidots(text)
        return self.moses.escape_xml(text) if self.escape and not text.isalnum() else text


class Detokenizer:
    """The Moses detokeniser of sacremoses for one language, but faster.

    sacremoses tries many rules on each token. For letters and digits, and for marks like a comma,
    the result does not depend on the other tokens. A line that has only such tokens is joined
    without sacremoses. `@-@` becomes a hyphen within a word.
    """

    def __init__(self, language: str, unescape: bool = True):
        self.moses = MosesDetokenizer(lang=language)
        self.unescape = unescape
        self.with_space = WordCache(self._with_space)

    def __call__(self, words: str) -> str:
        tokens = words.split(" ")
        texts = [self.with_space[token] for token in tokens]
        if None not in texts:
            return "".join(texts).strip()  # type: ignore[arg-type]
        try:
            return self.moses.detokenize(tokens, unescape=self.unescape)
        except TypeError:  # a defect in sacremoses' rule for Czech `-li`
            return MosesDetokenizer(lang="en").detokenize(tokens, unescape=self.unescape)

    def _with_space(self, token: str) -> str | None:
        """Return a token with the space before it; None if the result depends on other tokens."""
        if token.replace("-", "").isalnum() and not any(map(is_cjk, token)):
            # In Czech, sacremoses compares numbers with the last tokens of the line.
            is_number = self.moses.lang == "cs" and any(map(str.isdigit, token))
            return None if is_number else " " + token
        if self.moses.IS_PUNCT.fullmatch(token):
            has_space = self.moses.lang == "fr" and token in SPACE_BEFORE_IN_FRENCH
            return " " + token if has_space else token
        return None


def _sub(rule: tuple[re.Pattern[str], str], text: str) -> str:
    return rule[0].sub(rule[1], text)


def _apostrophes(moses: MosesTokenizer) -> Sequence[tuple[re.Pattern[str], str]]:
    if moses.lang == "en":
        return moses.ENGLISH_SPECIFIC_APOSTROPHE
    if moses.lang in ("fr", "it"):
        return moses.FR_IT_SPECIFIC_APOSTROPHE
    return [moses.NON_SPECIFIC_APOSTROPHE]


def _glue(words: list[str]) -> list[str]:
    """Join neighbouring words if the first ends and the second begins with an apostrophe."""
    glued: list[list[str]] = [[words[0]]]
    for word in words[1:]:
        if word[0] == "'" and glued[-1][-1][-1] == "'":
            glued[-1].append(word)
        else:
            glued.append([word])
    return [" ".join(run) for run in glued]


def code_of(language: str) -> str:
    """Return the code of a language that sacremoses knows by its name; others are unchanged."""
    code: str = NonbreakingPrefixes().available_langs.get(language, language)
    return code


def has_rules(language: str) -> bool:
    """Whether sacremoses has abbreviations of the language, or counts its characters as letters."""
    codes = NonbreakingPrefixes().available_langs.values()
    return language in codes or language in ("ja", "ko", "cjk")


@cache
def _moses(language: str) -> MosesTokenizer:
    return MosesTokenizer(lang=language)  # building its character classes takes a second
