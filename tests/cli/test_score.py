import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fusetk.cli.main import main
from fusetk.evaluation import notes
from fusetk.evaluation.bleu import score

HYPOTHESIS = ["the cat sat on the mat .", "a dog ran home ."]
REFERENCE = ["the cat sat on a mat .", "a big dog ran home ."]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("hyp").write_text("\n".join(HYPOTHESIS) + "\n")
    Path("ref").write_text("\n".join(REFERENCE) + "\n")
    Path("ref2").write_text("\n".join(HYPOTHESIS[:1] + REFERENCE[1:]) + "\n")
    return tmp_path


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["score", *arguments], input=stdin)


def test_plain_lines(files: Path) -> None:
    result = run("hyp", "-r", "ref", "--metric", "multi-bleu", "--metric", "chrf")
    assert result.exit_code == 0, result.output
    head, bleu, chrf = result.stdout.splitlines()
    assert head == "scored: hyp (2 sentences, 12 words) against ref (13 words)"
    [expected] = score(HYPOTHESIS, [REFERENCE], ["multi-bleu"])
    assert bleu == f"multi-bleu: {expected}  [{expected.signature}]"
    assert "ref_len=13" in bleu
    assert chrf.startswith("chrf: chrF2 = ")
    assert result.stderr == ""


def test_every_metric_has_its_line(files: Path) -> None:
    lines = run("hyp", "ref", "--metric", "all").stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["scored", "sacrebleu", "multi-bleu", "multi-bleu-lc", "chrf", "chrf++", "ter"]
    assert all("nrefs:1|" in line for line in lines[1:])


def test_several_references_in_both_ways(files: Path) -> None:
    outputs = {run("hyp", *arguments).stdout for arguments in (["ref", "ref2"], ["-r", "ref", "-r", "ref2"], ["ref2", "-r", "ref"])}
    assert len(outputs) == 1
    [output] = outputs
    assert "against ref (13 words), ref2 (13 words)" in output and "nrefs:2" in output


def test_json(files: Path) -> None:
    document = json.loads(run("hyp", "ref", "--json", "--lowercase").stdout)
    assert document["sentences"] == 2
    assert document["hypothesis"] == {"file": "hyp", "words": 12}
    assert document["references"] == [{"file": "ref", "words": 13}]
    found = {entry["metric"]: entry for entry in document["scores"]}
    assert list(found) == ["sacrebleu", "multi-bleu-lc", "chrf", "ter"]
    assert found["multi-bleu-lc"]["value"] == score(HYPOTHESIS, [REFERENCE], ["multi-bleu"])[0].value
    assert found["multi-bleu-lc"]["reference_length"] == 13
    assert "case:lc" in found["sacrebleu"]["signature"]


def test_standard_input_and_gzip(files: Path) -> None:
    with gzip.open("ref.gz", "wt") as file:
        file.write("\n".join(REFERENCE) + "\n")
    plain = run("hyp", "ref").stdout.splitlines()[1:]
    piped = run("-", "ref.gz", stdin="\n".join(HYPOTHESIS) + "\n")
    assert piped.stdout.splitlines()[1:] == plain
    assert "scored: standard input (2 sentences" in piped.stdout
    assert run("-", "-", stdin="a\n").exit_code == 2


def test_lines_end_at_newline_only(files: Path) -> None:
    Path("hyp").write_text("a b\u2028c d\n\x0ce f\u0085g\n", encoding="utf-8")
    assert "(2 sentences" in run("hyp", "ref").stdout


def test_unequal_line_counts(files: Path) -> None:
    Path("short").write_text(REFERENCE[0] + "\n")
    result = run("hyp", "ref", "short")
    assert result.exit_code == 2
    assert "hyp has 2 lines and short has 1" in result.stderr
    assert "Traceback" not in result.stderr and result.stdout == ""
    result = run("-", "short", stdin="a\nb\nc\n")
    assert "standard input has 3 lines and short has 1" in result.stderr


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["hyp"], "give a reference"),
        (["hyp", "nowhere"], "nowhere does not exist"),
        (["hyp", "empty"], "empty is empty"),
        (["hyp", "ref", "--metric", "bleau"], "multi-bleu"),
        (["hyp", "ref", "--tokenize", "13b"], "no tokeniser '13b'"),
        (["hyp", "."], "is a folder"),
    ],
)
def test_mistakes(files: Path, arguments: list[str], said: str) -> None:
    Path("empty").write_text("")
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr and "Traceback" not in result.stderr


