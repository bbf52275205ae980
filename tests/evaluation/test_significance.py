import os
import random
from itertools import product

import pytest

from fusetk.errors import DataError
from fusetk.evaluation.metrics import METRICS, Metric, Options, make
from fusetk.evaluation.significance import SAMPLES, Found, Sampling, compare

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
) -> list[Found]:
    counted = {f"system {k}": metric.count(lines) for k, lines in enumerate(systems)}
    return list(compare(metric, counted, Sampling(kind, samples, seed)).values())


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("name", METRICS)
def test_a_system_beside_itself_and_beside_nonsense(name: str, kind: str) -> None:
    hypotheses, reference = corpus(1)
    shuffled = random.Random(2).sample(hypotheses, len(hypotheses))
    [metric] = make([reference], [name], Options())
    first, same, worse = outcome(metric, kind, hypotheses, list(hypotheses), shuffled)
    assert (first.p, first.differ) == (None, None)
    assert (same.p, same.differ, same.mean) == (
        1,
        0,
        pytest.approx(first.mean, abs=first.interval / 4),
    )
    assert worse.p is not None and worse.p < 0.01 and worse.differ is not None and worse.differ > 50
    assert abs(first.mean - metric.score(metric.count(hypotheses)).value) < first.interval


@pytest.mark.parametrize("kind, name", [("bootstrap", "bs"), ("randomization", "ar")])
def test_the_numbers_are_those_that_sacrebleu_gives_by_itself(kind: str, name: str) -> None:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.significance import PairedTest

    one, reference = corpus(3)
    other = [line.replace("Haus", "Heim") for line in one]
    theirs = {
        "sacrebleu": BLEU(),
        "multi-bleu": BLEU(tokenize="none", smooth_method="none"),
        "mteval-v13a": BLEU(lowercase=True),
        "chrf++": CHRF(word_order=2),
    }
    for metric in make([reference], list(theirs), Options()):
        table = PairedTest(
            [("one", one), ("other", other)], {"it": theirs[metric.name]}, [reference], name, 200, 0
        )()[1]
        [results] = (column for key, column in table.items() if key != "System")
        for found, result in zip(
            outcome(metric, kind, one, other, samples=200), results, strict=True
        ):
            assert (found.mean, found.interval, found.p) == pytest.approx(
                (result.mean, result.ci, result.p_value)
            ), metric.name


def test_randomisation_counts_what_all_exchanges_would() -> None:
    one, reference = corpus(5, sentences=9)
    draw = random.Random(6)
    other = [
        " ".join(draw.choice(WORDS) if draw.random() < 0.25 else word for word in line.split())
        for line in reference
    ]
    [metric] = make([reference], ["chrf"], Options())
    a, b = metric.count(one), metric.count(other)

    def difference(swapped: tuple[bool, ...]) -> float:
        sides = (
            [pair[it != side] for pair, it in zip(zip(a, b, strict=True), swapped, strict=True)]
            for side in (True, False)
        )
        first, second = (metric.score(rows).value for rows in sides)
        return abs(first - second)

    real = difference((False,) * 9)
    greater = [difference(swapped) > real + 1e-9 for swapped in product((False, True), repeat=9)]
    [_, found] = outcome(metric, "randomization", one, other, samples=4000)
    assert 0.02 < sum(greater) / len(greater) < 0.98
    assert found.p == pytest.approx(sum(greater) / len(greater), abs=0.04)


def test_the_seed_decides_and_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    one, reference = corpus(7)
    other = corpus(8)[0]
    [metric] = make([reference], ["multi-bleu"], Options())
    for before in ("none", None):
        if before:
            monkeypatch.setenv("SACREBLEU_SEED", before)
        else:
            monkeypatch.delenv("SACREBLEU_SEED")
        found = [outcome(metric, "bootstrap", one, other, seed=seed)[0].mean for seed in (1, 1, 2)]
        assert found[0] == found[1] != found[2]
        assert os.environ.get("SACREBLEU_SEED") == before


def test_lines_that_differ_are_counted_as_the_metric_sees_them() -> None:
    one, reference = corpus(9)
    other = [one[0].upper(), "x", *one[2:]]
    for name, lines in (("multi-bleu-lc", 1), ("multi-bleu", 2)):
        [metric] = make([reference], [name], Options())
        assert outcome(metric, "bootstrap", one, other)[1].differ == lines


@pytest.mark.parametrize("kind", SAMPLES)
def test_samples_that_do_not_fit_into_memory_are_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, reference = corpus(10)
    [metric] = make([reference], ["chrf"], Options())
    monkeypatch.setattr(os, "sysconf", lambda name: 1024)  # 1 MiB
    with pytest.raises(DataError, match="give fewer --samples"):
        outcome(metric, kind, one, one, samples=100_000)
