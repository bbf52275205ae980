"""Learning of byte pair encoding with the merges of subword-nmt, several times as fast.

All words are in one array of symbols, and each merge changes all its occurrences at once. The
statistics of subword-nmt are exact counts with three exceptions, which this module repeats:

- It removes rare pairs from its statistics for some time. A pair whose count changes in this time
  can afterwards have a wrong count (``_Statistics``).
- It counts a run of three equal symbols, and a symbol that two different merges make in one word,
  differently.
- It separates symbols at Unicode white space within a word.

Words of the last two kinds are few. They are processed by the functions of subword-nmt
(``_IrregularWords``).
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

END = "</w>"
NONE = -1  # no neighbour, or a position that a merge removed
SHIFT = 32  # a pair of symbols (a, b) has the key a << SHIFT | b
LOW = (1 << SHIFT) - 1
FULL_PRUNING = 10_000.0  # merges after which the threshold is half of the highest count
PRUNE_EVERY = 100  # merges
Array = NDArray[np.int64]


def learn_merges(
    counts: Mapping[str, int], merges: int, min_frequency: int
) -> Iterator[tuple[str, str]]:
    """Yield the merges that ``learn_bpe`` of subword-nmt learns from words and their counts.

    The words are not empty. There are fewer than ``merges`` merges if no remaining pair occurs
    ``min_frequency`` times.
    """
    symbols = _Symbols()
    irregular = _IrregularWords(symbols)
    words = _Words(counts, symbols, irregular)
    statistics = _Statistics(symbols, words.pair_counts(), irregular.pair_counts())
    for i in range(merges):
        key = statistics.most_frequent(i)
        if key is None or statistics.current[key] < min_frequency:
            return
        first, second = symbols.pair(key)
        merged = symbols.ids.get(first + second)
        positions = words.occurrences(key, merged)
        statistics.change(*irregular.merge(key))
        statistics.change(*words.merge(positions, key, symbols.id(first + second)))
        statistics.finish_merge(i, key)
        yield first, second


class _Symbols:
    """The symbols, numbered in the order of their first use."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.names: list[str] = []
        self.orders: list[bytes] = []  # sorted in the reverse order of the names

    def id(self, name: str) -> int:
        """Return the number of a symbol; a new symbol gets the next number."""
        number = self.ids.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
            reverse = ((1 << 32) - 2 - ord(character) for character in name)
            self.orders.append(b"".join(n.to_bytes(4, "big") for n in reverse) + b"\xff" * 4)
        return number

    def key(self, pair: tuple[str, str]) -> int:
        return self.id(pair[0]) << SHIFT | self.id(pair[1])

    def pair(self, key: int) -> tuple[str, str]:
        return self.names[key >> SHIFT], self.names[key & LOW]

    def order(self, key: int) -> bytes:
        """Return a value that is sorted in the reverse order of the pairs of strings."""
        return self.orders[key >> SHIFT] + self.orders[key & LOW]


