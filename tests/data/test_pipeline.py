"""The text pipeline of a run: saved, loaded, and back to raw text."""

import json
from pathlib import Path
from typing import Literal

import pytest
from pydantic import TypeAdapter

from fusetk.data import manifest, prepare
from fusetk.data.bpe import BPE, learn
from fusetk.data.config import DataConfig
from fusetk.data.filter import PairSteps, PassSpec
from fusetk.data.pipeline import Pipeline, Text
from fusetk.data.steps import STEPS, Step, step_type
from fusetk.data.steps.base import LineFunction, LineStep, PairStep, StepModel
from fusetk.data.truecase import Truecaser
from fusetk.data.vocab import Vocabulary
from fusetk.errors import DataError

ADAPTER = TypeAdapter(list[Step])
ALL = [
    {"step": "nfc"},
    {"step": "normalize-punctuation"},
    {"step": "filter"},
    {"step": "tokenize", "aggressive_hyphens": True},
    {"step": "truecase"},
]


class Reverse(LineStep):
    """Reverse each line."""

    step: Literal["reverse"]

    packages = ("numpy",)

    def line_function(self, language: str, model: StepModel | None) -> LineFunction:
        return lambda line: line[::-1]

    def undo_function(self, language: str) -> LineFunction:
        return lambda line: line[::-1]


class DropQuestions(PairStep):
    """Drop pairs of questions."""

    step: Literal["drop-questions"]

    def drop_reason(self, source: str, target: str) -> str:
        return "question" if "?" in source and "?" in target else ""


def test_a_step_class_is_all_that_a_new_step_needs(tmp_path: Path) -> None:
    """Its class and its place in a table of steps are the only registrations."""
    adapter = TypeAdapter(list[step_type((*STEPS, Reverse, DropQuestions))])
    steps = adapter.validate_python(
        [{"step": "lowercase"}, {"step": "reverse", "side": "target"}, {"step": "drop-questions"}]
    )
    text = Text(steps, "de", "en")
    assert text.words("source", "AB C") == "ab c" and text.words("target", "AB C") == "c ba"
    assert text.raw("c ba") == "ab c"
    run = PairSteps(PassSpec(steps, "de", "en", {}, drop_empty=True))
    assert [outcome[:3] for outcome in run([("A", "AB"), ("A?", "B?")])] == [
        ("a", "ba", ""),
        ("", "", "question"),
    ]
    data = {"source": "de", "target": "en", "folder": str(tmp_path), "train": ["train"]}
    config = DataConfig(**data, valid=["valid"]).model_copy(update={"steps": steps})
    words, *_ = prepare.plan(config, {"train": [], "valid": []}, [])
    assert words.settings["numpy"] == manifest.package_versions(["numpy"])["numpy"]


def test_a_step_without_its_function_is_an_error() -> None:
    class Silent(LineStep):
        step: Literal["silent"]

    with pytest.raises(TypeError, match="line_function"):
        TypeAdapter(list[step_type((*STEPS, Silent))]).validate_python([{"step": "silent"}])


def made(
    steps: list[dict[str, object]],
    joint: bool = False,
    segmented: bool = True,
    threshold: bool = False,
) -> Pipeline:
    cases = Truecaser.learn(["Ein der Hund der"])
    models = {(side, "truecase"): cases for side in ("source", "target")}
    text = Text(ADAPTER.validate_python(steps), "de", "en", models)
    codes = learn({"hund": 4, "hunde": 3, "dog": 7, "dogs": 2}, 9)
    other = codes if joint else learn({"dog": 7, "dogs": 2}, 3)
    known = {"hu@@": 2, "nd": 1, "dog": 4} if threshold else None
    source = Vocabulary(["hund", "a\u2028b"], [4, 1])
    vocabularies = (source, source) if joint else (source, Vocabulary(["dog"], [9]))
    bpe = {"source": BPE(codes, known), "target": BPE(other, known)} if segmented else {}
    return Pipeline(text, bpe, vocabularies)


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize(("segmented", "threshold"), [(True, True), (True, False), (False, False)])
def test_saved_and_loaded(tmp_path: Path, joint: bool, segmented: bool, threshold: bool) -> None:
    pipeline = made(ALL, joint, segmented, threshold)
    pipeline.save(tmp_path / "text")
    loaded = Pipeline.load(tmp_path / "text")
    loaded.save(tmp_path / "again")
    names = sorted(path.name for path in (tmp_path / "text").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    assert all(
        (tmp_path / "text" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
        for name in names
    )
    assert (loaded.source_vocab is loaded.target_vocab) == joint
    for side in ("source", "target"):
        words = pipeline.words(side, "Der  Hund-e\u0308 &c. hunde dogs!")
        assert (
            loaded.words(side, "Der  Hund-e\u0308 &c. hunde dogs!")
            == words
            == "der Hund @-@ ë &amp; c. hunde dogs !"
        )
        assert loaded.subwords(side, words) == pipeline.subwords(side, words)
        assert loaded.join(loaded.subwords(side, words)) == words
    assert "filter" not in (tmp_path / "text" / "pipeline.json").read_text()


def test_raw_text_again() -> None:
    assert made(ALL).raw(
        "the dog &apos;s state @-@ of @-@ the @-@ art &amp; &quot; x &quot; . so it is"
    ) == ('The dog\'s state-of-the-art & "x". So it is')
    assert made([{"step": "lowercase"}]).raw("the dog , &amp;") == "the dog , &amp;"
    assert made([{"step": "tokenize", "side": "source"}]).raw("a , b") == "a , b"
    assert made([{"step": "tokenize", "escape": False}]).raw("a , &amp; b") == "a, &amp; b"
    assert made(ALL).raw("") == ""


def test_no_function_is_built_at_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = made([{"step": "tokenize"}])
    text.import_libraries()
    monkeypatch.setattr("fusetk.data.pipeline.line_function", None)
    assert text.words("source", "Ein Hund.") == "Ein Hund ."
    assert text.words("target", "A dog.") == "A dog ."


def test_without_a_tokeniser_words_end_at_ascii_spaces_only() -> None:
    pipeline = made([], segmented=False)
    words = pipeline.words("source", "  a\tb\u00a0c\u2028d  e\x85\0f ")
    assert words == "a\tb\u00a0c\u2028d e\x85\0f"
    assert pipeline.subwords("source", words) == ["a\tb\u00a0c\u2028d", "e\x85\0f"]
    assert pipeline.subwords("source", "") == []


def test_a_broken_description_is_named(tmp_path: Path) -> None:
    made(ALL).save(tmp_path)
    path = tmp_path / "pipeline.json"
    good = json.loads(path.read_text())
    for broken in (
        "{",
        "[" * 100_000,
        json.dumps({**good, "steps": [{"step": "sing"}]}),
        json.dumps({**good, "source": None, "bpe": {}}),
    ):
        path.write_text(broken)
        with pytest.raises(DataError, match=r"pipeline\.json does not describe a text pipeline"):
            Pipeline.load(tmp_path)
    with pytest.raises(DataError, match="is missing; copy the folder again"):
        Pipeline.load(tmp_path / "nowhere")
