"""A cache with a value for each word."""

from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")
MAX_CHARACTERS = 100
MAX_WORDS = 1_000_000


class WordCache(dict[str, Value]):
    """Cache of a value of each word; a missing value is computed by ``make`` on access.

    Words with more than ``MAX_CHARACTERS`` characters are not cached. A cache with ``MAX_WORDS``
    words is emptied before the next one.
    """

    def __init__(self, make: Callable[[str], Value]):
        super().__init__()
        self.make = make

    def __missing__(self, word: str) -> Value:
        value = self.make(word)
        if len(word) <= MAX_CHARACTERS:
            if len(self) >= MAX_WORDS:
                self.clear()
            self[word] = value
        return value
