"""Batches of sentence pairs, which depend only on the data, the seed and the epoch."""

from collections.abc import Sequence
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from fusetk.data.batch_config import BatchConfig
from fusetk.data.corpus_weights import WeightedSpan
from fusetk.errors import DataError

Lengths = NDArray[np.int32]
Indices = NDArray[np.int64]
Order = NDArray[Any]  # int32, or int64 for a corpus too large for int32
BLOCK = 1 << 20  # pairs whose sort keys are computed at once


class Batches(Sequence[Indices]):
    """The batches of an epoch, each made on access.

    ``order`` (n,) holds the pairs, and ``cuts`` (batches, 2) the start and end of each batch in it.
    """

    def __init__(self, order: Order, cuts: NDArray[np.int64]):
        self.order = order
        self.cuts = cuts

    def __len__(self) -> int:
        return len(self.cuts)

    @overload
    def __getitem__(self, i: int) -> Indices: ...
    @overload
    def __getitem__(self, i: slice) -> "Batches": ...
    def __getitem__(self, i: int | slice) -> "Indices | Batches":
        if isinstance(i, slice):
            return Batches(self.order, self.cuts[i])
        start, end = self.cuts[i]
        return self.order[start:end].astype(np.int64)


class UpdateBatches(Sequence[Sequence[Indices]]):
    """The batches of each update: ``accumulate`` batches, fewer in the last update.

    ``numbers`` are the updates, counted from 0.
    """

    def __init__(self, batches: Sequence[Indices], accumulate: int, numbers: range):
        self.batches = batches
        self.accumulate = accumulate
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, i: int) -> list[Indices]: ...
    @overload
    def __getitem__(self, i: slice) -> "UpdateBatches": ...
    def __getitem__(self, i: int | slice) -> "list[Indices] | UpdateBatches":
        if isinstance(i, slice):
            return UpdateBatches(self.batches, self.accumulate, self.numbers[i])
        start = self.numbers[i] * self.accumulate
        return list(self.batches[start : start + self.accumulate])


def batches(
    source: Lengths,
    target: Lengths,
    config: BatchConfig,
    seed: int,
    epoch: int,
    spans: Sequence[WeightedSpan] = (),
) -> Batches:
    """Return the batches of an epoch in the order of training, each an array of pair indices.

    Pairs are shuffled, sorted by length, and cut into batches; then the batches are shuffled. The
    length is that of the target, or of both sides if the unit of the batch counts both. So pairs of
    the same length are combined differently in each epoch. With ``spans``, the weight of a span is
    the mean number of uses of each of its pairs in an epoch. If no pair is drawn, the epoch has one
    random pair. The result depends only on the arguments. Raises DataError if a sentence is longer
    than a batch.
    """
    random = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)))
    order = _pool(len(target), spans, random)
    random.shuffle(order)
    counted = pair_lengths(source, target, config)
    if config.unit in ("longest", "both"):
        # The second key makes the sides of neighbours similar, not only their longer side or sum.
        order = _sorted(order, target + (source.max(initial=0) - source), counted)
    else:
        order = _sorted(order, source, target)
    cuts = cut(counted[order], config)
    if config.token_limit:
        cuts = _split(cuts, np.maximum(source, target)[order], config.token_limit)
    batch_order = np.arange(len(cuts), dtype=np.int32)
    random.shuffle(batch_order)
    return Batches(order, cuts[batch_order])


def pair_lengths(source: Lengths, target: Lengths, config: BatchConfig) -> Lengths:
    """Return the length of each pair by which batches are sorted and cut."""
    if config.unit == "longest":
        return np.maximum(source, target)
    return source + target if config.unit == "both" else target


def _pool(count: int, spans: Sequence[WeightedSpan], random: np.random.Generator) -> Order:
    """Return the pairs of an epoch in the order of the corpus; weights above 1 repeat pairs."""
    dtype = np.int32 if count < 1 << 31 else np.int64
    if not spans:
        return np.arange(count, dtype=dtype)
    copies = []
    for start, end, weight in spans:
        pairs = np.arange(start, end, dtype=dtype)
        copies += [pairs] * int(weight)
        if weight % 1:
            copies.append(pairs[random.random(len(pairs), dtype=np.float32) < weight % 1])
    order = np.concatenate(copies)
    if len(order):
        return order
    # Small weights drew no pair. Draw one from the span with the most expected uses.
    span = max(spans, key=lambda span: span.weight * (span.end - span.start))
    return random.integers(span.start, span.end, 1, dtype=dtype)


