"""Large corpora: the order of an epoch equals its plain definition; batches are made on access."""

import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest

from fusetk.data import corpus as corpora
from fusetk.data import sampler
from fusetk.data.batch_config import BatchConfig
from fusetk.data.corpus import Sentences
from fusetk.data.sampler import Batches, batches, cut, update_batches

random = np.random.default_rng(3)
SIZES = [BatchConfig(size=300), BatchConfig(size=1000), BatchConfig(size=7, unit="sentences")]


def lengths(count: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    source, target = (random.integers(1, most, count).astype(np.int32) for _ in range(2))
    return source, target


def plain(
    source: np.ndarray, target: np.ndarray, config: BatchConfig, seed: int, epoch: int
) -> list[np.ndarray]:
    """Return all batches of an epoch in the order of the first version, whose runs still resume."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)))
    order = generator.permutation(len(target))
    s, t = source[order], target[order]
    order = order[np.lexsort((np.where(t % 2, s, -s), t))]
    cuts = plain_cuts(target[order], config)
    generator.shuffle(cuts)
    return [order[start:end] for start, end in cuts]


def plain_cuts(lengths: np.ndarray, config: BatchConfig) -> list[tuple[int, int]]:
    cuts: list[tuple[int, int]] = []
    start = size = 0
    for i, length in enumerate(lengths.tolist()):
        cost = length if config.unit == "tokens" else 1
        if size + cost > config.size:
            cuts.append((start, i))
            start, size = i, 0
        size += cost
    return [*cuts, (start, len(lengths))] if len(lengths) else cuts


def same(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> bool:
    return len(ours) == len(theirs) and all(
        np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("config", SIZES, ids=str)
@pytest.mark.parametrize(
    ("count", "most"), [(0, 2), (1, 40), (2, 40), (5, 3), (999, 40), (3000, 200)]
)
def test_the_order_is_the_plain_one(config: BatchConfig, count: int, most: int) -> None:
    source, target = lengths(count, most)
    for seed, epoch in ((1, 0), (1, 1), (77, 12)):
        assert same(
            batches(source, target, config, seed, epoch), plain(source, target, config, seed, epoch)
        )


def test_the_order_is_the_plain_one_over_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "BLOCK", 64)
    source, target = lengths(1000, 40)
    assert same(batches(source, target, SIZES[0], 1, 0), plain(source, target, SIZES[0], 1, 0))


def test_lengths_too_large_for_one_number_have_the_plain_order() -> None:
    source, target = lengths(500, 60_000)
    config = BatchConfig(size=200_000)
    assert same(batches(source, target, config, 1, 0), plain(source, target, config, 1, 0))


def test_cuts_are_rows_of_numbers() -> None:
    assert cut(np.array([3, 3, 4, 9], np.int32), BatchConfig(size=10)).tolist() == [[0, 3], [3, 4]]
    assert cut(np.zeros(0, np.int32), BatchConfig(size=10)).shape == (0, 2)
    assert cut(np.ones(5, np.int32), BatchConfig(size=2, unit="sentences")).tolist() == [
        [0, 2],
        [2, 4],
        [4, 5],
    ]


def test_batches_are_made_when_they_are_read_and_slices_share_the_order() -> None:
    epoch = batches(*lengths(1000, 40), BatchConfig(size=300), 1, 0)
    assert (
        isinstance(epoch[3:], Batches)
        and epoch[3:].order is epoch.order
        and epoch.order.dtype == np.int32
    )
    assert same(epoch[3:], list(epoch)[3:]) and same([epoch[-1]], list(epoch)[-1:])
    assert epoch[0].dtype == np.int64
    with pytest.raises(IndexError):
        epoch[len(epoch)]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_updates_continue_from_a_position(accumulate: int) -> None:
    """A resumed run reads the rest of the epoch's updates."""
    every = list(batches(*lengths(1000, 40), BatchConfig(size=300), 1, 0))
    updates = update_batches(every, accumulate)
    assert len(updates) == -(-len(every) // accumulate)
    for position in (0, 1, 5, len(updates) - 1, len(updates)):
        expected = [
            every[i : i + accumulate] for i in range(position * accumulate, len(every), accumulate)
        ]
        rest = updates[position:]
        assert len(rest) == len(expected) and all(
            same(one, other) for one, other in zip(rest, expected, strict=True)
        )


def test_lengths_are_computed_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = np.cumsum([0, *random.integers(1, 50, 1000)])
    whole = Sentences(np.zeros(offsets[-1], np.uint16), offsets).lengths
    monkeypatch.setattr(corpora, "BLOCK", 96)
    assert np.array_equal(Sentences(np.zeros(offsets[-1], np.uint16), offsets).lengths, whole)
    assert np.array_equal(whole, np.diff(offsets)) and whole.dtype == np.int32


def test_an_order_needs_little_memory_for_each_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each pair, the order keeps an int32, and its computation needs at most 20 bytes."""
    monkeypatch.setattr(sampler, "BLOCK", 1 << 14)
    source, target = lengths(1_000_000, 50)
    tracemalloc.start()
    try:
        epoch = batches(source, target, BatchConfig(size=4096), 1, 0)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(epoch) > 6000
    assert held < 5e6 and peak < 20e6
