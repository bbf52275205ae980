"""Application of functions in worker processes."""

import operator
import os
from contextlib import closing
from functools import partial
from multiprocessing import active_children

import pytest

from fusetk.data import parallel
from fusetk.data.parallel import Workers
from fusetk.errors import DataError


def process_and(item: int) -> tuple[int, int]:
    return os.getpid(), item


def children() -> set[int | None]:
    return {process.pid for process in active_children()}


def test_the_same_processes_apply_all_functions_in_order_and_then_end() -> None:
    others = children()  # those of other tests
    with closing(Workers(2)) as workers:
        assert not workers.running
        products = workers.ordered(partial, (operator.mul, 3), range(40))
        assert list(products) == [3 * item for item in range(40)]
        pool = children() - others
        assert workers.running and len(pool) == 2
        results = list(workers.ordered(partial, (process_and,), range(40)))
        assert [item for _, item in results] == list(range(40))
        assert {process for process, _ in results} <= pool
        stopped = workers.ordered(partial, (operator.add, 1), range(40))
        assert next(stopped) == 1
        stopped.close()
        again = workers.ordered(partial, (process_and,), range(2), fewest=2)
        assert {process for process, _ in again} <= pool
    assert not pool & children()


def test_few_items_start_no_process() -> None:
    few = 2 * parallel.MIN_ITEMS - 1
    with closing(Workers(2)) as workers:
        results = list(workers.ordered(partial, (process_and,), range(few)))
        assert results == [(os.getpid(), item) for item in range(few)]
        assert not workers.running


def test_one_job_reads_one_item_at_a_time() -> None:
    items = iter(range(9))
    results = Workers(1).ordered(partial, (operator.neg,), items)
    assert (next(results), next(items)) == (0, 1)


def test_errors_of_a_function_are_raised() -> None:
    with closing(Workers(2)) as workers, pytest.raises(ZeroDivisionError):
        list(workers.ordered(partial, (operator.truediv, 1), [1, 0], fewest=1))


def test_a_full_temporary_folder_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parallel.pickle, "dump", full)
    with closing(Workers(2)) as workers, pytest.raises(DataError, match=r"No space left.* TMPDIR"):
        list(workers.ordered(partial, (operator.neg,), [1, 2], fewest=1))
