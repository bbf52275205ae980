"""Training refuses prepared files that do not match, before it writes anything."""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fusetk import sections
from fusetk import train as train_module
from fusetk.cli.main import main
from fusetk.data import integrity, manifest
from fusetk.data.batch import collate
from fusetk.data.config import BPEConfig
from fusetk.data.corpus import Corpus, Sentences
from fusetk.data.pipeline import Pipeline
from fusetk.data.prepare import prepare
from fusetk.data.vocab import EOS
from fusetk.errors import ConfigError, DataError
from fusetk.recipe import Recipe, load
from fusetk.resume import check_config
from fusetk.training.validation import Validator


@pytest.fixture
def recipe(toy: Path, tmp_path: Path) -> Recipe:
    """The toy task with BPE, in a folder that the test may change."""
    made = load(toy, [f"data.folder={tmp_path / 'prepared'}", "data.bpe={merges: 30}"])
    prepare(made.data)
    return made


def folder(recipe: Recipe) -> Path:
    return Path(recipe.data.folder)


def edit(recipe: Recipe, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest."""
    data = manifest.read(folder(recipe))
    change(data)
    (folder(recipe) / manifest.NAME).write_text(json.dumps(data))


def replace(path: Path, content: bytes) -> None:
    """Write other content, but keep the time of the last change."""
    stat = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def refused(recipe: Recipe, run: Path, said: str) -> None:
    before = sorted(run.rglob("*")) if run.exists() else None
    with pytest.raises(DataError, match=said):
        train_module.train(recipe, run, "cpu", quiet=True)
    assert (sorted(run.rglob("*")) if run.exists() else None) == before, "nothing is written"


# Files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["text/vocab.de", "text/vocab.en", "text/bpe.codes", "text/pipeline.json", "valid.en.txt"],
)
def test_changed_text_files_are_refused(recipe: Recipe, tmp_path: Path, name: str) -> None:
    path = folder(recipe) / name
    lines = path.read_bytes().split(b"\n")
    replace(path, b"\n".join([*lines[:2], lines[3], lines[2], *lines[4:]]))  # as many bytes
    refused(
        recipe,
        tmp_path / "run",
        rf"{name} differs from the file that fusetk prep wrote \(checksum [0-9a-f]{{12}} instead",
    )
    path.write_bytes(b"\n".join(lines[:-2]))
    refused(
        recipe,
        tmp_path / "run",
        rf"{name} has \d+ bytes and fusetk prep wrote \d+; restore the file that fusetk prep",
    )
    path.unlink()
    refused(recipe, tmp_path / "run", rf"{name} cannot be read: No such file")
    prepare(recipe.data)
    train_module.train(recipe, tmp_path / "run", "cpu", quiet=True)


@pytest.mark.parametrize("name", ["train.de.ids", "train.en.offsets", "valid.de.ids"])
@pytest.mark.parametrize("more", [-2, 8])
def test_corpora_of_another_size_are_refused(
    recipe: Recipe, tmp_path: Path, name: str, more: int
) -> None:
    path = folder(recipe) / name
    content = path.read_bytes()
    path.write_bytes(content[:more] if more < 0 else content + b"\0" * more)
    refused(
        recipe,
        tmp_path / "run",
        rf"{name} has {len(content) + more} bytes and fusetk prep wrote {len(content)};",
    )
    with pytest.raises(
        DataError, match=rf"{name} has {len(content) + more} bytes instead of {len(content)}"
    ):
        Corpus.open(folder(recipe), name.partition(".")[0])


@pytest.mark.parametrize(("place", "value"), [(0, 1), (-1, 7), (5, 10**6), (5, -3)])
def test_an_index_that_does_not_fit_the_ids_is_refused(
    recipe: Recipe, tmp_path: Path, place: int, value: int
) -> None:
    path = folder(recipe) / "train.de.offsets"
    offsets = np.frombuffer(path.read_bytes(), "<i8").copy()
    offsets[place] = value
    replace(path, offsets.tobytes())
    refused(
        recipe, tmp_path / "run", r"train\.de\.offsets differs from the file that fusetk prep wrote"
    )
    with pytest.raises(
        DataError,
        match=r"train\.de\.offsets does not match .*train\.de\.ids: its offsets "
        + ("do not ascend" if place == 5 else r"go from \d+ to \d+, not from 0 to \d+"),
    ):
        Corpus.open(folder(recipe), "train")


def test_sides_of_unequal_numbers_of_sentences_are_refused(recipe: Recipe) -> None:
    edit(
        recipe,
        lambda data: data["splits"]["train"].update(
            target=data["splits"]["valid"]["target"] | {"language": "en"}
        ),
    )
    for kind in ("ids", "offsets"):
        shutil.copy(folder(recipe) / f"valid.en.{kind}", folder(recipe) / f"train.en.{kind}")
    with pytest.raises(DataError, match="train has 600 source and 40 target sentences"):
        Corpus.open(folder(recipe), "train")


def test_large_files_are_known_by_pieces(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SMALL", 1000), ("PIECES", 20), ("PIECE", 64)):
        monkeypatch.setattr(manifest, name, value)
    prepare(recipe.data, force=True)
    data = manifest.read(folder(recipe))
    record = data["stages"]["ids.train"]["outputs"]["train.de.ids"]
    assert record["sample"] == manifest.sample(folder(recipe) / "train.de.ids") != record["sha256"]
    assert "sample" not in data["stages"]["vocabulary"]["outputs"]["text/pipeline.json"]
    path = folder(recipe) / "train.de.ids"
    content = path.read_bytes()
    os.utime(path)
    with monkeypatch.context() as patched:
        whole = manifest.checksum
        patched.setattr(
            manifest,
            "checksum",
            lambda path: pytest.fail(f"{path}") if path.name == "train.de.ids" else whole(path),
        )
        integrity.check_files(folder(recipe), data)
    for changed in (content[2:] + content[:2], b"\1\0" + content[2:], content[:-2] + b"\1\0"):
        replace(path, changed)
        with pytest.raises(DataError, match=r"train\.de\.ids differs from"):
            integrity.check_files(folder(recipe), data)


def test_a_corpus_that_was_replaced_is_refused_by_a_resumed_run(
    recipe: Recipe, tmp_path: Path
) -> None:
    """The manifest, and so the fingerprint, is unchanged. So are the sizes and times of files."""
    train_module.train(recipe, tmp_path / "run", "cpu", quiet=True)
    path = folder(recipe) / "train.en.ids"
    content = path.read_bytes()
    ids = np.frombuffer(content, "<u2").copy()
    ids[ids > 4] = np.random.default_rng(1).permutation(ids[ids > 4])
    replace(path, ids.tobytes())
    more = recipe.model_copy(
        update={"training": recipe.training.model_copy(update={"log_every": 1})}
    )
    refused(more, tmp_path / "run", r"train\.en\.ids differs from the file that fusetk prep wrote")
    replace(path, content)
    train_module.train(more, tmp_path / "run", "cpu", quiet=True)


def test_training_accepts_a_copied_folder(recipe: Recipe, tmp_path: Path) -> None:
    shutil.copytree(folder(recipe), tmp_path / "copy", copy_function=shutil.copyfile)
    there = recipe.model_copy(
        update={"data": recipe.data.model_copy(update={"folder": str(tmp_path / "copy")})}
    )
    train_module.train(there, tmp_path / "run", "cpu", quiet=True)


# Ids ---------------------------------------------------------------------------------------------


def test_the_largest_id_is_recorded(recipe: Recipe) -> None:
    data = manifest.read(folder(recipe))
    for split in ("train", "valid"):
        corpus = Corpus.open(folder(recipe), split)
        for side, sentences in (("source", corpus.source), ("target", corpus.target)):
            assert data["splits"][split][side]["largest"] == int(sentences.ids.max())
            assert sentences.entries == data["vocabulary"][side]


def test_a_vocabulary_of_another_size_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    size = len(Pipeline.load(folder(recipe) / "text").source_vocab)
    edit(recipe, lambda data: data["vocabulary"].update(source=size + 3))
    refused(
        recipe,
        tmp_path / "run",
        rf"the source vocabulary in .* has {size} entries, but .* a vocabulary with {size + 3}",
    )


def test_ids_that_the_vocabulary_does_not_have_are_refused(recipe: Recipe, tmp_path: Path) -> None:
    path = folder(recipe) / "train.de.ids"
    ids = np.frombuffer(path.read_bytes(), "<u2").copy()
    ids[100] = 999
    path.write_bytes(ids.tobytes())

    def change(data: dict[str, Any]) -> None:
        data["stages"]["ids.train"]["outputs"]["train.de.ids"] = manifest.record(path)
        data["splits"]["train"]["source"]["largest"] = 999

    edit(recipe, change)
    size = len(Pipeline.load(folder(recipe) / "text").source_vocab)
    refused(
        recipe,
        tmp_path / "run",
        rf"train\.de\.ids has the id 999, but the vocabulary has {size} entries",
    )


def test_a_batch_with_an_id_out_of_range_is_refused() -> None:
    """Otherwise, it becomes an error of the device."""
    ids, offsets = np.array([5, 8, EOS, 4, EOS], np.uint16), np.array([0, 3, 5])
    source, target = (Sentences(ids, offsets, entries, "train.de.ids") for entries in (8, 9))
    assert collate(Corpus(target, target), np.array([0, 1])).src.shape == (2, 3)
    with pytest.raises(
        DataError, match=r"train\.de\.ids has the id 8, but the vocabulary has 8 entries"
    ):
        collate(Corpus(source, target), np.array([0]))
    collate(Corpus(source, target), np.array([1]))


# Sizes -------------------------------------------------------------------------------------------


def test_an_empty_validation_set_is_refused(recipe: Recipe) -> None:
    data = manifest.read(folder(recipe))
    for side, language in (("source", "de"), ("target", "en")):
        data["splits"]["valid"][side].update(sentences=0, tokens_with_end=0)
        (folder(recipe) / f"valid.{language}.ids").write_bytes(b"")
        (folder(recipe) / f"valid.{language}.offsets").write_bytes(bytes(8))
    (folder(recipe) / manifest.NAME).write_text(json.dumps(data))
    with pytest.raises(
        ConfigError,
        match=r"the validation set in .* is empty: name a text with sentences in data\.valid",
    ):
        Validator(
            recipe.training.validation,
            recipe.decoding,
            folder(recipe),
            Pipeline.load(folder(recipe) / "text"),
        )


def test_a_batch_size_below_the_longest_sentence_is_refused(
    recipe: Recipe, toy: Path, tmp_path: Path
) -> None:
    longest = int(Corpus.open(folder(recipe), "train").target.lengths.max())
    small = load(
        toy,
        [
            f"data.folder={folder(recipe)}",
            "data.bpe={merges: 30}",
            f"training.stages.0.batch.size={longest - 1}",
        ],
    )
    refused(
        small,
        tmp_path / "run",
        rf"target sentence has {longest} tokens and a batch holds {longest - 1}: raise batch\.size",
    )


# The config and the raw text ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "change"),
    [
        ("data.bpe.merges=20", r"data\.bpe\.merges: 30 -> 20"),
        ("data.bpe=null", r"data\.bpe: .* -> none"),
        ("data.steps=[{step: lowercase}]", r"data\.steps: \[\] -> .*lowercase"),
        ("data.vocabulary.size=40", r"data\.vocabulary\.size: none -> 40"),
        ("data.valid={every: 7}", r"data\.valid: .*file prefixes: 1.* -> .*every"),
    ],
)
def test_data_prepared_with_other_settings_are_refused(
    recipe: Recipe, toy: Path, tmp_path: Path, override: str, change: str
) -> None:
    changed = load(toy, [f"data.folder={recipe.data.folder}", "data.bpe={merges: 30}", override])
    refused(
        changed, tmp_path / "run", rf"prepared with other settings \({change}.*\): run fusetk prep"
    )


def test_settings_of_another_version_are_refused(recipe: Recipe, tmp_path: Path) -> None:
    edit(recipe, lambda data: data["settings"].update(unknown=1))
    said = "prepared by another version of fusetk, or with a step whose class changed: run fusetk"
    refused(recipe, tmp_path / "run", f"was {said} prep")


def test_more_training_text_than_was_prepared_is_refused(
    recipe: Recipe, toy: Path, tmp_path: Path
) -> None:
    train = [str(toy.parent / "train"), str(toy.parent / "valid")]
    changed = load(
        toy,
        [
            f"data.folder={recipe.data.folder}",
            "data.bpe={merges: 30}",
            f"data.train={json.dumps(train)}",
        ],
    )
    refused(changed, tmp_path / "run", r"data\.train: .file prefixes: 1. -> .file prefixes: 2.")


@pytest.fixture
def moved(toy: Path, tmp_path: Path) -> Recipe:
    """The toy task with raw text of its own."""
    for name in ("train", "valid"):
        for language in ("de", "en"):
            shutil.copy(toy.parent / f"{name}.{language}", tmp_path)
    text = [
        f"data.train=[{tmp_path / 'train'}]",
        f"data.valid=[{tmp_path / 'valid'}]",
        f"data.folder={tmp_path / 'prepared'}",
    ]
    recipe = load(toy, text)
    prepare(recipe.data)
    return recipe


@pytest.mark.parametrize("name", ["train.de", "valid.en"])
def test_text_that_changed_since_prep_is_refused(moved: Recipe, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text((tmp_path / name).read_text().upper().replace("I", "J"))
    refused(
        moved,
        tmp_path / "run",
        rf"{tmp_path / name} changed since .* was prepared: run fusetk prep",
    )


def test_a_run_keeps_its_prepared_text_and_says_that_the_raw_text_changed(
    moved: Recipe, tmp_path: Path, toy: Path
) -> None:
    train_module.train(moved, tmp_path / "run", "cpu", quiet=True)
    (tmp_path / "train.de").write_text("anders\n" * 600)
    training = moved.training.model_copy(update={"log_every": 2})
    train_module.train(
        moved.model_copy(update={"training": training}), tmp_path / "run", "cpu", quiet=True
    )
    assert f"{tmp_path / 'train.de'} changed since" in (tmp_path / "run" / "log.txt").read_text()


def test_text_that_moved_or_is_missing_has_not_changed(moved: Recipe, tmp_path: Path) -> None:
    """Training on another machine needs only the prepared folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in tmp_path.glob("*.??"):
        path.rename(elsewhere / path.name)
    noted = manifest.read(folder(moved))
    assert integrity.changed_inputs(moved.data, noted) == []
    text = {
        "train": [str(elsewhere / "train")],
        "valid": [str(elsewhere / "valid")],
        "test": {"new": [str(elsewhere / "valid")]},
    }
    config = moved.data.model_copy(update=text)
    integrity.check_settings(config, noted)
    assert integrity.changed_inputs(config, noted) == []
    for path in elsewhere.glob("train.*"):
        os.utime(path)
    assert integrity.changed_inputs(config, noted) == [], "the content decides, not the time"


def test_a_missing_file_does_not_hide_a_changed_one(moved: Recipe, tmp_path: Path) -> None:
    noted = manifest.read(folder(moved))
    source, target = tmp_path / "train.de", tmp_path / "train.en"
    target.write_text("anders\n")
    assert integrity.changed_inputs(moved.data, noted) == [target]
    source.rename(tmp_path / "moved.de")
    assert integrity.changed_inputs(moved.data, noted) == [target]
    (tmp_path / "moved.de").rename(source)
    (tmp_path / "train.en.gz").touch()
    assert integrity.changed_inputs(moved.data, noted) == [target]
    target.unlink()
    assert integrity.changed_inputs(moved.data, noted) == [tmp_path / "train.en.gz"]


def test_compressed_text_in_another_number_of_files_is_a_change(
    moved: Recipe, tmp_path: Path
) -> None:
    noted = manifest.read(folder(moved))
    for path in (tmp_path / "train.de", tmp_path / "train.en"):
        with gzip.open(f"{path}.gz", "wb") as file:
            file.write(path.read_bytes())
        path.unlink()
    data = moved.data.model_copy(update={"train": [*moved.data.train, str(tmp_path / "more")]})
    expected = [tmp_path / "train.de.gz", tmp_path / "train.en.gz"]
    assert integrity.changed_inputs(data, noted) == expected


def test_missing_codes_do_not_hide_changed_ones(moved: Recipe, tmp_path: Path) -> None:
    first, second = tmp_path / "first.codes", tmp_path / "second.codes"
    for path in (first, second):
        path.write_text("#version: 0.2\nc d\n")
    bpe = BPEConfig(codes=[str(first), str(second)])
    data = moved.data.model_copy(update={"bpe": bpe, "folder": str(tmp_path / "other")})
    noted = prepare(data).data
    integrity.check_settings(data, noted)
    second.write_text("#version: 0.2\na b\n")
    for _ in range(2):
        with pytest.raises(DataError, match=r"data\.bpe\.codes\.1: \S+ changed"):
            integrity.check_settings(data, noted)
        first.unlink(missing_ok=True)


def test_train_prepares_on_demand(moved: Recipe, tmp_path: Path) -> None:
    config = tmp_path / "moved.yaml"
    config.write_text(sections.dump(moved))
    command = ["train", str(config), "--run", str(tmp_path / "run"), "-d", "cpu", "-q"]
    command += ["--set", "data.steps=[{step: lowercase}]"]
    stopped = CliRunner().invoke(main, command)
    assert stopped.exit_code == 2 and "train with --prep" in stopped.output
    assert CliRunner().invoke(main, [*command, "--prep"], catch_exceptions=False).exit_code == 0
    assert Pipeline.load(tmp_path / "run" / "text").words("source", "A") == "a"


def test_prep_on_demand_keeps_the_text_of_a_run(moved: Recipe, tmp_path: Path) -> None:
    config, run = tmp_path / "moved.yaml", tmp_path / "run"
    config.write_text(sections.dump(moved))
    command = ["train", str(config), "--run", str(run), "-d", "cpu", "-q"]
    assert CliRunner().invoke(main, command).exit_code == 0
    original = (tmp_path / "train.de").read_text()
    (tmp_path / "train.de").write_text("anders\n" * 600)
    before = manifest.read(folder(moved))
    stopped = CliRunner().invoke(main, [*command, "--prep"])
    assert stopped.exit_code == 2
    assert f"{tmp_path / 'train.de'} changed since" in stopped.output
    assert "train without --prep" in stopped.output
    with pytest.raises(ConfigError, match=r"undo the change or choose another --out$"):
        check_config(moved, run, "--out")
    assert manifest.read(folder(moved)) == before
    assert CliRunner().invoke(main, command).exit_code == 0
    (tmp_path / "train.de").write_text(original)
    assert CliRunner().invoke(main, [*command, "--prep"]).exit_code == 0
