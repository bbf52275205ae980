"""Preparation: outputs, stages that are made again, and errors."""

import copy
import errno
import fcntl
import gzip
import io
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from subword_nmt import apply_bpe

from fusetk.data import binarize, manifest, parallel, preprocess
from fusetk.data import stages as build_module
from fusetk.data.config import DataConfig
from fusetk.data.corpus import Corpus, SentenceWriter, flat
from fusetk.data.parallel import chunks
from fusetk.data.pipeline import Pipeline
from fusetk.data.prepare import PreparedFolder, prepare
from fusetk.data.steps.lowercase import Lowercase
from fusetk.data.text import read_lines
from fusetk.data.vocab import EOS, UNK
from fusetk.errors import ConfigError, DataError

STEPS = [
    {"step": "normalize-punctuation"},
    {"step": "tokenize"},
    {"step": "lowercase"},
    {"step": "filter", "max_length": 30, "max_ratio": 4},
]
ODD = "Ein\u2028Hund\u0085 geht\x0c\tin\0 die Stadt, z.B. um 5 Uhr."


def sentences(seed: int, count: int) -> list[tuple[str, str]]:
    choose = random.Random(seed)
    words = [
        "".join(choose.choice("abcdefghij") for _ in range(choose.randint(1, 7))) for _ in range(60)
    ]
    pairs = []
    for _ in range(count):
        line = [choose.choice(words) for _ in range(choose.randint(1, 9))]
        pairs.append((" ".join(line).capitalize() + ".", ", ".join(reversed(line)).upper() + "!"))
    return pairs


def write(folder: Path, name: str, pairs: list[tuple[str, str]], packed: bool = False) -> None:
    for side, language in enumerate(("de", "en")):
        content = "".join(pair[side] + "\n" for pair in pairs).encode()
        path = folder / f"{name}.{language}"
        if packed:
            Path(f"{path}.gz").write_bytes(gzip.compress(content))
        else:
            path.write_bytes(content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(
        tmp_path,
        "train",
        [*sentences(1, 300), ("", "x"), ("wort " * 40, "word " * 40), ("a", "b " * 9), (ODD, ODD)],
    )
    write(
        tmp_path, "valid", [*sentences(2, 20), ("", ""), (" ", "nothing"), (ODD, "x")], packed=True
    )
    write(tmp_path, "test", [*sentences(3, 10), ("\ufeff", "\r"), ("Ganz unbekannt: qqq", "")])
    return tmp_path


def config(place: Path, /, **more: Any) -> DataConfig:
    values: dict[str, Any] = {
        "source": "de",
        "target": "en",
        "folder": str(place / "out"),
        "train": [str(place / "train")],
        "valid": [str(place / "valid")],
        "test": {"one": [str(place / "test")]},
        "steps": STEPS,
        "bpe": {"merges": 60},
        **more,
    }
    return DataConfig.model_validate(values)


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files except the manifest, which holds times."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def lines(path: Path) -> list[str]:
    return list(read_lines(path, bom=False))


def test_prepared_text_ids_and_counts_agree(folder: Path) -> None:
    manifest = prepare(config(folder))
    out = folder / "out"
    pipeline = Pipeline.load(out / "text")
    train = manifest.splits["train"]
    assert (train["pairs_in"], train["pairs_out"]) == (304, 301)
    assert train["dropped"] == {"empty": 1, "length ratio": 1, "too long": 1}
    for split, name in (("valid", "valid"), ("test.one", "test")):
        corpus = Corpus.open(out, split)
        for side, language, part in (
            ("source", "de", corpus.source),
            ("target", "en", corpus.target),
        ):
            raw = list(read_lines(next(folder.glob(f"{name}.{language}*"))))
            assert lines(out / f"{split}.{language}.raw") == raw
            words = lines(out / f"{split}.{language}.txt")
            assert words == [pipeline.words(side, line) for line in raw]
            vocabulary = pipeline.source_vocab if side == "source" else pipeline.target_vocab
            assert [list(ids) for ids in part] == [
                [*vocabulary.encode(pipeline.subwords(side, line)), EOS] for line in words
            ]
            assert (
                manifest.splits[split][side]["tokens_with_end"]
                == len(part.ids)
                == part.lengths.sum()
            )
            assert manifest.splits[split][side]["tokens"] == len(part.ids) - len(raw)
            assert manifest.splits[split][side]["unknown"] == int((np.asarray(part.ids) == 1).sum())
    assert len(Corpus.open(out, "valid")) == 23
    assert Corpus.open(out, "valid").source[20].tolist() == [EOS]
    with pytest.raises(
        DataError, match=r"does not have the split 'test'; it has train, valid, test\.one"
    ):
        Corpus.open(out, "test")


@pytest.mark.parametrize(("size", "dtype"), [(1 << 16, "<u2"), ((1 << 16) + 1, "<u4")])
def test_ids_have_the_smallest_type_and_are_counted(size: int, dtype: str) -> None:
    ids, offsets = io.BytesIO(), io.BytesIO()
    writer = SentenceWriter(ids, offsets, "de", size)
    writer.write(*flat([[5, UNK, size - 1], [], [5]]), words=3)
    expected = [5, UNK, size - 1, EOS, EOS, 5, EOS]
    assert np.frombuffer(ids.getvalue(), dtype).tolist() == expected
    assert np.frombuffer(offsets.getvalue(), "<i8").tolist() == [0, 4, 5, 7]
    assert writer.summary() == {
        "language": "de",
        "dtype": dtype,
        "sentences": 3,
        "words": 3,
        "tokens": 4,
        "tokens_with_end": 7,
        "types": 2,
        "unknown": 1,
        "unknown_rate": 0.25,
        "longest": 3,
        "largest": size - 1,
    }


@pytest.mark.parametrize("threshold, sides", [(500, 1), (10_000, 2)])
def test_a_threshold_above_all_counts_is_a_warning(
    folder: Path, threshold: int, sides: int
) -> None:
    """As in subword-nmt, an empty vocabulary has no effect."""
    said: list[str] = []
    manifest = prepare(
        config(folder, bpe={"merges": 60, "threshold": threshold}), report=said.append
    )
    warning = (
        f"warning: data.bpe.threshold: {threshold} is above the highest count of a subword of "
    )
    assert sum(line.startswith(warning) for line in said) == sides
    pipeline = Pipeline.load(manifest.folder / "text")
    assert pipeline.join(pipeline.subwords("source", "haus")) == "haus"


@pytest.mark.parametrize("joint", [True, False])
def test_bpe_as_subword_nmt_with_its_threshold(folder: Path, joint: bool) -> None:
    prepare(config(folder, bpe={"merges": 60, "joint": joint, "threshold": 15}))
    out = folder / "out"
    pipeline = Pipeline.load(out / "text")
    for side, language in (("source", "de"), ("target", "en")):
        name = out / "text" / ("bpe.codes" if joint else f"bpe.codes.{language}")
        words = lines(out / "words" / f"train.{language}")
        with open(name, encoding="utf-8", newline="\n") as codes:
            plain = apply_bpe.BPE(codes)
        counts: dict[str, int] = {}
        for token in " ".join(plain.segment(line) for line in words).split():
            counts[token] = counts.get(token, 0) + 1
        with open(name, encoding="utf-8", newline="\n") as codes:
            known = apply_bpe.BPE(codes, vocab={token for token, n in counts.items() if n >= 15})
        assert [" ".join(pipeline.subwords(side, line)) for line in words] == [
            known.segment(line) for line in words
        ]


def test_jobs_change_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [
        {"step": "tokenize"},
        {"step": "deduplicate"},
        {"step": "truecase"},
        {"step": "filter", "max_length": 12},
    ]
    write(folder, "train", sentences(1, 200) + sentences(1, 50) + sentences(5, 100))
    for module in (preprocess, binarize):
        monkeypatch.setattr(module, "chunks", lambda items, size: chunks(items, size, 1000))
    monkeypatch.setattr(parallel, "MIN_ITEMS", 0)
    results = []
    options = {"steps": steps, "valid": {"sample": 30}, "bpe": {"merges": 20, "joint": False}}
    for jobs in (1, 2):
        chosen = config(folder, folder=str(folder / str(jobs)), **options)
        manifest = prepare(chosen, jobs=jobs)
        results.append(
            (contents(folder / str(jobs)), manifest.data["fingerprint"], manifest.splits)
        )
    assert results[0] == results[1]


def test_a_dead_worker_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preprocess, "PairSteps", dying)
    monkeypatch.setattr(parallel, "MIN_ITEMS", 0)
    with pytest.raises(DataError, match="worker processes died"):
        prepare(config(folder), jobs=2)
    assert not (folder / "out" / "manifest.json").exists()


