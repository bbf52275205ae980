"""Noun phrases in both languages, with agreement in gender, number and case."""

from typing import NamedTuple

from fusetk.demo.lexicon import ENGLISH_ONES, ENGLISH_TENS, ONES, TENS, Noun

CASES = ("nominative", "accusative", "dative")

# Endings by case, for masculine, feminine, neuter and plural.
DER = {
    "nominative": ("er", "ie", "as", "ie"),
    "accusative": ("en", "ie", "as", "ie"),
    "dative": ("em", "er", "em", "en"),
}
DIESER = {
    "nominative": ("er", "e", "es", "e"),
    "accusative": ("en", "e", "es", "e"),
    "dative": ("em", "er", "em", "en"),
}
EIN = {
    "nominative": ("", "e", "", "e"),
    "accusative": ("en", "e", "", "e"),
    "dative": ("em", "er", "em", "en"),
}
WEAK = {
    "nominative": ("e", "e", "e", "en"),
    "accusative": ("en", "e", "e", "en"),
    "dative": ("en", "en", "en", "en"),
}
MIXED = {
    "nominative": ("er", "e", "es", "en"),
    "accusative": ("en", "e", "es", "en"),
    "dative": ("en", "en", "en", "en"),
}
STRONG_PLURAL = {"nominative": "e", "accusative": "e", "dative": "en"}

POSSESSIVES = {"mein": "my", "dein": "your", "sein": "his", "ihr": "her", "unser": "our"}
QUANTITIES = {"viele": "many", "einige": "some"}  # plural only, strong adjectives
RELATIVE = {"nominative": ("der", "die", "das", "die"), "accusative": ("den", "die", "das", "die")}


class Phrase(NamedTuple):
    """A noun with its determiner, a pronoun or a name. ``person`` is 1, 2 or 3."""

    german: dict[str, str]  # by case
    english: dict[str, str]  # as a subject and as an object
    person: int = 3
    plural: bool = False
    marked: bool = True  # whether nominative and accusative differ, so that the order may change
    noun: Noun | None = None
    definite: bool = True
    light: bool = False  # a pronoun, which follows the finite verb directly

    @property
    def column(self) -> int:
        """The index of this gender, or of the plural, in the tables of endings."""
        return 3 if self.plural else "mfn".index(self.noun.gender if self.noun else "m")


def _pronoun(german: str, english: str, person: int, plural: bool = False) -> Phrase:
    forms = dict(zip(CASES, german.split(), strict=True))
    subject, other = english.split()
    texts = {"subject": subject, "object": other}
    marked = forms["nominative"] != forms["accusative"]
    return Phrase(forms, texts, person, plural, marked, light=True)


PRONOUNS = [
    _pronoun("ich mich mir", "I me", 1),
    _pronoun("du dich dir", "you you", 2),
    _pronoun("er ihn ihm", "he him", 3),
    _pronoun("sie sie ihr", "she her", 3),
    _pronoun("wir uns uns", "we us", 1, True),
    _pronoun("sie sie ihnen", "they them", 3, True),
]
# As objects, sie (her, them) would be unclear.
OBJECT_PRONOUNS = [pronoun for pronoun in PRONOUNS if pronoun.marked]


def name(text: str) -> Phrase:
    """Return the phrase of a person's name."""
    return Phrase(dict.fromkeys(CASES, text), {"subject": text, "object": text}, marked=False)


def number(n: int) -> tuple[str, str]:
    """Return a number from 2 to 99 in German and English words: einundzwanzig, twenty-one."""
    if n < 20:
        return ONES[n], ENGLISH_ONES[n]
    tens, ones = n // 10 - 2, n % 10
    if not ones:
        return TENS[tens], ENGLISH_TENS[tens]
    return (
        f"{'ein' if ones == 1 else ONES[ones]}und{TENS[tens]}",
        f"{ENGLISH_TENS[tens]}-{ENGLISH_ONES[ones]}",
    )


def article(english: str) -> str:
    """Return ``a`` or ``an`` for the next word, by its first letter."""
    return "an" if english[0] in "aeiou" else "a"


def determiner(kind: str, case: str, column: int) -> str:
    """Return the German determiner's form.

    ``kind`` is der, dieser, ein, kein, a possessive, a quantity or a number word.
    """
    if kind == "der":
        return "d" + DER[case][column]
    if kind == "dieser":
        return "dies" + DIESER[case][column]
    if kind in ("ein", "kein", *POSSESSIVES):
        return kind + EIN[case][column]
    return kind + "n" if kind in QUANTITIES and case == "dative" else kind


def adjective_ending(kind: str, case: str, column: int) -> str:
    """Return the ending of an adjective after a determiner of this kind."""
    if kind in ("der", "dieser"):
        return WEAK[case][column]
    if kind in ("ein", "kein", *POSSESSIVES):
        return MIXED[case][column]
    return STRONG_PLURAL[case]


def dative_plural(plural: str) -> str:
    """Return the dative plural: with an n, unless the plural ends in n or s."""
    return plural if plural[-1] in "ns" else plural + "n"


def phrase(
    noun: Noun, kind: str, plural: bool = False, adjective: tuple[str, ...] = (), english: str = ""
) -> Phrase:
    """Return a noun with its determiner and at most one adjective (German stem, English word).

    ``english`` gives the determiner of a number word.
    """
    column = 3 if plural else "mfn".index(noun.gender)
    german = {}
    for case in CASES:
        if plural:
            word = dative_plural(noun.plural) if case == "dative" else noun.plural
        else:
            word = noun.singular if case == "nominative" else noun.oblique
        words = [determiner(kind, case, column)]
        words += [adjective[0] + adjective_ending(kind, case, column)] if adjective else []
        german[case] = " ".join([*words, word])
    rest = " ".join([*adjective[1:], noun.english_plural if plural else noun.english])
    determiners = {
        "der": "the",
        "dieser": "these" if plural else "this",
        "ein": article(rest),
        "kein": "any" if plural else article(rest),
    }
    text = f"{english or determiners.get(kind) or POSSESSIVES.get(kind) or QUANTITIES[kind]} {rest}"
    texts = {"subject": text, "object": text}
    marked = column == 0
    definite = kind not in ("ein", "kein")
    return Phrase(german, texts, 3, plural, marked, noun, definite)
