"""Truecasing."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from fusetk.data.steps.base import LearnedStep, LineFunction, StepModel
from fusetk.data.truecase import Truecaser, detruecase
from fusetk.errors import ConfigError


class Truecase(LearnedStep):
    """Give the first word of each sentence its most frequent case (Moses' truecaser).

    Any other word changes only if the training text does not have it in the same case. The cases
    are counted on the training text, in words that do not begin a sentence.
    """

    step: Literal["truecase"]

    version = 2  # version 1 took an empty token for a word
    model_file = "truecase"

    def learn(self, lines: Iterable[str]) -> Truecaser:
        return Truecaser.learn(lines)

    def load(self, path: Path) -> Truecaser:
        return Truecaser.load(path)

    def line_function(self, language: str, model: StepModel | None) -> LineFunction:
        if model is None:
            raise ConfigError(f"the truecaser of {language} is missing; run fusetk prep again")
        return model

    def undo_function(self, language: str) -> LineFunction:
        return detruecase
