"""The grammar of the demo: sentences are distinct and held out, and the German is correct."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.usefixtures("commands")

DEMO = Path(__file__).parent.parent / "recipes" / "demo"
PREFIXES = ("auf", "zu", "an", "ab", "ein", "kennen", "weg", "aus", "mit", "vor", "zurück", "nach")
SIZES = {"test": 300, "valid": 300, "train": 6000}


@pytest.fixture(scope="module")
def grammar() -> Iterator[ModuleType]:
    sys.path.insert(0, str(DEMO))
    try:
        spec = importlib.util.spec_from_file_location("grammar", DEMO / "grammar.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(DEMO))


@pytest.fixture(scope="module")
def corpus(grammar: ModuleType) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = grammar.corpus(1, SIZES)
    return found


def test_sizes_and_distinct_sentences(corpus):
    assert {split: len(pairs) for split, pairs in corpus.items()} == SIZES
    german = [pair[0] for pairs in corpus.values() for pair in pairs]
    assert len(set(german)) == len(german)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("held_out", "seen"), [("test", "train"), ("valid", "train"), ("test", "valid")]
)
def test_held_out_sentences_are_in_no_other_split(corpus, side, held_out, seen):
    assert not {pair[side] for pair in corpus[held_out]} & {pair[side] for pair in corpus[seen]}


def test_held_out_words_are_all_seen_in_training(grammar):
    """The test sentences need new word orders and agreements. Only compounds may be new words."""
    pairs = grammar.corpus(1, {"test": 500, "train": 20_000})

    def words(split):
        return {word for pair in pairs[split] for word in re.findall(r"\w+", pair[0])}

    assert len(words("test") - words("train")) <= 0.01 * len(words("test"))


def test_a_seed_fixes_the_corpus(grammar, corpus):
    assert grammar.corpus(1, SIZES) == corpus
    assert grammar.corpus(2, SIZES) != corpus


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_german_sentence_has_one_translation(grammar, seed):
    draw = grammar.Grammar(seed)
    english: dict[str, str] = {}
    for _ in range(20_000):
        one, other = draw.sentence()
        assert english.setdefault(one, other) == other


def test_two_translations_of_a_sentence_are_noticed(grammar, monkeypatch):
    drawn = iter([("Er lacht.", "He laughs."), ("Er lacht.", "He is laughing.")])
    monkeypatch.setattr(grammar.Grammar, "sentence", lambda self: next(drawn))
    with pytest.raises(AssertionError, match=r"He laughs\. or He is laughing\."):
        grammar.corpus(1, {"train": 2})


@pytest.fixture(scope="module")
def finite(grammar) -> set[str]:
    """Return every verb form that can end a subordinate clause."""
    clauses = sys.modules["clauses"]
    tables = [
        clauses.HABEN,
        clauses.SEIN,
        clauses.WAR,
        clauses.WERDEN,
        *(forms for forms, _ in clauses.MODAL_FORMS.values()),
    ]
    subjects = grammar.phrases.PRONOUNS
    verbs = {
        verb.prefix + clauses.present(verb, subject)
        for verb in grammar.lexicon.verbs()
        for subject in subjects
    }
    return {form for table in tables for form in table} | verbs | {"regnet", "schneit"}


def test_a_new_german_sentence_with_held_out_english_is_not_taken(grammar, monkeypatch):
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


def test_verbs_stand_at_the_end_in_german(corpus):
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
def test_articles_and_adjectives_agree(grammar, noun, kind, plural, adjective, expected):
    found = grammar.phrases.phrase(
        grammar.Noun(*noun, "x", "xs", "thing"), kind, plural, (adjective, "old"), english="three"
    )
    assert [found.german[case] for case in grammar.phrases.CASES] == expected


@pytest.mark.parametrize(
    ("n", "german", "english"),
    [(2, "zwei", "two"), (21, "einundzwanzig", "twenty-one"), (70, "siebzig", "seventy")],
)
def test_numbers(grammar, n, german, english):
    assert grammar.phrases.number(n) == (german, english)


def test_command_line_writes_six_files(tmp_path):
    subprocess.run(
        [
            sys.executable,
            DEMO / "grammar.py",
            tmp_path / "raw",
            "--train",
            "50",
            "--valid",
            "10",
            "--test",
            "20",
        ],
        check=True,
    )
    counts = {
        path.name: len(path.read_text(encoding="utf-8").splitlines())
        for path in (tmp_path / "raw").iterdir()
    }
    assert counts == {
        "train.de": 50,
        "train.en": 50,
        "valid.de": 10,
        "valid.en": 10,
        "test.de": 20,
        "test.en": 20,
    }


@pytest.mark.slow
def test_the_script_runs_from_text_to_picture_and_then_has_nothing_to_do(tmp_path):
    """The model is trained for three updates only, so its BLEU is not tested."""
    settings = [
        "training.stages.0.end={updates: 3}",
        "decoding.beam=1",
        "decoding.max_length_factor=0.5",
    ]
    command = [
        DEMO.parent / "run_demo.sh",
        "--out",
        "my demo",
        *(word for setting in settings for word in ("--set", setting)),
    ]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "BLEU on test" in ran.stdout and ran.stdout.rstrip().endswith("my demo/attention.png")
    out = tmp_path / "my demo"
    assert (out / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert len((out / "test.out.en").read_text(encoding="utf-8").split("\n")) == 501
    before = {path: path.stat().st_mtime_ns for path in (out / "run").rglob("*.safetensors")}
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0 and "nothing to do: " in again.stderr
    assert {
        path: path.stat().st_mtime_ns for path in (out / "run").rglob("*.safetensors")
    } == before
