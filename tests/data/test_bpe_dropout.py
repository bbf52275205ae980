"""BPE dropout: random segmentations have the distribution of the paper, and prep writes them."""

import json
import math
import random
from collections import Counter
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fusetk.data import binarize, bpe, bpe_dropout, parallel
from fusetk.data.bpe import BPE
from fusetk.data.bpe_dropout import DropoutBPE, possible_subwords
from fusetk.data.config import BPEConfig, DataConfig
from fusetk.data.corpus import Corpus, Sentences
from fusetk.data.encode import SideEncoder
from fusetk.data.parallel import chunks
from fusetk.data.pipeline import SIDES, Pipeline
from fusetk.data.prepare import PreparedFolder, prepare
from fusetk.data.text import read_lines
from fusetk.data.vocab import EOS, UNK
from fusetk.errors import DataError
from tests.data.test_bpe import codes_of_version_0_1

SAMPLES = 3000
Merges = dict[tuple[str, str], int]


def words_of(letters: str, number: int = 60, longest: int = 7) -> list[str]:
    choose = random.Random(4)
    return ["".join(choose.choices(letters, k=choose.randint(1, longest))) for _ in range(number)]


def codes_of(letters: str, version: str = "0.2", threshold: int = 0) -> BPE:
    words = Counter(words_of(letters))
    codes = bpe.learn(words, 25)
    if version == "0.1":
        codes = codes_of_version_0_1(codes)
    if not threshold:
        return BPE(codes)
    counts = bpe.count_subwords(words, BPE(codes))
    return BPE(codes, {token: n for token, n in counts.items() if n >= threshold})


def segmentations(symbols: tuple[str, ...], merges: Merges, p: float) -> dict[Any, float]:
    """Return the probability of each segmentation by Algorithm 1 of the paper."""
    possible = [i for i, pair in enumerate(pairwise(symbols)) if pair in merges]
    total: Counter[tuple[str, ...]] = Counter()
    for left_out in product((False, True), repeat=len(possible)):
        share = math.prod(p if out else 1 - p for out in left_out)
        remaining = [i for i, out in zip(possible, left_out, strict=True) if not out]
        if not remaining:
            total[symbols] += share  # type: ignore[assignment]
            continue
        best = min(merges[symbols[i], symbols[i + 1]] for i in remaining)
        merged: list[str] = []
        i = 0
        while i < len(symbols):
            if i in remaining and merges[symbols[i], symbols[i + 1]] == best:
                merged.append(symbols[i] + symbols[i + 1])
                i += 2
            else:
                merged.append(symbols[i])
                i += 1
        for result, probability in segmentations(tuple(merged), merges, p).items():
            total[result] += share * probability  # type: ignore[assignment]
    return total


def distribution(codes: BPE, word: str, p: float) -> dict[str, float]:
    """Return the probability of each list of subwords of a word."""
    total: dict[str, float] = {}
    for symbols, probability in segmentations(tuple(codes.symbols(word)), codes.merges, p).items():
        subwords = codes.subwords(list(symbols)) if len(word) > 1 else word
        total[subwords] = total.get(subwords, 0) + probability
    return total


@pytest.mark.parametrize("p", [0.1, 0.6])
@pytest.mark.parametrize("letters", ["a", "ab", "abcd"])
def test_segmentations_are_as_frequent_as_in_the_paper(letters: str, p: float) -> None:
    codes = codes_of(letters)
    words = sorted(set(words_of(letters)), key=lambda word: (len(word), word))[-5:]
    split = DropoutBPE(codes, p)
    samples: dict[str, Counter[str]] = {word: Counter() for word in words}
    for i in range(SAMPLES):
        split.start(f"line {i}")
        for word in words:
            samples[word][split.word(word)] += 1
    for word in words:
        expected = distribution(codes, word, p)
        assert set(samples[word]) <= set(expected)
        for subwords, probability in expected.items():
            deviation = math.sqrt(probability * (1 - probability) / SAMPLES)
            frequency = samples[word][subwords] / SAMPLES
            assert abs(frequency - probability) < 4.5 * deviation + 1 / SAMPLES, (word, subwords)


