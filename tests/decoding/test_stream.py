"""Chunks after a break, and lines dealt to several processes."""

import random

import pytest

from fusetk.decoding.stream import balance, chunks
from fusetk.errors import DataError


@pytest.mark.parametrize("done", range(12))
def test_chunks_after_a_break_are_those_without_it(done: int) -> None:
    whole = list(chunks(iter(range(11)), 4))
    assert whole == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    found = list(chunks(iter(range(done, 11)), 4, num_done=done))
    assert [item for chunk in found for item in chunk] == list(range(done, 11))
    assert found[bool(done % 4) :] == [chunk for chunk in whole if chunk[0] >= done]


def test_what_breaks_in_the_first_chunk_is_raised() -> None:
    def lines():
        yield 1
        raise DataError("broken")

    found = chunks(lines(), 4, num_done=2)
    assert next(found) == [1]
    with pytest.raises(DataError, match="broken"):
        next(found)


@pytest.mark.parametrize("hands", [1, 2, 3, 7])
def test_each_hand_has_about_as_much(hands: int) -> None:
    sizes = [random.Random(i).randrange(100) for i in range(40)]
    dealt = balance(sizes, hands)
    assert sorted(i for hand in dealt for i in hand) == list(range(40))
    sums = [sum(sizes[i] for i in hand) for hand in dealt]
    assert max(sums) - min(sums) <= max(sizes) and max(map(len, dealt)) - min(map(len, dealt)) <= 1
    assert balance([], hands) == [[]] * hands
