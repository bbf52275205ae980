"""The grammar of the demo: sentences are distinct and held out, and the German is correct."""

import re
from itertools import chain

import pytest

from fusetk.demo import clauses, grammar, lexicon, phrases

PREFIXES = ("auf", "zu", "an", "ab", "ein", "kennen", "weg", "aus", "mit", "vor", "zurück", "nach")
SIZES = {"test": 300, "valid": 300, "train": 6000}


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[tuple[str, str]]]:
    return grammar.corpus(1, SIZES)


def test_splits_have_their_sizes_and_distinct_sentences(corpus):
    assert {split: len(pairs) for split, pairs in corpus.items()} == SIZES
    german = [pair[0] for pairs in corpus.values() for pair in pairs]
    assert len(set(german)) == len(german)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("held_out", "seen"), [("test", "train"), ("valid", "train"), ("test", "valid")]
)
def test_held_out_sentences_are_in_no_other_split(corpus, side, held_out, seen):
    assert not {pair[side] for pair in corpus[held_out]} & {pair[side] for pair in corpus[seen]}


def test_nearly_all_held_out_words_are_seen_in_training():
    """The test sentences need new word orders and agreements. Only compounds may be new words."""
    pairs = grammar.corpus(1, {"test": 500, "train": 20_000})

    def words(split):
        return {word for pair in pairs[split] for word in re.findall(r"\w+", pair[0])}

    assert len(words("test") - words("train")) <= 0.01 * len(words("test"))


def test_a_seed_fixes_the_corpus():
    sizes = {"test": 30, "train": 300}
    assert grammar.corpus(1, sizes) == grammar.corpus(1, sizes) != grammar.corpus(2, sizes)


def test_a_german_sentence_has_one_translation():
    """`corpus` checks the sentences of seed 1."""
    draw = grammar.Grammar(2)
    english: dict[str, str] = {}
    for _ in range(20_000):
        one, other = draw.sentence()
        assert english.setdefault(one, other) == other


def test_two_translations_of_a_sentence_are_noticed(monkeypatch):
    drawn = iter([("Er lacht.", "He laughs."), ("Er lacht.", "He is laughing.")])
    monkeypatch.setattr(grammar.Grammar, "sentence", lambda self: next(drawn))
    with pytest.raises(AssertionError, match=r"He laughs\. or He is laughing\."):
        grammar.corpus(1, {"train": 2})


@pytest.fixture(scope="module")
def finite() -> set[str]:
    """Return every verb form that can end a subordinate clause."""
    tables = [
        clauses.HABEN,
        clauses.SEIN,
        clauses.WAR,
        clauses.WERDEN,
        *(forms for forms, _ in clauses.MODAL_FORMS.values()),
    ]
    subjects = phrases.PRONOUNS
    verbs = {
        verb.prefix + clauses.present(verb, subject)
        for verb in lexicon.verbs()
        for subject in subjects
    }
    return {form for table in tables for form in table} | verbs | {"regnet", "schneit"}


def test_a_new_german_sentence_with_held_out_english_is_not_taken(monkeypatch):
    drawn = iter(
        [
            ("Er lacht hier.", "He laughs here."),
            ("Hier lacht er.", "He laughs here."),
            ("Sie lacht.", "She laughs."),
        ]
    )
    monkeypatch.setattr(grammar.Grammar, "sentence", lambda self: next(drawn))
    found = grammar.corpus(1, {"test": 1, "train": 1})
    assert found == {
        "test": [("Er lacht hier.", "He laughs here.")],
        "train": [("Sie lacht.", "She laughs.")],
    }


def test_subordinate_clauses_end_in_their_finite_verb(corpus, finite):
    german = [pair[0] for pair in corpus["train"]]
    last = [
        match[1]
        for line in german
        if (match := re.search(r", (?:weil|wenn|obwohl|bevor|dass|ob) [^,]* (\w+)\.$", line))
    ]
    first = [
        match[1]
        for line in german
        if (match := re.match(r"(?:Weil|Wenn|Obwohl|Bevor) [^,]* (\w+), ", line))
    ]
    assert min(len(last), len(first)) > 0.05 * len(german)
    assert {*last, *first} <= finite


def test_after_a_subordinate_clause_the_main_clause_begins_with_its_verb(corpus, finite):
    german = [pair[0] for pair in corpus["train"]]
    verbs = [
        match[1]
        for line in german
        if (match := re.match(r"(?:Weil|Wenn|Obwohl|Bevor) [^,]*, (\w+) ", line))
    ]
    assert verbs and set(verbs) <= finite | {
        form.removeprefix(prefix) for form in finite for prefix in PREFIXES
    }


