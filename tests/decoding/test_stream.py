"""Chunks after an interruption, and lines distributed over processes."""

import random

import pytest

from fusetk.decoding.distributed import balance
from fusetk.decoding.stream import chunks
from fusetk.errors import DataError


@pytest.mark.parametrize("done", range(12))
def test_chunks_are_the_same_after_an_interruption(done: int) -> None:
    whole = list(chunks(iter(range(11)), 4))
    assert whole == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    rest = list(chunks(iter(range(done, 11)), 4, num_done=done))
    assert [item for chunk in rest for item in chunk] == list(range(done, 11))
    assert rest[bool(done % 4) :] == [chunk for chunk in whole if chunk[0] >= done]


def test_an_error_in_the_first_chunk_is_raised() -> None:
    def lines():
        yield 1
        raise DataError("broken")

    stream = chunks(lines(), 4, num_done=2)
    assert next(stream) == [1]
    with pytest.raises(DataError, match="broken"):
        next(stream)


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_are_balanced(parts: int) -> None:
    sizes = [random.Random(i).randrange(100) for i in range(40)]
    indices = balance(sizes, parts)
    assert sorted(i for part in indices for i in part) == list(range(40))
    sums = [sum(sizes[i] for i in part) for part in indices]
    assert (
        max(sums) - min(sums) <= max(sizes) and max(map(len, indices)) - min(map(len, indices)) <= 1
    )
    assert balance([], parts) == [[]] * parts