def test_warnings_go_to_standard_error_and_into_json(files: Path) -> None:
    Path("bpe").write_text("the c@@ at sat on the m@@ at .\na d@@ og ran home .\n")
    result = run("bpe", "ref")
    assert "warning: the hypothesis looks like subwords" in result.stderr
    assert "warning" not in result.stdout
    assert len(json.loads(run("bpe", "ref", "--json").stdout)["warnings"]) == 1


def test_case_is_no_matter_where_it_is_ignored(files: Path) -> None:
    Path("title").write_text("\n".join(line.title() for line in REFERENCE) + "\n")
    assert "capitals" in run("hyp", "title").stderr
    assert run("hyp", "title", "--lowercase").stderr == ""
    assert run("hyp", "title", "--metric", "multi-bleu-lc").stderr == ""


def test_unequal_pipes_are_one_sentence() -> None:
    command = f"{sys.executable} -m fusetk score <(printf 'a\\nb\\nc\\n') <(printf 'a\\nb\\n')"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert result.returncode == 2 and "3 lines" in result.stderr and "Traceback" not in result.stderr


# Notes in a run folder -----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(files: Path) -> Path:
    """A run folder, as much of it as notes need."""
    for name, update in (("last", 12), ("best", 8), ("average-5", None)):
        state = Path("run/checkpoints") / name / "state.json"
        state.parent.mkdir(parents=True)
        state.write_text(json.dumps({"format": 1, **({"progress": {"update": update}, "data": "abc"} if update else {})}))
    Path("run/config.yaml").write_text("{}")
    return Path("run")


def test_scores_are_noted_in_a_run(folder: Path) -> None:
    result = run("hyp", "ref", "--metric", "multi-bleu", "--metric", "chrf", "--run", "run", "--set-name", "test")
    assert result.exit_code == 0, result.output
    assert result.stderr == "noted in run/scores.json\n" and "noted" not in result.stdout
    found = notes.read(folder)
    assert [note.key for note in found] == [("test", "best", "multi-bleu"), ("test", "best", "chrf")]
    [expected] = score(HYPOTHESIS, [REFERENCE], ["multi-bleu"])
    assert (found[0].value, found[0].signature, found[0].updates, found[0].data) == (expected.value, expected.signature, 12, "abc")
    assert found[0].references == notes.fingerprint([REFERENCE]) != notes.fingerprint([HYPOTHESIS])


def test_the_same_again_replaces_and_another_checkpoint_adds(folder: Path) -> None:
    same = ["--metric", "multi-bleu", "--set-name", "test", "--run"]
    for arguments in (["hyp", "ref", *same, "run"], ["ref", "ref", *same, "run"], ["hyp", "ref", *same, "run/checkpoints/average-5"]):
        assert run(*arguments).exit_code == 0
    run("hyp", "ref", *same, "run/checkpoints/last", "--checkpoint", "label", "--json")
    found = {note.checkpoint: note.value for note in notes.read(folder)}
    assert list(found) == ["best", "average-5", "label"] and found["best"] == pytest.approx(100) and found["average-5"] < 100


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--run", "run"], "by --set-name"),
        (["--set-name", "test"], "give --run"),
        (["--checkpoint", "best"], "give --run"),
        (["--run", "nowhere", "--set-name", "test"], "nowhere is no run folder: there is no such folder"),
        (["--run", "bare", "--set-name", "test"], "by --checkpoint"),
        (["--run", "damaged", "--set-name", "test", "--checkpoint", "best"], "scores.json is damaged"),
    ],
)
def test_mistakes_in_noting(folder: Path, arguments: list[str], said: str) -> None:
    for name in ("bare", "damaged"):
        Path(name).mkdir()
        Path(name, "config.yaml").write_text("{}")
    Path("damaged/scores.json").write_text("{")
    result = run("hyp", "ref", *arguments)
    assert result.exit_code == 2 and said in result.stderr and result.stdout == ""
    assert Path("damaged/scores.json").read_text() == "{" and not Path("run/scores.json").exists()