class _Statistics:
    """The counts of pairs. As in subword-nmt, only a part of them is in use at a time.

    ``current`` are the counts in use. Pairs below ``threshold`` are moved to ``complete`` from time
    to time, and come back when no current pair reaches the threshold. If a moved pair changes
    meanwhile, only the change is in ``current``; a change that is not negative then replaces the
    count in ``complete``.

    The heap holds (-count, order of the pair, key) of all current pairs that reach the threshold,
    and outdated entries.
    """

    def __init__(self, symbols: _Symbols, *parts: tuple[Array, Array]):
        self.symbols = symbols
        self.current: dict[int, int] = {}
        for keys, values in parts:
            for key, value in zip(keys.tolist(), values.tolist(), strict=True):
                self.current[key] = self.current.get(key, 0) + value
        self.complete = dict(self.current)
        self.threshold = max(self.current.values(), default=0) / 10
        self.heap: list[tuple[int, bytes, int]] = []
        self._fill_heap()

    def most_frequent(self, i: int) -> int | None:
        """Return the key of merge ``i``: the pair with the highest count.

        Among equal counts, it is the last pair in the order of the strings. Returns None if no
        count is positive.
        """
        best = self._highest()
        if best is None:
            self._prune()
            self.current = dict(self.complete)
            highest = max(self.current.values(), default=0)
            self.threshold = highest * i / (i + FULL_PRUNING)
            self._prune()
            self._fill_heap()
            best = self._highest()
        return best

    def change(self, keys: Array, differences: Array) -> None:
        """Add the differences to the counts of pairs; a key may occur several times."""
        if not len(keys):
            return
        order = keys.argsort()
        keys = keys[order]
        starts = _starts(keys)
        sums = np.add.reduceat(differences[order], starts)
        current, threshold = self.current, self.threshold
        for key, difference in zip(keys[starts].tolist(), sums.tolist(), strict=True):
            value = current[key] = current.get(key, 0) + difference
            if value >= threshold:
                heappush(self.heap, (-value, self.symbols.order(key), key))

    def finish_merge(self, i: int, key: int) -> None:
        self.current[key] = 0
        if i % PRUNE_EVERY == 0:
            self._prune()

    def _highest(self) -> int | None:
        heap = self.heap
        while heap and self.current.get(heap[0][2]) != -heap[0][0]:
            heappop(heap)
        return heap[0][2] if heap and heap[0][0] < 0 else None

    def _prune(self) -> None:
        rare = [(key, value) for key, value in self.current.items() if value < self.threshold]
        for key, value in rare:
            del self.current[key]
            self.complete[key] = value if value >= 0 else self.complete.get(key, 0) + value

    def _fill_heap(self) -> None:
        self.heap = [
            (-value, self.symbols.order(key), key)
            for key, value in self.current.items()
            if value >= self.threshold
        ]
        heapify(self.heap)


class _Words:
    """The regular words as one array of symbols; the neighbours of a position are linked."""

    def __init__(self, counts: Mapping[str, int], symbols: _Symbols, irregular: "_IrregularWords"):
        words = []
        for word, count in counts.items():
            if re.search(r"\s", word):
                irregular.add([*word[:-1], word[-1] + END], count)
            elif len(word) > 1:
                words.append(word)
        self.names = symbols.names
        self.irregular = irregular
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        self.counts = np.fromiter((counts[word] for word in words), np.int64, len(words))
        self.ends = lengths.cumsum()
        total = int(lengths.sum())
        self.word = np.repeat(np.arange(len(words)), lengths)
        self.left = np.arange(-1, total - 1)
        self.left[self.ends - lengths] = NONE
        self.right = np.arange(1, total + 1)
        self.right[self.ends - 1] = NONE
        codes = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), "<u4")
        self.symbols = _symbol_ids(codes.astype(np.int64), self.ends - 1, symbols)
        self.marked = np.zeros(total, dtype=bool)
        # The positions of the first symbol of each pair. Some are outdated.
        self.index: defaultdict[int, list[Array]] = defaultdict(list)

    def pair_counts(self) -> tuple[Array, Array]:
        """Return the keys of all pairs and their counts; fill the index."""
        positions = np.flatnonzero(self.right != NONE)
        keys = self.symbols[positions] << SHIFT | self.symbols[positions + 1]
        self._add_to_index(keys, positions)
        values = [int(self.counts[self.word[parts[0]]].sum()) for parts in self.index.values()]
        return np.fromiter(self.index, np.int64, len(values)), np.array(values, np.int64)

    def occurrences(self, key: int, known: int | None) -> Array:
        """Return the positions of a pair's first symbols, in regular words.

        Words that merging makes irregular are moved to ``irregular``. ``known`` is the merged
        symbol if another merge has made it before.
        """
        a, b = key >> SHIFT, key & LOW
        parts = self.index.pop(key, None)
        if parts is None:
            return np.zeros(0, np.int64)
        positions = np.concatenate(parts)
        positions = positions[self.symbols[positions] == a]
        following = self.right[positions]
        positions = positions[(following != NONE) & (self.symbols[following] == b)]
        irregular: list[int] = []
        if a == b:  # runs of three symbols
            self.marked[positions] = True
            runs = positions[self.marked[self.right[positions]]]
            self.marked[positions] = False
            irregular += np.unique(self.word[runs]).tolist()
        if known is not None:
            words = np.unique(self.word[positions]).tolist()
            irregular += [word for word in words if (self._symbols_of(word) == known).any()]
        for word in set(irregular):
            ids = self._symbols_of(word)
            names = [self.names[i] for i in ids[ids != NONE].tolist()]
            self.irregular.add(names, int(self.counts[word]))
            ids[:] = NONE
        return positions[self.symbols[positions] != NONE] if irregular else positions

    def merge(self, positions: Array, key: int, merged: int) -> tuple[Array, Array]:
        """Merge a pair at these positions; return the keys and differences of changed pairs."""
        a, b = key >> SHIFT, key & LOW
        symbols, left, right = self.symbols, self.left, self.right
        counts = self.counts[self.word[positions]]
        second = right[positions]
        before, after = left[positions], right[second]
        has_before, has_after = before != NONE, after != NONE
        # The pair (b, a) between two occurrences is counted once, by the second occurrence.
        self.marked[positions] = True
        last = has_after & ~self.marked[after]
        self.marked[positions] = False
        keys = [symbols[before[has_before]] << SHIFT | a, b << SHIFT | symbols[after[last]]]
        differences = [-counts[has_before], -counts[last]]
        symbols[positions] = merged
        symbols[second] = NONE
        right[positions] = after
        left[after[has_after]] = positions[has_after]
        before = left[positions[has_before]]
        new_before = symbols[before] << SHIFT | merged
        last = has_after & (symbols[after] != merged)
        new_after = merged << SHIFT | symbols[after[last]]
        self._add_to_index(
            np.concatenate((new_before, new_after)), np.concatenate((before, positions[last]))
        )
        keys += [new_before, new_after]
        differences += [counts[has_before], counts[last]]
        return np.concatenate(keys), np.concatenate(differences)

    def _symbols_of(self, word: int) -> Array:
        return self.symbols[self.ends[word - 1] if word else 0 : self.ends[word]]

    def _add_to_index(self, keys: Array, positions: Array) -> None:
        if not len(keys):
            return
        order = keys.argsort(kind="stable")
        keys, positions = keys[order], positions[order]
        starts = _starts(keys)
        bounds = [*starts.tolist(), len(keys)]
        for i, key in enumerate(keys[starts].tolist()):
            self.index[key].append(positions[bounds[i] : bounds[i + 1]])


