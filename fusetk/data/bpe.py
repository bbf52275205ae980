"""Byte pair encoding: learned by subword-nmt, applied as subword-nmt applies it, with a cache of words (Sennrich et al. 2016)."""

import io
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path

from fusetk.data.text import read_lines
from fusetk.errors import DataError

JOINER = "@@"
JOINTS = re.compile(r"(@@ )|(@@ ?$)")
CACHED_WORDS = 1_000_000  # the cache is emptied when it holds so many
CACHED_LENGTH = 100  # longer words are handled and forgotten
SHORT = 40  # longer words are merged with a heap, which takes longer to begin and no time quadratic in the length
NEVER = sys.maxsize
Merges = dict[tuple[str, str], int]


def learn(counts: Mapping[str, int], merges: int, min_frequency: int = 2) -> list[str]:
    """The lines of a file of codes, learned by subword-nmt from words and their counts; fewer when pairs run out."""
    entries = [
        f"{word} {count}" for word, count in counts.items() if word and "\r" not in word
    ]  # its file format has no CR
    from subword_nmt.learn_bpe import learn_bpe  # applying needs none of it

    codes = io.StringIO()
    if any(len(word) > 1 for word in counts if "\r" not in word):
        with redirect_stderr(io.StringIO()):  # a progress bar
            learn_bpe(entries, codes, merges, min_frequency, is_dict=True)
    else:
        codes.write("#version: 0.2\n")
    return codes.getvalue().removesuffix("\n").split("\n")


class Subwords(dict[str, str]):
    """Words split into subwords, made when first asked for."""

    def __init__(self, split: Callable[[str], str]):
        super().__init__()
        self.split = split

    def __missing__(self, word: str) -> str:
        made = self.split(word)
        if len(word) <= CACHED_LENGTH:
            if len(self) >= CACHED_WORDS:
                self.clear()
            self[word] = made
        return made


class BPE:
    """Words to subwords by codes; those in no `vocabulary`, if there is one, are split further.

    Raises DataError for codes that are none.
    """

    def __init__(
        self, codes: Sequence[str], vocabulary: Mapping[str, int] | None = None, name: str = "codes"
    ):
        self.version, pairs = _parse(codes, name)
        self.codes = codes
        self.merges: Merges = {}
        for rank, pair in enumerate(pairs):
            self.merges.setdefault(pair, rank)
        self.parts = {left + right: (left, right) for left, right in reversed(self.merges)}
        self.vocabulary = dict(vocabulary) if vocabulary else None
        self.cache = Subwords(self._split)

    @classmethod
    def load(cls, codes: Path, vocabulary: Mapping[str, int] | None = None) -> "BPE":
        return cls(list(read_lines(codes)), vocabulary, str(codes))

    def line(self, line: str) -> str:
        """A line of words to subwords separated by spaces, `@@` at the end of each that goes on."""
        cache = self.cache
        return " ".join([cache[word] for word in line.split(" ") if word])

    def __call__(self, line: str) -> list[str]:
        """The subwords of a line of words."""
        text = self.line(line)
        return text.split(" ") if text else []

    def _split(self, word: str) -> str:
        if len(word) == 1:
            return word
        symbols = [*word[:-1], word[-1] + "</w>"] if self.version == "0.2" else [*word, "</w>"]
        symbols = (
            merge_short(symbols, self.merges)
            if len(symbols) <= SHORT
            else merge_long(symbols, self.merges)
        )
        if symbols[-1] == "</w>":
            symbols.pop()
        else:
            symbols[-1] = symbols[-1].removesuffix("</w>")
        if self.vocabulary is not None:
            last = symbols.pop()
            symbols = [
                part for symbol in symbols for part in self._known(symbol, False)
            ] + self._known(last, True)
        return (JOINER + " ").join(symbols)

    def _known(self, symbol: str, final: bool) -> list[str]:
        """Undo merges until every part is in the vocabulary or a single character."""
        assert self.vocabulary is not None
        if (symbol if final else symbol + JOINER) in self.vocabulary:
            return [symbol]
        parts = self.parts.get(symbol + "</w>" if final else symbol)
        if parts is None:
            return [symbol]
        left, right = parts
        return self._known(left, False) + self._known(
            right.removesuffix("</w>") if final else right, final
        )


def join(line: str) -> str:
    """Undo byte pair encoding."""
    return JOINTS.sub("", line)


