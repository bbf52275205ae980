"""Batches: every pair once an epoch, limited size, order fixed by seed and epoch, masks."""

import numpy as np
import pytest
import torch

from fusetk.data.batch import collate, gather, pad
from fusetk.data.corpus import Corpus, Sentences
from fusetk.data.sampler import BatchConfig, batches, groups
from fusetk.data.vocab import BOS, EOS, PAD
from fusetk.errors import DataError

random = np.random.default_rng(1)
SOURCE, TARGET = (random.integers(1, 40, 1000).astype(np.int32) for _ in range(2))


def test_every_pair_stands_in_one_batch_of_at_most_the_size() -> None:
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


def test_seed_and_epoch_decide_the_order_alone() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        return [
            list(map(int, one))
            for one in batches(SOURCE, TARGET, BatchConfig(size=300), seed, epoch)
        ]

    assert order(1, 3) == order(1, 3)
    assert order(1, 3) != order(1, 4) and order(1, 3) != order(2, 3)
    assert {frozenset(b) for b in order(1, 3)} != {frozenset(b) for b in order(1, 4)}, (
        "pairs meet in new company each epoch"
    )


def test_a_sentence_that_fits_no_batch_is_refused_with_the_numbers() -> None:
    with pytest.raises(DataError, match=r"39 tokens and a batch holds 20"):
        batches(SOURCE, TARGET, BatchConfig(size=20), 1, 0)


def test_groups_hold_the_batches_of_an_update() -> None:
    epoch = [np.array([i]) for i in range(5)]
    assert [len(g) for g in groups(epoch, 2)] == [2, 2, 1]


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
