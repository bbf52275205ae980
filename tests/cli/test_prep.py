"""``fusetk prep``."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from fusetk.cli.main import main
from fusetk.cli.prep import run
from fusetk.data import parallel
from fusetk.data.config import DataConfig

CONFIG: dict[str, Any] = {
    "data": {
        "source": "de",
        "target": "en",
        "folder": "out",
        "train": ["train"],
        "valid": {"every": 5},
        "test": {"tiny": ["train"]},
        "steps": [{"step": "tokenize"}, {"step": "filter", "max_length": 8}],
        "bpe": {"merges": 5},
    },
    "model": {
        "kind": "transformer",
        "width": 8,
        "heads": 1,
        "ffn": 8,
        "dropout": 0.1,
        "encoder": {"layers": 1},
        "decoder": {"layers": 1},
    },
    "training": {
        "stages": [
            {
                "optimizer": "adam",
                "schedule": {"kind": "constant", "rate": 0.1},
                "batch": {"size": 40},
                "end": {"updates": 8},
            }
        ]
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [f"Ein Satz, Nummer {i}." for i in range(20)] + ["zu lang " * 9, ""]
    for language in ("de", "en"):
        (tmp_path / f"train.{language}").write_text("".join(line + "\n" for line in lines))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    return tmp_path


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in ("prep", *arguments)])


def test_table_json_and_nothing_to_do(folder: Path) -> None:
    first = call(folder / "config.yaml", "--json")
    assert first.exit_code == 0, first.output
    counts = json.loads(first.stdout)
    assert counts["splits"]["train"]["dropped"] == {"empty": 1, "too long": 1}
    assert counts["splits"]["test.tiny"]["pairs_out"] == 22
    assert "words.train:" not in first.stderr  # the first stages need no reason
    for text in (
        "test.tiny",
        "1 empty",
        "1 too long",
        "(4 to valid)",
        "vocabularies: de ",
        "words/s)",
    ):
        assert text in first.stderr, first.stderr
    assert "…" not in first.stderr  # no cell is cut
    second = call(folder / "config.yaml")
    assert "nothing changed, nothing to do" in second.stderr and second.stdout == ""
    third = call(folder / "config.yaml", "--set", "data.bpe.merges=4")
    assert "bpe: bpe.merges: 5 -> 4" in third.stderr
    fourth = call(folder / "config.yaml", "--set", f"data.test.other=[{folder / 'train'}]")
    assert "words.test.other: made, because it is new" in fourth.stderr


def test_quiet_prints_warnings_only(folder: Path) -> None:
    same = f"data.valid=[{folder / 'train'}]"
    result = call(folder / "config.yaml", "--quiet", "--set", same)
    lines = result.stderr.splitlines()
    assert lines and all(line.startswith("warning: ") for line in lines)
    assert "have the same content" in result.stderr


def test_the_table_says_how_many_more_tokens_dropout_makes(folder: Path) -> None:
    keys = ["data.bpe.dropout=1", "data.bpe.segmentations=2"]
    options = [word for key in keys for word in ("--set", key)]
    result = call(folder / "config.yaml", "--json", *options)
    train = json.loads(result.stdout)["splits"]["train"]
    numbers = [counts["source"]["tokens"] for counts in train["segmentations"]]
    more = numbers[0] / train["source"]["tokens"] - 1
    assert len(numbers) == 2 and numbers[0] == numbers[1] and more > 0.05
    row = next(line for line in result.stderr.splitlines() if "train, BPE dropout" in line)
    assert f"{numbers[0]:,} ({more:+.1%})" in row and "0.00%" in row


def test_fewer_merges_than_in_the_config_are_a_message(folder: Path) -> None:
    joint = call(folder / "config.yaml", "--set", "data.bpe.merges=7000")
    assert re.search(
        r"^bpe: only \d\d of 7,000 merges were learned: no other pair occurs 2 times$",
        joint.stderr,
        re.MULTILINE,
    )
    options = ["data.bpe.merges=7000", "data.bpe.joint=false", "data.bpe.min_frequency=5"]
    separate = call(folder / "config.yaml", *(word for key in options for word in ("--set", key)))
    for language in ("de", "en"):
        assert f"bpe: {language}: only " in separate.stderr, separate.stderr
    assert ": no other pair occurs 5 times" in separate.stderr
    all_learned = call(folder / "config.yaml", "--set", "data.bpe.merges=5")
    assert "were learned" not in all_learned.stderr


def test_errors_are_one_sentence(folder: Path) -> None:
    (folder / "train.en").write_text("x\n")
    result = call(folder / "config.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert (
        "train.de has 22 lines and" in result.stderr
        and len(result.stderr.strip().splitlines()) == 1
    )


def test_two_jobs_write_the_ids_of_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "MIN_ITEMS", 0)
    data = DataConfig.model_validate(
        {
            **CONFIG["data"],
            "train": [str(folder / "train")],
            "folder": str(folder / "two"),
            "test": {},
        }
    )
    run(data, jobs=2, force=False)
    run(data.model_copy(update={"folder": str(folder / "one")}), jobs=1, force=False)
    assert (folder / "one" / "train.de.ids").read_bytes() == (
        folder / "two" / "train.de.ids"
    ).read_bytes()


@pytest.mark.parametrize("written", ["~/out", "$PLACE/out", "${PLACE}/out"])
@pytest.mark.parametrize("by_option", [True, False])
def test_home_and_variables_in_paths_are_expanded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, written: str, by_option: bool
) -> None:
    """Neither becomes a folder of that name."""
    home, here = folder / "home", folder / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PLACE", str(home))
    monkeypatch.setenv("TEXT", str(folder))
    data = {
        **CONFIG["data"],
        "train": ["$TEXT/train"],
        "test": {"tiny": ["${TEXT}/train"]},
        "valid": ["$TEXT/train"],
    }
    (folder / "c.yaml").write_text(
        yaml.safe_dump({**CONFIG, "data": data if by_option else {**data, "folder": written}})
    )
    result = call(folder / "c.yaml", *(["--set", f"data.folder={written}"] if by_option else []))
    assert result.exit_code == 0, result.output
    assert (home / "out" / "manifest.json").exists() and not list(here.iterdir())
    assert not list(folder.glob("[~$]*"))


def test_paths_that_cannot_be_expanded_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MISSING", raising=False)
    monkeypatch.setenv("EMPTY", "")
    options = [
        "data.folder=$MISSING/x",
        "data.train=[a, ~nobody-here/x]",
        "data.test.tiny=['${EMPTY}/x']",
    ]
    result = call(
        folder / "config.yaml", *(part for option in options for part in ("--set", option))
    )
    assert result.exit_code == 2 and "3 errors" in result.stderr
    assert (
        "data.folder: the environment variable MISSING in '$MISSING/x' is not set" in result.stderr
    )
    assert "data.train.1: ~nobody-here in '~nobody-here/x' has no home folder" in result.stderr
    assert "data.test.tiny.0: the environment variable EMPTY" in result.stderr
    assert "[--set data.folder=$MISSING/x]" in result.stderr


def test_a_very_long_sentence_is_a_warning(folder: Path) -> None:
    for language, words in (("de", 1500), ("en", 3)):
        with open(folder / f"train.{language}", "a") as file:
            file.write("wort " * words + "\n")
    steps = "data.steps=[{step: tokenize}]"
    result = call(folder / "config.yaml", "--set", steps, "--set", "data.valid={every: 7}")
    assert result.exit_code == 0
    printed = " ".join(result.stderr.split())
    assert printed.count("warning: the longest") == printed.count("the longest") == 1
    assert "the longest de sentence of train has 1,500 tokens" in printed