def merge_short(symbols: list[str], merges: Merges) -> list[str]:
    """Apply the earliest merge that is possible at all its places, from the left, until none is."""
    get = merges.get
    ranks = [get(pair, NEVER) for pair in pairwise(symbols)]
    while ranks and (best := min(ranks)) != NEVER:
        if ranks.count(best) == 1:
            i = ranks.index(best)
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
            del ranks[i]
            if i:
                ranks[i - 1] = get((symbols[i - 1], symbols[i]), NEVER)
            if i < len(ranks):
                ranks[i] = get((symbols[i], symbols[i + 1]), NEVER)
        else:
            symbols = _merge_all(symbols, ranks, best)
            ranks = [get(pair, NEVER) for pair in pairwise(symbols)]
    return symbols


def _merge_all(symbols: list[str], ranks: list[int], best: int) -> list[str]:
    """Merge all pairs of a rank from the left."""
    merged, i = [], 0
    while i < len(symbols):
        if i < len(ranks) and ranks[i] == best:
            merged.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            merged.append(symbols[i])
            i += 1
    return merged


def merge_long(symbols: list[str], merges: Merges) -> list[str]:
    """`merge_short` in n log n: a heap of (rank, place) over symbols that point to their neighbours.

    All places of a merge are taken before the pairs that it makes are looked at.
    """
    symbols = list(symbols)
    n = len(symbols)
    before, after = list(range(-1, n - 1)), list(range(1, n + 1))
    pairs = {rank: pair for pair, rank in merges.items()}
    heap = [(merges[pair], i) for i, pair in enumerate(pairwise(symbols)) if pair in merges]
    heapify(heap)
    while heap:
        rank = heap[0][0]
        left, right = pairs[rank]
        made: list[int] = []
        while heap and heap[0][0] == rank:
            place = heappop(heap)[1]
            following = after[place]
            if symbols[place] != left or following >= n or symbols[following] != right:
                continue  # one of them has been merged since
            symbols[place], symbols[following] = left + right, ""
            after[place] = after[following]
            if after[place] < n:
                before[after[place]] = place
            made.append(place)
        for place in made:
            _push(heap, merges, symbols, before[place], place)
            _push(heap, merges, symbols, place, after[place])
    return [symbol for symbol in symbols if symbol]


def _push(
    heap: list[tuple[int, int]], merges: Merges, symbols: list[str], left: int, right: int
) -> None:
    if left >= 0 and right < len(symbols):
        rank = merges.get((symbols[left], symbols[right]))
        if rank is not None:
            heappush(heap, (rank, left))


def read_vocabulary(path: Path, threshold: int = 1) -> dict[str, int]:
    """The tokens and counts of a subword-nmt vocabulary file (`token count`), those that stand at least `threshold` times."""
    tokens = {}
    for number, line in enumerate(read_lines(path, bom=False), 1):
        token, _, count = line.rpartition("\t" if "\t" in line else " ")
        if not token or not count.isdecimal():
            raise DataError(
                f"{path}, line {number}: {line[:40]!r} is not a token, a space and its count"
            )
        if int(count) >= threshold:
            tokens[token] = int(count)
    return tokens


def count_subwords(
    counts: Mapping[str, int], split: Callable[[str], Iterable[str]]
) -> dict[str, int]:
    """Counts of subwords from counts of words."""
    total: dict[str, int] = {}
    for word, count in counts.items():
        for subword in split(word):
            total[subword] = total.get(subword, 0) + count
    return total


def _parse(codes: Sequence[str], name: str) -> tuple[str, list[tuple[str, str]]]:
    """The version and the pairs of a file of codes."""
    version, first = "0.1", 0
    if codes and codes[0].startswith("#version:"):
        version, first = re.sub(r"(\.0+)*$", "", codes[0].split()[-1]), 1
    if version not in ("0.1", "0.2"):
        raise DataError(
            f"{name}, line 1: BPE codes of version {version} are not known; 0.1 and 0.2 are"
        )
    pairs = []
    for number, line in enumerate(codes[first:], first + 1):
        parts = line.strip("\r\n ").split(" ")
        if len(parts) != 2:
            raise DataError(
                f"{name}, line {number}: {line[:40]!r} is not a merge of two symbols; give a file that learn-bpe wrote"
            )
        pairs.append((parts[0], parts[1]))
    return version, pairs
