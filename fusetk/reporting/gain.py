"""The rule by which the difference between a system and its baseline counts as a gain."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from fusetk.reporting.runs import MeanScore

SEEDS = 3  # least number of seeds
LEVEL = 0.05  # significance level
SHARE = Fraction(2, 3)  # least share of the seeds with a significant difference
# `results/protocol.md` quotes this text.
RULE = (
    f"the mean over at least {SEEDS} seeds is better than that of the system's own baseline, by "
    "more than the sum of both standard deviations, and paired approximate randomisation gives "
    f"p < {LEVEL} in favour of the system with at least {SHARE} of the seeds"
)


class SeedComparison(NamedTuple):
    """The comparison of a system with its baseline by one score.

    The means and their deviations are over all seeds of a system. The differences by seed and the
    p-values are those of the seeds that both systems have. A difference is the score of the system
    minus that of the baseline.
    """

    system: MeanScore
    baseline: MeanScore
    differences: Mapping[int, float]  # by seed
    p_values: Mapping[int, float]  # by seed; only seeds whose translations can be compared
    lower_is_better: bool = False

    @property
    def difference(self) -> float:
        """The difference of the means."""
        return self.system.value - self.baseline.value

    @property
    def better(self) -> int:
        """The number of seeds with which the system is significantly better."""
        return sum(gain > 0 for gain in self._significant_gains)

    @property
    def worse(self) -> int:
        """The number of seeds with which the system is significantly worse."""
        return sum(gain < 0 for gain in self._significant_gains)

    @property
    def _significant_gains(self) -> list[float]:
        return [
            self._gain(self.differences[seed]) for seed, p in self.p_values.items() if p < LEVEL
        ]

    @property
    def improves(self) -> bool:
        """Whether the mean is better by more than the sum of both standard deviations."""
        return self._gain(self.difference) > self.spread

    @property
    def spread(self) -> float:
        """The sum of both standard deviations."""
        return (self.system.deviation or 0.0) + (self.baseline.deviation or 0.0)

    def _gain(self, difference: float) -> float:
        return -difference if self.lower_is_better else difference

    @property
    def verdict(self) -> str:
        """``yes`` or ``no`` by ``RULE``, or ``open`` with the numbers of seeds or tests that exist
        and that are necessary.

        For example, ``open: 2 of 3 seeds``: only two of the three seeds have a score.
        """
        seeds = len(self.differences)
        if seeds < SEEDS:
            return f"open: {seeds} of {SEEDS} seeds"
        necessary = math.ceil(SHARE * seeds)
        untested = seeds - len(self.p_values)
        if not self.improves or self.better + untested < necessary:
            return "no"
        return "yes" if self.better >= necessary else f"open: {len(self.p_values)} of {seeds} tests"