@pytest.mark.parametrize("threshold", [0, 6])
@pytest.mark.parametrize("version", ["0.2", "0.1"])
def test_possible_subwords_are_those_of_all_segmentations(version: str, threshold: int) -> None:
    for letters in ("ab", "abcd"):
        codes = codes_of(letters, version, threshold)
        for word in words_of(letters, 30, 5):
            expected = {
                subword
                for subwords in distribution(codes, word, 0.5)
                for subword in subwords.split(" ")
            }
            possible = Counter(possible_subwords(codes, word))
            assert set(possible) == expected
            plain = Counter(codes.line(word).split(" "))
            assert all(possible[subword] >= number for subword, number in plain.items())


@pytest.mark.parametrize("version", ["0.2", "0.1"])
def test_no_dropout_is_bpe_and_full_dropout_gives_characters(version: str) -> None:
    codes = codes_of("abcd", version)
    words = [*words_of("abcdz"), "abcd" * 40]
    line = " ".join(words)
    for p in (0.0, 5e-324, 1.0):
        split = DropoutBPE(codes, p)
        split.start("0")
        expected = codes.line(line) if p < 1 else " ".join("@@ ".join(word) for word in words)
        assert split.line(line) == expected


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_cache_changes_nothing(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = codes_of("abc")
    lines = [" ".join(random.Random(i).sample(words_of("abc", longest=20), 8)) for i in range(40)]
    results = []
    for gaps, length in ((2, 100), (0, 100), (50, 100), (2, 5), (2, 0)):
        monkeypatch.setattr(bpe_dropout, "CACHED_GAPS", gaps)
        monkeypatch.setattr(bpe_dropout, "MAX_CHARACTERS", length)
        split = DropoutBPE(codes, p)
        text = []
        for i, line in enumerate(lines):
            split.start(str(i))
            text.append(split.line(line))
        results.append(text)
        assert [bpe.join(line) for line in text] == lines
    assert all(result == results[0] for result in results)


def test_a_very_long_word_is_split() -> None:
    codes = codes_of("abcd")
    word = "".join(random.Random(1).choices("abcd", k=20_000))
    split = DropoutBPE(codes, 0.1)
    split.start("0")
    subwords = split.line(word)
    assert bpe.join(subwords) == word != subwords
    assert len(list(possible_subwords(codes, word))) > 20_000


def test_an_equal_subword_is_made_only_once() -> None:
    """Otherwise, the time for a long word grows with the lengths of all its subwords."""
    lengths = [2**k for k in range(10)]
    codes = BPE(["#version: 0.2", *("a" * length + " " + "a" * length for length in lengths)])
    possible = list(possible_subwords(codes, "a" * 2000 + "b"))
    places = {2 * length + len("@@"): 2001 - 2 * length for length in lengths}
    assert Counter(map(len, possible)) == {len("a@@"): 2000, len("b"): 1, **places}
    assert len(set(map(id, possible))) == len(set(possible))


# Preparation -------------------------------------------------------------------------------------


def write_text(folder: Path) -> None:
    choose = random.Random(2)
    words = [*words_of("abcdefgh", 50, 8), "a\u2028b\u00a0", "\x85"]
    for name, number in (("train", 120), ("more", 30), ("valid", 8)):
        for language in ("de", "en"):
            lines = (
                " ".join(choose.choices(words, k=choose.randint(0, 9))) + " x" + language
                for _ in range(number)
            )
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{name}.{language}").write_text(text.replace("  ", " "), encoding="utf-8")


def prepared(folder: Path, out: str, jobs: int = 1, **keys: Any) -> PreparedFolder:
    """Prepare the text with these keys of `data.bpe`; other keys are in `data`."""
    data = {key: keys.pop(key) for key in ("vocabulary",) if key in keys}
    values = {
        "source": "de",
        "target": "en",
        "folder": str(folder / out),
        "train": [str(folder / "train"), str(folder / "more")],
        "valid": [str(folder / "valid")],
        "test": {"one": [str(folder / "valid")]},
        "bpe": {"merges": 60, **({"segmentations": 3} if keys.get("dropout") else {}), **keys},
        **data,
    }
    return prepare(DataConfig.model_validate(values), jobs=jobs)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_text(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }


def words_of_side(pipeline: Pipeline, corpus: Corpus, side: str) -> list[str]:
    vocabulary = pipeline.source_vocab if side == "source" else pipeline.target_vocab
    sentences: Sentences = getattr(corpus, side)
    return [pipeline.join(vocabulary.decode(ids.tolist())) for ids in sentences]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"joint": False},
        {"threshold": 9},
        {"vocabulary": {"joint": True}},
        {"joint": False, "threshold": 9, "vocabulary": {"joint": True}},
    ],
)
def test_prepared_segmentations(folder: Path, keys: dict[str, Any]) -> None:
    """Their words are those of the text, no subword is unknown, and other text is as before."""
    plain = prepared(folder, "plain", **keys)
    manifest = prepared(folder, "out", dropout=0.3, **keys)
    before, after = contents(plain.folder), contents(manifest.folder)
    same = {name for name in before if not name.startswith("text/vocab")} - {"text/pipeline.json"}
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    old, pipeline = Pipeline.load(plain.folder / "text"), Pipeline.load(manifest.folder / "text")
    corpus = Corpus.open(manifest.folder, "train")
    assert (
        len(corpus.segmentations) == 3 and not Corpus.open(manifest.folder, "valid").segmentations
    )
    for side, language in zip(SIDES, ("de", "en"), strict=True):
        tokens = getattr(pipeline, f"{side}_vocab").tokens
        old_tokens = getattr(old, f"{side}_vocab").tokens
        assert tokens[: len(old_tokens)] == old_tokens
        lines = list(read_lines(manifest.folder / "words" / f"train.{language}"))
        texts = [getattr(part, side).ids.tolist() for part in corpus.segmentations]
        for part in corpus.segmentations:
            assert words_of_side(pipeline, part, side) == lines
            assert UNK not in getattr(part, side).ids
        assert len({tuple(ids) for ids in texts}) == 3
        counts = manifest.splits["train"]["segmentations"]
        assert [count[side]["tokens"] for count in counts] == [
            len(ids) - ids.count(EOS) for ids in texts
        ]
        assert min(map(len, texts)) > len(getattr(corpus, side).ids)


