import math
import random
from itertools import product
from typing import Any

import numpy as np
import pytest

from fusetk.errors import DataError
from fusetk.evaluation import significance
from fusetk.evaluation.metric import Metric, MetricOptions, Score
from fusetk.evaluation.metrics import METRICS, make_metrics
from fusetk.evaluation.significance import (
    SAMPLES,
    Sampling,
    SignificanceResult,
    _p_value,
    compare_systems,
    randomization_p_value,
)

WORDS = ["der", "Mann", "sieht", "die", "Frau", "nicht", "im", "Haus", ",", "."]


def corpus(seed: int, sentences: int = 60) -> tuple[list[str], list[str]]:
    """Hypotheses that are nearly right, and their reference."""
    draw = random.Random(seed)
    reference = [
        " ".join(draw.choice(WORDS) for _ in range(draw.randint(6, 14))) for _ in range(sentences)
    ]
    return [
        " ".join(draw.choice(WORDS) if draw.random() < 0.2 else word for word in line.split())
        for line in reference
    ], reference


def outcome(
    metric: Metric, kind: str, *systems: list[str], samples: int = 300, seed: int = 12345
) -> list[SignificanceResult]:
    statistics = {f"system {k}": metric.statistics(lines) for k, lines in enumerate(systems)}
    return list(compare_systems(metric, statistics, Sampling(kind, samples, seed)).values())


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("name", METRICS)
def test_a_system_beside_itself_and_beside_nonsense(name: str, kind: str) -> None:
    hypotheses, reference = corpus(1)
    shuffled = random.Random(2).sample(hypotheses, len(hypotheses))
    [metric] = make_metrics([reference], [name], MetricOptions())
    first, same, worse = outcome(metric, kind, hypotheses, list(hypotheses), shuffled)
    assert (first.p, first.differ) == (None, None)
    assert (same.p, same.differ, same.mean) == (
        1,
        0,
        pytest.approx(first.mean, abs=first.interval / 4),
    )
    assert worse.p is not None and worse.p < 0.01 and worse.differ is not None and worse.differ > 50
    assert abs(first.mean - metric.score(metric.statistics(hypotheses)).value) < first.interval


@pytest.mark.parametrize("kind", SAMPLES)
def test_different_systems_without_any_match_are_not_significantly_different(kind: str) -> None:
    _, reference = corpus(1)
    [metric] = make_metrics([reference], ["multi-bleu"], MetricOptions())
    _, other = outcome(metric, kind, ["x"] * len(reference), ["y y"] * len(reference))
    assert other.differ == len(reference) and other.p == 1


def test_the_p_value_of_randomisation_alone_is_that_of_the_comparison() -> None:
    first, reference = corpus(3)
    [metric] = make_metrics([reference], ["multi-bleu"], MetricOptions())
    texts = {"first": first, "second": ["x", *first[1:20], *reference[20:25], *first[25:]]}
    statistics = {name: metric.statistics(lines) for name, lines in texts.items()}
    sampling = Sampling("randomization", 200)
    rows = [np.array(rows, dtype=np.float64) for rows in statistics.values()]
    p = randomization_p_value(metric, rows[0], rows[1], sampling)
    assert 0.02 < p < 1
    assert compare_systems(metric, statistics, sampling)["second"].p == p


