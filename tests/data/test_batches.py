"""Batches: every pair once an epoch, limited size, order fixed by seed and epoch, masks."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from fusetk.data.batch import collate, gather, pad
from fusetk.data.batch_config import BatchConfig
from fusetk.data.corpus import Corpus, Sentences
from fusetk.data.sampler import batches, update_batches, update_size
from fusetk.data.vocab import BOS, EOS, PAD
from fusetk.errors import DataError

random = np.random.default_rng(1)
SOURCE, TARGET = (random.integers(1, 40, 1000).astype(np.int32) for _ in range(2))


def test_every_pair_is_in_one_batch_of_at_most_the_size() -> None:
    for config in (BatchConfig(size=300), BatchConfig(size=70, unit="sentences")):
        epoch = batches(SOURCE, TARGET, config, 1, 0)
        assert sorted(np.concatenate(epoch)) == list(range(1000))
        for batch in epoch:
            assert (TARGET[batch].sum() if config.unit == "tokens" else len(batch)) <= config.size


def test_batches_are_full_and_of_like_lengths() -> None:
    epoch = batches(SOURCE, TARGET, BatchConfig(size=300), 1, 0)
    assert len(epoch) < 1.1 * TARGET.sum() / 300
    padded = sum(len(one) * TARGET[one].max() for one in epoch)
    assert padded < 1.08 * TARGET.sum()


@pytest.mark.parametrize("unit", ["longest", "both"])
def test_padded_batches_hold_at_most_the_size_and_one_more_pair_would_not_fit(unit: str) -> None:
    lengths = SOURCE + TARGET if unit == "both" else np.maximum(SOURCE, TARGET)
    epoch = batches(SOURCE, TARGET, BatchConfig(size=300, unit=unit), 1, 0)  # type: ignore[arg-type]
    assert sorted(np.concatenate(epoch)) == list(range(1000))
    in_order = sorted(epoch, key=lambda one: (lengths[one].min(), lengths[one].max(), -len(one)))
    ranges = [(int(lengths[pairs].min()), int(lengths[pairs].max())) for pairs in in_order]
    assert all(high <= low for (_, high), (low, _) in pairwise(ranges))
    for pairs, following in zip(in_order, [*in_order[1:], None], strict=True):
        assert len(pairs) * int(lengths[pairs].max()) <= 300
        if following is not None:
            assert (len(pairs) + 1) * int(lengths[following].min()) > 300


def test_batches_by_the_longer_side_hold_fewer_pairs_and_those_of_both_sides_still_fewer() -> None:
    numbers = [
        len(batches(SOURCE, TARGET, BatchConfig(size=300, unit=unit), 1, 0))  # type: ignore[arg-type]
        for unit in ("tokens", "longest", "both")
    ]
    assert numbers[0] < numbers[1] < numbers[2]


def test_sentences_with_too_many_tokens_are_split_in_halves() -> None:
    """The parts of a batch are as in fairseq for Lua: halves, until one fits or has one pair."""
    whole = batches(SOURCE, TARGET, BatchConfig(size=32, unit="sentences"), 1, 0)
    limited = BatchConfig(size=32, unit="sentences", token_limit=200)
    epoch = batches(SOURCE, TARGET, limited, 1, 0)
    longest = np.maximum(SOURCE, TARGET)
    expected = []
    for pairs in whole:
        size = len(pairs)
        while size > 1 and size * longest[pairs].max() > 200:
            size //= 2
        expected += [tuple(pairs[i : i + size]) for i in range(0, len(pairs), size)]
    assert len(expected) > len(whole)
    assert {tuple(pairs) for pairs in epoch} == set(expected) and len(epoch) == len(expected)
    alone = batches(SOURCE, TARGET, BatchConfig(size=32, unit="sentences", token_limit=1), 1, 0)
    assert [len(pairs) for pairs in alone] == [1] * 1000
    most = max(len(pairs) * int(longest[pairs].max()) for pairs in whole)
    enough = BatchConfig(size=32, unit="sentences", token_limit=most)
    assert [*map(list, batches(SOURCE, TARGET, enough, 1, 0))] == [*map(list, whole)]


def test_only_batches_in_sentences_have_a_limit_of_tokens() -> None:
    with pytest.raises(ValueError, match="`size` limits the tokens"):
        BatchConfig(unit="longest", token_limit=100)


def test_a_pair_that_fits_no_batch_is_refused_with_the_numbers() -> None:
    for unit, longest in (("tokens", 39), ("longest", 39), ("both", (SOURCE + TARGET).max())):
        with pytest.raises(DataError, match=f"{longest} tokens and a batch holds 20"):
            batches(SOURCE, TARGET, BatchConfig(size=20, unit=unit), 1, 0)  # type: ignore[arg-type]


def test_the_size_of_an_update_counts_pairs_tokens_and_padding() -> None:
    source, target = np.array([3, 1, 2], np.int32), np.array([2, 5, 4], np.int32)
    size = update_size([np.array([0, 1]), np.array([2])], source, target)
    assert size == (3, 11, 17, 2 * (3 + 5) + (2 + 4))


def test_only_seed_and_epoch_determine_the_order() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        return [
            list(map(int, one))
            for one in batches(SOURCE, TARGET, BatchConfig(size=300), seed, epoch)
        ]

    assert order(1, 3) == order(1, 3)
    assert order(1, 3) != order(1, 4) and order(1, 3) != order(2, 3)
    assert {frozenset(b) for b in order(1, 3)} != {frozenset(b) for b in order(1, 4)}, (
        "the batches of each epoch have other pairs"
    )


def test_the_batches_of_each_update() -> None:
    epoch = [np.array([i]) for i in range(5)]
    assert [len(each) for each in update_batches(epoch, 2)] == [2, 2, 1]


def sentences(rows: list[list[int]]) -> Sentences:
    return Sentences(
        np.array([i for row in rows for i in row], dtype=np.uint16), np.cumsum([0, *map(len, rows)])
    )


def test_collate_pads_at_the_right_and_shifts_the_target() -> None:
    corpus = Corpus(
        sentences([[5, 6, 7, EOS], [EOS], [8, EOS]]), sentences([[9, EOS], [4, 5, EOS], [EOS]])
    )
    batch = collate(corpus, np.array([2, 0, 1]))
    assert batch.src.tolist() == [[8, EOS, PAD, PAD], [5, 6, 7, EOS], [EOS, PAD, PAD, PAD]]
    assert batch.src_mask.tolist() == [
        [True, True, False, False],
        [True] * 4,
        [True, False, False, False],
    ]
    assert batch.tgt_in.tolist() == [[BOS, PAD, PAD], [BOS, 9, PAD], [BOS, 4, 5]]
    assert batch.tgt_out.tolist() == [[EOS, PAD, PAD], [9, EOS, PAD], [4, 5, EOS]]
    assert batch.target_index.tolist() == [0, 3, 4, 6, 7, 8]


def test_pad_and_gather_agree() -> None:
    rows = [[5, 6, EOS], [EOS], [7, 8, 9, EOS]]
    for one, other in zip(pad(rows), gather(sentences(rows), np.arange(3)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("limit", "width"), [(None, 8), (8, 8), (7, 7)])
def test_lengths_are_padded_to_a_multiple_where_positions_allow(
    limit: int | None, width: int
) -> None:
    ids, mask = gather(
        sentences([[4, 5, EOS], [4, 5, 6, 7, 8, 9, EOS]]), np.arange(2), multiple=4, limit=limit
    )
    assert (
        ids.shape == mask.shape == (2, width)
        and mask.sum(1).tolist() == [3, 7]
        and not ids[~mask].any()
    )
