"""``tools.power``: how often the rule finds a gain."""

import math
import re
from pathlib import Path
from statistics import NormalDist, fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fusetk.errors import DataError
from fusetk.reporting.gain import SeedComparison
from fusetk.reporting.runs import MeanScore, mean_of
from tools.power import Noise, gain_probabilities, gains, measured_noise


def table_of(scores: list[list[float]], p_values: list[dict[int, float]]) -> Any:
    """Make a table whose first row is the baseline of the other rows."""

    def compare(row: Any, column: str) -> SeedComparison | None:
        if row is rows[0]:
            return None
        differences = {
            i: a.value - b.value
            for i, (a, b) in enumerate(zip(row.runs, rows[0].runs, strict=False))
        }
        none = MeanScore(0.0, None, 1)
        return SeedComparison(none, none, differences, p_values[rows.index(row) - 1])

    rows = [
        SimpleNamespace(runs=[SimpleNamespace(value=x, score=lambda _, x=x: x) for x in values])
        for values in scores
    ]
    return SimpleNamespace(title="Text, sizes", columns=["score"], rows=rows, compare=compare)


def test_the_noise_is_that_of_the_results() -> None:
    def p_value(deviations: float) -> float:
        return 2 * NormalDist().cdf(-deviations)

    scores = [[20.0, 21.0, 22.0], [22.0, 24.0, 26.0], [19.0, 22.0]]
    # The differences are 2, 3, 4 and -1, 1.
    p_values = [{0: p_value(2.0), 1: p_value(2.0), 2: 0.0001}, {0: 1.0, 1: p_value(4 / 3)}]
    noise = measured_noise(table_of(scores, p_values))
    assert noise.seeds == pytest.approx(math.sqrt((1 + 4) / 2))
    assert noise.test == pytest.approx(1.0)  # the median of 2 / 2, 3 / 2 and 1 / (4 / 3)
    for few in (scores[2:], scores[:1]):
        with pytest.raises(DataError, match="Text, sizes has too few seeds or no p-value"):
            measured_noise(table_of(few, []))


def test_a_system_with_a_failed_training_does_not_count() -> None:
    scores = [[20.0, 21.0, 22.0], [22.0, 24.0, 3.0]]
    assert measured_noise(table_of(scores, [{0: 0.5}])).seeds == pytest.approx(1.0)


def test_the_rule_is_that_of_the_tables() -> None:
    noise = Noise(0.5, 0.4)
    for seeds in (3, 5):
        system, baseline = np.random.default_rng(1).normal(0, 0.5, (2, 300, seeds))
        system += 1
        verdicts = []
        for own, base in zip(system, baseline, strict=True):
            differences = dict(enumerate(own - base))
            p_values = {i: 2 * NormalDist().cdf(-abs(d) / 0.4) for i, d in differences.items()}
            means = mean_of(map(float, own)), mean_of(map(float, base))
            assert means[0] and means[1]
            verdicts.append(SeedComparison(*means, differences, p_values).verdict == "yes")
        assert verdicts == gains(noise, system, baseline).tolist()
        assert 0.1 < fmean(verdicts) < 0.9


def test_a_larger_difference_is_found_more_often() -> None:
    shares = gain_probabilities(Noise(0.5, 0.3), (-1, 0, 0.5, 1, 4), 3)
    assert shares == sorted(shares) and shares[0] < 0.001 and shares[1] < 0.05 and shares[-1] > 0.99


def test_differences_must_be_significant() -> None:
    """Without noise of the seeds, the limit is 1.96 times the deviation of the test."""
    assert gain_probabilities(Noise(1e-6, 0.5), (0.97, 0.99), 3) == [0, 1]


def test_differences_must_exceed_the_deviations_over_seeds() -> None:
    """Without noise of the test, the share depends on the ratio of difference and deviation."""
    [share] = gain_probabilities(Noise(1.0, 1e-9), [2.0], 3)
    [other] = gain_probabilities(Noise(2.0, 1e-9), [4.0], 3)
    assert share == other and 0.4 < share < 0.8


def test_the_text_has_the_numbers_of_the_table() -> None:
    results = Path(__file__).parents[2] / "results"
    protocol = (results / "protocol.md").read_text(encoding="utf-8")
    rows = [row.split(" | ") for row in re.findall(r"^\| (.*) \|$", protocol, re.MULTILINE)]
    [head] = [row for row in rows if row[0] == "true difference"]
    shares = {row[0]: row[head.index("1")].removesuffix("%") for row in rows if len(row) > 3}
    multi30k, iwslt14 = (shares[f"{name} De-En, 3 seeds"] for name in ("Multi30k", "IWSLT14"))
    text = " ".join(protocol.split())
    said = f"1 BLEU in {multi30k} % of the comparisons, and on IWSLT14 in {iwslt14} %"
    assert said in text
    readme = " ".join((results / "README.md").read_text(encoding="utf-8").split())
    assert f"1 BLEU in {multi30k} % of" in readme
