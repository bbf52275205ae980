"""A cache of values of words."""

from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")
LONGEST = 100  # characters
LIMIT = 1_000_000  # words


class WordCache(dict[str, Value]):
    """Cache of a value of each word; a missing value is computed by ``make`` on access.

    Words with more than ``LONGEST`` characters are not cached. A cache with ``LIMIT`` words is
    emptied before the next one.
    """

    def __init__(self, make: Callable[[str], Value]):
        super().__init__()
        self.make = make

    def __missing__(self, word: str) -> Value:
        value = self.make(word)
        if len(word) <= LONGEST:
            if len(self) >= LIMIT:
                self.clear()
            self[word] = value
        return value
