"""Calls of the methods of prep steps.

If the class of a step is outside fusetk, its results are checked, and its errors name the step.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from fusetk.config import outside_error
from fusetk.data.steps.base import (
    LearnedStep,
    LineFunction,
    LineStep,
    PairStep,
    PrepStep,
    StepModel,
    StepModels,
    UniquePairStep,
)
from fusetk.data.text import is_line
from fusetk.errors import ConfigError, FusetkError, class_name, is_own

ReasonFunction = Callable[[str, str], str]  # of a pair of lines; see ``PairStep.drop_reason``
KeyFunction = Callable[[str, str], bytes]  # of a pair of lines; see ``UniquePairStep.key``
F = TypeVar("F", bound=Callable[..., Any])
LINE = "a string without line breaks or lone surrogates"  # a requirement, for errors


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


def learn_model(step: LearnedStep, lines: Iterable[str]) -> StepModel:
    """Return the model that a step learns on lines."""
    with _errors_of(step, "learn"):
        return _checked_model(step, "learn", step.learn(lines))


def load_model(step: LearnedStep, path: Path) -> StepModel:
    """Return the model of a step that was saved in a file."""
    with _errors_of(step, "load"):
        return _checked_model(step, "load", step.load(path))


def save_model(step: LearnedStep, model: StepModel, path: Path) -> None:
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
    return isinstance(result, str) and is_line(result)


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