def test_prefixes_come_off_in_main_clauses_and_stay_in_subordinate_ones(corpus):
    german = [pair[0] for pair in corpus["train"]]

    def count(pattern: str) -> int:
        return sum(bool(re.search(pattern, line)) for line in german)

    assert count(r"(macht|räumt|ruft|lädt) .* (auf|zu|an|ein)[.,]") > 20
    assert (
        count(r", (dass|weil|der|die|das|den) .* (auf|zu|an|ein)(macht|räumt|ruft|lädt)[.,]") > 10
    )
    assert count(r" (aufzumachen|zuzumachen|aufzuräumen|anzurufen|einzuladen)\.") > 5


def test_many_german_sentences_end_in_a_verb(corpus):
    """At least a third of the German sentences end in a word with the form of a verb."""
    ends = sum(
        bool(re.search(r"(?: hat| haben| ist| wird| werden| \w+en|ge\w+t)[.?]$", german))
        for german, _ in corpus["train"]
    )
    assert ends > len(corpus["train"]) / 3


@pytest.mark.parametrize(
    ("noun", "kind", "plural", "adjective", "expected"),
    [
        (
            ("m", "Junge", "Jungen", "Jungen"),
            "der",
            False,
            "alt",
            ["der alte Junge", "den alten Jungen", "dem alten Jungen"],
        ),
        (
            ("m", "Hund", "Hunde", "Hund"),
            "ein",
            False,
            "alt",
            ["ein alter Hund", "einen alten Hund", "einem alten Hund"],
        ),
        (
            ("f", "Frau", "Frauen", "Frau"),
            "mein",
            False,
            "alt",
            ["meine alte Frau", "meine alte Frau", "meiner alten Frau"],
        ),
        (
            ("n", "Kind", "Kinder", "Kind"),
            "ein",
            False,
            "alt",
            ["ein altes Kind", "ein altes Kind", "einem alten Kind"],
        ),
        (
            ("n", "Kind", "Kinder", "Kind"),
            "dieser",
            False,
            "alt",
            ["dieses alte Kind", "dieses alte Kind", "diesem alten Kind"],
        ),
        (
            ("n", "Kind", "Kinder", "Kind"),
            "der",
            True,
            "alt",
            ["die alten Kinder", "die alten Kinder", "den alten Kindern"],
        ),
        (
            ("n", "Auto", "Autos", "Auto"),
            "viele",
            True,
            "alt",
            ["viele alte Autos", "viele alte Autos", "vielen alten Autos"],
        ),
        (
            ("f", "Tür", "Türen", "Tür"),
            "drei",
            True,
            "alt",
            ["drei alte Türen", "drei alte Türen", "drei alten Türen"],
        ),
    ],
)
def test_articles_and_adjectives_agree(noun, kind, plural, adjective, expected):
    found = phrases.phrase(
        lexicon.Noun(*noun, "x", "xs", "thing"), kind, plural, (adjective, "old"), english="three"
    )
    assert [found.german[case] for case in phrases.CASES] == expected


@pytest.mark.parametrize(
    ("n", "german", "english"),
    [(2, "zwei", "two"), (21, "einundzwanzig", "twenty-one"), (70, "siebzig", "seventy")],
)
def test_numbers_have_their_words(n, german, english):
    assert phrases.number(n) == (german, english)


def test_irregular_forms_are_correct():
    plurals = {noun.english: noun.english_plural for noun in chain(*lexicon.nouns().values())}
    assert not [plural for plural in plurals.values() if re.search("(s|x|ch|sh)s$", plural)]
    pronouns = {phrase.german["nominative"]: phrase for phrase in phrases.PRONOUNS}
    know = lexicon.Verb("", "wissen", "weiß", "", "", "", "", "", "", ())
    for subject, form in (("ich", "weiß"), ("du", "weißt"), ("er", "weiß"), ("wir", "wissen")):
        assert clauses.present(know, pronouns[subject]) == form


def test_a_corpus_has_six_files_or_none(tmp_path, monkeypatch):
    folder = tmp_path / "raw"
    sizes = {"test": 20, "valid": 10, "train": 50}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(grammar, "corpus", interrupted)
        grammar.write_corpus(folder, sizes)
    assert not folder.exists()
    grammar.write_corpus(folder, sizes)
    counts = {
        path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in folder.iterdir()
    }
    assert counts == {
        f"{split}.{language}": size for split, size in sizes.items() for language in ("de", "en")
    }


def interrupted(seed, sizes):
    raise KeyboardInterrupt
