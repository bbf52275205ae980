"""Searches of several batches at the same time."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest
import torch

from fusetk.data.vocab import EOS
from fusetk.decoding import beam, sample
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.threads import cancelled_by, map_in_threads, raise_if_cancelled
from tests.decoding.fakes import Echo, batch
from tests.helpers.threads import torch_threads


@pytest.fixture(autouse=True)
def four_threads():
    with torch_threads(4):
        yield


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


def threads_of_a_new_thread() -> int:
    numbers = []
    thread = threading.Thread(target=lambda: numbers.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return numbers[0]


@pytest.mark.parametrize(("workers", "threads"), [(4, [1, 1, 1, 1]), (3, [1, 1, 2]), (2, [2, 2])])
def test_workers_share_the_threads_of_the_caller(workers, threads):
    barrier = threading.Barrier(workers, timeout=60)

    def num_threads(item: int) -> int:
        barrier.wait()
        torch.ones(4).sum()
        return torch.get_num_threads()

    assert sorted(map_in_threads(num_threads, range(workers), workers)) == threads
    assert torch.get_num_threads() == 4 and threads_of_a_new_thread() == 4


def test_a_second_caller_works_alone_and_changes_no_number_of_threads():
    first = map_in_threads(together(2), range(4), 2)
    assert next(first) == 0
    second = list(map_in_threads(lambda _: threading.get_ident(), range(3), 2))
    assert second == [threading.get_ident()] * 3
    assert list(first) == [1, 2, 3]
    assert torch.get_num_threads() == 4 and threads_of_a_new_thread() == 4
    assert list(map_in_threads(together(2), range(4), 2)) == [0, 1, 2, 3]


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


def test_an_error_ends_the_work_of_all_workers():
    both_began = threading.Barrier(2, timeout=60)
    ended = []

    def function(item: int) -> None:
        if item < 2:
            both_began.wait()
        if item == 0:
            raise ValueError("the first item")
        for _ in range(6000):  # the other worker, for a minute at most
            try:
                raise_if_cancelled()
            except CancelledError:
                ended.append(item)
                raise
            time.sleep(0.01)

    with pytest.raises(ValueError, match="the first item"):
        list(map_in_threads(function, range(1000), 2))
    assert 1 in ended
    assert torch.get_num_threads() == 4
    raise_if_cancelled()  # has no effect in the calling thread


@pytest.mark.parametrize("workers", [1, 2])
def test_an_event_cancels_the_work_of_a_thread_and_of_its_workers(workers):
    event = threading.Event()

    def function(item: int) -> None:
        raise_if_cancelled()
        event.set()
        for _ in range(6000):
            raise_if_cancelled()
            time.sleep(0.01)

    with cancelled_by(event), pytest.raises(CancelledError):
        list(map_in_threads(function, range(4), workers))
    raise_if_cancelled()  # has no effect after the context


def test_searches_and_samples_end_when_they_are_cancelled(monkeypatch):
    def cancel() -> None:
        raise CancelledError

    source = [[4, 5, EOS]]
    for module, function, config in (
        (beam, beam.search, SearchConfig()),
        (sample, sample.sample, SearchConfig(sample=True)),
    ):
        monkeypatch.setattr(module, "raise_if_cancelled", cancel)
        with pytest.raises(CancelledError):
            function([Echo()], *batch(source), config)