def _sorted(order: Order, source: Lengths, target: Lengths) -> Order:
    """Sort by target length, then by source length in alternating direction.

    Other numbers can take the place of the lengths. The alternating direction keeps neighbours
    similar where the target length changes. The sort is stable. Both lengths and the position are
    packed into one integer, which sorts fast and in place.
    """
    width = int(source.max(initial=0)) + 1
    if (int(target.max(initial=0)) + 1) * width >> 31 or len(order) >> 32:
        source_lengths = source[order]
        target_lengths = target[order]
        directed = np.where(target_lengths % 2, source_lengths, -source_lengths)
        return order[np.lexsort((directed, target_lengths))]
    keys = np.empty(len(order), np.int64)
    for start in range(0, len(order), BLOCK):
        block = order[start : start + BLOCK]
        source_lengths = source[block].astype(np.int64)
        target_lengths = target[block].astype(np.int64)
        directed = np.where(target_lengths % 2, source_lengths, width - 1 - source_lengths)
        positions = np.arange(start, start + len(block))
        keys[start : start + BLOCK] = (target_lengths * width + directed) << 32 | positions
    keys.sort()
    keys &= (1 << 32) - 1
    return order[keys]


def check_fits(longest: int, config: BatchConfig) -> None:
    """Raise DataError if the longest pair, by ``pair_lengths``, is longer than a batch."""
    if config.unit != "sentences" and longest > config.size:
        what = {
            "tokens": "target sentence",
            "longest": "sentence",
            "both": "pair of both sides",
        }[config.unit]
        raise DataError(
            f"the longest {what} has {longest} tokens and a batch holds {config.size}: "
            "raise batch.size, or drop long sentences in data.steps (filter) "
            "or data.bpe.max_subwords"
        )


def cut(lengths: Lengths, config: BatchConfig) -> NDArray[np.int64]:
    """Cut pairs into n batches of at most ``config.size``; return (start, end) (n, 2).

    ``lengths`` are those of ``pair_lengths``, in ascending order.
    """
    if config.unit == "sentences":
        starts = np.arange(0, len(lengths), config.size)
        return np.stack((starts, np.minimum(starts + config.size, len(lengths))), axis=1)
    check_fits(int(lengths.max(initial=0)), config)
    cut_sorted = _token_bounds if config.unit == "tokens" else _padded_bounds
    bounds = cut_sorted(lengths, config.size)
    return np.stack((np.array(bounds[:-1], np.int64), np.array(bounds[1:], np.int64)), axis=1)


def _token_bounds(lengths: Lengths, size: int) -> list[int]:
    """Return 0 and the end of each batch whose sum of lengths is at most ``size``."""
    sums = lengths.astype(np.int64)
    np.cumsum(sums, out=sums)
    bounds = [0]
    before = 0  # tokens in the batches so far
    while bounds[-1] < len(lengths):
        bounds.append(int(sums.searchsorted(before + size, side="right")))
        before = int(sums[bounds[-1] - 1])
    return bounds


def _padded_bounds(lengths: Lengths, size: int) -> list[int]:
    """Return 0 and the end of each batch of n pairs for which n times the greatest length fits."""
    bounds = [0]
    while bounds[-1] < len(lengths):
        start = bounds[-1]
        window = lengths[start : start + size // int(lengths[start])].astype(np.int64)
        padded = window * np.arange(1, len(window) + 1)  # ascending, as the lengths are
        bounds.append(start + int(padded.searchsorted(size, side="right")))
    return bounds


def _split(cuts: NDArray[np.int64], lengths: Lengths, token_limit: int) -> NDArray[np.int64]:
    """Split batches with more than ``token_limit``, given as (start, end) (n, 2), into parts.

    ``lengths`` are the lengths of the longer sides.
    """
    parts = []
    for start, end in cuts.tolist():
        size = split_size(end - start, int(lengths[start:end].max()), token_limit)
        parts += [(first, min(first + size, end)) for first in range(start, end, size)]
    return np.array(parts, np.int64).reshape(-1, 2)


def split_size(pairs: int, longest: int, token_limit: int) -> int:
    """Return the number of pairs of a batch.

    It is halved until the batch has at most ``token_limit`` tokens.
    """
    while pairs > 1 and pairs * longest > token_limit:
        pairs //= 2
    return pairs


class UpdateSize(NamedTuple):
    """The size of the batches of an update, of all processes."""

    pairs: int
    target_tokens: int
    tokens: int  # of both sides
    padded: int  # tokens of both sides with padding: pairs times the longest sentence of each side


def update_size(batches: Sequence[Indices], source: Lengths, target: Lengths) -> UpdateSize:
    """Return the size of the batches of an update."""
    size = UpdateSize(0, 0, 0, 0)
    for pairs in batches:
        source_lengths = source[pairs]
        target_lengths = target[pairs]
        tokens = int(target_lengths.sum())
        longest = int(source_lengths.max(initial=0)) + int(target_lengths.max(initial=0))
        size = UpdateSize(
            size.pairs + len(pairs),
            size.target_tokens + tokens,
            size.tokens + tokens + int(source_lengths.sum()),
            size.padded + len(pairs) * longest,
        )
    return size


def update_batches(batches: Sequence[Indices], accumulate: int) -> UpdateBatches:
    """Return the batches of each update."""
    return UpdateBatches(batches, accumulate, range(-(-len(batches) // accumulate)))
