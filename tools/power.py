"""How often the rule of ``fusetk.reporting.gain`` finds a gain, by simulated trainings."""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist, fmean, median, variance
from typing import NamedTuple

import numpy as np

from fusetk.errors import DataError
from fusetk.reporting.gain import SEEDS, SeedComparison
from fusetk.reporting.result_tables import ResultTable
from fusetk.reporting.runs import mean_of

DRAWS = 2000  # simulated comparisons for each difference
NORMAL = NormalDist()


class Noise(NamedTuple):
    """Two standard deviations of the first score of a table."""

    seeds: float
    """Of the scores of a system over seeds."""
    test: float
    """Of the difference of two equally good translations of the test set."""
    systems: int
    """Number of systems with enough seeds, from which ``seeds`` is computed."""


def measured_noise(table: ResultTable) -> Noise:
    """Estimate the noise from the scores and the p-values of a table.

    ``seeds`` is the root mean square over the systems with at least ``SEEDS`` seeds. ``test`` is
    the median of the deviations with which a normal distribution gives the p-values of the
    differences. Raises DataError if the table has no such system or no p-value.
    """
    column = table.columns[0]
    scores = [[run.score(column) for run in row.runs] for row in table.rows]
    known = [[value for value in values if value is not None] for values in scores]
    variances = [variance(values) for values in known if len(values) >= SEEDS]
    deviations = []
    for row in table.rows:
        comparison = table.compare(row, column)
        if comparison is None:
            continue
        for seed, p in comparison.p_values.items():
            if 0.001 < p < 1:  # smaller p-values are not exact
                quantile = NORMAL.inv_cdf(1 - p / 2)
                deviations.append(abs(comparison.differences[seed]) / quantile)
    if not variances or not deviations:
        raise DataError(f"{table.title} has too few seeds or no p-value")
    return Noise(math.sqrt(fmean(variances)), median(deviations), len(variances))


def gain_probabilities(noise: Noise, differences: Iterable[float], seeds: int) -> list[float]:
    """Return the probability that the rule finds a gain, for each true difference of two systems.

    The scores of both systems are normally distributed over seeds. The true difference is that of
    the means over all seeds, on the same test set.
    """
    random = np.random.Generator(np.random.Philox(1))
    scores = random.normal(0, noise.seeds, (DRAWS, 2, seeds))
    return [
        fmean(_is_gain(noise, system + difference, baseline) for system, baseline in scores)
        for difference in differences
    ]


def _is_gain(noise: Noise, system: Sequence[float], baseline: Sequence[float]) -> bool:
    differences = {i: a - b for i, (a, b) in enumerate(zip(system, baseline, strict=True))}
    p_values = {
        i: 2 * NORMAL.cdf(-abs(difference) / noise.test) for i, difference in differences.items()
    }
    means = mean_of(map(float, system)), mean_of(map(float, baseline))
    assert means[0] and means[1]
    return SeedComparison(means[0], means[1], differences, p_values).verdict == "yes"