class _IrregularWords:
    """Words whose pairs are counted by the functions of subword-nmt itself."""

    def __init__(self, symbols: _Symbols):
        self.symbols = symbols
        self.words: list[tuple[tuple[str, ...], int]] = []
        self.index: defaultdict[tuple[str, str], defaultdict[int, int]] = defaultdict(
            lambda: defaultdict(int)
        )

    def add(self, word: list[str], count: int) -> None:
        for pair in pairwise(word):
            self.index[pair][len(self.words)] += 1
        self.words.append((tuple(word), count))

    def pair_counts(self) -> tuple[Array, Array]:
        """Return the keys of all pairs and their counts."""
        counts: defaultdict[int, int] = defaultdict(int)
        for word, count in self.words:
            for pair in pairwise(word):
                counts[self.symbols.key(pair)] += count
        return _arrays(counts)

    def merge(self, key: int) -> tuple[Array, Array]:
        """Merge a pair; return the keys and differences of changed pairs."""
        pair = self.symbols.pair(key)
        if pair not in self.index:
            return _arrays({})
        from subword_nmt.learn_bpe import replace_pair, update_pair_statistics

        differences: defaultdict[tuple[str, str], int] = defaultdict(int)
        changed = replace_pair(pair, self.words, self.index)
        update_pair_statistics(pair, changed, differences, self.index)
        return _arrays({self.symbols.key(p): value for p, value in differences.items()})


def _symbol_ids(codes: Array, last: Array, symbols: _Symbols) -> Array:
    """Return the symbols of characters; ``last`` are the positions of the words' last ones."""
    codes[last] |= 1 << SHIFT  # a last character is another symbol
    values, ids = np.unique(codes, return_inverse=True)
    numbers = [
        symbols.id(chr(value & LOW) + (END if value >> SHIFT else "")) for value in values.tolist()
    ]
    return np.array(numbers, np.int64)[ids.reshape(-1)]


def _starts(keys: Array) -> Array:
    """Return the starts of the runs of equal keys in a sorted array that is not empty."""
    return np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))


def _arrays(differences: Mapping[int, int]) -> tuple[Array, Array]:
    size = len(differences)
    return np.fromiter(differences, np.int64, size), np.fromiter(
        differences.values(), np.int64, size
    )
