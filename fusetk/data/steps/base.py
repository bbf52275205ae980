"""Base classes of prep steps.

``LineStep`` changes the lines of one or both sides; it runs on training text, on held-out text and
on input of ``fusetk decode``. ``LearnedStep`` is a ``LineStep`` with a model learned on the
training text. ``PairStep`` and ``UniquePairStep`` drop training pairs.

A subclass documents its fields and implements the abstract methods; Python refuses to create an
object of a class that lacks one. A subclass in fusetk also narrows ``step`` to a ``Literal``.

``fusetk.data.steps.calls`` calls the methods of a step.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from pydantic import field_serializer

from fusetk.config import Config
from fusetk.errors import ConfigError

Side = Literal["both", "source", "target"]
LineFunction = Callable[[str], str]


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
