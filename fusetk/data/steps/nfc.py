"""Unicode normalisation."""

import unicodedata
from typing import Literal

from fusetk.data.steps.base import LineFunction, LineStep, StepModel


class NFC(LineStep):
    """Unicode normal form C."""

    step: Literal["nfc"]

    def line_function(self, language: str, model: StepModel | None) -> LineFunction:
        return to_nfc


def to_nfc(line: str) -> str:
    """Return the line in Unicode normal form C."""
    return unicodedata.normalize("NFC", line)
