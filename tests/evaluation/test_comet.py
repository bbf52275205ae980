"""COMET, with a library that is replaced: the score of a line is the share of the reference's words
that it has."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fusetk.cli.main import main
from fusetk.evaluation import comet


class Model:
    def predict(self, lines: list[dict[str, str]], **options: Any) -> SimpleNamespace:
        assert len(lines) <= comet.BLOCK and options["batch_size"] and not options["progress_bar"]
        assert all(line["src"][0] == line["ref"][0].upper() for line in lines)
        scores = []
        for line in lines:
            words = line["ref"].split()
            scores.append(sum(word in line["mt"].split() for word in words) / len(words))
        return SimpleNamespace(scores=scores)


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "src").write_text("A B\nC D\n" * 200)
    (tmp_path / "ref").write_text("a b\nc d\n" * 200)
    (tmp_path / "other").write_text("a x\nc x\n" * 200)
    (tmp_path / "hyp").write_text("a b\nc e\n" * 200)
    library: Any = ModuleType("comet")

    def download(name: str) -> str:
        if name != comet.DEFAULT_MODEL:
            raise KeyError(name)
        return "downloaded"

    library.download_model = download
    library.load_from_checkpoint = lambda path: Model()
    monkeypatch.setitem(sys.modules, "comet", library)
    monkeypatch.setattr(comet, "BLOCK", 255)  # the second block begins with the other line
    monkeypatch.chdir(tmp_path)
    return tmp_path


def score(*words: str) -> Result:
    return CliRunner().invoke(main, ["score", "hyp", "-r", "ref", "--metric", "comet", *words])


@pytest.mark.usefixtures("texts")
def test_the_mean_over_lines_and_references() -> None:
    result = score("--source", "src")
    assert "comet: COMET = 75.00  [nrefs:1|model:Unbabel/wmt22-comet-da|version:" in result.stdout
    result = score("--source", "src", "-r", "other")
    assert "COMET = 62.50  [nrefs:2|" in result.stdout


@pytest.mark.usefixtures("texts")
def test_significance_uses_the_rows() -> None:
    words = ["--source", "src", "--system", "b=ref", "--significance", "bootstrap"]
    result = score(*words, "--samples", "50")
    assert result.exit_code == 0, result.output
    assert "100.00" in result.stdout and "+25.00" in result.stdout


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "the metric comet needs the source: give it to fusetk score with --source"),
        (["--source", "src", "--lowercase"], "--lowercase is not for comet"),
        (["--source", "src", "--comet-model", "none"], "the COMET model none cannot be loaded"),
        (["--source", "src", "--tokenize", "char"], "--tokenize is for sacrebleu, not for comet"),
    ],
)
def test_wrong_options_are_errors(words: list[str], error: str) -> None:
    result = score(*words)
    assert result.exit_code == 2 and result.stderr.startswith(f"fusetk: {error}"), result.output


@pytest.mark.usefixtures("texts")
def test_a_missing_library_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comet", None)
    assert score("--source", "src").stderr == f"fusetk: {comet.MISSING}\n"


@pytest.mark.usefixtures("texts")
def test_all_metrics_are_without_comet() -> None:
    result = CliRunner().invoke(main, ["score", "hyp", "-r", "ref", "--metric", "all"])
    assert result.exit_code == 0 and "COMET" not in result.stdout


@pytest.mark.usefixtures("texts")
def test_comet_is_computed_beside_all_other_metrics_if_it_is_named() -> None:
    assert "the metric comet needs the source" in score("--metric", "all").stderr
    result = score("--metric", "all", "--source", "src")
    assert "comet: COMET = 75.00" in result.stdout and "chrf: " in result.stdout
