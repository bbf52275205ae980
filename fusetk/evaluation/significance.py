"""Paired significance tests of systems, over the statistics rows of any metric.

Bootstrap resampling (Koehn 2004) draws samples with as many lines as the text, with replacement,
and the same lines for both systems. Approximate randomisation (Riezler and Maxwell 2005) exchanges
random lines of the two systems. Both estimate how often chance alone makes a difference as large as
the real one. Confidence intervals always come from bootstrap samples.

With the same seed, the random numbers and p-values are those of sacrebleu.significance.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fusetk import display
from fusetk.evaluation.metric import Metric, StatisticsRow

if TYPE_CHECKING:
    import numpy as np

SAMPLES = {"bootstrap": 1000, "randomization": 10_000}  # the default number of samples, sacreBLEU's
SEED = 12345  # sacreBLEU's
# If fewer lines differ, many samples have exactly the real difference. Such ties do not count, as
# in sacreBLEU, so p is too small.
FEW_LINES = 10
BLOCK_NUMBERS = 2**22  # random numbers that are drawn at once
TIE = 1e-9  # smaller differences count as equal, because sums of floats are inexact


class Sampling(NamedTuple):
    """A significance test and its settings."""

    kind: str  # in SAMPLES
    samples: int
    seed: int = SEED

    def __str__(self) -> str:
        kind = self.kind.replace("randomization", "approximate randomisation")
        return f"paired {kind}, {self.samples} samples, seed {self.seed}"


class SignificanceResult(NamedTuple):
    """The test result of one system by one metric."""

    mean: float  # over bootstrap samples
    interval: float  # half the width of the 95 % interval of the bootstrap samples
    p: float | None  # p-value of the difference to the first system; None for the first system
    differ: int | None  # lines whose statistics differ from those of the first system


def compare_systems(
    metric: Metric, statistics: Mapping[str, Sequence[StatisticsRow]], sampling: Sampling
) -> dict[str, SignificanceResult]:
    """Test each system against the first one, given the metric's statistics of its lines.

    The p-value is sacreBLEU's, with one exception: it is 1 if no line differs, or if the scores are
    equal. sacreBLEU counts only differences larger than the real one. So it gives its smallest
    p-value to equal systems, and to different systems that both have the score 0.
    """
    import numpy as np

    systems = {name: np.asarray(rows, dtype=np.float64) for name, rows in statistics.items()}
    first, *others = systems
    bootstrap_samples = sampling.samples if sampling.kind == "bootstrap" else SAMPLES["bootstrap"]
    first_values = _bootstrap_values(
        metric, systems[first], bootstrap_samples, np.random.default_rng(sampling.seed)
    )
    results = {first: SignificanceResult(*_mean_and_interval(first_values), None, None)}
    for name in others:
        rng = np.random.default_rng(sampling.seed)
        if sampling.kind == "bootstrap":
            sampled = _bootstrap_values(metric, systems[name], bootstrap_samples, rng)
            differences = np.abs(sampled - first_values)
            differences -= differences.mean()
        else:
            differences = _exchanged_differences(
                metric, systems[first], systems[name], sampling.samples, rng
            )
            sampled = _bootstrap_values(metric, systems[name], bootstrap_samples, rng)
        p = _p_value(metric, systems[first], systems[name], differences)
        differ = int(np.any(systems[first] != systems[name], axis=1).sum())
        results[name] = SignificanceResult(*_mean_and_interval(sampled), p, differ)
    return results


def randomization_p_value(
    metric: Metric, first: "np.ndarray", second: "np.ndarray", sampling: Sampling
) -> float:
    """Return the p-value of ``compare_systems`` by approximate randomisation.

    ``first`` and ``second`` are the metric's statistics of two systems, of shape (lines,
    statistics). It draws no bootstrap samples, because it returns no confidence interval.
    """
    import numpy as np

    rng = np.random.default_rng(sampling.seed)
    differences = _exchanged_differences(metric, first, second, sampling.samples, rng)
    return _p_value(metric, first, second, differences)


def _p_value(
    metric: Metric, first: "np.ndarray", second: "np.ndarray", differences: "np.ndarray"
) -> float:
    """Return the p-value of two systems, given the differences of samples.

    A difference that is NaN, of a metric outside fusetk, is never significant.
    """
    real = abs(metric.value(first.sum(0)) - metric.value(second.sum(0)))
    if not real > TIE:
        return 1.0
    smaller = int((differences <= real + TIE).sum())
    return (len(differences) - smaller + 1) / (len(differences) + 1)


def _mean_and_interval(values: "np.ndarray") -> tuple[float, float]:
    """Return the mean of sampled values, and half the width of their middle 95 %."""
    import numpy as np

    ordered = np.sort(values)
    tail = len(ordered) // 40
    return float(values.mean()), float(ordered[len(ordered) - tail - 1] - ordered[tail]) / 2


def _bootstrap_values(
    metric: Metric, rows: "np.ndarray", samples: int, rng: "np.random.Generator"
) -> "np.ndarray":
    """Return the metric's values of bootstrap samples of the lines."""
    import numpy as np

    lines = len(rows)
    values: list[np.ndarray] = []
    for size in _counted_sizes("bootstrap", samples, lines):
        drawn = rng.choice(lines, size=(size, lines), replace=True)
        counts = np.stack([np.bincount(sample, minlength=lines) for sample in drawn])
        values.append(metric.values(counts @ rows))
    return np.concatenate(values)


def _exchanged_differences(
    metric: Metric,
    first: "np.ndarray",
    second: "np.ndarray",
    samples: int,
    rng: "np.random.Generator",
) -> "np.ndarray":
    """Return the absolute differences of two systems after exchanges of random lines."""
    import numpy as np

    both = first.sum(0) + second.sum(0)
    differences: list[np.ndarray] = []
    for size in _counted_sizes("randomization", samples, len(first)):
        keep = rng.integers(2, size=(size, len(first)), dtype=bool)
        totals = keep.astype(np.float64) @ (first - second) + second.sum(0)
        differences.append(np.abs(metric.values(totals) - metric.values(both - totals)))
    return np.concatenate(differences)


def _counted_sizes(test: str, samples: int, lines: int) -> Iterator[int]:
    """Yield the block sizes, and count the samples as a task."""
    with display.task(test, "samples", samples) as done:
        for size in _block_sizes(samples, lines):
            yield size
            done.advance(size)


def _block_sizes(samples: int, lines: int) -> Iterator[int]:
    """Yield the numbers of samples that are drawn at once.

    Blocks have a multiple of 32 samples: NumPy draws 32 random bits at a time, so the stream of
    random bits does not depend on the blocks.
    """
    size = max(1, BLOCK_NUMBERS // (32 * lines)) * 32
    for start in range(0, samples, size):
        yield min(size, samples - start)