def test_a_probability_of_1_gives_characters(folder: Path) -> None:
    manifest = prepared(folder, "out", dropout=1, segmentations=1)
    corpus = Corpus.open(manifest.folder, "train").of_epoch(5)
    vocabulary = Pipeline.load(manifest.folder / "text").source_vocab
    for line, ids in zip(read_lines(folder / "out/words/train.de"), corpus.source, strict=True):
        expected = [token for word in line.split(" ") for token in "@@ ".join(word).split(" ")]
        assert vocabulary.decode(ids.tolist()) == expected


def test_segmentations_depend_only_on_seed_number_and_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = contents(prepared(folder, "first", dropout=0.2).folder)
    prepared(folder, "jobs", dropout=0.1)  # so that only the ids of the training text are made
    monkeypatch.setattr(binarize, "chunks", lambda items, size: chunks(items, size, 500))
    monkeypatch.setattr(parallel, "MIN_ITEMS", 0)
    manifest = prepared(folder, "jobs", jobs=2, dropout=0.2)
    assert manifest.made == ["ids.train"] and contents(manifest.folder) == first
    longer = contents(prepared(folder, "longer", dropout=0.2, segmentations=5).folder)
    assert {name: longer[name] for name in first} == first
    other = contents(prepared(folder, "other", dropout=0.2, seed=2).folder)
    changed = {name for name in first if first[name] != other[name]}
    assert changed == {
        f"train.{number}.{language}.{kind}"
        for number in (1, 2, 3)
        for language in ("de", "en")
        for kind in ("ids", "offsets")
    }


def test_equal_lines_at_other_places_have_other_segmentations(folder: Path) -> None:
    manifest = prepared(folder, "out", dropout=0.3)
    pipeline = Pipeline.load(manifest.folder / "text")
    words = next(iter(read_lines(manifest.folder / "words" / "train.de"))).split(" ") * 9
    config = BPEConfig(merges=60, dropout=0.3, segmentations=3)
    encode = SideEncoder(pipeline, "source", config)
    assert encode(words, 1) == encode(words, 1)
    assert len({tuple(ids) for line in (1, 2) for ids in encode(words, line)[1:]}) == 6


def test_stages_that_dropout_changes(folder: Path) -> None:
    assert len(prepared(folder, "out").made) == 8
    vocabulary_and_ids = ["vocabulary", "ids.train", "ids.valid", "ids.test.one"]
    assert prepared(folder, "out", dropout=0.1).made == vocabulary_and_ids
    assert prepared(folder, "out", dropout=0.1).made == []
    assert prepared(folder, "out", dropout=0.2).made == ["ids.train"]
    assert prepared(folder, "out", dropout=0.2, segmentations=1).made == ["ids.train"]
    assert not (folder / "out/train.2.de.ids").exists()
    assert prepared(folder, "out").made == vocabulary_and_ids
    assert contents(folder / "out") == contents(prepared(folder, "new").folder)


