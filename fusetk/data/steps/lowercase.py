"""Lower case."""

from typing import Literal

from fusetk.data.steps.base import LineFunction, LineStep, StepModel


class Lowercase(LineStep):
    """Lower case."""

    step: Literal["lowercase"]

    def line_function(self, language: str, model: StepModel | None) -> LineFunction:
        return str.lower
