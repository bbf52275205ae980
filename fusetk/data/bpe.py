"""Byte pair encoding (Sennrich et al. 2016).

The merges and the subwords are those of subword-nmt. Subwords of words are cached.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path

from fusetk import display
from fusetk.data.cache import WordCache
from fusetk.data.text import read_lines
from fusetk.data.vocab import is_number, refuse_yaml, split_at_count
from fusetk.errors import DataError

JOINER = "@@"
JOINTS = re.compile(r"(@@ )|(@@ ?$)")
FASTBPE = re.compile(r"[^ ]+ [^ ]+ [0-9]+")  # a line of codes that fastBPE wrote
COUNTS_NEEDED = "give a file of subword-nmt, which has a token and its count on each line"
SHORT = 40  # symbols; for longer words, the time of ``merge`` is not quadratic in the length
NO_MERGE = sys.maxsize  # rank of a pair that is never merged
Merges = dict[tuple[str, str], int]


def word_frequencies(lines: Iterable[str]) -> Counter[str]:
    """Count the words of lines, which are separated by spaces."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.split(" "))
    counts.pop("", None)
    return counts


def learn(counts: Mapping[str, int], merges: int, min_frequency: int = 2) -> list[str]:
    """Learn the merges that subword-nmt learns from words and their counts.

    Return the lines of a file of codes. It has fewer than ``merges`` merges if no remaining pair
    occurs ``min_frequency`` times.
    """
    from fusetk.data.bpe_learning import learn_merges  # only learning needs numpy

    # The file format of subword-nmt cannot hold a carriage return.
    words = {word: count for word, count in counts.items() if word and "\r" not in word}
    pairs = display.tracked(
        learn_merges(words, merges, min_frequency), "learning BPE", "merges", merges
    )
    return ["#version: 0.2", *(f"{first} {second}" for first, second in pairs)]


def fewer_merges_message(codes: Sequence[str], merges: int, min_frequency: int) -> str:
    """Return a message if ``codes`` has fewer than ``merges`` merges, else an empty text."""
    learned = len(codes) - 1
    if learned == merges:
        return ""
    times = "once" if min_frequency == 1 else f"{min_frequency} times"
    return f"only {learned:,} of {merges:,} merges were learned: no other pair occurs {times}"


class BPE:
    """Splits words into subwords by ``codes``, the lines of a file of merges.

    Subwords that are not in ``vocabulary``, if it is given, are split further. ``name`` names the
    codes in errors. Raises DataError for malformed codes.
    """

    def __init__(
        self, codes: Sequence[str], vocabulary: Mapping[str, int] | None = None, name: str = "codes"
    ):
        self.version, pairs = _parse(codes, name)
        self.codes = codes
        # The last line first, as in subword-nmt. A repeated pair has the rank of its first line.
        self.merges: Merges = {}
        for rank, pair in reversed([*enumerate(pairs)]):
            self.merges[pair] = rank
        self.vocabulary = dict(vocabulary) if vocabulary else None
        self.cache = WordCache(self._split)

    @cached_property
    def pairs(self) -> dict[int, tuple[str, str]]:
        """The pair of symbols that each rank merges."""
        return {rank: pair for pair, rank in self.merges.items()}

    @cached_property
    def merged(self) -> dict[tuple[str, str], str]:
        """The symbol that each pair makes."""
        return {pair: "".join(pair) for pair in self.merges}

    @cached_property
    def parts(self) -> dict[str, tuple[str, str]]:
        """The two symbols that make each merged symbol."""
        return {self.merged[pair]: pair for pair in self.merges}

    @classmethod
    def load(cls, codes: Path, vocabulary: Mapping[str, int] | None = None) -> "BPE":
        return cls(list(read_lines(codes)), vocabulary, str(codes))

    def line(self, line: str) -> str:
        """Return a line of words as subwords separated by spaces.

        Every subword except the last of its word ends with `@@`.
        """
        cache = self.cache
        return " ".join([cache[word] for word in line.split(" ") if word])

    def __call__(self, line: str) -> list[str]:
        """Return the subwords of a line of words."""
        text = self.line(line)
        return text.split(" ") if text else []

    def _split(self, word: str) -> str:
        if len(word) == 1:
            return word
        symbols = self.symbols(word)
        if len(symbols) <= SHORT:
            return self.subwords(merge_short(symbols, self.merges))
        return self.subwords(merge(symbols, self.merges, self.pairs))

    def symbols(self, word: str) -> list[str]:
        """Return the symbols of a word before the first merge; `</w>` marks its end."""
        return [*word[:-1], word[-1] + "</w>"] if self.version == "0.2" else [*word, "</w>"]

    def subwords(self, symbols: list[str]) -> str:
        """Return the subwords of a word, separated by spaces, given its symbols after merging."""
        if symbols[-1] == "</w>":
            symbols.pop()
        else:
            symbols[-1] = symbols[-1].removesuffix("</w>")
        if self.vocabulary is not None:
            *start, last = symbols
            symbols = [part for symbol in start for part in self.known_parts(symbol, final=False)]
            symbols += self.known_parts(last, final=True)
        return (JOINER + " ").join(symbols)

    def known_parts(self, symbol: str, final: bool) -> list[str]:
        """Undo merges until every part is in the vocabulary or has no merge.

        ``symbol`` has no `</w>`, and the parts have no `@@`. ``final`` marks the last symbol of a
        word.
        """
        assert self.vocabulary is not None
        if (symbol if final else symbol + JOINER) in self.vocabulary:
            return [symbol]
        parts = self.parts.get(symbol + "</w>" if final else symbol)
        if parts is None:
            return [symbol]
        left, right = parts
        if final:
            if not right.endswith("</w>"):  # this merge makes `</w>` of characters of the text
                return [symbol]
            right = right.removesuffix("</w>")
            if not right:  # in version 0.1, a merge may append only `</w>`
                if left not in self.parts:
                    return [left]
                left, right = self.parts[left]
        return self.known_parts(left, final=False) + self.known_parts(right, final)


