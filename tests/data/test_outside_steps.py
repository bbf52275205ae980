"""Prep steps of classes outside fusetk."""

import pickle
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fusetk.config import Document, parse
from fusetk.data import integrity, manifest
from fusetk.data.config import BPEConfig, DataConfig
from fusetk.data.filter import PairSteps, PassSpec
from fusetk.data.parallel import Workers
from fusetk.data.pipeline import Pipeline, Text
from fusetk.data.prepare import prepare
from fusetk.data.steps.base import (
    LearnedStep,
    LineFunction,
    LineStep,
    PairStep,
    PrepStep,
    StepModel,
    UniquePairStep,
)
from fusetk.data.steps.lowercase import Lowercase
from fusetk.data.text import read_lines
from fusetk.errors import ConfigError, DataError, ImportFailed
from tests.data.test_languages import SEGMENTED

HERE = __name__


class Letters(LineStep):
    """Put a mark between the characters."""

    mark: str = " "

    adds_spaces = True

    def line_function(self, language: str, model: StepModel | None) -> LineFunction:
        return self.mark.join

    def undo_function(self, language: str) -> LineFunction:
        return lambda line: line.replace(self.mark, "")


class Words(set[str]):
    """Known words; other words become `?`."""

    def __call__(self, line: str) -> str:
        return " ".join(word if word in self else "?" for word in line.split())

    def save(self, path: Path) -> None:
        path.write_text(" ".join(sorted(self)))


class Known(LearnedStep):
    model_file = "known"

    def learn(self, lines: Iterable[str]) -> Words:
        return Words(word for line in lines for word in line.split())

    def load(self, path: Path) -> Words:
        return Words(path.read_text().split())


class AlsoKnown(Known):
    """A second step with the same file."""


class Shorter(PairStep):
    """Drop long sources."""

    longest: int

    def drop_reason(self, source: str, target: str) -> str:
        return "long" if len(source) > self.longest else ""


class FirstLetter(UniquePairStep):
    reason = "same letter"

    def key(self, source: str, target: str) -> bytes:
        return source[:1].encode()


class Result(LineStep):
    """Return a wrong result."""

    result: Any

    def line_function(self, language: str, model: StepModel | None) -> LineFunction:
        return lambda line: self.result  # type: ignore[no-any-return]

    def undo_function(self, language: str) -> LineFunction:
        return lambda line: self.result  # type: ignore[no-any-return]


class Failing(LineStep):
    def line_function(self, language: str, model: StepModel | None) -> LineFunction:
        return lambda line: str(1 / 0)


class WrongKey(FirstLetter):
    def key(self, source: str, target: str) -> Any:
        return source


class WrongReason(PairStep):
    def drop_reason(self, source: str, target: str) -> Any:
        return None


class Spelled(LineStep):
    """Three spaces between words, which prep collapses before it learns a model."""

    def line_function(self, language: str, model: StepModel | None) -> LineFunction:
        return "   ".join


class Surrogate(LineStep):
    def line_function(self, language: str, model: StepModel | None) -> LineFunction:
        return lambda line: "\ud800"


class Exiting(LineStep):
    def line_function(self, language: str, model: StepModel | None) -> LineFunction:
        return lambda line: sys.exit(3)


class BadMethods(Known):
    """A method that fails."""

    model_file = "bad"
    method: str

    def learn(self, lines: Iterable[str]) -> Any:
        if self.method == "learn":
            raise OSError("no list of words")
        return None if self.method == "nothing" else BadModel(self.method)


class BadModel:
    def __init__(self, method: str):
        self.method = method

    def __call__(self, line: str) -> str:
        return line

    def save(self, path: Path) -> None:
        if self.method == "folder":
            path.mkdir()


class Options(LineStep):
    words: set[str]

    def line_function(self, language: str, model: StepModel | None) -> LineFunction:
        return lambda line: line


class ManySubwords(PairStep):
    def drop_reason(self, source: str, target: str) -> str:
        return "too many subwords" if source.startswith("lang") else ""


