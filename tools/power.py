"""The power of the rule of ``fusetk.reporting.gain``, from simulated scores."""

import math
from collections.abc import Iterable
from statistics import NormalDist, fmean, median, variance
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusetk.errors import DataError
from fusetk.reporting.gain import LEVEL, SEEDS, SHARE
from fusetk.reporting.result_tables import ResultTable

DRAWS = 20_000  # simulated comparisons for each difference
FAILED = 0.5  # of the highest score; a training with a lower score has failed
NORMAL = NormalDist()


class Noise(NamedTuple):
    """The standard deviations of the first score of a table."""

    seeds: float
    """The deviation of a system's score over seeds."""
    test: float
    """The deviation of the difference of two translations if random lines are exchanged."""


def measured_noise(table: ResultTable) -> Noise:
    """Estimate the noise from the scores and the p-values of a table.

    ``seeds`` is the root mean square over the systems with at least ``SEEDS`` seeds, without
    the systems with a failed training. Each p-value and its difference belong to one deviation
    of a normal distribution; ``test`` is the median of these deviations. Raises DataError if the
    table has no such system or no p-value.
    """
    column = table.columns[0]
    scores = [[run.score(column) for run in row.runs] for row in table.rows]
    known = [[value for value in values if value is not None] for values in scores]
    lowest = FAILED * max((value for values in known for value in values), default=0.0)
    complete = [values for values in known if len(values) >= SEEDS and min(values) >= lowest]
    deviations = []
    for row in table.rows:
        comparison = table.compare(row, column)
        if comparison is None:
            continue
        for seed, p in comparison.p_values.items():
            if 0.001 < p < 1:  # smaller p-values come from few of the 10,000 samples
                quantile = NORMAL.inv_cdf(1 - p / 2)
                deviations.append(abs(comparison.differences[seed]) / quantile)
    if not complete or not deviations:
        raise DataError(f"{table.title} has too few seeds or no p-value")
    return Noise(math.sqrt(fmean(map(variance, complete))), median(deviations))


def gain_probabilities(noise: Noise, differences: Iterable[float], seeds: int) -> list[float]:
    """Return the probability that the rule finds a gain, for each true difference of two systems.

    The scores of both systems are normally distributed over seeds, and independent. The true
    difference is that of the means over all seeds, on the same test set.
    """
    random = np.random.Generator(np.random.Philox(1))
    system, baseline = random.normal(0, noise.seeds, (2, DRAWS, seeds))
    return [float(gains(noise, system + difference, baseline).mean()) for difference in differences]


def gains(noise: Noise, system: NDArray[Any], baseline: NDArray[Any]) -> NDArray[np.bool_]:
    """Apply the rule of ``fusetk.reporting.gain`` to comparisons of scores (comparisons, seeds)."""
    spread = system.std(1, ddof=1) + baseline.std(1, ddof=1)
    improves = system.mean(1) - baseline.mean(1) > spread
    limit = noise.test * NORMAL.inv_cdf(1 - LEVEL / 2)
    better = (system - baseline > limit).sum(1)
    return improves & (better >= math.ceil(SHARE * system.shape[1]))
