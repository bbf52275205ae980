"""Tokenisation."""

from typing import Literal

from fusetk.data import languages
from fusetk.data.steps.base import LineFunction, LineStep, StepModel


class Tokenize(LineStep):
    """Tokenise with Moses' rules for the side's language (sacremoses).

    A language without rules uses the abbreviations of English, and `prep` warns. The step cannot
    find words in Chinese, Japanese, Thai, Lao, Khmer or Burmese text without spaces: segment such
    text before `prep`, and use `side` to exclude it from this step.
    """

    step: Literal["tokenize"]
    escape: bool = True
    """Write & | < > ' " [ ] as Moses' entities."""
    aggressive_hyphens: bool = False
    """Split words at hyphens; write `@-@` for the hyphen."""

    packages = ("sacremoses",)
    needs_spaces = True

    def line_function(self, language: str, model: StepModel | None) -> LineFunction:
        from fusetk.data.tokenize import Tokenizer  # sacremoses is slow to import

        return Tokenizer(language, self.escape, self.aggressive_hyphens)

    def undo_function(self, language: str) -> LineFunction:
        from fusetk.data.tokenize import Detokenizer

        return Detokenizer(language, unescape=self.escape)

    def language_warning(self, language: str) -> str | None:
        return languages.without_tokenizer_rules(language)