def dying(recipe: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def test_every_nth_line_goes_to_validation(folder: Path) -> None:
    pairs = [(f"wort{i}", f"word{i}") for i in range(100)]
    pairs[4] = ("", "x")  # dropped before the split
    pairs[6] = pairs[5]
    write(folder, "train", pairs)
    write(folder, "more", [(f"mehr{i}", f"more{i}") for i in range(10)])
    both = [str(folder / "train"), str(folder / "more")]
    manifest = prepare(
        config(folder, train=both, valid={"every": 7}, steps=[{"step": "deduplicate"}], bpe=None)
    )
    sentences = [f"wort{i}" for i in range(100) if i not in (4, 6)] + [
        f"mehr{i}" for i in range(10)
    ]
    out = folder / "out"
    assert (
        lines(out / "valid.de.txt")
        == lines(out / "valid.de.raw")
        == [w for i, w in enumerate(sentences, 1) if i % 7 == 0]
    )
    assert lines(out / "words" / "train.de") == [w for i, w in enumerate(sentences, 1) if i % 7]
    assert lines(out / "valid.en.raw")[0] == "word8"
    assert manifest.splits["train"]["dropped"] == {"duplicate": 1, "empty": 1}
    assert manifest.splits["train"]["to_valid"] == len(Corpus.open(out, "valid")) == 15


def test_a_sample_goes_to_validation(folder: Path) -> None:
    chosen = []
    for seed in (1, 1, 2):
        prepare(config(folder, valid={"sample": 40, "seed": seed}), force=True)
        valid, train = (
            lines(folder / "out" / "valid.de.txt"),
            lines(folder / "out" / "words" / "train.de"),
        )
        assert (len(valid), len(train)) == (40, 261)
        chosen.append(valid)
    assert chosen[0] == chosen[1] != chosen[2]
    with pytest.raises(DataError, match=r"has 301 pairs, too few for data\.valid = "):
        prepare(config(folder, valid={"sample": 301}))


def test_truecase_is_learned_after_earlier_steps_and_undone(folder: Path) -> None:
    write(
        folder,
        "train",
        [
            ("Der Hund sieht der Katze nach.", "The dog sees the cat."),
            ("Hund ist Hund.", "A dog is a dog."),
        ]
        * 5,
    )
    manifest = prepare(config(folder, steps=[{"step": "tokenize"}, {"step": "truecase"}], bpe=None))
    pipeline = Pipeline.load(folder / "out" / "text")
    assert pipeline.words("source", "Der Hund &") == "der Hund &amp;"
    assert lines(folder / "out" / "words" / "train.en")[0] == "the dog sees the cat ."
    assert pipeline.raw("the cat isn &apos;t here . the dog is") == "The cat isn't here. The dog is"
    assert manifest.splits["train"]["pairs_out"] == 10


def test_each_side_may_have_its_own_vocabulary_size(folder: Path) -> None:
    size = {"source": 20, "target": 30}
    made = prepare(config(folder, bpe=None, vocabulary={"size": size}))
    assert {side: made.data["vocabulary"][side] for side in size} == size
    made = prepare(config(folder, bpe=None, vocabulary={"size": {"target": 30}}))
    assert made.data["vocabulary"]["source"] > made.data["vocabulary"]["target"] == 30
    with pytest.raises(ValidationError, match="a joint vocabulary has one size"):
        config(folder, vocabulary={"joint": True, "size": size})
    with pytest.raises(ValidationError, match="greater than or equal to 5"):
        config(folder, vocabulary={"size": {"source": 4}})


def test_further_references_of_the_validation_text(folder: Path) -> None:
    values = {"valid": [str(folder / "valid"), str(folder / "test")]}
    first = prepare(config(folder, **values))
    for name, number in (("valid", 23), ("test", 12)):
        for reference in (1, 2):
            text = "".join(f"Reference {reference}, {name} {i}.\n" for i in range(number))
            (folder / f"{name}.en{reference}").write_text(text)
    made = prepare(config(folder, **values, valid_references=3))
    assert "words.valid" in made.made and "words.train" not in made.made
    for reference in (1, 2):
        texts = lines(folder / "out" / f"valid.en{reference}.txt")
        assert len(texts) == len(lines(folder / "out" / "valid.en.txt")) == 35
        assert texts[0] == f"reference {reference} , valid 0 ."
        assert texts[-1] == f"reference {reference} , test 11 ."
        raw = lines(folder / "out" / f"valid.en{reference}.raw")
        assert raw[23] == f"Reference {reference}, test 0."
    assert not prepare(config(folder, **values, valid_references=3)).made
    (folder / "test.en2").write_text("One line.\n" * 12)
    assert "words.valid" in prepare(config(folder, **values, valid_references=3)).made
    (folder / "test.en2").write_text("One line.\n" * 11)
    with pytest.raises(DataError, match=r"12 .*11"):
        prepare(config(folder, **values, valid_references=3))
    (folder / "test.en2").unlink()
    with pytest.raises(DataError, match=r"test\.en2"):
        prepare(config(folder, **values, valid_references=3))
    prepare(config(folder, **values))
    assert not list((folder / "out").glob("valid.en[0-9]*")), "files of old references are deleted"
    assert first.data["fingerprint"] == prepare(config(folder, **values)).data["fingerprint"]
    with pytest.raises(ValidationError, match="name files in"):
        config(folder, valid={"every": 5}, valid_references=2)


def test_the_source_is_not_a_further_reference(folder: Path) -> None:
    with pytest.raises(ValidationError, match="'en1' is the suffix of a further reference of"):
        config(folder, source="en1", target="en")
    assert config(folder, source="en1a", target="en1").target == "en1"


def test_vocabularies_have_the_size_or_the_threshold(folder: Path) -> None:
    joint = prepare(config(folder, bpe=None, vocabulary={"joint": True, "size": 30}))
    assert joint.data["vocabulary"]["source"] == joint.data["vocabulary"]["target"] == 30
    pipeline = Pipeline.load(folder / "out" / "text")
    assert pipeline.source_vocab is pipeline.target_vocab
    assert joint.splits["train"]["source"]["unknown_rate"] > 0
    apart = prepare(config(folder, bpe=None, vocabulary={"threshold": 20}))
    pipeline = Pipeline.load(folder / "out" / "text")
    assert min(pipeline.source_vocab.counts or []) >= 20
    assert len(pipeline.target_vocab) == apart.data["vocabulary"]["target"]


def test_again_with_another_ending_of_a_vocabulary(folder: Path) -> None:
    def made(name: str) -> tuple[list[str], list[str]]:
        vocabulary = {"joint": True, "source": str(folder / name)}
        chosen = config(folder, steps=[], bpe=None, test={}, vocabulary=vocabulary)
        return prepare(chosen).made, Pipeline.load(folder / "out" / "text").source_vocab.tokens[4:]

    (folder / "vocab").write_text("a:\t5\nb:\t4\n")
    assert made("vocab")[1] == ["a:", "b:"]
    (folder / "vocab").rename(folder / "vocab.yml")
    assert made("vocab.yml") == (["vocabulary", "ids.train", "ids.valid"], ["b", "a"])


def test_pairs_of_too_many_subwords_are_dropped(folder: Path) -> None:
    manifest = prepare(config(folder, bpe={"merges": 10, "max_subwords": 25}))
    train = manifest.splits["train"]
    corpus = Corpus.open(folder / "out", "train")
    assert max(corpus.source.lengths.max(), corpus.target.lengths.max()) <= 26
    assert train["dropped"]["too many subwords"] == 301 - len(corpus) > 0
    counts = Pipeline.load(folder / "out" / "text").source_vocab.counts
    assert sum(counts or []) == train["source"]["tokens"]
    everything = prepare(config(folder, bpe={"merges": 10})).splits["train"]
    for side in ("source", "target"):
        tokens = train[side]["tokens_with_end"]
        assert tokens + train["dropped_tokens"][side] == everything[side]["tokens_with_end"]


@pytest.mark.parametrize("dropout", [0, 1])
def test_only_pairs_of_too_many_subwords_are_an_error(folder: Path, dropout: float) -> None:
    write(folder, "train", [("abc", "abc")] * 2)
    longest = 2 if dropout else 1  # merges join two of the three characters, dropout none
    subwords = {"merges": 1, "max_subwords": longest, "dropout": dropout}
    message = f"all 2 training pairs have more than bpe.max_subwords = {longest} subwords; raise"
    with pytest.raises(DataError, match=message):
        prepare(config(folder, steps=[], bpe=subwords))


# Again -------------------------------------------------------------------------------------------


def again(chosen: DataConfig, **options: Any) -> tuple[PreparedFolder, list[str]]:
    said: list[str] = []
    return prepare(chosen, report=said.append, **options), said


def test_again_with_nothing_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(config(folder))
    before = contents(folder / "out")
    monkeypatch.setattr(
        "fusetk.data.manifest.checksum", lambda path: pytest.fail("sizes and times are enough")
    )
    second, said = again(config(folder))
    assert (second.made, said) == ([], [])
    assert second.data == first.data == json.loads((folder / "out" / "manifest.json").read_text())
    monkeypatch.undo()
    os.utime(folder / "train.de")
    os.utime(folder / "out" / "train.de.ids")
    assert again(config(folder))[0].made == []
    forced, said = again(config(folder), force=True)
    assert forced.made == list(first.data["stages"])
    assert said == [f"{name}: made again by --force" for name in forced.made]
    assert contents(folder / "out") == before


@pytest.mark.parametrize(
    ("change", "said", "stages"),
    [
        (
            {"vocabulary": {"size": 40}},
            "vocabulary: vocabulary.size: none -> 40",
            ["vocabulary", "ids.train", "ids.valid", "ids.test.one"],
        ),
        (
            {"bpe": {"merges": 50}},
            "bpe: bpe.merges: 60 -> 50",
            ["bpe", "vocabulary", "ids.train", "ids.valid", "ids.test.one"],
        ),
        (
            {"steps": [*STEPS[:3], {"step": "filter", "max_length": 5}]},
            "words.train: steps.3.max_length: 30 -> 5",
            ["words.train", "bpe", "vocabulary", "ids.train", "ids.valid", "ids.test.one"],
        ),
        (
            {"steps": STEPS[1:]},
            "words.train: steps: ",
            [
                "words.valid",
                "words.test.one",
                "words.train",
                "bpe",
                "vocabulary",
                "ids.train",
                "ids.valid",
                "ids.test.one",
            ],
        ),
        ({"test": {}}, "words.test.one: no longer needed, its files are deleted", []),
    ],
)
def test_again_with_a_changed_setting(
    folder: Path, change: dict[str, Any], said: str, stages: list[str]
) -> None:
    prepare(config(folder))
    manifest, report = again(config(folder, **change))
    assert any(line.startswith(said) for line in report), report
    assert manifest.made == stages
    fresh = prepare(config(folder, folder=str(folder / "fresh"), **change))
    assert contents(folder / "out") == contents(folder / "fresh")
    assert manifest.data["fingerprint"] == fresh.data["fingerprint"]


def test_again_with_a_new_version_of_a_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(config(folder))
    monkeypatch.setattr(Lowercase, "version", 2)
    changed, report = again(config(folder))
    assert changed.made == list(first.data["stages"])
    assert any(line.startswith("words.train: step_versions") for line in report), report
    assert again(config(folder))[0].made == []
    monkeypatch.undo()
    assert again(config(folder))[0].data["fingerprint"] == first.data["fingerprint"]


def test_the_first_version_of_a_step_is_not_in_the_fingerprint(folder: Path) -> None:
    """So folders that were prepared before steps had versions are up to date."""
    settings = prepare(config(folder, steps=STEPS[:3])).data["stages"]["words.train"]["settings"]
    assert settings.keys() == {"source", "target", "steps", "valid", "sacremoses"}


def test_again_with_a_changed_file(folder: Path) -> None:
    prepare(config(folder))
    write(folder, "test", sentences(9, 12))
    manifest, said = again(config(folder))
    assert manifest.made == ["words.test.one", "ids.test.one"]
    assert f"words.test.one: {folder}/test.de changed" in said
    (folder / "out" / "valid.en.ids").write_bytes(b"")
    manifest, said = again(config(folder))
    assert (manifest.made, said) == (
        ["ids.valid"],
        ["ids.valid: valid.en.ids is missing or changed"],
    )


@pytest.mark.parametrize("place", ["binarize.learn_bpe", "os.replace"])
def test_a_killed_prep_continues(folder: Path, place: str) -> None:
    chosen = config(folder)
    code = f"""
import os, signal
from fusetk.data import binarize, preprocess
from fusetk.data.config import DataConfig
from fusetk.data.prepare import prepare
calls = []
def die(*arguments):
    calls.append(arguments)
    if len(calls) > {12 if place == "os.replace" else 0}:  # the records of the stages are the first
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
real, {place} = {place}, die
prepare(DataConfig.model_validate_json({chosen.model_dump_json()!r}))
"""
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(
        DataError, match=r"has no manifest\.json: it is not prepared, or prep was interrupted"
    ):
        Corpus.open(folder / "out", "train")
    manifest, said = again(chosen)
    assert manifest.made[0] == "words.valid"
    continued = [line for line in said if line.endswith(": made before the interruption")]
    assert len(continued) == (8 if place == "os.replace" else 3)
    prepare(config(folder, folder=str(folder / "fresh")))
    assert contents(folder / "out") == contents(folder / "fresh")


@pytest.mark.parametrize("name", ["train.de.ids", ".manifest.json"])
def test_killed_prep_leaves_no_files(folder: Path, name: str) -> None:
    """Files of a prep that is killed while it moves or writes ``name`` are deleted later."""
    prepare(config(folder, bpe={"merges": 60, "dropout": 0.1, "segmentations": 2}))
    second = config(
        folder, bpe={"merges": 60, "joint": False}, test={"two": [str(folder / "test")]}
    )
    code = f"""
import os, signal
from fusetk.data.config import DataConfig
from fusetk.data.prepare import prepare
def die(source, target):
    if {name!r} in str(source):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(source, target)
real, os.replace = os.replace, die
prepare(DataConfig.model_validate_json({second.model_dump_json()!r}))
"""
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGKILL
    prepare(config(folder))
    prepare(config(folder, folder=str(folder / "fresh")))
    assert contents(folder / "out") == contents(folder / "fresh")


def test_a_prep_that_fails_keeps_the_old_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(config(folder))
    before = contents(folder / "out")
    building = folder / "out" / build_module.BUILDING
    with monkeypatch.context() as patch:
        patch.setattr(binarize, "make_vocabularies", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(config(folder, bpe={"merges": 7}))
    complete = {f"{building.name}/{name}" for name in contents(building)}
    assert f"{building.name}/words/bpe.codes" in complete
    assert {k: v for k, v in contents(folder / "out").items() if k not in complete} == before
    assert len(Corpus.open(folder / "out", "train")) == 301
    assert again(config(folder))[0].made == []  # the old config needs nothing of the new one
    assert contents(folder / "out") == before


@pytest.mark.parametrize("change", ["nothing", "text", "setting", "output", "records"])
def test_an_interrupted_prep_continues(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Complete stages are kept, unless their inputs, settings or outputs changed since then."""
    with monkeypatch.context() as patch:
        patch.setattr(binarize, "make_vocabularies", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(config(folder))
    merges, building = 60, folder / "out" / build_module.BUILDING
    if change == "text":
        write(folder, "train", sentences(300, 5))
    elif change == "setting":
        merges = 7
    elif change == "output":
        (building / "words" / "train.en").write_text("damaged\n", encoding="utf-8")
    elif change == "records":
        (building / build_module.RECORDS).write_text("{}", encoding="utf-8")
    chosen = config(folder, bpe={"merges": merges})
    said = again(chosen)[1]
    continued = [line.split(":")[0] for line in said if "before the interruption" in line]
    texts = ["words.valid", "words.test.one", "words.train"]
    expected = {
        "nothing": [*texts, "bpe"],
        "text": texts[:2],
        "setting": texts,
        "output": [*texts[:2], "bpe"],
        "records": [],
    }
    assert continued == expected[change]
    prepare(chosen.model_copy(update={"folder": str(folder / "fresh")}))
    assert contents(folder / "out") == contents(folder / "fresh")
    assert not building.exists()


VALID = ["every", "files", "other files"]


# Each pair of two choices occurs.
@pytest.mark.parametrize(
    ("first", "second", "third"),
    [
        (first, VALID[j], VALID[(i + j) % 3])
        for (i, first), j in itertools.product(enumerate([*VALID[:2], None]), range(3))
    ],
)
def test_an_interruption_with_other_validation_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch, first: str | None, second: str, third: str
) -> None:
    """Two stages write the validation text, words.valid or words.train: it is never mixed."""
    write(folder, "more", sentences(6, 15))
    valid: dict[str, Any] = {"every": {"every": 5}, "files": [str(folder / "valid")]}
    valid["other files"] = [str(folder / "more")]
    if first is not None:
        prepare(config(folder, valid=valid[first], bpe={"merges": 5}, test={}))
    with monkeypatch.context() as patch:
        patch.setattr(binarize, "make_vocabularies", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(config(folder, valid=valid[second], bpe={"merges": 9}, test={}))
    chosen = config(folder, valid=valid[third], bpe={"merges": 7}, test={})
    prepare(chosen)
    prepare(chosen.model_copy(update={"folder": str(folder / "fresh")}))
    assert contents(folder / "out") == contents(folder / "fresh")


# Refused -----------------------------------------------------------------------------------------


def test_a_second_prep_at_the_same_time_is_refused(folder: Path) -> None:
    prepare(config(folder))
    with open(folder / "out" / build_module.LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another fusetk prep is running"):
            prepare(config(folder))
    assert prepare(config(folder)).made == []


@pytest.mark.parametrize("has_lock", [True, False])
def test_a_folder_that_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, has_lock: bool
) -> None:
    """An up-to-date folder is used, and another one is an error before the work."""
    prepare(config(folder))
    lock_file = folder / "out" / build_module.LOCK
    if not has_lock:
        lock_file.unlink()
    before = {path: path.read_bytes() for path in (folder / "out").rglob("*") if path.is_file()}
    make_folder, open_file = Path.mkdir, os.open

    def mkdir(path: Path, *arguments: Any, **options: Any) -> None:
        if not path.exists():
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        make_folder(path, *arguments, **options)

    def open_to_read(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return open_file(path, flags, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(os, "open", open_to_read)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert prepare(config(folder)).made == []
    os.utime(folder / "train.de")  # another record of the same text
    assert prepare(config(folder)).made == []
    reported: list[str] = []
    with pytest.raises(DataError, match="cannot be written: Read-only file system"):
        prepare(config(folder, steps=[]), report=reported.append)
    assert reported == []
    assert before == {
        path: path.read_bytes() for path in (folder / "out").rglob("*") if path.is_file()
    }
    with pytest.raises(DataError, match="new cannot be written: Read-only file system"):
        prepare(config(folder, folder=str(folder / "new")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"train\.de is empty"),
        (b"a\nb\xff\n", r"train\.de, line 2: byte 0xff at offset 1"),
        ("a\n\u00e4".encode()[:-1], r"train\.de, line 2: byte 0xc3 at offset 0"),
        (b"a\n" * 303, r"train\.de has 303 lines and .*train\.en has 304"),
        (b"\n" * 304, r"all 304 training pairs were dropped \(304 empty\)"),
    ],
)
def test_bad_training_text_is_refused(folder: Path, content: bytes, message: str) -> None:
    (folder / "train.de").write_bytes(content)
    with pytest.raises(DataError, match=message):
        prepare(config(folder))
    assert not (folder / "out" / "manifest.json").exists()


def test_wrong_names_and_steps_are_refused(folder: Path) -> None:
    with pytest.raises(
        DataError, match=r"neither .*trian\.de nor trian\.de\.gz exists; did you mean train\.de"
    ):
        prepare(config(folder, train=[str(folder / "trian")]))
    with pytest.raises(DataError, match="cannot be written: "):
        prepare(config(folder, folder=str(folder / "train.de" / "out")))
    with pytest.raises(ConfigError, match="are both 'de'"):
        prepare(config(folder, target="de"))
    with pytest.raises(ConfigError, match="truecase occurs twice"):
        prepare(
            config(folder, steps=[{"step": "truecase"}, {"step": "truecase", "side": "source"}])
        )


@pytest.mark.parametrize("kind", ["train", "vocabulary", "codes"])
def test_an_input_in_the_prepared_folder_is_refused(folder: Path, kind: str) -> None:
    chosen = config(folder)
    prepare(chosen)
    before = contents(Path(chosen.folder))
    inside = f"{chosen.folder}/text/vocab.{chosen.source}"
    changes: dict[str, dict[str, Any]] = {
        "train": {"train": [f"{chosen.folder}/words/train"]},
        "vocabulary": {"vocabulary": {"source": inside, "extend": True}},
        "codes": {"bpe": {"codes": [f"{chosen.folder}/text/bpe.codes"]}},
    }
    changed = DataConfig.model_validate({**chosen.model_dump(), **changes[kind]})
    with pytest.raises(ConfigError, match=r"is in data\.folder .*, where prep may replace it"):
        prepare(changed)
    assert contents(Path(chosen.folder)) == before


@pytest.mark.parametrize("name", ["", " ", "a/b", "a\\b", "a\tb", "a\x1b[31m"])
def test_names_of_test_sets_are_names_of_files_that_can_be_printed(folder: Path, name: str) -> None:
    chosen = config(folder)
    with pytest.raises(ConfigError, match="cannot be the name of a test set") as caught:
        prepare(chosen.model_copy(update={"test": {name: chosen.train}}))
    assert str(caught.value).isprintable()
    assert not Path(chosen.folder).exists()


def test_a_test_set_has_text(folder: Path) -> None:
    chosen = config(folder)
    with pytest.raises(ConfigError, match=r"data\.test\.news is an empty list"):
        prepare(chosen.model_copy(update={"test": {"news": []}}))


@pytest.mark.parametrize("bpe", [None, {"merges": 10}])
def test_a_text_of_subwords_is_warned_of(folder: Path, bpe: object) -> None:
    source, target = folder / "train.de", folder / "train.en"
    lines = source.read_text().splitlines()
    source.write_text("".join(f"un@@ {line}\n" for line in lines))
    target.write_text("".join(f"\u2581{line}\n" for line in target.read_text().splitlines()))
    said: list[str] = []
    for _ in range(2):  # also if nothing is made
        prepare(config(folder, bpe=bpe), report=said.append)
        [first, second] = [line for line in said if "split into subwords" in line]
        assert re.match(rf"warning: \d+ % of the tokens of {source} end in @@: the text", first)
        assert "such as the output of fusetk text remove-bpe, and name the codes" in first
        assert re.match(rf"warning: \d+ % of the tokens of {target} begin with \u2581: ", second)
        assert second.endswith("give the text without subwords, and use the step sentencepiece")
        said.clear()
    source.write_text("".join(f"{line}\n" for line in [*lines * 20, "un@@ ab"]))
    target.write_text("".join(f"x {i}\n" for i in range(20 * len(lines) + 1)))
    prepare(config(folder, bpe=bpe), report=said.append)
    assert not any("subwords" in line for line in said if line.startswith("warning")), said


def test_equal_texts_are_warned_of(folder: Path) -> None:
    chosen = config(folder)
    for language in (chosen.source, chosen.target):
        shutil.copy(f"{chosen.train[0]}.{chosen.source}", folder / f"same.{language}")
        with gzip.open(folder / f"compressed.{language}.gz", "wb") as file:
            file.write(Path(f"{chosen.train[0]}.{language}").read_bytes())
    warnings: list[str] = []
    tests = {name: [str(folder / name)] for name in ("same", "compressed")}
    held_out = {"valid": chosen.train, "test": tests}
    prepare(chosen.model_copy(update=held_out), report=warnings.append)
    said = [line for line in warnings if line.startswith("warning: ")]
    assert [line.partition("; ")[2] for line in said] == [
        "check data.valid",
        "check data.test.same",
        "check data.test.compressed",
    ]
    assert "equal the training text" in said[0] and "have the same content" in said[1]
    assert "equal the training text" in said[2]
    with_copy = chosen.model_copy(update={"test": {"copy": chosen.train}})
    prepare(with_copy, report=warnings.append)
    assert any("check data.test.copy" in line for line in warnings)
    warnings.clear()
    prepare(chosen.model_copy(update={"test": {}}), report=warnings.append)
    assert not any("check data.test.copy" in line for line in warnings)
    warnings.clear()
    prepare(chosen, report=warnings.append)
    assert not any(line.startswith("warning: ") for line in warnings)


def test_a_validation_text_that_is_a_test_text_is_warned_of(folder: Path) -> None:
    chosen = config(folder)
    assert isinstance(chosen.valid, list)
    tests = {**chosen.test, "copy": [str(folder / "copy")], "valid.again": chosen.valid}
    for language in (chosen.source, chosen.target):
        with gzip.open(f"{chosen.valid[0]}.{language}.gz") as file:
            (folder / f"copy.{language}").write_bytes(file.read())
    said: list[str] = []
    prepare(chosen.model_copy(update={"test": tests}), report=said.append)
    warnings = [line for line in said if line.startswith("warning: ")]
    assert [line.rpartition("; ")[2] for line in warnings] == [
        "check data.valid and data.test.copy",
        "check data.valid and data.test.valid.again",
    ]
    assert "copy.en equal the validation text" in warnings[0]
    assert "training selects the best checkpoint on a test text" in warnings[0]


def test_equal_texts_are_warned_of_after_a_record_without_the_content(folder: Path) -> None:
    """Earlier versions did not record the content of .gz files."""
    for language in ("de", "en"):
        with gzip.open(folder / f"text.{language}.gz", "wb") as file:
            file.write((folder / f"train.{language}").read_bytes())
    chosen = config(folder, train=[str(folder / "text")])
    path = prepare(chosen).folder / "manifest.json"
    old = json.loads(path.read_text())
    assert all(
        record.pop("content", None) for name, record in old["inputs"].items() if "gz" in name
    )
    path.write_text(json.dumps(old))
    for language in ("de", "en"):
        shutil.copy(folder / f"text.{language}.gz", folder / f"copy.{language}.gz")
    said: list[str] = []
    tests = {"copy": [str(folder / "copy")]}
    prepare(chosen.model_copy(update={"test": tests}), report=said.append)
    assert any("equal the training text" in line for line in said)


def test_a_language_may_be_called_lines(folder: Path) -> None:
    for name in ("train", "test"):
        (folder / f"{name}.de").rename(folder / f"{name}.lines")
    prepared = prepare(config(folder, source="lines", valid={"every": 10}))
    assert prepared.data["splits"]["valid"]["source"]["language"] == "lines"


def test_many_unknown_tokens_are_warned_of(folder: Path) -> None:
    said: list[str] = []
    chosen = config(folder, bpe=None, vocabulary={"threshold": 60})
    for _ in range(2):  # also if nothing is made
        prepare(chosen, report=said.append)
        for side in ("source", "target"):
            for split in ("train", "valid"):
                expected = rf"warning: \d+ % of the {side} tokens of data\.{split} are not in the"
                assert sum(bool(re.match(expected, line)) for line in said) == 1
        said.clear()
    prepare(config(folder), report=said.append)
    assert not any(line.startswith("warning: ") for line in said)


def test_a_vocabulary_of_special_tokens_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="the source vocabulary has only the special tokens"):
        prepare(config(folder, vocabulary={"threshold": 1_000_000}))


def test_a_validation_text_of_blank_lines_is_refused(folder: Path) -> None:
    chosen = config(folder)
    (folder / f"blank.{chosen.source}").write_text("ein Haus\n")
    (folder / f"blank.{chosen.target}").write_text(" \n")
    reported: list[str] = []
    with pytest.raises(DataError, match=f"the validation text has no word in {chosen.target}"):
        prepare(
            chosen.model_copy(update={"valid": [str(folder / "blank")]}), report=reported.append
        )
    names = [path.name for path in (folder / "out").rglob("*") if path.is_file()]
    assert not reported and not any("train" in name for name in names), names


def test_only_the_target_of_a_test_text_may_be_blank(folder: Path) -> None:
    chosen = config(folder, test={"blank": [str(folder / "blank")]})
    blank, words = (folder / f"blank.{side}" for side in (chosen.target, chosen.source))
    blank.write_text(" \n")
    words.write_text("ein Haus\n")
    prepare(chosen)
    words.write_text(" \n")
    with pytest.raises(DataError, match=r"test text has no word in .*: check data\.test\.blank$"):
        prepare(chosen)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_an_error(folder: Path) -> None:
    (folder / "out").mkdir(mode=0o500)
    with pytest.raises(DataError, match="cannot be written: Permission denied"):
        prepare(config(folder))


def test_a_lost_file_is_named(folder: Path) -> None:
    prepare(config(folder))
    path = folder / "out" / "train.de.ids"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(
        DataError, match=r"train\.de\.ids has \d+ bytes instead of \d+; run fusetk prep again"
    ):
        Corpus.open(folder / "out", "train")


@pytest.mark.parametrize("content", ["{", '{"format": 1}'])
def test_a_folder_with_a_damaged_manifest_is_prepared_again(folder: Path, content: str) -> None:
    prepare(config(folder))
    (folder / "out" / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=r"manifest\.json is damaged"):
        Corpus.open(folder / "out", "train")
    assert prepare(config(folder)).made


@pytest.mark.parametrize(
    "place",
    [
        *(("settings",), ("vocabulary",), ("splits",), ("inputs",), ("stages",)),
        *(("splits", "train"), ("splits", "valid", "target"), ("stages", "ids.train")),
        ("stages", "words.train", "inputs"),
        ("stages", "vocabulary", "outputs", "text/vocab.de"),
    ],
    ids=lambda place: "-".join(place),
)
def test_an_incomplete_manifest_is_damaged(
    toy: Path, tmp_path: Path, place: tuple[str, ...]
) -> None:
    data = manifest.read(toy.parent / "prepared")
    for value in ([], None):
        document = copy.deepcopy(data)
        section = document
        for name in place[:-1]:
            section = section[name]
        assert place[-1] in section
        section[place[-1]] = value
        manifest.write(tmp_path, document)
        with pytest.raises(DataError, match=r"manifest\.json is damaged; run fusetk prep again$"):
            manifest.read(tmp_path)


@pytest.mark.parametrize("content", ['{"name": "my web app"}', "// mine\n{}"])
def test_a_foreign_folder_with_a_manifest_is_left_alone(folder: Path, content: str) -> None:
    out = folder / "out"
    (out / "text").mkdir(parents=True)
    (out / "manifest.json").write_text(content)
    (out / "text" / "vocab.de").write_text("mine")
    with pytest.raises(DataError, match="was not made by fusetk prep"):
        prepare(config(folder))
    assert (out / "text" / "vocab.de").read_text() == "mine"
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "text"]


def test_ids_are_those_of_the_counted_words(folder: Path) -> None:
    """Line ends of several systems and byte order marks within the text change no word."""
    for language in ("de", "en"):
        text = b"x\n\xef\xbb\xbfa b\r\r\nc d\r\r\n\r\r\n" if language == "de" else b"\n1\n2\n3\n"
        (folder / f"train.{language}").write_bytes(text)
    settings: dict[str, Any] = {"steps": [], "bpe": None}
    prepare(config(folder, **settings))
    corpus = Corpus.open(folder / "out", "train")
    assert len(corpus) == 2
    assert UNK not in np.concatenate([corpus.source[i] for i in range(2)])


def test_carriage_returns_at_the_end_of_a_line_are_dropped(folder: Path) -> None:
    (folder / "train.de").write_bytes(b"a \r \r \nb\r c\n\r \n")
    (folder / "train.en").write_bytes(b"1\n2\n3\n")
    settings: dict[str, Any] = {"steps": [], "bpe": None}
    assert prepare(config(folder, **settings)).splits["train"]["dropped"] == {"empty": 1}
    pipeline = Pipeline.load(folder / "out" / "text")
    words = [pipeline.words("source", line) for line in ("a \r \r ", "b\r c")]
    assert words == ["a", "b\r c"]
    assert [ids.tolist() for ids in Corpus.open(folder / "out", "train").source] == [
        [*pipeline.source_vocab.encode(line.split(" ")), EOS] for line in words
    ]
