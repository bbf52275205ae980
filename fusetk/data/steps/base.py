"""Base classes of prep steps.

``LineStep`` changes the lines of one or both sides; it runs on training text, on held-out text and
on input of ``fusetk decode``. ``LearnedStep`` is a ``LineStep`` with a model learned on the
training text. ``PairStep`` and ``UniquePairStep`` drop training pairs.

A subclass documents its fields and implements the abstract methods; Python refuses to create an
object of a class that lacks one. A subclass in fusetk also narrows ``step`` to a ``Literal``.

The functions below the classes apply a step, and check its results if its class is outside fusetk.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar, cast

from pydantic import field_serializer

from fusetk.config import Config, outside_error
from fusetk.errors import ConfigError, FusetkError, class_name, is_own

Side = Literal["both", "source", "target"]
LineFunction = Callable[[str], str]
ReasonFunction = Callable[[str, str], str]  # of a pair of lines; see ``PairStep.drop_reason``
KeyFunction = Callable[[str, str], bytes]  # of a pair of lines; see ``UniquePairStep.key``
F = TypeVar("F", bound=Callable[..., Any])
LINE = "a string without line breaks or lone surrogates"  # a requirement, for errors


class StepModel(Protocol):
    """A function of a line, learned on the training text."""

    def __call__(self, line: str) -> str: ...

    def save(self, path: Path) -> None: ...


StepModels = Mapping[tuple[str, str], StepModel]  # by side and name of the step


class PrepStep(Config):
    """Base of all prep steps."""

    step: str

    packages: ClassVar[tuple[str, ...]] = ()
    """Packages whose version may change the output. If a version changes, `prep` makes the text
    again."""
    version: ClassVar[int] = 1
    """Version of the code of the step. Raise it if a change of the code changes the output: then
    `prep` makes the text again."""

    @field_serializer("*", mode="wrap", when_used="json")
    def _sets_in_order(self, value: Any, serialize: Callable[[Any], Any]) -> Any:
        """Return sets as sorted lists, so that each process writes and compares the same values."""
        result = serialize(value)
        return sorted(result, key=repr) if isinstance(value, set | frozenset) else result


class LineStep(PrepStep):
    """Base of the steps that change lines."""

    side: Side = "both"
    """Side whose text the step changes."""

    splits_words: ClassVar[bool] = False
    """Whether the step splits text into subwords, so that it needs neither spaces nor BPE."""
    needs_spaces: ClassVar[bool] = False
    """Whether the step needs text with spaces between words."""
    adds_spaces: ClassVar[bool] = False
    """Whether the step puts spaces between the words of text that has none."""

    def works_on(self, side: str) -> bool:
        """Whether the step changes the lines of ``side``, "source" or "target"."""
        return self.side in ("both", side)

    @abstractmethod
    def line_function(self, language: str, model: StepModel | None) -> LineFunction:
        """Return the function that the step applies to each line of a side.

        ``model`` is the side's model of a ``LearnedStep``, which raises ConfigError if it is
        missing.
        """

    def undo_function(self, language: str) -> LineFunction | None:
        """Return the function that turns processed target text back into raw text.

        None if the step is not undone.
        """
        return None

    def begins_word(self, token: str) -> bool:
        """Whether a token begins a word. Every token does, unless the step ``splits_words``."""
        return True

    def required_tokens(self) -> Sequence[str]:
        """Return tokens that the vocabulary must have even if the training text has none."""
        return ()

    def language_warning(self, language: str) -> str | None:
        """Return a warning if the step has no rules for the language."""
        return None


class LearnedStep(LineStep):
    """Base of the line steps that learn a model on the training text of each side."""

    model_file: ClassVar[str]
    """Name of the model's file, without the language."""

    @abstractmethod
    def learn(self, lines: Iterable[str]) -> StepModel:
        """Learn the model on the training lines of a side after all earlier steps."""

    @abstractmethod
    def load(self, path: Path) -> StepModel:
        """Read a model that was saved; raises DataError if the file is malformed."""

    def line_function(self, language: str, model: StepModel | None) -> LineFunction:
        if model is None:
            raise ConfigError(
                f"the model of the step {self.step} for {language} is missing; "
                "run fusetk prep again"
            )
        return model


class PairStep(PrepStep):
    """Base of the steps that drop a training pair because of its own text."""

    @abstractmethod
    def drop_reason(self, source: str, target: str) -> str:
        """Return the reason for dropping a pair of lines; an empty string keeps the pair."""

    def allows_empty(self) -> bool:
        """Whether training pairs with an empty side are kept at the end."""
        return False


