import random
import subprocess
import sys

import pytest

from fusetk.evaluation import metrics
from fusetk.evaluation.length import BOUNDS, Row, bins, count_words, grouped, longer, score_groups
from fusetk.evaluation.metrics import METRICS, Options, make, score

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
@pytest.mark.parametrize("rows", [bins(BOUNDS), longer(BOUNDS)], ids=["bins", "longer"])
def test_each_row_is_the_score_of_its_sentences(metric: str, rows: list[Row]) -> None:
    hypotheses, streams, source = corpus(1, references=2)
    groups = grouped(rows, count_words(source))
    assert all(groups)
    for options in ({}, {"lowercase": True}, {"tokenize": "char"}, {"compound_split": True}):
        found = score_groups(*make(streams, [metric], Options(**options)), hypotheses, groups)
        for group, one in zip(groups, found, strict=True):
            part = [[lines[i] for i in group] for lines in (hypotheses, *streams)]
            assert [one] == score(part[0], part[1:], [metric], **options)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bounds", [BOUNDS, (0,), (3, 4, 50), (200,)])
def test_bins_part_the_sentences(seed: int, bounds: tuple[int, ...]) -> None:
    sizes = count_words(corpus(seed)[2])
    groups = grouped(bins(bounds), sizes)
    assert sorted(i for group in groups for i in group) == list(range(len(sizes)))
    assert {i for i, size in enumerate(sizes) if not size} <= set(groups[0])  # blank lines


def test_longer_rows_are_the_bins_beyond_added_up() -> None:
    sizes = count_words(corpus(2)[2])
    apart, together = grouped(bins(BOUNDS), sizes), grouped(longer(BOUNDS), sizes)
    assert 0 in sizes
    for k, group in enumerate(together):
        assert group == sorted(
            i for part in apart[k:] for i in part if sizes[i]
        )  # the paper's rows have no blank line


@pytest.mark.parametrize("metric", METRICS)
def test_longer_than_nothing_is_the_whole_text(metric: str) -> None:
    hypotheses, streams, _ = corpus(3)
    [made] = make(streams, [metric], Options())
    [whole] = score_groups(made, hypotheses, grouped(longer([0]), count_words(streams[0])))
    [same] = score_groups(made, hypotheses, grouped(bins([0]), count_words(streams[0])))
    assert [whole] == [same] == score(hypotheses, streams, [metric])


def test_a_row_without_sentences_has_no_score() -> None:
    for metric in ("multi-bleu", "chrf"):
        assert (
            score_groups(*make([["a b c d"]], [metric], Options()), ["a b c d"], [[], [0]])[0]
            is None
        )


def test_rows_by_name() -> None:
    assert list(map(str, bins(BOUNDS))) == [
        "0-10",
        "11-20",
        "21-30",
        "31-40",
        "41-50",
        "51-60",
        "> 60",
    ]
    assert list(map(str, longer(BOUNDS))) == ["> 0", "> 10", "> 20", "> 30", "> 40", "> 50", "> 60"]
    assert list(map(str, bins((5, 6)))) == ["0-5", "6", "> 6"]  # as with 0 before them
    assert bins((0, 5, 6)) == bins((5, 6))
    assert list(map(str, bins((0,)))) == ["all"]


def test_words_stand_between_ascii_white_space() -> None:
    assert count_words(["", " \t", "a\tb  c ", "a\u00a0b\u2028c"]) == [0, 0, 3, 1]


def test_multi_bleu_counts_each_sentence_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hypotheses, streams, source = corpus(4)
    counted: list[str] = []
    real = metrics.count
    monkeypatch.setattr(
        metrics,
        "count",
        lambda hypothesis, references: counted.append(hypothesis) or real(hypothesis, references),
    )
    score_groups(
        *make(streams, ["multi-bleu"], Options()),
        hypotheses,
        grouped(longer(BOUNDS), count_words(source)),
    )
    assert counted == hypotheses


def test_no_torch() -> None:
    code = "import fusetk.evaluation.length, fusetk.plotting.length, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
