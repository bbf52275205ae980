"""Searches of several batches at the same time."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusetk.decoding.threads import map_in_threads


@pytest.fixture(autouse=True)
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def together(workers: int) -> Callable[[Any], Any]:
    """Return a function that returns its argument as soon as it runs in all workers."""
    barrier = threading.Barrier(workers, timeout=60)

    def function(item: Any) -> Any:
        barrier.wait()
        return item

    return function


def test_items_are_processed_at_the_same_time_and_results_are_in_order():
    assert list(map_in_threads(together(2), range(8), 2)) == list(range(8))
    assert list(map_in_threads(together(3), "abc", 16)) == ["a", "b", "c"]


@pytest.mark.parametrize(("workers", "items", "threads"), [(4, 8, 1), (2, 8, 2), (3, 8, 1)])
def test_workers_share_the_threads_of_the_caller(workers, items, threads):
    numbers = map_in_threads(lambda _: torch.get_num_threads(), range(items), workers)
    assert list(numbers) == [threads] * items
    assert torch.get_num_threads() == 4
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [4]


@pytest.mark.parametrize(("workers", "items"), [(1, 3), (4, 1), (4, 0)])
def test_one_worker_is_the_calling_thread(workers, items):
    threads = list(map_in_threads(lambda _: threading.get_ident(), range(items), workers))
    assert threads == [threading.get_ident()] * items


def test_workers_use_the_autocast_of_the_caller():
    a = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert {(a @ a).dtype for _ in range(2)} == {torch.bfloat16}
        types = list(map_in_threads(lambda _: (a @ a).dtype, range(4), 2))
    assert types == [torch.bfloat16] * 4
    assert list(map_in_threads(lambda _: (a @ a).dtype, range(4), 2)) == [torch.float32] * 4


def test_an_error_ends_the_work_and_leaves_the_number_of_threads():
    begun = []

    def fail(item: int) -> None:
        begun.append(item)
        raise ValueError(item)

    with pytest.raises(ValueError, match="0"):
        list(map_in_threads(fail, range(1000), 2))
    assert len(begun) < 1000
    assert torch.get_num_threads() == 4
