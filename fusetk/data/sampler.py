"""Which sentence pairs stand in which batch, decided by seed and epoch alone."""

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fusetk.config import Config
from fusetk.data.corpus_weights import Share
from fusetk.errors import DataError

Lengths = NDArray[np.int32]
Indices = NDArray[np.int64]
Order = NDArray[Any]  # int32, or int64 where there are more pairs than that counts
BLOCK = 1 << 20  # pairs that are sorted into place at once


class BatchConfig(Config):
    """How many sentence pairs one update sees."""

    size: int = Field(4096, ge=1)
    """Target tokens (end marks counted, padding not) or sentence pairs."""
    unit: Literal["tokens", "sentences"] = "tokens"
    """What `size` counts."""
    accumulate: int = Field(1, ge=1)
    """Batches of `size` whose gradients are summed into one update."""


class Batches(Sequence[Indices]):
    """The batches of an epoch, each made when it is asked for: the pairs in order, and (start, end) of each batch in it."""

    def __init__(self, order: Order, cuts: NDArray[np.int64]):
        self.order, self.cuts = order, cuts

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


class Groups(Sequence[Sequence[Indices]]):
    """The batches of each update, ``accumulate`` of them or what is left at the end."""

    def __init__(self, found: Sequence[Indices], accumulate: int, numbers: range):
        self.found, self.accumulate, self.numbers = found, accumulate, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, i: int) -> list[Indices]: ...
    @overload
    def __getitem__(self, i: slice) -> "Groups": ...
    def __getitem__(self, i: int | slice) -> "list[Indices] | Groups":
        if isinstance(i, slice):
            return Groups(self.found, self.accumulate, self.numbers[i])
        start = self.numbers[i] * self.accumulate
        return list(self.found[start : start + self.accumulate])


def batches(
    source: Lengths,
    target: Lengths,
    config: BatchConfig,
    seed: int,
    epoch: int,
    shares: Sequence[Share] = (),
) -> Batches:
    """The batches of an epoch in the order in which they are read, each an array of pair indices.

    Pairs are shuffled, then sorted by target and source length, cut, and the batches shuffled: pairs of one length meet
    in a new company each epoch. With ``shares`` an epoch has each pair as often as its share says. Depends on nothing but
    the arguments. Raises DataError when a sentence does not fit.
    """
    random = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)))
    order = _pool(len(target), shares, random)
    if not len(order) and shares:
        raise DataError(
            f"epoch {epoch + 1} has no pair, so small are the weights: raise training.stages.N.weights"
        )
    random.shuffle(order)
    order = _sorted(order, source, target)
    cuts = cut(target[order], config)
    turns = np.arange(len(cuts), dtype=np.int32)
    random.shuffle(turns)
    return Batches(order, cuts[turns])


def _pool(count: int, shares: Sequence[Share], random: np.random.Generator) -> Order:
    """The pairs of an epoch as they stand in the corpus, with those that come more than once again and again."""
    kind = np.int32 if count < 1 << 31 else np.int64
    if not shares:
        return np.arange(count, dtype=kind)
    found = []
    for start, end, weight in shares:
        pairs = np.arange(start, end, dtype=kind)
        found += [pairs] * int(weight)
        if weight % 1:
            found.append(pairs[random.random(len(pairs), dtype=np.float32) < weight % 1])
    return np.concatenate(found) if found else np.zeros(0, kind)


def _sorted(order: Order, source: Lengths, target: Lengths) -> Order:
    """Pairs by target length, then by source length, to and fro: neighbours stay alike where the target's changes.

    What is alike stays as it stands. Both lengths and the place become one number, which sorts fast and in place.
    """
    width = int(source.max(initial=0)) + 1
    if (int(target.max(initial=0)) + 1) * width >> 31 or len(order) >> 32:
        s, t = source[order], target[order]
        return order[np.lexsort((np.where(t % 2, s, -s), t))]
    keys = np.empty(len(order), np.int64)
    for start in range(0, len(order), BLOCK):
        part = order[start : start + BLOCK]
        s, t = source[part].astype(np.int64), target[part].astype(np.int64)
        keys[start : start + BLOCK] = t * width + np.where(
            t % 2, s, width - 1 - s
        ) << 32 | np.arange(start, start + len(part))
    keys.sort()
    keys &= (1 << 32) - 1
    return order[keys]


def fits(longest: int, config: BatchConfig) -> None:
    """Raise DataError when a batch does not hold the longest target sentence."""
    if config.unit == "tokens" and longest > config.size:
        raise DataError(
            f"the longest target sentence has {longest} tokens and a batch holds {config.size}: "
            "raise batch.size, or drop long sentences in data.steps (filter) or data.bpe.max_subwords"
        )


def cut(lengths: Lengths, config: BatchConfig) -> NDArray[np.int64]:
    """Where sorted pairs are cut into batches: a row (start, end) for each, at most ``config.size`` in all."""
    if config.unit == "sentences":
        starts = np.arange(0, len(lengths), config.size)
        return np.stack((starts, np.minimum(starts + config.size, len(lengths))), axis=1)
    fits(int(lengths.max(initial=0)), config)
    sums = lengths.astype(np.int64)
    np.cumsum(sums, out=sums)
    bounds, before = [0], 0
    while bounds[-1] < len(lengths):
        bounds.append(int(sums.searchsorted(before + config.size, side="right")))
        before = int(sums[bounds[-1] - 1])
    return np.stack((np.array(bounds[:-1], np.int64), np.array(bounds[1:], np.int64)), axis=1)


def groups(found: Sequence[Indices], accumulate: int) -> Groups:
    """The batches of each update."""
    return Groups(found, accumulate, range(-(-len(found) // accumulate)))
