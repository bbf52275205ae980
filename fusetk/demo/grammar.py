"""A German-English corpus from a small grammar.

The two languages differ as the real ones do. In German, the finite verb is second in a main clause
and last in a subordinate clause. Participles and infinitives end the clause. Prefixes are separated
from verbs. Articles and adjectives agree with the noun in gender, number and case. Nouns form
compounds. Adverbials have the order time, manner, place; in English it is manner, place, time. In
numbers, ones precede tens.
Each German sentence has exactly one English translation, so a model can learn to produce it.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fusetk.demo import lexicon, phrases
from fusetk.demo.clauses import (
    MODAL_FORMS,
    Clause,
    english_infinitive,
    english_main,
    english_question,
    german_infinitive,
    german_main,
    german_verb_final,
)
from fusetk.demo.drawing import Drawing
from fusetk.demo.lexicon import Noun, Verb, pairs, rows
from fusetk.demo.phrases import Phrase

Pair = tuple[str, str]  # German, English

# Pairs of each split. The test sentences are drawn first.
SIZES = {"test": 500, "valid": 500, "train": 20_000}
SEED = 1

CONJUNCTIONS = {"weil": "because", "wenn": "when", "obwohl": "although", "bevor": "before"}
# Probability of each adverbial in a clause.
ADVERBIALS = {"time": 0.45, "place": 0.3, "manner": 0.2, "frequency": 0.15}
# Tenses of a main clause and of its subordinate clause.
TENSES = [
    ("past", "past"),
    ("present", "present"),
    ("future", "present"),
    ("present", "past"),
    ("müssen", "present"),
]
# Verbs that do not fit adverbials of manner, such as "carefully".
NO_MANNER = {"sehen", "finden", "verstehen", "vergessen", "lernen", "kommen"}


class Relative(NamedTuple):
    """A phrase with a relative clause after it, in both languages."""

    phrase: Phrase
    german: str
    english: str


class Grammar(Drawing):
    """Draws sentences; two grammars with the same seed draw the same sentences."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.verbs = lexicon.verbs()
        self.transitive = [verb for verb in self.verbs if verb.frame == "accusative"]
        self.patterns: list[tuple[Callable[[], Pair], int]] = [
            (self.statement, 32),
            (self.question, 8),
            (self.subordinate_last, 15),
            (self.subordinate_first, 10),
            (self.report, 12),
            (self.relative, 12),
            (self.purpose, 9),
            (self.coordination, 6),
        ]

    def sentence(self) -> Pair:
        """Draw a sentence pair, capitalised and punctuated."""
        makers, weights = zip(*self.patterns, strict=True)
        return self.random.choices(makers, weights)[0]()

    # Clauses

    def tense(self) -> str:
        """Draw a tense or a modal verb."""
        draw = self.random.random()
        if draw < 0.45:
            return "past" if draw < 0.3 else "future"
        if draw < 0.65:
            return self.random.choice(list(MODAL_FORMS))
        return "present" if draw < 0.95 else "progressive"

    def governed(self, clause: Clause, verb: Verb) -> Clause:
        """Return a clause with the objects of the verb."""
        if verb.frame == "accusative":
            return clause._replace(thing=self.object_of(verb.objects))
        if verb.frame == "dative":
            return clause._replace(receiver=self.object_of(verb.objects))
        if verb.frame == "both":
            thing = self.noun_phrase(
                self.random.choice(self.nouns[self.random.choice(verb.objects)])
            )
            return clause._replace(receiver=self.object_of(("person",)), thing=thing)
        if verb.frame == "motion":
            return clause._replace(direction=self.direction())
        preposition, governs, case = verb.frame.partition("+")
        if governs:
            return clause._replace(partner=(preposition, self.object_of(verb.objects), case))
        return clause

    def clause(self, tense: str = "", subject: Phrase | None = None, short: bool = False) -> Clause:
        """Draw a clause with adverbials, at most one if it is ``short``."""
        subject = subject or self.who()
        tense = tense or self.tense()
        if self.chance(0.06) and tense in ("present", "past"):
            state = self.random.choice(pairs(lexicon.STATES))
            time = self.time(tense) if self.chance(0.4) else None
            return Clause(subject, None, tense, state=state, time=time, negated=self.chance(0.2))
        verb = self.random.choice(self.verbs)
        clause = self.governed(Clause(subject, verb, tense), verb)
        with_field = {field: self.chance(probability) for field, probability in ADVERBIALS.items()}
        if short:
            only = self.random.choice(list(with_field))
            with_field = {field: yes and field == only for field, yes in with_field.items()}
        if with_field["time"] and tense != "progressive":
            clause = clause._replace(time=self.time(tense))
        if with_field["place"] and verb.frame != "motion":
            clause = clause._replace(place=self.place())
        if self.chance(0.15) and tense != "progressive":
            return self.negate(clause)
        if with_field["frequency"] and tense == "present" and not clause.time:
            clause = clause._replace(frequency=self.random.choice(pairs(lexicon.FREQUENCIES)))
        if (
            with_field["manner"]
            and verb.frame in ("accusative", "both", "motion")
            and verb.infinitive not in NO_MANNER
        ):
            clause = clause._replace(manner=self.random.choice(pairs(lexicon.MANNERS)))
        return clause

    def negate(self, clause: Clause) -> Clause:
        """Negate a clause: with kein before an indefinite object, with nicht otherwise."""
        thing = clause.thing
        if thing and thing.noun and not thing.definite:
            thing = phrases.phrase(thing.noun, "kein", self.chance(0.4))
        return clause._replace(thing=thing, negated=True)

    # Sentences

    def main(self, clause: Clause) -> Pair:
        """Return a main clause with a random first part that leaves the meaning clear."""
        fronts = ["subject"] * 3
        fronts += ["time"] * 3 if clause.time else []
        fronts += ["place"] if clause.place and not clause.negated else []
        # A fronted object must show its case: den alten Brief, but not die Zeitung.
        if clause.thing and clause.thing.noun and clause.thing.marked and clause.thing.definite:
            fronts += ["accusative"]
        front = self.random.choice(fronts)
        return german_main(clause, front), english_main(clause, front)

    def statement(self) -> Pair:
        """Draw a statement: Der Kellner repariert die Tür."""
        german, english = self.main(self.clause())
        return written(german), written(english)

    def question(self) -> Pair:
        """Draw a question: Hat der Kellner die Tür repariert?"""
        clause = self.clause()
        return written(german_main(clause, ""), "?"), written(english_question(clause), "?")

    def subordinate(self, conjunction: str, tense: str) -> Pair:
        """Draw a subordinate clause: weil es regnet."""
        link = CONJUNCTIONS[conjunction]
        if self.chance(0.1) and conjunction != "bevor":
            regnet, rains, rained = self.random.choice(
                [("regnet", "rains", "rained"), ("schneit", "snows", "snowed")]
            )
            if tense == "past":
                return f"{conjunction} es ge{regnet} hat", f"{link} it {rained}"
            return f"{conjunction} es {regnet}", f"{link} it {rains}"
        clause = self.clause(tense, short=True)
        while clause.negated and conjunction == "bevor":
            clause = self.clause(tense, short=True)
        return f"{conjunction} {german_verb_final(clause)}", f"{link} {english_main(clause)}"

    def subordinate_last(self) -> Pair:
        """Draw a main clause and then a subordinate one: Er lacht, weil es regnet."""
        main, other = self.random.choice(TENSES)
        german, english = self.main(self.clause(main, short=True))
        german_sub, english_sub = self.subordinate(self.random.choice(list(CONJUNCTIONS)), other)
        return written(f"{german}, {german_sub}"), written(f"{english} {english_sub}")

    def subordinate_first(self) -> Pair:
        """Draw a subordinate clause and then a main one: Weil es regnet, lacht er."""
        main, other = self.random.choice(TENSES)
        clause = self.clause(main, short=True)
        german_sub, english_sub = self.subordinate(self.random.choice(list(CONJUNCTIONS)), other)
        german = f"{german_sub}, {german_main(clause, '')}"
        return written(german), written(f"{english_sub}, {english_main(clause)}")

    def report(self) -> Pair:
        """Draw reported speech: Ich glaube, dass er das Fenster aufgemacht hat."""
        infinitive, er, participle, english, past, conjunction = self.random.choice(
            rows(lexicon.REPORTS)
        )
        said, _, that = conjunction.partition(":")
        verb = Verb("", infinitive, er, participle, "haben", english, "", past, "intransitive", ())
        outer = Clause(self.who(), verb, self.random.choice(["present", "past"]))
        inner = self.clause()
        german = f"{german_main(outer)}, {said} {german_verb_final(inner)}"
        return written(german), written(f"{english_main(outer)} {that} {english_main(inner)}")

    def with_relative(self, noun: Noun) -> Relative:
        """Draw a relative clause for a noun: the man who helped me, the book that she is reading.

        The noun or the other noun of the clause must show its case, or the meaning is unclear.
        """
        head = self.noun_phrase(noun, plain=True)
        while True:
            if noun.kind == "person" and self.chance(0.6):
                inner, gap = self.clause(subject=head, short=True), "nominative"
                clear = head.marked or inner.thing is None or inner.thing.marked
            else:
                verb = self.random.choice(
                    [verb for verb in self.transitive if noun.kind in verb.objects]
                )
                subject = self.who()
                inner, gap = Clause(subject, verb, self.tense(), thing=head), "accusative"
                clear = head.marked or subject.marked
            if clear and inner.tense != "progressive":
                break
        pronoun = phrases.RELATIVE[gap][head.column]
        link = "who" if gap == "nominative" else "that"
        return Relative(
            head,
            f"{pronoun} {german_verb_final(inner, gap)}",
            f"{link} {english_main(inner, gap=gap)}",
        )

    def relative(self) -> Pair:
        """Return a sentence with a relative clause after the subject or after the object."""
        if self.chance(0.5):  # at the subject, in the middle of the sentence
            head, german, english = self.with_relative(self.random.choice(self.nouns["person"]))
            clause = self.clause(subject=head, short=True)
            german_head, english_head = head.german["nominative"], head.english["subject"]
            german_rest = german_main(clause).removeprefix(f"{german_head} ")
            english_rest = english_main(clause).removeprefix(f"{english_head} ")
            sentence = f"{german_head}, {german}, {german_rest}"
            return written(sentence), written(f"{english_head} {english} {english_rest}")
        verb = self.random.choice(self.transitive)
        head, german, english = self.with_relative(
            self.random.choice(self.nouns[self.random.choice(verb.objects)])
        )
        clause = Clause(self.who(), verb, self.tense(), thing=head)
        sentence = f"{german_main(clause)}, {german}"
        return written(sentence), written(f"{english_main(clause)} {english}")

    def purpose(self) -> Pair:
        """Draw an infinitive clause: Er geht in die Küche, um das Fenster aufzumachen."""
        subject = self.who()
        inner = self.clause("present", subject, short=True)
        while inner.verb is None or inner.negated:
            inner = self.clause("present", subject, short=True)
        inner = inner._replace(time=None, frequency=None)
        if self.chance(0.5):
            tense = self.random.choice(["past", "future", "present"])
            german, english = self.main(self.clause(tense, subject, short=True))
            link, order = ", um", "in order "
        else:
            infinitive, er, participle, word, past = self.random.choice(rows(lexicon.ATTEMPTS))
            verb = Verb("", infinitive, er, participle, "haben", word, "", past, "intransitive", ())
            tense = self.random.choice(["past", "present"])
            german, english = self.main(Clause(subject, verb, tense))
            link, order = ",", ""
        german = f"{german}{link} {german_infinitive(inner)}"
        return written(german), written(f"{english} {order}{english_infinitive(inner)}")

    def coordination(self) -> Pair:
        """Draw two main clauses: Er singt und sie tanzt."""
        tense = self.tense()
        (german, english), (german_two, english_two) = (
            self.main(self.clause(tense, short=True)) for _ in range(2)
        )
        link, word = self.random.choice(
            [(" und", " and"), (", aber", ", but"), (", denn", ", for")]
        )
        return written(f"{german}{link} {german_two}"), written(f"{english}{word} {english_two}")


