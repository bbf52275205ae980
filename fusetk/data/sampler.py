"""Which sentence pairs stand in which batch, decided by seed and epoch alone."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fusetk.config import Config
from fusetk.errors import DataError

Lengths = NDArray[np.int32]
Indices = NDArray[np.int64]


class BatchConfig(Config):
    """How many sentence pairs one update sees."""

    size: int = Field(4096, ge=1)
    """Target tokens (end marks counted, padding not) or sentence pairs."""
    unit: Literal["tokens", "sentences"] = "tokens"
    """What `size` counts."""
    accumulate: int = Field(1, ge=1)
    """Batches of `size` whose gradients are summed into one update."""


def batches(source: Lengths, target: Lengths, config: BatchConfig, seed: int, epoch: int) -> list[Indices]:
    """The batches of an epoch in the order in which they are read, each an array of pair indices.

    Pairs are shuffled, then sorted by target and source length, cut, and the batches shuffled: pairs of one length meet
    in a new company each epoch. Depends on nothing but the arguments. Raises DataError when a sentence does not fit.
    """
    random = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)))
    order = random.permutation(len(target))
    s, t = source[order], target[order]
    order = order[np.lexsort((np.where(t % 2, s, -s), t))]  # source lengths to and fro: neighbours stay alike where t changes
    cuts = cut(target[order], config)
    random.shuffle(cuts)
    return [order[start:end] for start, end in cuts]


def cut(lengths: Lengths, config: BatchConfig) -> list[tuple[int, int]]:
    """Where sorted pairs are cut into batches: (start, end) of each, at most ``config.size`` in all."""
    if config.unit == "sentences":
        return [(i, min(i + config.size, len(lengths))) for i in range(0, len(lengths), config.size)]
    if len(lengths) and lengths.max() > config.size:
        raise DataError(
            f"the longest target sentence has {lengths.max()} tokens and a batch holds {config.size}: "
            "raise batch.size, or drop long sentences in data.steps (filter) or data.bpe.max_subwords"
        )
    ends = np.cumsum(lengths, dtype=np.int64)
    found, start, before = [], 0, 0
    while start < len(lengths):
        end = int(np.searchsorted(ends, before + config.size, side="right"))
        found.append((start, end))
        start, before = end, int(ends[end - 1])
    return found


def groups(found: Sequence[Indices], accumulate: int) -> list[Sequence[Indices]]:
    """The batches of each update."""
    return [found[i : i + accumulate] for i in range(0, len(found), accumulate)]
