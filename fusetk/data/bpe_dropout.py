"""BPE dropout (Provilkov et al. 2020): random segmentations of words.

``DropoutBPE`` implements their Algorithm 1: at each step, each merge that is possible in a word is
left out with a probability, and the remaining merge with the highest priority is applied. The
algorithm does not say what happens to a merge that is possible at several places of a word. As in
subword-nmt, each place is left out separately, and the merge is applied at all remaining places. So
a probability of 0 gives BPE.

``possible_subwords`` gives the subwords that dropout can make.
"""

import math
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import count
from struct import Struct

from fusetk.data.bpe import BPE, JOINER, merge
from fusetk.data.cache import MAX_CHARACTERS, MAX_WORDS

# Words in which more merges are left out are not cached: few of their segmentations occur twice.
CACHED_GAPS = 2
WORDS = Struct("<8Q")  # random numbers of a digest of BLAKE2b, 64 bits each
LARGEST = 1 << 62  # largest number of merges between two that are left out

LeavesOut = Callable[[], bool]  # decides whether the next possible merge is left out
Key = tuple[str, tuple[int, ...]]  # a word, and the decisions that leave out a merge


class Gaps:
    """Random numbers of decisions between two that leave out a merge.

    Each decision leaves out a merge with probability ``rate``, so the numbers have a geometric
    distribution. They depend only on the rate and on the place of the last ``start``.
    """

    def __init__(self, rate: float):
        self.scale = math.log1p(-rate) if rate < 1 else -math.inf
        self.place = b""
        self.block = 0
        self.numbers: list[int] = []

    def start(self, place: str) -> None:
        """Start a sequence that depends only on ``place``."""
        self.place = place.encode()
        self.block = 0
        self.numbers = []

    def draw(self) -> int:
        if not self.scale:
            return LARGEST
        if not self.numbers:
            digest = blake2b(b"%d %b" % (self.block, self.place)).digest()
            self.numbers = list(WORDS.unpack(digest))
            self.block += 1
        uniform = (self.numbers.pop() + 1) / 2**64  # above 0, at most 1
        return int(min(math.log(uniform) / self.scale, LARGEST))


class DropoutBPE:
    """Splits words into subwords by ``codes``, and leaves out each merge with probability ``rate``.

    The segmentations depend only on the place that ``start`` gets, and on the words after it.
    """

    def __init__(self, codes: BPE, rate: float):
        self.codes = codes
        self.gaps = Gaps(rate)
        self.gap = 0  # decisions before the next one that leaves out a merge
        # For some words: the subwords and the number of decisions, if only the given decisions
        # leave out a merge.
        self.cache: dict[Key, tuple[str, int]] = {}

    def start(self, place: str) -> None:
        """Start a sequence of words. Each place, for example a line, has its own randomness."""
        self.gaps.start(place)
        self.gap = self.gaps.draw()

    def line(self, line: str) -> str:
        """Return the next line of words as subwords separated by spaces."""
        return " ".join([self.word(word) for word in line.split(" ") if word])

    def word(self, word: str) -> str:
        """Return the subwords of the next word, separated by spaces.

        Every subword except the last ends with `@@`.
        """
        left_out: tuple[int, ...] = ()
        decided = 0
        while len(left_out) <= CACHED_GAPS and len(word) <= MAX_CHARACTERS:
            subwords, decisions = self.cache.get((word, left_out)) or self._replay(word, left_out)
            if self.gap >= decisions - decided:
                self.gap -= decisions - decided
                return subwords
            decided += self.gap + 1
            left_out = (*left_out, decided - 1)
            self.gap = self.gaps.draw()
        return self._split(word, left_out, decided)

    def _replay(self, word: str, left_out: tuple[int, ...]) -> tuple[str, int]:
        """Return subwords and number of decisions if only the decisions ``left_out`` do so."""
        numbers = count()
        result = self._merged(word, lambda: next(numbers) in left_out), next(numbers)
        if len(self.cache) >= MAX_WORDS:
            self.cache.clear()
        self.cache[word, left_out] = result
        return result

    def _split(self, word: str, left_out: tuple[int, ...], decided: int) -> str:
        """Return the subwords of a word.

        The first ``decided`` decisions are known: those in ``left_out`` leave out a merge.
        """
        numbers = count()

        def leaves_out() -> bool:
            number = next(numbers)
            if number < decided:
                return number in left_out
            if self.gap:
                self.gap -= 1
                return False
            self.gap = self.gaps.draw()
            return True

        return self._merged(word, leaves_out)

    def _merged(self, word: str, leaves_out: LeavesOut) -> str:
        if len(word) == 1:
            return word
        symbols = merge(self.codes.symbols(word), self.codes.merges, self.codes.pairs, leaves_out)
        return self.codes.subwords(symbols)


def possible_subwords(codes: BPE, word: str) -> Iterator[str]:
    """Yield each subword that dropout can make at each place of a word.

    A subword that is possible at several places occurs several times. Every symbol that merges can
    make of the characters is possible: all merges that it does not need may be left out.
    """
    symbols = codes.symbols(word)
    n = len(symbols)
    # For each position, the ends of the symbols that begin there, and the symbols. `codes.merged`
    # has one object for each symbol, so its hash is computed only once.
    symbols_from: list[list[tuple[int, str]]] = [[] for _ in range(n)]
    for start in range(n - 1, -1, -1):
        symbols_from[start] = [(start + 1, symbols[start])]
        for middle, left in symbols_from[start]:  # grows in the loop
            for end, right in symbols_from[middle] if middle < n else ():
                symbol = codes.merged.get((left, right))
                if symbol is not None and (end, symbol) not in symbols_from[start]:
                    symbols_from[start].append((end, symbol))
    # The subwords of each symbol. At the end of the word, a symbol has other subwords, without
    # JOINER. They may replace the first ones, because no later place can have the same symbol.
    subwords: dict[str, list[str]] = {}
    for start in range(len(word)):
        for end, symbol in symbols_from[start]:
            if symbol not in subwords or end >= len(word):
                subwords[symbol] = _subwords_of_part(codes, word, start, end)
            yield from subwords[symbol]


def _subwords_of_part(codes: BPE, word: str, start: int, end: int) -> list[str]:
    """Return the subwords of a part of a word that is one symbol."""
    part = word[start:end]
    final = end >= len(word)
    if codes.vocabulary is None or len(word) == 1:
        return [part if final else part + JOINER]
    *first, last = codes.known_parts(part, final)
    return [each + JOINER for each in first] + [last if final else last + JOINER]
