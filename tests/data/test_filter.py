"""Reasons for dropping training pairs."""

import pytest

from fusetk.data.filter import Deduplicator, Outcome, PairSteps, PassSpec
from fusetk.data.steps.deduplicate import Deduplicate
from fusetk.data.steps.filter import Filter
from fusetk.data.steps.lowercase import Lowercase
from fusetk.data.text import count_tokens


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [
        *[((0, 5), "empty"), ((1, 2), "too short"), ((2, 4), ""), ((4, 2), ""), ((6, 6), "")],
        *[((2, 5), "length ratio"), ((5, 2), "length ratio"), ((7, 6), "too long")],
    ],
)
def test_the_lengths_determine_the_reason_to_drop_a_pair(
    lengths: tuple[int, int], reason: str
) -> None:
    step = Filter(step="filter", min_length=2, max_length=6, max_ratio=2)
    assert step.length_reason(*lengths) == reason
    assert step.drop_reason(*("a " * length for length in lengths)) == reason


def test_a_filter_that_drops_every_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="min_length 4 is more than max_length 3"):
        Filter(step="filter", min_length=4, max_length=3)


def test_a_pair_at_the_largest_ratio_is_kept() -> None:
    step = Filter(step="filter", max_ratio=1.5)
    assert step.length_reason(100, 150) == ""
    assert step.length_reason(100, 151) == "length ratio"
    for short, long, ratio in ((45, 63, 1.4), (30, 123, 4.1), (100, 115, 1.15)):
        step = Filter(step="filter", max_ratio=ratio)
        assert step.length_reason(short, long) == ""
        assert step.length_reason(long + 1, short) == "length ratio"
    step = Filter(step="filter", max_ratio=1.4, min_length=0)
    assert (step.length_reason(0, 0), step.length_reason(0, 1)) == ("", "length ratio")


@pytest.mark.parametrize(
    ("line", "tokens"),
    [("", 0), (" ", 0), ("a", 1), (" a  b ", 2), ("a\tb\u00a0c", 1), ("a b c", 3)],
)
def test_tokens_are_separated_by_ascii_spaces(line: str, tokens: int) -> None:
    assert count_tokens(line) == tokens


def test_deduplication_compares_the_text_at_its_step() -> None:
    steps = [
        Lowercase(step="lowercase"),
        Deduplicate(step="deduplicate"),
        Filter(step="filter", max_length=2),
    ]
    run = PairSteps(PassSpec(steps, "de", "en", {}, drop_empty=True))
    outcomes = run([("A", "B"), ("a", "b"), ("a b c", "x"), ("A B C", "X"), ("a", "")])
    deduplicator = Deduplicator(steps)
    assert [deduplicator.reason(outcome) for outcome in outcomes] == [
        "",
        "duplicate",
        "too long",
        "duplicate",
        "empty",
    ]
    assert outcomes[0][:3] == ("a", "b", "")


def test_each_deduplication_compares_with_the_pairs_that_reached_it() -> None:
    again = Deduplicate(step="deduplicate")
    steps = [again, Lowercase(step="lowercase"), again]
    run = PairSteps(PassSpec(steps, "de", "en", {}, drop_empty=True))
    deduplicator = Deduplicator(steps)
    outcomes = run([("A", "B"), ("a", "B"), ("b", "a"), ("A", "B")])
    reasons = [deduplicator.reason(outcome) for outcome in outcomes]
    assert reasons == ["", "duplicate", "", "duplicate"]


def test_drop_empty_decides_about_an_empty_side() -> None:
    dropping = PairSteps(PassSpec([], "de", "en", {}, drop_empty=True))
    assert dropping.pair(" ", "x").reason == "empty"
    keeping = PairSteps(PassSpec([], "de", "en", {}, drop_empty=False))
    assert keeping.pair(" ", "x") == Outcome("", "x", "", ())
