"""The rule of a gain, on scores and p-values, and in the tables."""

from collections.abc import Sequence
from pathlib import Path

from fusetk.reporting.gain import RULE, SeedComparison
from fusetk.reporting.runs import mean_of

ROOT = Path(__file__).parents[2]
BASE = (38.0, 39.0, 40.0)  # the standard deviation is 1
SURE = 0.049


def verdict(
    system: Sequence[float], p_values: Sequence[float | None], lower_is_better: bool = False
) -> str:
    """Compare systems with the seeds 1, 2, ...; the baseline repeats the scores of BASE."""
    base = [BASE[i % 3] for i in range(len(system))]
    means = mean_of(system), mean_of(base)
    assert means[0] and means[1]
    differences = {i: a - b for i, (a, b) in enumerate(zip(system, base, strict=True))}
    known = {i: p for i, p in enumerate(p_values) if p is not None}
    return SeedComparison(means[0], means[1], differences, known, lower_is_better).verdict


def test_the_difference_of_the_means_exceeds_the_sum_of_the_deviations() -> None:
    assert verdict([40.1, 41.1, 42.1], [SURE] * 3) == "yes"
    assert verdict([39.9, 40.9, 41.9], [SURE] * 3) == "no", "2 is the sum of the deviations"
    assert verdict([40.0, 41.0, 42.0], [SURE] * 3) == "no", "it must be more than the sum"
    assert verdict([35.9, 36.9, 37.9], [SURE] * 3) == "no", "a loss is not a gain"


def test_two_thirds_of_the_seeds_are_significant() -> None:
    better = [40.1, 41.1, 42.1]
    assert verdict(better, [SURE, 0.05, SURE]) == "yes"
    assert verdict(better, [SURE, 0.05, 0.05]) == "no"
    five = [*better, 40.1, 41.1]
    assert verdict(five, [SURE] * 4 + [0.5]) == "yes"
    assert verdict(five, [SURE] * 3 + [0.5] * 2) == "no"


def test_a_significantly_worse_seed_does_not_count() -> None:
    # The first run is worse than its twin, the mean is much higher.
    scores = [37.5, 80.0, 80.0]
    comparison = SeedComparison(
        mean_of(scores), mean_of(BASE), {1: -0.5, 2: 41.0, 3: 40.0}, dict.fromkeys((1, 2), SURE)
    )
    assert (comparison.better, comparison.worse) == (1, 1)
    assert verdict(scores, [0.5, SURE, SURE]) == "yes"
    assert verdict(scores, [SURE, SURE, 0.5]) == "no"


def test_missing_seeds_and_tests_are_counted() -> None:
    assert verdict([50.0], [SURE]) == "open: 1 of 3 seeds"
    assert verdict([50.0, 51.0], [SURE] * 2) == "open: 2 of 3 seeds"
    better = [40.1, 41.1, 42.1]
    assert verdict(better, [SURE, None, None]) == "open: 1 of 3 tests"
    assert verdict(better, [SURE, SURE, None]) == "yes", "the third test cannot change it"
    assert verdict(better, [0.5, 0.5, None]) == "no"
    assert verdict([38.1, 39.1, 40.1], [None] * 3) == "no", "the means decide alone"


def test_a_lower_score_can_be_better() -> None:
    assert verdict([35.9, 36.9, 37.9], [SURE] * 3, lower_is_better=True) == "yes"
    assert verdict([40.1, 41.1, 42.1], [SURE] * 3, lower_is_better=True) == "no"


def test_the_protocol_quotes_the_rule() -> None:
    text = " ".join((ROOT / "results" / "protocol.md").read_text(encoding="utf-8").split())
    assert RULE.replace("the mean", "The mean", 1) in text
