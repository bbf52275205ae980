"""Punctuation normalisation."""

from typing import Literal

from fusetk.data import languages
from fusetk.data.steps.base import LineFunction, LineStep, StepModel


class NormalizePunctuation(LineStep):
    """Normalise punctuation as Moses' normalize-punctuation does (sacremoses).

    `prep` warns if Moses has no rules for the language.
    """

    step: Literal["normalize-punctuation"]

    packages = ("sacremoses",)

    def line_function(self, language: str, model: StepModel | None) -> LineFunction:
        from fusetk.data.normalize import Normalizer  # sacremoses is slow to import

        return Normalizer(language)

    def language_warning(self, language: str) -> str | None:
        return languages.without_normalizer_rules(language)
