"""Schedule rnmt-plus against DTMT's Equation 17."""

import math

import pytest
from pydantic import ValidationError

from fusetk.training.schedule import RnmtPlus, RnmtPlusConfig
from tests.training.test_formulas import replicas

TASKS = {  # n, p, s, e, lr0: section "Training Details"
    "zh-en": (2, 500, 8_000, 64_000, 1e-3),
    "en-de": (8, 50, 200_000, 1_200_000, 1e-4),
    "en-fr": (8, 50, 400_000, 3_000_000, 1e-4),
}


def schedule(n: int, p: int, s: int, e: int, rate: float) -> RnmtPlus:
    return RnmtPlus(
        RnmtPlusConfig(rate=rate, replicas=n, warmup=p, decay_start=s, decay_end=e), 1024
    )


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_rates_are_those_of_the_equation(task: tuple[int, int, int, int, float]) -> None:
    n, p, s, e, rate = task
    actual = schedule(*task)
    for t in (
        1,
        2,
        p,
        n * p - 1,
        n * p,
        n * p + 1,
        s // n,
        s // n + 1,
        (s + e) // (2 * n),
        e // n,
        2 * e // n,
    ):
        assert actual.rate(t) == pytest.approx(replicas(t, rate, n, p, s, e))
    assert (
        actual.rate(n * p) == pytest.approx(n * rate) == pytest.approx(actual.rate(s // n))
    )  # held between
    assert actual.rate(n * p - 1) < n * rate > actual.rate(s // n + 1)
    assert actual.rate(e // n) == pytest.approx(rate / 2)
    assert actual.rate((2 * e - s) // n) == pytest.approx(rate / (4 * n))  # still falling


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_rate_has_no_jump(task: tuple[int, int, int, int, float]) -> None:
    n, p, s, e, rate = task
    actual = schedule(*task)
    rise, fall = rate * (n - 1) / (n * p), 1 - (2 * n) ** (-n / (e - s))
    for about in (1, n * p, s // n, e // n):
        for t in range(max(about - 3, 1), about + 3):
            assert (
                -fall * actual.rate(t) * 1.001
                <= actual.rate(t + 1) - actual.rate(t)
                <= rise * 1.001
            )


def test_one_replica_has_no_warm_up_and_halves_its_rate_from_start_to_end() -> None:
    actual = schedule(1, 500, 8_000, 10_000, 3e-4)
    assert {actual.rate(t) for t in (1, 250, 500, 7_999, 8_000)} == {3e-4}
    assert [actual.rate(t) / 3e-4 for t in (9_000, 10_000, 12_000, 14_000)] == pytest.approx(
        [2**-0.5, 1 / 2, 1 / 4, 1 / 8]
    )


def test_rates_are_finite_in_a_short_decay_and_long_after_it() -> None:
    assert (
        schedule(8, 1, 10**9, 10**9 + 1, 1.0).rate(8) == 8
    )  # 16 to the power of 10^9 - 64 would overflow
    assert 0 <= schedule(8, 1, 0, 1, 1.0).rate(10**6) < 1e-9
    assert math.isfinite(schedule(1, 1, 0, 1, 1.0).rate(10**9))


@pytest.mark.parametrize("end", [8_000, 7_999])
def test_an_end_that_does_not_come_after_the_start_is_refused(end: int) -> None:
    with pytest.raises(ValidationError, match=rf"decay_end {end} must come after decay_start 8000"):
        RnmtPlusConfig(rate=1e-3, decay_start=8_000, decay_end=end)
