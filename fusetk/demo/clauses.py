"""Clauses in both languages: one meaning, two word orders."""

from typing import NamedTuple

from fusetk.demo.drawing import Adverb
from fusetk.demo.lexicon import ING, MODALS, Verb, rows
from fusetk.demo.phrases import Phrase

HABEN = ("habe", "hast", "hat", "haben")  # ich, du, er, plural
SEIN = ("bin", "bist", "ist", "sind")
WAR = ("war", "warst", "war", "waren")
WERDEN = ("werde", "wirst", "wird", "werden")
MODAL_FORMS = {plural: ((er, du, er, plural), english) for er, du, plural, english in rows(MODALS)}


class Clause(NamedTuple):
    """The meaning of a clause.

    ``tense`` is present, progressive, past, future, or the infinitive of a modal verb. A clause
    without a verb has a ``state`` (er ist müde).
    """

    subject: Phrase
    verb: Verb | None
    tense: str
    receiver: Phrase | None = None  # dative
    thing: Phrase | None = None  # accusative
    # Preposition, phrase and case: wartet auf den Vater.
    partner: tuple[str, Phrase, str] | None = None
    time: Adverb | None = None
    frequency: Adverb | None = None
    manner: Adverb | None = None
    place: Adverb | None = None
    direction: Adverb | None = None
    state: Adverb | None = None
    negated: bool = False


# German


def person_index(subject: Phrase) -> int:
    """Return the index of the verb form that agrees with the subject."""
    return 3 if subject.plural else subject.person - 1


def present(verb: Verb, subject: Phrase) -> str:
    """Return the present tense without a separable prefix: lese, liest, liest, lesen."""
    stem = verb.er.removesuffix("t")  # er weiß has no t
    du = stem + ("t" if stem[-1] in "sßzx" else "st")
    ich = verb.er
    if ich.endswith("t"):
        ich = verb.infinitive.removesuffix("n").removesuffix("e") + "e"
    return (ich, du, verb.er, verb.infinitive)[person_index(subject)]


def verb_group(clause: Clause) -> tuple[str, list[str]]:
    """Return the finite verb and the end of the clause: (hat, [aufgemacht]), (ist, [müde])."""
    i = person_index(clause.subject)
    if clause.verb is None:
        assert clause.state
        return (WAR if clause.tense == "past" else SEIN)[i], [clause.state[0]]
    verb = clause.verb
    infinitive = verb.prefix + verb.infinitive
    if clause.tense == "past":
        return (SEIN if verb.auxiliary == "sein" else HABEN)[i], [verb.participle]
    if clause.tense == "future":
        return WERDEN[i], [infinitive]
    if clause.tense in MODAL_FORMS:
        return MODAL_FORMS[clause.tense][0][i], [infinitive]
    return present(verb, clause.subject), [verb.prefix] if verb.prefix else []


def middle(clause: Clause, without: str = "") -> list[str]:
    """Return the parts between the finite verb and the end.

    The order is: pronouns, time, gerade, frequency, dative, accusative, nicht, manner, place,
    prepositional object, direction.
    """
    objects = [(clause.receiver, "dative"), (clause.thing, "accusative")]
    light = [p.german[case] for p, case in reversed(objects) if p and p.light and without != case]
    heavy = [p.german[case] for p, case in objects if p and not p.light and without != case]
    time, place, manner, frequency = (
        [adverb[0]] if adverb and without != field else []
        for field, adverb in (
            ("time", clause.time),
            ("place", clause.place),
            ("manner", clause.manner),
            ("frequency", clause.frequency),
        )
    )
    has_kein = clause.thing is not None and clause.thing.german["accusative"].startswith("kein")
    nicht = ["nicht"] if clause.negated and not has_kein else []
    partner = []
    if clause.partner:
        preposition, phrase, case = clause.partner
        partner = [f"{preposition} {phrase.german[case]}"]
    direction = [clause.direction[0]] if clause.direction else []
    progressive = ["gerade"] if clause.tense == "progressive" else []
    return (
        light
        + time
        + progressive
        + frequency
        + heavy
        + nicht
        + manner
        + place
        + partner
        + direction
    )


def german_main(clause: Clause, front: str = "subject") -> str:
    """Return a clause with ``front`` (subject, time, place or accusative) before the finite verb.

    With '' the verb is first, as in a question.
    """
    finite, end = verb_group(clause)
    subject = clause.subject.german["nominative"]
    if front == "subject":
        return " ".join([subject, finite, *middle(clause), *end])
    first = {
        "time": clause.time and clause.time[0],
        "place": clause.place and clause.place[0],
        "accusative": clause.thing and clause.thing.german["accusative"],
    }.get(front)
    words = [finite, subject, *middle(clause, without=front), *end]
    return " ".join([first, *words] if first else words)


