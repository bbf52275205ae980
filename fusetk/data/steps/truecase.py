"""Truecasing."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from fusetk.data.steps.base import LearnedStep, LineFunction
from fusetk.data.truecase import Truecaser, detruecase


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

    def undo_function(self, language: str) -> LineFunction:
        return detruecase
