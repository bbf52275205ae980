"""Application of functions in worker processes."""

import operator
import os
from functools import partial

import pytest

from fusetk.data import parallel
from fusetk.data.parallel import Workers


def process_and(item: int) -> tuple[int, int]:
    return os.getpid(), item


def test_all_functions_are_applied_in_order_by_the_same_processes() -> None:
    with Workers(2) as workers:
        assert list(workers.ordered(partial, (operator.mul, 3), range(40))) == list(
            range(0, 120, 3)
        )
        found = list(workers.ordered(partial, (process_and,), range(40)))
        assert [item for _, item in found] == list(range(40))
        processes = {process for process, _ in found}
        assert os.getpid() not in processes
        stopped = workers.ordered(partial, (operator.add, 1), range(40))
        assert next(stopped) == 1
        stopped.close()
        again = workers.ordered(partial, (process_and,), range(40))
        assert len(processes | {process for process, _ in again}) <= 2


def test_few_items_start_no_process() -> None:
    few = 2 * parallel.MANY - 1
    with Workers(2) as workers:
        found = list(workers.ordered(partial, (process_and,), range(few)))
        assert found == [(os.getpid(), item) for item in range(few)]
        two = list(workers.ordered(partial, (process_and,), range(2), many=2))
        assert [item for _, item in two] == [0, 1] and os.getpid() not in dict(two)


def test_errors_of_a_function_are_raised() -> None:
    with Workers(2) as workers, pytest.raises(ZeroDivisionError):
        list(workers.ordered(partial, (operator.truediv, 1), [1, 0], many=1))
