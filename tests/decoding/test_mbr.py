"""Minimum Bayes risk decoding."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fusetk import system
from fusetk.cli.main import main
from fusetk.decoding.mbr import MbrTranslator, expected_utilities, rank
from fusetk.decoding.sentence_utility import utility
from fusetk.decoding.translate import Translation, Translator
from fusetk.recipe import load
from fusetk.train import train


def overlap(translation: str, other: str) -> float:
    """Share of common words (Jaccard)."""
    left, right = set(translation.split()), set(other.split())
    return 100 * len(left & right) / len(left | right)


def ranked(rows: list[tuple[str, float]], sample: bool) -> list[Translation]:
    assert rank([], overlap, sample) == []
    return rank([Translation(text, [], score, score) for text, score in rows], overlap, sample)


def test_samples_have_equal_weights_and_repeated_ones_count_again() -> None:
    rows = [("x y", -0.1), ("a b", -5.0), ("a b", -5.0), ("a c", -6.0)]
    best = ranked(rows, sample=True)[0]
    # "a b": (0 + 1 + 1 + 1/3) / 4
    assert best.text == "a b" and best.utility == pytest.approx(100 * (2 + 1 / 3) / 4)
    assert [row.text for row in ranked(rows, True)] == ["a b", "a c", "x y"]


def test_translations_of_a_search_are_weighted_by_probability() -> None:
    rows = [("x y", -0.1), ("a b", -5.0), ("a c", -6.0)]
    assert ranked(rows, sample=False)[0].text == "x y"
    near = [("x y", -1.0), ("a b", -1.1), ("a b c", -1.1)]
    assert ranked(near, sample=False)[0].text == "a b"


@pytest.mark.parametrize("name", ["chrf", "bleu"])
def test_a_translation_is_most_similar_to_itself(name: str) -> None:
    similarity = utility(name)
    texts = ["Ein Hund schläft im Gras .", "Ein Hund liegt im Gras .", "Zwei Katzen"]
    assert similarity(texts[0], texts[0]) == pytest.approx(100)
    assert similarity(texts[0], texts[1]) > similarity(texts[0], texts[2])
    values = expected_utilities(texts, [1, 1, 1], similarity)
    assert values[2] == min(values)


def test_the_command(toy: Path, tmp_path: Path) -> None:
    run, text = tmp_path / "run", tmp_path / "in.de"
    train(load(toy), run, "cpu", quiet=True)
    text.write_text("eins zwei drei\n\nvier fünf\n", encoding="utf-8")

    def call(*words: object) -> str:
        result = CliRunner().invoke(main, ["decode", "-m", str(run), str(text), *map(str, words)])
        assert result.exit_code == 0, result.output
        return result.stdout

    loaded = system.load(run, "cpu")
    rows = [
        json.loads(line) for line in call("--mbr", "chrf", "--candidates", 6, "--json").splitlines()
    ]
    config = system.changed(loaded.config, {"beam": 6, "n_best": 6})
    translator = Translator(loaded.models, loaded.pipeline, config)
    expected = MbrTranslator(translator, utility("chrf")).n_best(
        ["eins zwei drei", "", "vier fünf"]
    )
    for row, best in zip(rows, expected, strict=True):
        texts = [(found["text"], found["utility"]) for found in row["translations"]]
        assert texts == [(found.text, pytest.approx(found.utility)) for found in best]
    sampled = call("--mbr", "bleu", "--sample", "--candidates", 5, "--n-best", 2)
    assert sampled.count("Utility= ") in (2, 3, 4) and sampled == call(
        "--mbr", "bleu", "--sample", "--candidates", 5, "--n-best", 2
    )
    # The beam is as large as the number of candidates, also if it is smaller without --mbr.
    for words in ([], ["--candidates", "8"], ["-b", "3", "--groups", "3"]):
        assert 8 < call("--mbr", "chrf", "--n-best", 8, *words).count("Utility= ") <= 16
    for words, said in (
        (
            ["--mbr", "chrf", "--n-best", "20", "--candidates", "5"],
            "--n-best 20 is more than --candidates 5: raise --candidates",
        ),
        (["--candidates", "3"], "--candidates has no effect without --mbr"),
        (["--mbr", "chrf", "--candidates", "2", "--n-best", "2", "--mbr", "bleu"], ""),
        (["--mbr", "comet"], "--mbr: unknown value 'comet'; known: chrf, bleu"),
    ):
        result = CliRunner().invoke(main, ["decode", "-m", str(run), str(text), *words])
        assert said in result.stderr and (result.exit_code == 2) == bool(said)