class UniquePairStep(PrepStep):
    """Base of the steps that drop a training pair if an earlier pair has the same key."""

    reason: ClassVar[str]
    """Reason for dropping, for reports."""

    @abstractmethod
    def key(self, source: str, target: str) -> bytes:
        """Return the key of a pair of lines."""


def line_steps(steps: Iterable[PrepStep], side: str) -> list[LineStep]:
    """Return the steps that change the lines of ``side``, "source" or "target"."""
    return [step for step in steps if isinstance(step, LineStep) and step.works_on(side)]


def line_function(
    step: PrepStep, side: str, language: str, models: StepModels
) -> LineFunction | None:
    """Return the function that a step applies to the lines of a side.

    None if the step does not change them.

    Raises ConfigError if the step needs a model that is missing.
    """
    if not isinstance(step, LineStep) or not step.works_on(side):
        return None
    with _errors_of(step, "line_function"):
        function = step.line_function(language, models.get((side, step.step)))
    return _checked(step, function, _is_line, LINE)


def undo_function(step: LineStep, language: str) -> LineFunction | None:
    """Return the function that undoes a step on a line; None if the step is not undone."""
    with _errors_of(step, "undo_function"):
        function = step.undo_function(language)
    return None if function is None else _checked(step, function, _is_line, LINE)


def learn(step: LearnedStep, lines: Iterable[str]) -> StepModel:
    """Return the model that a step learns on lines."""
    with _errors_of(step, "learn"):
        return _checked_model(step, "learn", step.learn(lines))


def load(step: LearnedStep, path: Path) -> StepModel:
    """Return the model of a step that was saved in a file."""
    with _errors_of(step, "load"):
        return _checked_model(step, "load", step.load(path))


def save(step: LearnedStep, model: StepModel, path: Path) -> None:
    """Write the model of a step into a file."""
    with _errors_of(step, "save"):
        model.save(path)
    if not path.is_file():
        raise ConfigError(f"save of the model of the step {class_name(step)} did not write {path}")


def reason_function(step: PrepStep) -> ReasonFunction | None:
    """Return the function that returns the reason for dropping a pair; None for other steps."""
    if not isinstance(step, PairStep):
        return None
    return _checked(step, step.drop_reason, _is_line, LINE)


def key_function(step: PrepStep) -> KeyFunction | None:
    """Return the function that returns the key of a pair; None for other steps."""
    if not isinstance(step, UniquePairStep):
        return None
    return _checked(step, step.key, lambda result: isinstance(result, bytes), "bytes")


def _is_line(result: object) -> bool:
    if not isinstance(result, str) or "\n" in result:
        return False
    return result.isascii() or not any("\ud800" <= character <= "\udfff" for character in result)


@contextmanager
def _errors_of(step: PrepStep, method: str) -> Iterator[None]:
    """Raise ConfigError, which names the step, for an error of a class outside fusetk."""
    try:
        yield
    except FusetkError:
        raise
    except (Exception, SystemExit) as error:
        if is_own(step):
            raise
        raise ConfigError(
            f"the method {method} of the step {class_name(step)} failed: {outside_error(error)}"
        ) from error


def _checked_model(step: LearnedStep, method: str, model: StepModel) -> StepModel:
    """Return a model. Raise ConfigError if it is not a function with a method ``save``."""
    if not (callable(model) and callable(getattr(model, "save", None))):
        raise ConfigError(
            f"the method {method} of the step {class_name(step)} returned {model!r}: it must "
            "return an object that can be called with a line, with a method save(path)"
        )
    return model


def _checked(
    step: PrepStep, function: F, is_valid: Callable[[object], bool], requirement: str
) -> F:
    """Return the function of a step, with a check of its results if the class is outside fusetk.

    The function then raises ConfigError, which names the step and the text, if it fails or returns
    another value than ``requirement`` says.
    """
    if is_own(step):
        return function
    name = f"the step {class_name(step)}"
    if not callable(function):
        raise ConfigError(f"{name} returned {function!r}: it must return a function")

    def checked(*lines: str) -> Any:
        text = " and ".join(repr(line if len(line) <= 80 else f"{line[:77]}...") for line in lines)
        try:
            result = function(*lines)
        except FusetkError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{name} failed for {text}: {outside_error(error)}") from error
        if not is_valid(result):
            raise ConfigError(
                f"{name} returned {result!r} for {text}: it must return {requirement}"
            )
        return result

    return cast(F, checked)