def with_margins(split: Callable[[str], str], line: str) -> str:
    """Return ``split`` of the words of a line, with the spaces at the line's start and end."""
    words = line.strip(" ")
    if len(words) == len(line):
        return split(line)
    start = len(line) - len(line.lstrip(" "))
    return line[:start] + split(words) + line[start + len(words) :]


def join(line: str) -> str:
    """Undo byte pair encoding."""
    return JOINTS.sub("", line)


def word_starts(tokens: Sequence[str]) -> list[int]:
    """Return the indices of the subwords that begin words."""
    return [i for i in range(len(tokens)) if not i or not tokens[i - 1].endswith(JOINER)]


def merge_short(symbols: list[str], merges: Merges) -> list[str]:
    """Apply the merge with the lowest rank at all positions, from the left, until none applies."""
    get = merges.get
    ranks = [get(pair, NO_MERGE) for pair in pairwise(symbols)]
    while ranks and (best := min(ranks)) != NO_MERGE:
        if ranks.count(best) == 1:
            i = ranks.index(best)
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
            del ranks[i]
            if i:
                ranks[i - 1] = get((symbols[i - 1], symbols[i]), NO_MERGE)
            if i < len(ranks):
                ranks[i] = get((symbols[i], symbols[i + 1]), NO_MERGE)
        else:
            symbols = _merge_all(symbols, ranks, best)
            ranks = [get(pair, NO_MERGE) for pair in pairwise(symbols)]
    return symbols


def _merge_all(symbols: list[str], ranks: list[int], best: int) -> list[str]:
    """Merge all pairs with the rank ``best``, from the left."""
    merged = []
    i = 0
    while i < len(symbols):
        if i < len(ranks) and ranks[i] == best:
            merged.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            merged.append(symbols[i])
            i += 1
    return merged


