"""Lower case."""

from collections.abc import Sequence
from typing import Literal

from fusetk.data.steps.base import LineFunction, LineStep, PrepStep, StepModel, line_steps


class Lowercase(LineStep):
    """Lower case."""

    step: Literal["lowercase"]

    def line_function(self, language: str, model: StepModel | None) -> LineFunction:
        return str.lower


def lowercases_target(steps: Sequence[PrepStep]) -> bool:
    """Whether the steps lowercase the target text."""
    return any(isinstance(step, Lowercase) for step in line_steps(steps, "target"))
