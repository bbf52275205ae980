import random

import pytest

from fusetk.evaluation.score_warnings import doubts

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


@pytest.mark.parametrize("lines", [RAW, TOKENISED, lower(RAW), [""], ["你 好 。"] * 9])
def test_like_against_like_raises_no_doubt(lines: list[str]) -> None:
    assert doubts(lines, [lines, lines]) == []


def test_small_differences_raise_no_doubt() -> None:
    assert doubts(RAW, [[line.replace("old", "Young") for line in RAW]]) == []


@pytest.mark.parametrize("token", ["sl@@ eep", "\u2581sl eep"])
def test_subwords(token: str) -> None:
    [found] = doubts([line.replace("asleep", token) for line in TOKENISED], [TOKENISED])
    assert "hypothesis looks like subwords" in found
    [found] = doubts(TOKENISED, [TOKENISED, [line.replace("asleep", token) for line in TOKENISED]])
    assert "reference 2 looks like subwords" in found


@pytest.mark.parametrize(
    "mine, theirs", [(lower(RAW), RAW), (RAW, lower(RAW)), ([line.upper() for line in RAW], RAW)]
)
def test_case(mine: list[str], theirs: list[str]) -> None:
    [found] = doubts(mine, [theirs])
    assert "capitals" in found
    assert doubts(mine, [theirs], lowercase=True) == []


def test_tokenisation() -> None:
    [found] = doubts(TOKENISED, [RAW])
    assert found.startswith("the hypothesis looks tokenised and the reference does not")
    [found] = doubts(RAW, [RAW, TOKENISED])
    assert found.startswith("reference 2 looks tokenised and the hypothesis does not")


def test_true_case_is_told_by_how_lines_begin() -> None:
    lines = ["the old Man saw Her .", "his Dog ran ."] * 5
    [found] = doubts(lines, [[line[0].upper() + line[1:] for line in lines]])
    assert found.startswith(
        "0 % of the hypothesis' lines begin with a capital but 100 % of those of the reference"
    )


def test_hyphens_parted_on_one_side() -> None:
    parted = [line.replace(",", "@-@") for line in TOKENISED]
    [found] = doubts(TOKENISED, [parted])
    assert found.startswith("the reference parts words by @-@")
    assert doubts(parted, [parted]) == []


def test_metrics_want_text_of_their_kind() -> None:
    [found] = doubts(RAW, [RAW], metrics=["sacrebleu", "multi-bleu", "chrf"])
    assert "does not look tokenised: for multi-bleu, 'end.' is one word" in found
    [found] = doubts(
        TOKENISED, [TOKENISED], metrics=["sacrebleu", "multi-bleu", "mteval-v13a", "ter"]
    )
    assert "is tokenised once more by sacrebleu and mteval-v13a" in found


def sentences(seed: int) -> list[str]:
    draw = random.Random(seed)
    return [
        " ".join(f"w{draw.randint(0, 99)}" for _ in range(draw.randint(3, 12))) for _ in range(100)
    ]


@pytest.mark.parametrize("line", [1, 40, 80])
def test_lines_out_of_step(line: int) -> None:
    reference = sentences(1)
    lost = [*reference[: line - 1], *reference[line:], ""]
    twice = [*reference[: line - 1], "w0 w1", *reference[line - 1 : -1]]
    for hypotheses, which in ((lost, "next"), (twice, "previous")):
        [found] = doubts(hypotheses, [reference])
        assert f"fits the {which} line of the reference much better" in found
        assert abs(int(found.split()[2]) - line) < 2


def test_lines_in_step_and_lines_of_another_text() -> None:
    reference = sentences(2)
    draw = random.Random(3)
    poor = [
        " ".join(word if draw.random() < 0.4 else "x" for word in line.split())
        for line in reference
    ]
    for hypotheses in (reference, poor, sentences(4), draw.sample(reference, 100), ["yes"] * 100):
        assert doubts(hypotheses, [reference]) == []


def test_blank_and_untranslated_lines() -> None:
    reference, source = sentences(5), sentences(6)
    assert doubts(["", *reference[1:]], [reference]) == []
    assert doubts(["", "", *reference[2:]], [["", *reference[1:]]]) == []
    assert doubts(["", " ", "", *reference[3:]], [reference]) == [
        "lines of the hypothesis that are blank where the reference is not: 3"
    ]
    copied = [*source[:10], *reference[10:]]
    [found] = doubts(copied, [reference], source=source)
    assert found.startswith("10 % of the hypothesis' lines are those of the source")
    assert (
        doubts(reference, [reference], source=source)
        == doubts(copied, [copied], source=source)
        == []
    )


def test_entities() -> None:
    escaped = [line.replace("&", "&amp;").replace("'", "&apos;") for line in TOKENISED]
    [found] = doubts(escaped, [TOKENISED])
    assert "the hypothesis writes characters as &apos;" in found
    assert doubts(escaped, [escaped]) == []