class NoReason(FirstLetter):
    reason = ""


class NoFunction(LineStep):
    def line_function(self, language: str, model: StepModel | None) -> Any:
        return None


class NoKind(PrepStep):
    """It changes no line and drops no pair."""


class TrainFile(Known):
    model_file = "train"


class NamedLower(Lowercase):
    """It inherits a field ``step`` with another name."""


class Lower(Lowercase):
    step: str  # type: ignore[assignment]


def config(folder: Path, steps: list[dict[str, Any]], module: str = HERE) -> DataConfig:
    """Return a config with steps of a module, whose names need no module."""
    named = [{**step, "step": f"{module}:{step['step']}"} for step in steps]
    values = {"source": "de", "target": "en", "folder": str(folder / "out"), "steps": named}
    values |= {"train": [str(folder / "text")], "valid": [str(folder / "text")]}
    return parse(Document(values, {}), DataConfig)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text.de").write_text("ab cd\nax\nlang lang lang\nef cd\n")
    (tmp_path / "text.en").write_text("AB\nC\nD\nEF\n")
    return tmp_path


def test_steps_of_all_kinds(folder: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"step": "Shorter", "longest": 5},
        {"step": "FirstLetter"},
        {"step": "Letters", "mark": "-", "side": "target"},
        {"step": "Known", "side": "source"},
    ]
    prepared = prepare(config(folder, steps))
    out = folder / "out"
    assert prepared.splits["train"]["dropped"] == {"long": 1, "same letter": 1}
    assert list(read_lines(out / "words" / "train.de")) == ["ab cd", "ef cd"]
    assert list(read_lines(out / "words" / "train.en")) == ["A-B", "E-F"]
    assert list(read_lines(out / "valid.de.txt"))[:3] == ["ab cd", "?", "? ? ?"]
    pipeline = Pipeline.load(out / "text")
    assert pipeline.words("source", "ab xy") == "ab ?" and pipeline.raw("A-B") == "AB"
    pipeline.save(folder / "copy")
    assert Pipeline.load(folder / "copy").difference(pipeline) is None


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"step": "Result", "result": 3}, r"test_outside_steps:Result returned 3 for 'ab cd': it "),
        ({"step": "Result", "result": "a\nb"}, "it must return a string without line breaks"),
        ({"step": "Failing"}, r"failed for 'ab cd': ZeroDivisionError: .*test_outside_steps\.py"),
        ({"step": "Surrogate"}, "without line breaks or lone surrogates"),
        ({"step": "Exiting"}, "failed for 'ab cd': SystemExit: 3"),
        ({"step": "NoFunction"}, "NoFunction returned None: it must return a function"),
        ({"step": "BadMethods", "method": "learn"}, "the method learn .* failed: OSError: no list"),
        ({"step": "BadMethods", "method": "nothing"}, "learn .* returned None: it must return an"),
        ({"step": "BadMethods", "method": "folder"}, "did not write .*bad.de"),
        ({"step": "BadMethods", "method": "empty"}, "did not write .*bad.de"),
        ({"step": "WrongKey"}, "returned 'ab cd' for 'ab cd' and 'AB': it must return bytes"),
        ({"step": "WrongReason"}, "returned None for 'ab cd' and 'AB': it must return a string"),
    ],
)
def test_results_are_checked(step: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(config(folder, [step]))


def test_a_step_may_be_a_subclass_of_another_step(folder: Path) -> None:
    [step] = config(folder, [{"step": "Lower"}]).steps
    assert Text([step], "de", "en").words("source", "AB") == "ab"


def test_undone_lines_are_checked() -> None:
    text = Text([Result(step="result", result=None)], "de", "en")
    with pytest.raises(ConfigError, match="returned None for 'a b'"):
        text.raw("a b")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("NoKind", r"steps\.0: .* is not a subclass of LearnedStep, LineStep, PairStep or UniqueP"),
        ("Words", "is not a subclass of"),
        ("HERE", "is not a subclass of"),
        ("Shorter", r"steps\.0\.longest: must be given"),
        ("LineStep", "abstract"),
        ("NamedLower", r"declare `step: str` in the class"),
        ("NoReason", "has reason = '': it must be a text"),
        ("TrainFile", "has model_file = 'train': it must be a name of letters"),
    ],
)
def test_a_class_that_is_not_a_step_is_refused(step: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, [{"step": step}])