@pytest.mark.parametrize("kind, name", [("bootstrap", "bs"), ("randomization", "ar")])
def test_the_numbers_are_those_of_sacrebleu(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER
    from sacrebleu.significance import PairedTest

    first, reference = corpus(3)
    draw = random.Random(4)
    systems = {
        "first": first,
        "near": [line.replace("Haus", "Heim") for line in first],
        "close": ["x", *first[1:]],
        "equal": [
            " ".join(draw.choice(WORDS) if draw.random() < 0.2 else word for word in line.split())
            for line in reference
        ],
        "far": first[::-1],
    }
    library_metrics = {
        "sacrebleu": BLEU(),
        "multi-bleu": BLEU(tokenize="none", smooth_method="none"),
        "mteval-v13a": BLEU(lowercase=True),
        "chrf++": CHRF(word_order=2),
        "ter": TER(),
    }
    monkeypatch.setitem(SAMPLES, "bootstrap", 50)  # for the intervals of randomisation
    p_values = set()
    for metric in make_metrics([reference], list(library_metrics), MetricOptions()):
        library_metric = library_metrics[metric.name]
        _, table = PairedTest(
            list(systems.items()), {"it": library_metric}, [reference], name, 100, 50
        )()
        [expected] = (column for key, column in table.items() if key != "System")
        statistics = {system: metric.statistics(lines) for system, lines in systems.items()}
        for block_numbers in (2**22, 60 * 64, 1):
            monkeypatch.setattr(significance, "BLOCK_NUMBERS", block_numbers)
            results = compare_systems(metric, statistics, Sampling(kind, 100)).values()
            for result, other in zip(results, expected, strict=True):
                # sacreBLEU adds float32 numbers.
                values = pytest.approx((other.mean, other.ci), rel=1e-5)
                assert (result.mean, result.interval) == values
                assert result.p == other.p_value, metric.name
                p_values.add(result.p)
    assert len(p_values) > 3


@pytest.mark.parametrize("name", METRICS)
def test_values_of_many_samples_are_the_single_ones(name: str) -> None:
    """Some samples have no match of some n-grams, or no line at all.

    Some are longer than their reference, and others are shorter.
    """
    hypotheses, reference = corpus(3)
    hypotheses[0], reference[0] = "x", "y"
    hypotheses[1], reference[1] = "der Mann a b", "der Mann c d"
    hypotheses[2] += " der Mann"
    reference[3] += " der Mann"
    [metric] = make_metrics([reference], [name], MetricOptions())
    rows = np.array(metric.statistics(hypotheses), dtype=np.float64)
    counts = np.random.default_rng(1).integers(3, size=(50, len(rows)))
    counts[:3] = np.eye(3, len(rows))
    counts[3] = 0
    samples = counts @ rows
    expected = [metric.value(totals) for totals in samples]
    assert metric.values(samples) == pytest.approx(expected, abs=1e-11)
    assert len(set(expected)) > 40
    assert metric.values(samples[:0]).shape == (0,)


class MeanMetric(Metric):
    """A metric without sacrebleu: a mean of sentence scores, like that of a learned metric."""

    name = "mean"
    needs_source = True

    def __init__(
        self,
        references: list[list[str]],
        options: MetricOptions,
        source: list[str] | None = None,
    ) -> None:
        assert source is not None
        self.references = references
        self.source = source

    def statistics(self, hypotheses: list[str]) -> list[tuple[float, float]]:
        return [
            (len(set(line.split()) & {*source.split(), *target.split()}) / 7, 1.0)
            for line, source, target in zip(
                hypotheses, self.source, self.references[0], strict=True
            )
        ]

    def value(self, totals: tuple[float, float]) -> float:
        return 100 * totals[0] / totals[1]

    def score(self, rows: list[tuple[float, float]]) -> Score:
        value = self.value(tuple(map(sum, zip(*rows, strict=True))))
        return Score(self.name, "mean", value, "", "", len(rows))


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_metric_without_sacrebleu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, MeanMetric.name, MeanMetric)
    first, reference = corpus(11)
    with pytest.raises(DataError, match="needs the source"):
        make_metrics([reference], ["mean"], MetricOptions())
    [metric] = make_metrics([reference], ["mean"], MetricOptions(), ["Ja"] * len(reference))
    near = ["", *first[1:]]
    _, same, close, far = outcome(metric, kind, first, list(first), near, first[::-1])
    assert same.p == 1
    assert far.p is not None and far.p < 0.01
    assert close.differ == 1
    if kind == "randomization":  # each exchange makes the real difference, or its negative
        assert close.p == 1 / 301


def test_the_p_value_of_randomisation_is_near_that_of_all_exchanges() -> None:
    first_system, reference = corpus(5, sentences=9)
    draw = random.Random(6)
    second_system = [
        " ".join(draw.choice(WORDS) if draw.random() < 0.25 else word for word in line.split())
        for line in reference
    ]
    [metric] = make_metrics([reference], ["chrf"], MetricOptions())
    a, b = metric.statistics(first_system), metric.statistics(second_system)

    def difference(swapped: tuple[bool, ...]) -> float:
        sides = (
            [pair[it != side] for pair, it in zip(zip(a, b, strict=True), swapped, strict=True)]
            for side in (True, False)
        )
        first, second = (metric.score(rows).value for rows in sides)
        return abs(first - second)

    real = difference((False,) * 9)
    greater = [difference(swapped) > real + 1e-9 for swapped in product((False, True), repeat=9)]
    [_, result] = outcome(metric, "randomization", first_system, second_system, samples=4000)
    assert 0.02 < sum(greater) / len(greater) < 0.98
    assert result.p == pytest.approx(sum(greater) / len(greater), abs=0.04)


def test_the_samples_depend_on_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    first, reference = corpus(7)
    other = corpus(8)[0]
    [metric] = make_metrics([reference], ["multi-bleu"], MetricOptions())
    monkeypatch.setenv("SACREBLEU_SEED", "none")
    means = [outcome(metric, "bootstrap", first, other, seed=seed)[0].mean for seed in (1, 1, 2)]
    assert means[0] == means[1] != means[2]


def test_lines_that_differ_are_counted_as_the_metric_sees_them() -> None:
    first_system, reference = corpus(9)
    second_system = [first_system[0].upper(), "x", *first_system[2:]]
    for name, lines in (("multi-bleu-lc", 1), ("multi-bleu", 2)):
        [metric] = make_metrics([reference], [name], MetricOptions())
        assert outcome(metric, "bootstrap", first_system, second_system)[1].differ == lines


def test_a_difference_that_is_nan_is_not_significant() -> None:
    class Undefined:
        def value(self, totals: np.ndarray) -> float:
            return float(totals[0]) if totals[0] < 3 else math.nan

    first, second = np.ones((2, 1)), 2 * np.ones((2, 1))
    differences = np.zeros(99)
    metric: Any = Undefined()
    assert _p_value(metric, first, second, differences) == 1.0, "the difference is NaN"
    differences[:9] = math.nan
    assert _p_value(metric, first, np.zeros((2, 1)), differences) == 0.1, "samples are NaN"
