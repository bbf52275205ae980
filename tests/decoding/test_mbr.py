"""Minimum Bayes risk decoding."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from fusetk import system
from fusetk.cli.main import main
from fusetk.cli.mbr import mbr_utility
from fusetk.decoding.mbr import MbrTranslator, by_utility, expected_utilities
from fusetk.decoding.sentence_utility import TranslationPair, utility
from fusetk.decoding.translate import Translation, Translator
from fusetk.evaluation import comet
from fusetk.recipe import load
from fusetk.train import train


def overlap(comparisons: Sequence[TranslationPair]) -> list[float]:
    """Shares of common words (Jaccard)."""
    shares = []
    for source, translation, other in comparisons:
        assert source == "s"
        left, right = set(translation.split()), set(other.split())
        shares.append(100 * len(left & right) / len(left | right))
    return shares


def ranked(rows: list[tuple[str, float]], sample: bool) -> list[Translation]:
    assert by_utility("s", [], overlap, sample) == []
    candidates = [Translation(text, [], score, score) for text, score in rows]
    return by_utility("s", candidates, overlap, sample)


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
    improbable = [(text, score - 2000) for text, score in near]
    values = [row.utility for row in ranked(improbable, sample=False)]
    assert values == pytest.approx([row.utility for row in ranked(near, sample=False)])


def test_bleu_splits_languages_without_spaces() -> None:
    texts = ["一只狗在草地上睡觉。", "一只狗在草地上躺着。", "两只猫。"]
    pairs = [TranslationPair("", texts[0], other) for other in texts[1:]]
    assert mbr_utility("bleu")(pairs) == [0, 0]
    for language in ("zh", "ja"):
        near, far = mbr_utility("bleu", language)(pairs)
        assert near > far + 20


@pytest.mark.parametrize("name", ["chrf", "bleu"])
def test_a_translation_is_most_similar_to_itself(name: str) -> None:
    similarity = utility(name)
    texts = ["Ein Hund schläft im Gras .", "Ein Hund liegt im Gras .", "Zwei Katzen"]
    itself, near, far = similarity([TranslationPair("", texts[0], other) for other in texts])
    assert itself == pytest.approx(100) and near > far
    values = expected_utilities("", texts, [1, 1, 1], similarity)
    assert values[2] == min(values)


def test_comet_compares_the_candidates_of_a_line_with_its_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def predict(lines: list[dict[str, str]], **options: Any) -> SimpleNamespace:
        assert lines
        comparisons = [TranslationPair(line["src"], line["mt"], line["ref"]) for line in lines]
        return SimpleNamespace(scores=[share / 100 for share in overlap(comparisons)])

    monkeypatch.setattr(comet, "_load", lambda name: SimpleNamespace(predict=predict))
    assert by_utility("s", [], mbr_utility("comet"), True) == []
    rows = [Translation(text, [], -1.0, -1.0) for text in ("x y", "a b", "a c", "a b")]
    ranks = [
        by_utility("s", rows, similarity, True) for similarity in (mbr_utility("comet"), overlap)
    ]
    for found, expected in zip(*ranks, strict=True):
        assert found.text == expected.text and found.utility == pytest.approx(expected.utility)


def test_the_command(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comet", None)
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
    mbr, counts = MbrTranslator(translator, utility("chrf")), []
    mbr.on_batch = counts.append
    compare = mbr.similarity

    def similarity(pairs: list[TranslationPair]) -> list[float]:
        assert sum(counts) < 2, "the comparison of candidates is a part of the work"
        return compare(pairs)

    mbr.similarity = similarity
    mbr.n_best(["eins zwei drei", "", "vier fünf"])
    assert sum(counts) == 2
    text_output = call("--mbr", "chrf", "--candidates", 6)
    assert text_output.splitlines() == [row["text"] for row in rows]
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
        (["--mbr", "ter"], "--mbr: unknown value 'ter'; known: chrf, bleu, comet"),
        (["--mbr", "comet"], comet.MISSING),
    ):
        result = CliRunner().invoke(main, ["decode", "-m", str(run), str(text), *words])
        assert said in result.stderr and (result.exit_code == 2) == bool(said)