def german_verb_final(clause: Clause, gap: str = "") -> str:
    """Return a subordinate clause without its conjunction: the finite verb is last.

    A relative clause has a ``gap``: nominative or accusative.
    """
    finite, end = verb_group(clause)
    subject = [] if gap == "nominative" else [clause.subject.german["nominative"]]
    separable = clause.verb is not None and end == [clause.verb.prefix]
    final = [end[0] + finite] if separable else [*end, finite]
    return " ".join([*subject, *middle(clause, without=gap), *final])


def german_infinitive(clause: Clause) -> str:
    """Return an infinitive clause: das Fenster aufzumachen, ein Buch zu lesen."""
    assert clause.verb
    prefix, infinitive = clause.verb.prefix, clause.verb.infinitive
    end = f"{prefix}zu{infinitive}" if prefix else f"zu {infinitive}"
    return " ".join([*middle(clause), end])


# English


def third(base: str) -> str:
    """Return the third person singular: opens, watches, carries."""
    if base == "have":
        return "has"
    if base.endswith(("s", "sh", "ch", "x", "o")):
        return base + "es"
    return base[:-1] + "ies" if base[-1] == "y" and base[-2] not in "aeiou" else base + "s"


def ing(base: str) -> str:
    """Return the present participle: opening, writing, running."""
    return ING.get(base) or (base[:-1] if base.endswith("e") else base) + "ing"


def be(subject: Phrase, past: bool = False) -> str:
    """Return the form of `to be` that agrees with the subject."""
    plural = subject.plural or subject.person == 2
    if past:
        return "were" if plural else "was"
    return "are" if plural else "am" if subject.person == 1 else "is"


def english_group(clause: Clause) -> tuple[str, str, str]:
    """Return the plain form (``reads``), the auxiliary (``does``) and the verb after it (``read``).

    The plain form is empty if the tense has an auxiliary. Otherwise the auxiliary is that of
    questions and negation.
    """
    subject, verb = clause.subject, clause.verb
    singular = not subject.plural and subject.person == 3
    do = "does" if singular else "do"
    if verb is None:
        assert clause.state
        return "", be(subject, clause.tense == "past"), clause.state[1]
    if clause.tense == "past":
        return verb.past, "did", verb.english
    if clause.tense == "present":
        return third(verb.english) if singular else verb.english, do, verb.english
    if clause.tense == "progressive":
        return "", be(subject), ing(verb.english)
    if clause.tense == "future":
        return "", "will", verb.english
    first, *more = MODAL_FORMS[clause.tense][1].split()
    if first in ("have", "want"):
        rest = f"to {verb.english}"
        return f"{third(first) if singular else first} {rest}", do, f"{first} {rest}"
    return "", be(subject) if first == "be" else first, " ".join([*more, verb.english])


def english_objects(clause: Clause, without: str = "") -> list[str]:
    """Return the parts after the verb: particle, objects, direction, manner, place, time."""
    words = [clause.verb.particle] if clause.verb and clause.verb.particle else []
    if clause.thing and without != "accusative":
        words.append(clause.thing.english["object"])
    if clause.receiver:
        to = "to " if clause.verb and clause.verb.frame == "both" else ""
        words.append(to + clause.receiver.english["object"])
    if clause.partner:
        words.append(clause.partner[1].english["object"])
    adverbs = (
        clause.direction,
        clause.manner,
        clause.place,
        None if without == "time" else clause.time,
    )
    return words + [adverb[1] for adverb in adverbs if adverb]


def english_main(clause: Clause, front: str = "subject", gap: str = "") -> str:
    """Return a statement, or a relative clause with a ``gap``.

    A fronted time is also first in English; other fronted parts are not.
    """
    plain, auxiliary, rest = english_group(clause)
    if clause.negated:
        verb = ["cannot" if auxiliary == "can" else f"{auxiliary} not", rest]
    else:
        often = [clause.frequency[1]] if clause.frequency else []
        verb = [*often, plain] if plain else [auxiliary, *often, rest]
    subject = [] if gap == "nominative" else [clause.subject.english["subject"]]
    first = [clause.time[1]] if front == "time" and clause.time else []
    objects = english_objects(clause, "time" if first else gap)
    return " ".join([*first, *subject, *verb, *objects])


def english_question(clause: Clause) -> str:
    """Return a question: does he read the book."""
    _, auxiliary, rest = english_group(clause)
    negation = ["not"] if clause.negated else []
    often = [clause.frequency[1]] if clause.frequency else []
    subject = clause.subject.english["subject"]
    return " ".join([auxiliary, subject, *negation, *often, rest, *english_objects(clause)])


def english_infinitive(clause: Clause) -> str:
    """Return an infinitive clause: to open the window."""
    assert clause.verb
    return " ".join(["to", clause.verb.english, *english_objects(clause)])