def merge(
    symbols: list[str],
    merges: Merges,
    pairs: Mapping[int, tuple[str, str]],
    leaves_out: Callable[[], bool] = lambda: False,
) -> list[str]:
    """Apply merges until no possible merge remains. ``leaves_out`` decides which are left out.

    Without ``leaves_out``, the result is that of ``merge_short``. ``merges`` maps pairs of symbols
    to ranks, and ``pairs`` maps ranks to pairs. If merges are left out with probability p, the time
    is O(n log n / (1 - p)) for n symbols. The algorithm decides on the merges in the order of their
    rank and place. It stops at the next rank after a merge that is not left out: decisions on later
    merges have no effect.

    Pairs are in a heap of (rank, position), and the symbols are linked.
    """
    symbols = list(symbols)
    n = len(symbols)
    before = list(range(-1, n - 1))
    after = list(range(1, n + 1))
    heap = [(merges[pair], i) for i, pair in enumerate(pairwise(symbols)) if pair in merges]
    heapify(heap)
    while True:
        skipped: list[tuple[int, int]] = []
        merged: list[int] = []
        best = None
        while heap and (best is None or heap[0][0] == best):
            rank, position = entry = heappop(heap)
            following = after[position]
            if following >= n or (symbols[position], symbols[following]) != pairs[rank]:
                continue  # another merge has changed one of the two symbols
            if leaves_out():
                skipped.append(entry)
                continue
            best = rank
            symbols[position] += symbols[following]
            symbols[following] = ""
            after[position] = after[following]
            if after[position] < n:
                before[after[position]] = position
            merged.append(position)
        if not merged:
            return [symbol for symbol in symbols if symbol]
        for entry in skipped:
            heappush(heap, entry)
        # A set, because two merged symbols can be neighbours.
        for left in {left for position in merged for left in (before[position], position)}:
            if left >= 0 and after[left] < n:
                new_rank = merges.get((symbols[left], symbols[after[left]]))
                if new_rank is not None:
                    heappush(heap, (new_rank, left))


def codes_name(joint: bool, language: str) -> str:
    """Return the name of the file with the codes of a language; joint codes have one file."""
    return "bpe.codes" if joint else f"bpe.codes.{language}"


def read_vocabulary(path: Path, threshold: int = 1, bom: bool = False) -> dict[str, int]:
    """Return the tokens of a subword-nmt vocabulary file (`token count`) with their counts.

    Tokens with a count below ``threshold`` are omitted. With ``bom``, a byte order mark at the
    start is dropped. Raises DataError with the malformed line.
    """
    tokens = {}
    lines = refuse_yaml(read_lines(path, bom), path, COUNTS_NEEDED)
    for number, line in enumerate(lines, 1):
        token, _, count = split_at_count(line)
        if not token or not is_number(count):
            raise DataError(
                f"{path}, line {number}: {line[:40]!r} is not a token, a space and "
                "the count of the token"
            )
        if int(count) >= threshold:
            tokens[token] = int(count)
    return tokens


def count_subwords(
    counts: Mapping[str, int], split: Callable[[str], Iterable[str]]
) -> dict[str, int]:
    """Return the counts of subwords, given the counts of words."""
    total: dict[str, int] = {}
    entries = display.tracked(counts.items(), "subwords", "words", len(counts), 100)
    for word, count in entries:
        for subword in split(word):
            total[subword] = total.get(subword, 0) + count
    return total


def _parse(codes: Sequence[str], name: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the version and the pairs of a file of codes.

    Files of fastBPE have no version, and each line ends with the count of the pair. They mark the
    end of a word as version 0.2 does.
    """
    version = "0.1"
    first = 0
    fields = 2
    if codes and codes[0].startswith("#version:"):
        version = re.sub(r"(\.0+)*$", "", codes[0].split()[-1])
        first = 1
    elif codes and FASTBPE.fullmatch(codes[0]):
        version = "0.2"
        fields = 3
    if version not in ("0.1", "0.2"):
        raise DataError(
            f"{name}, line 1: BPE codes have version {version}; fusetk reads versions 0.1 and 0.2"
        )
    pairs = []
    for number, line in enumerate(codes[first:], first + 1):
        parts = line.strip("\r\n ").split(" ")
        if len(parts) != fields:
            raise DataError(
                f"{name}, line {number}: {line[:40]!r} is not a merge of two symbols; "
                "give a file that learn-bpe wrote"
            )
        pairs.append((parts[0], parts[1]))
    if not first and all(right.isdecimal() for _, right in pairs):
        what = "a vocabulary with counts" if pairs else "empty"
        raise DataError(f"{name} is {what}, not BPE codes: give a file that learn-bpe wrote")
    return version, pairs