def test_a_pair_is_dropped_if_one_segmentation_is_too_long(folder: Path) -> None:
    everything = Corpus.open(prepared(folder, "all", dropout=0.3).folder, "train")
    parts = (everything, *everything.segmentations)
    longest = [
        max(int(side.lengths[i]) - 1 for part in parts for side in (part.source, part.target))
        for i in range(len(everything))
    ]
    limit = sorted(longest)[len(longest) // 2]
    manifest = prepared(folder, "out", dropout=0.3, max_subwords=limit)
    corpus = Corpus.open(manifest.folder, "train")
    assert len(corpus) == sum(length <= limit for length in longest) < len(everything)
    split = manifest.splits["train"]
    assert split["dropped"] == {"too many subwords": len(everything) - len(corpus)}
    assert [part["pairs"] for part in split["corpora"]] == [
        sum(length <= limit for length in part) for part in (longest[:120], longest[120:])
    ]
    vocabulary = Pipeline.load(folder / "all" / "text").target_vocab
    new_vocabulary = Pipeline.load(folder / "out" / "text").target_vocab
    for before, after in zip(everything.segmentations, corpus.segmentations, strict=True):
        short = [ids for ids, n in zip(before.target, longest, strict=True) if n <= limit]
        assert [new_vocabulary.decode(ids.tolist()) for ids in after.target] == [
            vocabulary.decode(ids.tolist()) for ids in short
        ]


def test_epochs_read_the_segmentations_in_turn(folder: Path) -> None:
    corpus = Corpus.open(prepared(folder, "out", dropout=0.3).folder, "train")
    for epoch in range(7):
        ids = corpus.of_epoch(epoch).source.ids.tolist()
        assert ids == corpus.segmentations[epoch % 3].source.ids.tolist()
    assert [variant.source.name for variant in corpus.variants()] == [
        str(folder / f"out/train.{number}.de.ids") for number in (1, 2, 3)
    ]
    plain = Corpus.open(prepared(folder, "plain").folder, "train")
    assert plain.of_epoch(4) is plain and list(plain.variants()) == [plain]


def test_a_damaged_segmentation_is_an_error(folder: Path) -> None:
    out = prepared(folder, "out", dropout=0.3).folder
    (out / "train.2.en.ids").unlink()
    with pytest.raises(DataError, match=r"train\.2\.en\.ids cannot be read"):
        Corpus.open(out, "train")
    path = out / "manifest.json"
    content = path.read_text(encoding="utf-8")
    for place, value in (
        (("segmentations", 1, "source"), {}),
        (("corpora", 0, "pairs"), 3),  # not the number of pairs
        (("corpora", 0), {}),
    ):
        document = json.loads(content)
        record = document["splits"]["train"]
        for key in place[:-1]:
            record = record[key]
        record[place[-1]] = value
        path.write_text(json.dumps(document), encoding="utf-8")
        with pytest.raises(DataError, match=r"manifest\.json is damaged"):
            Corpus.open(out, "train")


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"dropout": 1.1}, "less than or equal to 1"),
        ({"dropout": -0.1}, "greater than or equal to 0"),
        ({"dropout": math.nan}, "finite number"),
        ({"segmentations": 0}, "greater than or equal to 1"),
    ],
)
def test_wrong_settings_are_refused(folder: Path, keys: dict[str, Any], error: str) -> None:
    with pytest.raises(ValidationError, match=error):
        prepared(folder, "out", **keys)


def test_dropout_needs_bpe(folder: Path) -> None:
    values = {"source": "de", "target": "en", "folder": "x", "train": ["x"], "valid": ["x"]}
    step = {"step": "sentencepiece", "size": 100}
    with pytest.raises(ValidationError, match="sentencepiece splits words into subwords"):
        DataConfig.model_validate({**values, "steps": [step], "bpe": {"merges": 9, "dropout": 0.1}})
    with pytest.raises(ValidationError, match="give one of merges"):
        DataConfig.model_validate({**values, "bpe": {"dropout": 0.1}})
