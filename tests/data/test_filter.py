"""Which pairs are dropped, and under what name."""

import pytest

from fusetk.data.config import Deduplicate, Filter, Lowercase
from fusetk.data.filter import Outcome, PairSteps, Recipe, Seen, drop_reason, length


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [
        *[((0, 5), "empty"), ((1, 2), "too short"), ((2, 4), ""), ((4, 2), "")],
        *[((2, 5), "length ratio"), ((5, 2), "length ratio"), ((7, 6), "too long")],
    ],
)
def test_reasons(lengths: tuple[int, int], reason: str) -> None:
    step = Filter(step="filter", min_length=2, max_length=6, max_ratio=2)
    assert drop_reason(step, *lengths) == reason


def test_ratio_at_its_limit_stays() -> None:
    step = Filter(step="filter", max_ratio=1.5)
    assert drop_reason(step, 100, 150) == ""
    assert drop_reason(step, 100, 151) == "length ratio"


@pytest.mark.parametrize(
    ("line", "tokens"),
    [("", 0), (" ", 0), ("a", 1), (" a  b ", 2), ("a\tb\u00a0c", 1), ("a b c", 3)],
)
def test_lengths_count_between_ascii_spaces(line: str, tokens: int) -> None:
    assert length(line) == tokens


def test_duplicates_are_told_as_they_are_at_their_step() -> None:
    steps = [
        Lowercase(step="lowercase"),
        Deduplicate(step="deduplicate"),
        Filter(step="filter", max_length=2),
    ]
    run = PairSteps(Recipe(steps, "de", "en", (None, None), True))
    outcomes = run([("A", "B"), ("a", "b"), ("a b c", "x"), ("A B C", "X"), ("a", "")])
    seen = Seen(steps)
    assert [seen.reason(outcome) for outcome in outcomes] == [
        "",
        "duplicate",
        "too long",
        "duplicate",
        "empty",
    ]
    assert outcomes[0][:3] == ("a", "b", "")


def test_an_empty_side_stays_only_when_asked_for() -> None:
    assert PairSteps(Recipe([], "de", "en", (None, None), True)).pair(" ", "x").reason == "empty"
    assert PairSteps(Recipe([], "de", "en", (None, None), False)).pair(" ", "x") == Outcome(
        "", "x", "", ()
    )