def test_models_of_two_steps_have_two_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Known and .*AlsoKnown have the same model_file, known"):
        config(tmp_path, [{"step": "Known"}, {"step": "AlsoKnown"}])


def test_training_and_other_text_are_equal_before_a_model(folder: Path) -> None:
    prepare(config(folder, [{"step": "Spelled"}, {"step": "Known"}]))
    train = list(read_lines(folder / "out" / "words" / "train.de"))
    assert train == list(read_lines(folder / "out" / "valid.de.txt"))
    assert train[0] == "a b c d" and "?" not in train[0]


def test_the_order_of_a_set_changes_nothing() -> None:
    step = Options(step="options", words={"b", "a", "c"})
    assert step.model_dump(mode="json")["words"] == ["a", "b", "c"]


def test_equal_reasons_of_a_step_and_of_bpe_are_added(folder: Path) -> None:
    chosen = config(folder, [{"step": "ManySubwords"}])
    chosen = chosen.model_copy(update={"bpe": BPEConfig(merges=1, max_subwords=2)})
    assert prepare(chosen).splits["train"]["dropped"] == {"too many subwords": 3}


def test_a_missing_module_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ImportFailed, match="set PYTHONPATH to the folder of no_such_module"):
        config(tmp_path, [{"step": "Letters"}], "no_such_module")


def test_a_change_of_the_code_makes_the_text_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    module = folder / "outside_step.py"
    module.write_text(f"from {HERE} import Letters\n\nclass Own(Letters):\n    pass\n")
    chosen = config(folder, [{"step": "Own"}], "outside_step")
    prepare(chosen)
    integrity.check_settings(chosen, manifest.read(folder / "out"))
    module.write_text(module.read_text() + "# other\n")
    with pytest.raises(DataError, match=r"data\.steps: the code of outside_step changed"):
        integrity.check_settings(chosen, manifest.read(folder / "out"))
    reported: list[str] = []
    prepare(chosen, report=reported.append)
    assert any(line.startswith("words.train: step_code.outside_step: ") for line in reported)
    integrity.check_settings(chosen, manifest.read(folder / "out"))
    del sys.modules["outside_step"]


def test_a_step_that_adds_spaces_gives_no_warning(folder: Path) -> None:
    (folder / "text.de").write_text(SEGMENTED["zh"].replace(" ", "") + "\n")
    (folder / "text.en").write_text("a\n")
    for steps, warned in (([], True), ([{"step": "Letters"}], False)):
        reported: list[str] = []
        prepare(config(folder, steps), report=reported.append)
        assert any("its words are not separated" in line for line in reported) == warned


def test_text_with_a_step_can_be_pickled_after_its_use() -> None:
    text = Text([Letters(step="letters")], "de", "en")
    assert text.raw(text.words("target", "ab")) == "ab"
    loaded = pickle.loads(pickle.dumps(text))
    assert loaded.words("target", "ab") == "a b" and loaded.raw("a b") == "ab"


class Reduced:
    """An object that can be pickled, but not unpickled."""

    def __init__(self, value: int):
        self.value = value

    def __reduce__(self) -> Any:
        return Reduced, ()


@pytest.mark.parametrize("value", [lambda: 0, Reduced(1)], ids=["pickle", "unpickle"])
def test_an_option_that_cannot_be_pickled_is_an_error(value: object) -> None:
    step = Result(step="result", result=value)
    workers = Workers(2)
    with pytest.raises(DataError, match="must be picklable"):
        list(workers.ordered(PairSteps, (PassSpec([step], "de", "en", {}, True),), [[]], 1))
    workers.close()
