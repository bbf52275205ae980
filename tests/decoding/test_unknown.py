"""Replacement of unknown words by aligned source words."""

import gzip
from pathlib import Path

import pytest

from fusetk.decoding.unknown import Replacement, read_dictionary
from fusetk.errors import DataError

SOURCE = "das Haus von Łó@@ d@@ ź ist al@@ t".split()


@pytest.mark.parametrize(
    "target, pairs, wanted",
    [
        (
            "the house <unk> old",
            [(1, 1), (4, 2), (7, 3)],
            "the house Łódź old",
        ),  # the complete word, from any of its pieces
        (
            "the <unk> <unk> <unk> old",
            [(3, 1), (5, 2), (6, 3)],
            "the Łódź ist old",
        ),  # adjacent pieces are one word
        ("<unk> of <unk>", [(1, 0), (1, 2)], "Haus of Haus"),  # not adjacent
        ("<unk> <unk>", [(1, 0)], "Haus <unk>"),  # not aligned
        ("<unk> <unk> <unk>", [(1, 0), (1, 2)], "Haus <unk> Haus"),
        (
            "the b@@ o@@ <unk> is",
            [(1, 1), (1, 2), (7, 3)],
            "the alt is",
        ),  # the complete target word is replaced
        ("b@@ <unk> <unk>", [(0, 0), (3, 1), (5, 2)], "Łódź"),
        ("the <unk>", [(8, 1), (1, 1)], "the Haus"),  # the first of several
        ("the house", [(0, 0), (1, 1)], "the house"),
        ("", [], ""),
    ],
)
def test_an_unknown_word_becomes_its_aligned_source_word(
    target: str, pairs: list[tuple[int, int]], wanted: str
) -> None:
    assert Replacement()(SOURCE, target.split(), pairs) == wanted.split()


def test_the_dictionary_comes_first() -> None:
    replace = Replacement({"Łódź": "Lodz", "Łó@@": "no"})
    assert replace(SOURCE, ["<unk>", "<unk>"], [(3, 0), (1, 1)]) == ["Lodz", "Haus"]


def test_without_subwords() -> None:
    assert Replacement(subwords=False)(["a@@", "b"], ["x@@", "<unk>"], [(0, 1)]) == ["x@@", "a@@"]


@pytest.mark.parametrize("name", ["words", "words.gz"])
def test_the_first_entry_of_a_word_in_a_dictionary_counts(tmp_path: Path, name: str) -> None:
    content = "Haus\thouse\r\nŁódź\tthe town Łódź\nHaus\thome\n10\xa0000\t10,000\n".encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read_dictionary(tmp_path / name) == {
        "Haus": "house",
        "Łódź": "the town Łódź",
        "10\xa0000": "10,000",
    }


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Haus",
        "Haus house",
        "Haus\t",
        "\thouse",
        "Haus\thouse\thome",
        "das Haus\thouse",
        "Haus\t  ",
    ],
)
def test_invalid_dictionaries(tmp_path: Path, line: str) -> None:
    (tmp_path / "words").write_text(f"Haus\thouse\n{line}\n")
    with pytest.raises(
        DataError, match=r"words, line 2: .* is not a source word, a tab and a target word"
    ):
        read_dictionary(tmp_path / "words")
