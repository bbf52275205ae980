import random
import subprocess
import sys

import pytest

from fusetk.evaluation.length import (
    BOUNDS,
    LengthRange,
    group_by_range,
    length_bins,
    ranges_above,
    score_by_length,
    score_groups,
    word_counts,
)
from fusetk.evaluation.metric import MetricOptions
from fusetk.evaluation.metrics import METRICS, make_metrics, score
from fusetk.evaluation.multi_bleu import MultiBleu
from fusetk.evaluation.texts import ScoredText, ScoredTexts

WORDS = ["der", "Mann", "sieht", "die", "Frau", "nicht", ",", "."]


def corpus(seed: int, references: int = 1) -> tuple[list[str], list[list[str]], list[str]]:
    """Hypotheses, references and a source of 0 to 70 words, some of its lines blank."""
    draw = random.Random(seed)
    sizes = [draw.choice([0, draw.randint(1, 15), draw.randint(1, 70)]) for _ in range(40)]
    source = [" ".join(draw.choice(WORDS) for _ in range(size)) for size in sizes]
    streams = [
        [" ".join(draw.choice(WORDS) for _ in range(draw.randint(5, 12))) for _ in sizes]
        for _ in range(references)
    ]
    hypotheses = [
        " ".join(draw.choice(WORDS) if draw.random() < 0.2 else word for word in line.split())
        for line in streams[0]
    ]
    return hypotheses, streams, source


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "rows", [length_bins(BOUNDS), ranges_above(BOUNDS)], ids=["bins", "longer"]
)
def test_each_row_is_the_score_of_its_sentences(metric: str, rows: list[LengthRange]) -> None:
    hypotheses, streams, source = corpus(1, references=2)
    groups = group_by_range(rows, word_counts(source))
    assert all(groups)
    for options in ({}, {"lowercase": True}, {"tokenize": "char"}, {"compound_split": True}):
        [built] = make_metrics(streams, [metric], MetricOptions(**options))
        scores = score_groups(built, hypotheses, groups)
        for group, group_score in zip(groups, scores, strict=True):
            part = [[lines[i] for i in group] for lines in (hypotheses, *streams)]
            assert [group_score] == score(part[0], part[1:], [metric], **options)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bounds", [BOUNDS, (0,), (3, 4, 50), (200,)])
def test_each_sentence_is_in_one_bin(seed: int, bounds: tuple[int, ...]) -> None:
    sizes = word_counts(corpus(seed)[2])
    groups = group_by_range(length_bins(bounds), sizes)
    assert sorted(i for group in groups for i in group) == list(range(len(sizes)))
    assert {i for i, size in enumerate(sizes) if not size} <= set(groups[0])  # blank lines


def test_a_range_above_a_bound_joins_the_bins_above_it() -> None:
    sizes = word_counts(corpus(2)[2])
    apart, together = (
        group_by_range(length_bins(BOUNDS), sizes),
        group_by_range(ranges_above(BOUNDS), sizes),
    )
    assert 0 in sizes
    for k, group in enumerate(together):
        assert group == sorted(
            i for part in apart[k:] for i in part if sizes[i]
        )  # the paper's rows have no blank line


@pytest.mark.parametrize("metric", METRICS)
def test_the_range_above_zero_is_the_complete_text(metric: str) -> None:
    hypotheses, streams, _ = corpus(3)
    [built] = make_metrics(streams, [metric], MetricOptions())
    [whole] = score_groups(
        built, hypotheses, group_by_range(ranges_above([0]), word_counts(streams[0]))
    )
    [same] = score_groups(
        built, hypotheses, group_by_range(length_bins([0]), word_counts(streams[0]))
    )
    assert [whole] == [same] == score(hypotheses, streams, [metric])


def test_a_row_without_sentences_has_no_score() -> None:
    for metric in ("multi-bleu", "chrf"):
        assert (
            score_groups(
                *make_metrics([["a b c d"]], [metric], MetricOptions()), ["a b c d"], [[], [0]]
            )[0]
            is None
        )


def test_a_range_is_named_by_its_bounds() -> None:
    assert list(map(str, length_bins(BOUNDS))) == [
        "0-10",
        "11-20",
        "21-30",
        "31-40",
        "41-50",
        "51-60",
        "> 60",
    ]
    assert list(map(str, ranges_above(BOUNDS))) == [
        "> 0",
        "> 10",
        "> 20",
        "> 30",
        "> 40",
        "> 50",
        "> 60",
    ]
    assert list(map(str, length_bins((5, 6)))) == ["0-5", "6", "> 6"]  # as with 0 before them
    assert length_bins((0, 5, 6)) == length_bins((5, 6))
    assert list(map(str, length_bins((0,)))) == ["all"]


def test_words_are_split_at_ascii_white_space() -> None:
    assert word_counts(["", " \t", "a\tb  c ", "a\u00a0b\u2028c"]) == [0, 0, 3, 1]


def test_each_sentence_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hypotheses, [reference], source = corpus(4)
    source[source.index("")] = " "
    counted: list[str] = []
    statistics = MultiBleu.statistics

    def record(metric: MultiBleu, lines: list[str]) -> list[list[float]]:
        counted.extend(lines)
        return statistics(metric, lines)

    monkeypatch.setattr(MultiBleu, "statistics", record)
    [metric] = make_metrics([reference], ["multi-bleu"], MetricOptions())
    texts = ScoredTexts(
        {"system": ScoredText("out", 0, hypotheses)},
        [ScoredText("ref", 0, reference)],
        ScoredText("src", 0, source),
    )
    table = score_by_length(texts, metric, ranges_above(BOUNDS))
    assert counted == hypotheses
    assert table.sentences[0] == len(source) - table.blank


def test_scores_by_length_do_not_import_torch() -> None:
    code = (
        "import fusetk.evaluation.length, fusetk.plotting.length, sys\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
