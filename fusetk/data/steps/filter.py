"""Filtering of training pairs by length."""

from typing import Literal

from pydantic import Field, model_validator

from fusetk.data.steps.base import PairStep
from fusetk.data.text import count_tokens

# Reasons for dropping a pair, for reports.
EMPTY = "empty"
SHORT = "too short"
LONG = "too long"
RATIO = "length ratio"


class Filter(PairStep):
    """Drop training pairs by their numbers of tokens at this step.

    Validation and test text keep all pairs. Training pairs with an empty side are always dropped,
    unless a filter has `min_length: 0`.
    """

    step: Literal["filter"]
    min_length: int = Field(default=1, ge=0)
    """Smallest number of tokens on either side; 1 drops pairs with an empty side."""
    max_length: int | None = Field(default=None, ge=1)
    """Largest number of tokens on either side."""
    max_ratio: float | None = Field(default=None, ge=1)
    """Largest ratio of the longer side's length to the shorter side's."""

    version = 2  # version 1 dropped some pairs at the largest ratio

    @model_validator(mode="after")
    def _keeps_some_lengths(self) -> "Filter":
        if self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(
                f"min_length {self.min_length} is more than max_length {self.max_length}, so the "
                "filter would drop every pair: lower min_length"
            )
        return self

    def drop_reason(self, source: str, target: str) -> str:
        return self.length_reason(count_tokens(source), count_tokens(target))

    def length_reason(self, source: int, target: int) -> str:
        """Return the reason to drop a pair with these numbers of tokens, or an empty string."""
        short, long = min(source, target), max(source, target)
        if short < self.min_length:
            return SHORT if short else EMPTY
        if self.max_length is not None and long > self.max_length:
            return LONG
        # In floating point, 63 / 45 equals 1.4, but 1.4 * 45 is less than 63.
        if self.max_ratio is not None and long and (not short or long / short > self.max_ratio):
            return RATIO
        return ""

    def allows_empty(self) -> bool:
        return self.min_length == 0