def written(words: str, mark: str = ".") -> str:
    """Capitalise a sentence and add its punctuation mark."""
    return words[0].upper() + words[1:] + mark


def corpus(seed: int, sizes: dict[str, int]) -> dict[str, list[Pair]]:
    """Return the splits in the order of ``sizes``.

    No sentence of either language is in two splits. No German sentence occurs twice. Raises
    AssertionError if a German sentence has two translations, which is an error of the grammar.
    """
    grammar = Grammar(seed)
    splits: dict[str, list[Pair]] = {}
    english_of: dict[str, str] = {}
    in_other_splits: set[str] = set()
    for split, size in sizes.items():
        splits[split] = []
        while len(splits[split]) < size:
            german, english = grammar.sentence()
            if german in english_of:
                assert english_of[german] == english, (
                    f"{german}: {english_of[german]} or {english}?"
                )
                continue
            if english in in_other_splits:
                continue
            english_of[german] = english
            splits[split].append((german, english))
        in_other_splits.update(english for _, english in splits[split])
    return splits


def write_corpus(folder: Path, sizes: dict[str, int] = SIZES) -> None:
    """Write SPLIT.de and SPLIT.en for each split; the folder exists only with all files.

    Raises OSError if a file cannot be written.
    """
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for split, sentence_pairs in corpus(SEED, sizes).items():
        for side, language in enumerate(("de", "en")):
            lines = "".join(f"{pair[side]}\n" for pair in sentence_pairs)
            (part / f"{split}.{language}").write_text(lines, encoding="utf-8")
    part.rename(folder)
