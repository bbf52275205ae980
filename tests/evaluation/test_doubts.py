import pytest

from fusetk.evaluation.doubts import doubts

RAW = ["The old man, who saw her, fell asleep.", "Is it late? No, it isn't.", "Yes. She said: come!", "Apple & pear."] * 5
TOKENISED = ["The old man , who saw her , fell asleep .", "Is it late ? No , it is n't .", "Yes . She said : come !", "Apple & pear ."] * 5


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


@pytest.mark.parametrize("mine, theirs", [(lower(RAW), RAW), (RAW, lower(RAW)), ([line.upper() for line in RAW], RAW)])
def test_case(mine: list[str], theirs: list[str]) -> None:
    [found] = doubts(mine, [theirs])
    assert "capitals" in found
    assert doubts(mine, [theirs], lowercase=True) == []


def test_tokenisation() -> None:
    [found] = doubts(TOKENISED, [RAW])
    assert found.startswith("the hypothesis looks tokenised and the reference does not")
    [found] = doubts(RAW, [RAW, TOKENISED])
    assert found.startswith("reference 2 looks tokenised and the hypothesis does not")


def test_entities() -> None:
    escaped = [line.replace("&", "&amp;").replace("'", "&apos;") for line in TOKENISED]
    [found] = doubts(escaped, [TOKENISED])
    assert "the hypothesis writes characters as &apos;" in found
    assert doubts(escaped, [escaped]) == []
