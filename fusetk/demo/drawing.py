"""Random parts of a sentence: subjects, objects, times, places."""

import random

from fusetk.demo import lexicon, phrases
from fusetk.demo.lexicon import Noun, pairs, rows
from fusetk.demo.phrases import Phrase

Adverb = tuple[str, str]  # German, English

CONTRACTIONS = {"in dem": "im", "an dem": "am", "zu dem": "zum", "zu der": "zur", "in das": "ins"}
# The kinds of nouns that have the adjectives of another kind.
KINDS_OF_ADJECTIVES = {"opening": "thing", "device": "thing", "clothing": "thing", "room": "thing"}


class Drawing:
    """Phrases and adverbials, drawn by one random generator."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.nouns = lexicon.nouns()
        self.names = lexicon.NAMES.split()
        self.adjectives = {kind: pairs(text) for kind, text in lexicon.ADJECTIVES.items()}
        self.places = rows(lexicon.PLACES)
        self.directions = rows(lexicon.DIRECTIONS)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random.random() < probability

    def noun_phrase(self, noun: Noun, plain: bool = False) -> Phrase:
        """Return a noun with a determiner and perhaps an adjective; ``plain`` is definite."""
        adjectives = self.adjectives[KINDS_OF_ADJECTIVES.get(noun.kind, noun.kind)]
        adjective = self.random.choice(adjectives) if self.chance(0.4) else ()
        possessive = self.random.choice(list(phrases.POSSESSIVES))
        if self.chance(0.25):
            kinds = ["der", "dieser", possessive, *phrases.QUANTITIES, "number"]
            kind = "der" if plain else self.random.choice(kinds)
            end = 13 if self.chance(0.7) else 100
            german, english = phrases.number(self.random.randrange(2, end))
            if kind == "number":
                return phrases.phrase(noun, german, True, adjective, english)
            return phrases.phrase(noun, kind, True, adjective)
        kinds = ["der", "der", "der", "ein", "ein", "dieser", possessive]
        kind = "der" if plain else self.random.choice(kinds)
        return phrases.phrase(noun, kind, False, adjective)

    def who(self) -> Phrase:
        """Return a subject."""
        draw = self.random.random()
        if draw < 0.3:
            return self.random.choice(phrases.PRONOUNS)
        if draw < 0.42:
            return phrases.name(self.random.choice(self.names))
        return self.noun_phrase(self.random.choice(self.nouns["person"]))

    def object_of(self, kinds: tuple[str, ...]) -> Phrase:
        """Return an object; persons may be pronouns or names."""
        kind = self.random.choice(kinds)
        if kind == "person" and self.chance(0.3):
            if self.chance(0.6):
                return self.random.choice(phrases.OBJECT_PRONOUNS)
            return phrases.name(self.random.choice(self.names))
        return self.noun_phrase(self.random.choice(self.nouns[kind]))

    def place(self) -> Adverb:
        """Draw a place: im Garten, auf einem kleinen Markt."""
        preposition, english, gender, noun, place = self.random.choice(self.places)
        column = "mfn".index(gender)
        if self.chance(0.25):
            stem, adjective = self.random.choice(
                pairs("alt:old, neu:new, klein:small, groß:big, schön:beautiful")
            )
            kind = self.random.choice(["der", "ein"])
            words = f"{preposition} {phrases.determiner(kind, 'dative', column)} {stem}en {noun}"
            article = "the" if kind == "der" else phrases.article(adjective)
            return shorten(words), f"{english} {article} {adjective} {place}"
        words = f"{preposition} {phrases.determiner('der', 'dative', column)} {noun}"
        return shorten(words), f"{english} the {place}"

    def direction(self) -> Adverb:
        """Draw a direction: nach Hause, in den Park."""
        if self.chance(0.3):
            return self.random.choice(pairs(lexicon.HOME))
        preposition, english, gender, noun, place = self.random.choice(self.directions)
        case = "accusative" if preposition == "in" else "dative"
        form = phrases.determiner("der", case, "mfn".index(gender))
        return shorten(f"{preposition} {form} {noun}"), f"{english} the {place}"

    def time(self, tense: str) -> Adverb:
        """Return an adverbial of time that fits the tense."""
        draw = self.random.random()
        if draw < 0.2:
            german, english = self.random.choice(pairs(lexicon.DAYS))
            return f"am {german}", f"on {english}"
        if draw < 0.35:
            german, english = phrases.number(self.random.randrange(2, 13))
            return f"um {german} Uhr", f"at {english} o'clock"
        if draw < 0.55 and tense in ("past", "future"):
            units, english = self.random.choice(pairs(lexicon.UNITS))
            german, count = phrases.number(self.random.randrange(2, 30))
            if tense == "past":
                return f"vor {german} {units}", f"{count} {english} ago"
            return f"in {german} {units}", f"in {count} {english}"
        when = tense if tense in ("past", "future") else "present"
        return self.random.choice(pairs(lexicon.TIMES[when]))


def shorten(words: str) -> str:
    """Contract the preposition and the article: in dem Garten becomes im Garten."""
    for long, short in CONTRACTIONS.items():
        if words.startswith(f"{long} "):
            return short + words[len(long) :]
    return words
