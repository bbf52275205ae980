import random

import pytest

from fusetk.evaluation.metric import Metric, MetricOptions
from fusetk.evaluation.metrics import make_metrics
from fusetk.evaluation.score_warnings import score_warnings

RAW = [
    "The old man, who saw her, fell asleep.",
    "Is it late? No, it isn't.",
    "Yes. She said: come!",
    "Apple & pear.",
] * 5
TOKENISED = [
    "The old man , who saw her , fell asleep .",
    "Is it late ? No , it is n't .",
    "Yes . She said : come !",
    "Apple & pear .",
] * 5


def lower(lines: list[str]) -> list[str]:
    return [line.lower() for line in lines]


def metrics(*names: str, tokenize: str | None = None) -> list[Metric]:
    return make_metrics([["a reference"]], names, MetricOptions(tokenize=tokenize))


@pytest.mark.parametrize("lines", [RAW, TOKENISED, lower(RAW), [""], ["你 好 。"] * 9])
def test_equal_texts_have_no_warning(lines: list[str]) -> None:
    assert score_warnings(lines, [lines, lines]) == []


def test_small_differences_have_no_warning() -> None:
    assert score_warnings(RAW, [[line.replace("old", "Young") for line in RAW]]) == []


@pytest.mark.parametrize("token", ["sl@@ eep", "\u2581sl eep"])
def test_subwords_are_named(token: str) -> None:
    [warning] = score_warnings([line.replace("asleep", token) for line in TOKENISED], [TOKENISED])
    assert "hypothesis looks like subwords" in warning
    [warning] = score_warnings(
        TOKENISED, [TOKENISED, [line.replace("asleep", token) for line in TOKENISED]]
    )
    assert "reference 2 looks like subwords" in warning


@pytest.mark.parametrize(
    "hypotheses, reference",
    [(lower(RAW), RAW), (RAW, lower(RAW)), ([line.upper() for line in RAW], RAW)],
)
def test_a_difference_in_case_is_named(hypotheses: list[str], reference: list[str]) -> None:
    [warning] = score_warnings(hypotheses, [reference])
    assert "capitals" in warning
    assert score_warnings(hypotheses, [reference], lowercase=True) == []


def test_a_difference_in_tokenisation_is_named() -> None:
    [warning] = score_warnings(TOKENISED, [RAW])
    assert warning.startswith("the hypothesis looks tokenised and the reference does not")
    [warning] = score_warnings(RAW, [RAW, TOKENISED])
    assert warning.startswith("reference 2 looks tokenised and the hypothesis does not")


def test_true_case_differs_at_the_beginning_of_lines() -> None:
    lines = ["the old Man saw Her .", "his Dog ran ."] * 5
    [warning] = score_warnings(lines, [[line[0].upper() + line[1:] for line in lines]])
    assert warning.startswith(
        "0 % of the hypothesis' lines begin with a capital, but 100 % of those of the reference"
    )


def test_hyphens_split_on_one_side() -> None:
    split_lines = [line.replace(",", "@-@") for line in TOKENISED]
    [warning] = score_warnings(TOKENISED, [split_lines])
    assert warning.startswith("the reference splits words with @-@")
    assert score_warnings(split_lines, [split_lines]) == []


def test_metrics_expect_raw_or_tokenised_text() -> None:
    [warning] = score_warnings(RAW, [RAW], metrics=metrics("sacrebleu", "multi-bleu", "chrf"))
    assert "does not look tokenised: for multi-bleu, 'end.' is one word" in warning
    [warning] = score_warnings(
        TOKENISED, [TOKENISED], metrics=metrics("sacrebleu", "multi-bleu", "mteval-v13a", "ter")
    )
    assert "sacrebleu and mteval-v13a will tokenise it again" in warning
    three = metrics("sacrebleu", "mteval-v13a", "mteval-v13a-cased")
    [warning] = score_warnings(TOKENISED, [TOKENISED], metrics=three)
    assert "and sacrebleu, mteval-v13a and mteval-v13a-cased will tokenise it again" in warning
    untokenized = metrics("sacrebleu", tokenize="none")
    assert score_warnings(TOKENISED, [TOKENISED], metrics=untokenized) == []
    [warning] = score_warnings(RAW, [TOKENISED], metrics=metrics("sacrebleu", "multi-bleu"))
    assert "the reference looks tokenised and the hypothesis does not" in warning


def sentences(seed: int) -> list[str]:
    draw = random.Random(seed)
    return [
        " ".join(f"w{draw.randint(0, 99)}" for _ in range(draw.randint(3, 12))) for _ in range(100)
    ]


@pytest.mark.parametrize("line", [1, 40, 80])
def test_lines_out_of_step(line: int) -> None:
    reference = sentences(1)
    missing = [*reference[: line - 1], *reference[line:], ""]
    repeated = [*reference[: line - 1], "w0 w1", *reference[line - 1 : -1]]
    # The additional line "w0 w1" fits no line, so the warning may name the line after it.
    for hypotheses, which, after in ((missing, "next", 0), (repeated, "previous", 1)):
        [warning] = score_warnings(hypotheses, [reference])
        assert f"fits the {which} line of the reference much better" in warning
        assert line <= int(warning.split()[2]) <= line + after


def test_lines_in_step_and_lines_of_another_text() -> None:
    reference = sentences(2)
    draw = random.Random(3)
    poor = [
        " ".join(word if draw.random() < 0.4 else "x" for word in line.split())
        for line in reference
    ]
    for hypotheses in (reference, poor, sentences(4), draw.sample(reference, 100), ["yes"] * 100):
        assert score_warnings(hypotheses, [reference]) == []


def test_blank_and_untranslated_lines() -> None:
    reference, source = sentences(5), sentences(6)
    assert score_warnings(["", *reference[1:]], [reference]) == []
    assert score_warnings(["", "", *reference[2:]], [["", *reference[1:]]]) == []
    assert score_warnings(["", " ", "", *reference[3:]], [reference]) == [
        "the hypothesis is blank and the reference is not: 3 lines"
    ]
    missing = ["", " ", "", *reference[3:]]
    assert score_warnings(reference, [missing]) == [
        "the reference is blank and the hypothesis is not: 3 lines"
    ]
    assert score_warnings(reference, [missing, reference]) == []
    copied = [*source[:10], *reference[10:]]
    [warning] = score_warnings(copied, [reference], source=source)
    assert warning.startswith("10 % of the hypothesis' lines equal the source line")
    assert (
        score_warnings(reference, [reference], source=source)
        == score_warnings(copied, [copied], source=source)
        == []
    )


def test_a_difference_in_entities_is_named() -> None:
    escaped = [line.replace("&", "&amp;").replace("'", "&apos;") for line in TOKENISED]
    [warning] = score_warnings(escaped, [TOKENISED])
    assert "the hypothesis writes characters as &apos;" in warning
    assert score_warnings(escaped, [escaped]) == []
    ampersands = ["R & D" for _ in range(30)]
    assert score_warnings([line.replace("&", "&amp;") for line in ampersands], [ampersands])
    without = [line.replace("'", "").replace("&", "") for line in TOKENISED]
    assert score_warnings(without, [escaped]) == [], "it has nothing to escape"
