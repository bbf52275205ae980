"""``fusetk score``: metrics, several systems, recorded scores, and scores by length."""

import gzip
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest
import sacrebleu
from click.testing import CliRunner, Result

from fusetk.cli.main import main
from fusetk.evaluation.metrics import METRICS, score
from fusetk.evaluation.significance import SAMPLES
from fusetk.files import lock
from fusetk.reporting import score_log
from fusetk.runs import RunLock

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
    Path("word").write_text("Ja\n")
    head = run("word", "-r", "word").stdout.splitlines()[0]
    assert head == "scored: word (1 sentence, 1 word) against word (1 word)"


def test_every_metric_has_its_line(files: Path) -> None:
    lines = run("hyp", "ref", "--metric", "all").stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["scored", *METRICS]
    for line in lines[1:]:
        name = line.partition(":")[0]
        assert re.search(r"nrefs:1[|\]]", line), f"the signature of {name} has no nrefs:1"


def test_several_references_in_both_ways(files: Path) -> None:
    outputs = {
        run("hyp", *arguments).stdout
        for arguments in (["ref", "ref2"], ["-r", "ref", "-r", "ref2"], ["ref2", "-r", "ref"])
    }
    assert len(outputs) == 1
    [output] = outputs
    assert "against ref (13 words), ref2 (13 words)" in output and "nrefs:2" in output


def test_json_has_files_and_scores(files: Path) -> None:
    document = json.loads(run("hyp", "ref", "--json", "--lowercase").stdout)
    assert document["sentences"] == 2
    assert document["hypothesis"] == {"file": "hyp", "words": 12}
    assert document["references"] == [{"file": "ref", "words": 13}]
    scores = {entry["metric"]: entry for entry in document["scores"]}
    assert list(scores) == ["sacrebleu", "multi-bleu-lc", "chrf", "ter"]
    assert (
        scores["multi-bleu-lc"]["value"] == score(HYPOTHESIS, [REFERENCE], ["multi-bleu"])[0].value
    )
    assert scores["multi-bleu-lc"]["reference_length"] == 13
    assert "case:lc" in scores["sacrebleu"]["signature"]


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
        (["hyp", "blank"], "the reference blank has no word: give another file"),
        (["hyp", "-r", "ref", "-r", "blank"], "the reference blank has no word: give another"),
        (["hyp", "ref", "--metric", "bleau"], "multi-bleu"),
        (["hyp", "ref", "--metric", "a.b:C"], "'a.b:C' cannot be imported: ModuleNotFoundError"),
        (["hyp", "ref", "--tokenize", "13b"], "no tokeniser '13b'"),
        (["hyp", "."], "is a folder"),
        (["hyp", "binary"], "binary, line 2: byte 0xff at offset 0 of the line is not UTF-8"),
        (
            ["hyp", "ref", "--metric", "chrf", "--metric", "ter", "--tokenize", "zh"],
            "--tokenize is for sacrebleu, not for chrf, ter",
        ),
        (
            ["hyp", "ref", "--metric", "mteval-v13a", "--compound-split"],
            "give --metric multi-bleu or multi-bleu-lc, or omit the option",
        ),
        (["hyp", "ref", "--name", "x"], "--name has no effect without --system or --by-length"),
        (["hyp", "ref", "--significance", "bootstrap"], "give --system NAME=FILE"),
        (
            ["hyp", "ref", "--by-length", "--system", "a=ref", "--significance", "bootstrap"],
            "no --by-length",
        ),
        (["hyp", "ref", "--system", "a=ref", "--samples", "9"], "add --significance"),
        (
            ["hyp", "ref", "--system", "a=ref", "--significance", "bootstrap", "--seed", "0"],
            "--seed",
        ),
        (
            ["hyp", "ref", "--system", "a=ref", "--run", "run", "--set-name", "test"],
            "record them without --system",
        ),
        (["hyp", "ref", "--system", "hyp=ref"], "two systems are called 'hyp'"),
        (["hyp", "ref", "--source", "empty"], "empty is empty"),
    ],
)
def test_mistakes(files: Path, arguments: list[str], said: str) -> None:
    Path("empty").write_text("")
    Path("blank").write_text(" \n\n")
    Path("binary").write_bytes(b"a\n\xff\xfe\n")
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr and "Traceback" not in result.stderr


def test_warnings_go_to_standard_error_and_into_json(files: Path) -> None:
    Path("bpe").write_text("the c@@ at sat on the m@@ at .\na d@@ og ran home .\n")
    result = run("bpe", "ref")
    assert "warning: the hypothesis looks like subwords" in result.stderr
    assert "warning" not in result.stdout
    assert len(json.loads(run("bpe", "ref", "--json").stdout)["warnings"]) == 1


def test_a_hypothesis_without_words_is_a_warning(files: Path) -> None:
    Path("blank").write_text(" \n\n")
    result = run("blank", "ref")
    assert result.exit_code == 0 and "warning: blank has no word\n" in result.stderr


def test_no_case_warning_if_case_is_ignored(files: Path) -> None:
    Path("title").write_text("\n".join(line.title() for line in REFERENCE) + "\n")
    assert "capitals" in run("hyp", "title").stderr
    assert run("hyp", "title", "--lowercase").stderr == ""
    assert run("hyp", "title", "--metric", "multi-bleu-lc").stderr == ""


def test_line_ends_of_windows_and_a_byte_order_mark_do_not_matter(files: Path) -> None:
    plain = run("hyp", "ref").stdout.splitlines()[1:]
    Path("hyp").write_bytes(b"\xef\xbb\xbf" + Path("hyp").read_bytes().replace(b"\n", b"\r\n"))
    assert run("hyp", "ref").stdout.splitlines()[1:] == plain


def test_options_that_some_metrics_ignore(files: Path) -> None:
    result = run("hyp", "ref", "--tokenize", "char")
    assert result.exit_code == 0 and "tok:char" in result.stdout
    assert (
        result.stderr == "warning: --tokenize is for sacrebleu; "
        "it changes nothing in multi-bleu, multi-bleu-lc, chrf, ter\n"
    )
    assert run("hyp", "ref", "--tokenize", "none", "--metric", "sacrebleu").stderr == ""


def test_compound_split(files: Path) -> None:
    Path("hyp").write_text("ein Ost-West Ding\nund mehr .\n")
    Path("ref").write_text("das Ost-Nord Ding\nund mehr .\n")
    result = run("hyp", "ref", "--metric", "multi-bleu", "--compound-split")
    assert (
        "hyp_len=8, ref_len=8" in result.stdout
        and "compounds:split" in result.stdout
        and result.stderr == ""
    )
    assert (
        "--compound-split changes nothing"
        in run("ref2", "ref2", "--metric", "multi-bleu", "--compound-split").stderr
    )


def test_compound_split_of_raw_text(files: Path) -> None:
    Path("raw").write_text("Ein Ost-West-Ding.\nUnd mehr.\n" * 2)
    warned = run(
        "raw", "raw", "--metric", "sacrebleu", "--metric", "multi-bleu", "--compound-split"
    ).stderr.splitlines()
    assert len(warned) == 2 and "does not look tokenised: for multi-bleu," in warned[1]
    assert run("raw", "raw", "--metric", "sacrebleu").stderr == ""


@pytest.mark.parametrize(
    ("options", "metrics"),
    [
        ("", "multi-bleu and multi-bleu-lc"),
        ("--metric all", "multi-bleu, multi-bleu-lc and multi-bleu-joined"),
        ("--metric sacrebleu --metric multi-bleu-lc", "multi-bleu-lc"),
        ("--lowercase", "multi-bleu-lc"),
        ("--system other=other", "multi-bleu and multi-bleu-lc"),
        (
            "--system other=other --significance bootstrap --samples 5",
            "multi-bleu and multi-bleu-lc",
        ),
        ("--by-length", "multi-bleu"),
        ("--by-length --system other=other", "multi-bleu"),
    ],
)
def test_every_output_warns_about_multi_bleu_of_raw_text(
    files: Path, options: str, metrics: str
) -> None:
    for name in ("raw", "other"):
        Path(name).write_text("Who is it?\nNo, it is not.\nCome in.\n" * 5)
    said = f"the text does not look tokenised: for {metrics}, 'end.' is one word"
    names = ["raw: ", "other: "] if "--system" in options else [""]
    for arguments in (options.split(), [*options.split(), "--json"]):
        result = run("raw", "raw", *arguments)
        assert result.exit_code == 0, result.output
        for name in names:
            assert f"warning: {name}{said}" in result.stderr
    assert json.loads(result.stdout)["warnings"]
    Path("raw").write_text("Who is it ?\nNo , it is not .\nCome in .\n" * 5)
    assert said not in run("raw", "raw", *options.split()).stderr


def test_lines_that_were_not_translated(files: Path) -> None:
    assert "equal the source line" in run("hyp", "ref", "--source", "hyp").stderr
    assert run("hyp", "ref", "--source", "ref").stderr == ""


def run_without_reader(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``fusetk score hyp ref`` after the reader of its standard output has closed the pipe."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "fusetk", "score", "hyp", "ref", *arguments]
    try:
        return subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writing)


@pytest.mark.parametrize("more", [["--by-length"], ["--json"]])
def test_a_reader_that_stops_early_is_no_error(files: Path, more: list[str]) -> None:
    process = run_without_reader(*more)
    assert (process.returncode, process.stderr) == (0, "")


# Several systems ----------------------------------------------------------------------------------


def test_a_table_of_systems(files: Path) -> None:
    result = run(
        "hyp",
        "ref",
        "--system",
        "the other=ref2",
        "--name",
        "base",
        "--metric",
        "multi-bleu",
        "--metric",
        "ter",
    )
    assert result.exit_code == 0 and result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == "2 systems"
    assert lines[1] == "system     multi-bleu    ter"
    for line, name, system in (
        (lines[2], "base", HYPOTHESIS),
        (lines[3], "the other", HYPOTHESIS[:1] + REFERENCE[1:]),
    ):
        expected = score(system, [REFERENCE], ["multi-bleu", "ter"])
        assert line.split("  ")[0] == name and line.split()[-2:] == [
            f"{result.value:.2f}" for result in expected
        ]
    assert lines[4] == "base: hyp (2 sentences, 12 words) against ref (13 words)"
    assert (
        lines[6] == f"multi-bleu: {expected[0].signature}"
        and lines[7] == f"ter: {expected[1].signature}"
        and len(lines) == 8
    )


@pytest.fixture
def long(files: Path) -> None:
    draw = random.Random(1)
    reference = [" ".join(draw.choice("abcdefgh") for _ in range(12)) for _ in range(40)]
    noisy = [
        " ".join("x" if draw.random() < 0.1 else word for word in line.split())
        for line in reference
    ]
    for name, lines in (
        ("ref", reference),
        ("hyp", noisy),
        ("bad", noisy[::-1]),
        ("near", [reference[0], *noisy[1:]]),
    ):
        Path(name).write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("kind", SAMPLES)
def test_systems_are_tested_against_the_first(long: None, kind: str) -> None:
    arguments = [
        "hyp",
        "ref",
        "--system",
        "same=hyp",
        "--system",
        "bad=bad",
        "--metric",
        "multi-bleu",
        "--metric",
        "chrf",
    ]
    arguments += ["--significance", kind]
    result = run(*arguments, "--samples", "200")
    assert result.exit_code == 0, result.output
    bleu, chrf, end = result.stdout.split("\n\n")
    title, head, first, same, bad, signature = bleu.splitlines()
    assert (title, signature.split(":")[0], chrf.splitlines()[0]) == (
        "multi-bleu",
        "signature",
        "chrf",
    )
    assert " ".join(head.split()) == "system score difference mean 95% p" and first.split()[
        2::3
    ] == ["-", "-"]
    assert same.split()[2] == "+0.00" and same.split()[-1] == "1.0000"
    assert float(bad.split()[2]) < -20 and float(bad.split()[-1]) < 0.01
    assert f"200 samples, seed 12345, sacrebleu {sacrebleu.__version__}" in end.splitlines()[0]
    assert (
        run(*arguments, "--samples", "200", "--seed", "12345").stdout
        == result.stdout
        != run(*arguments, "--samples", "201").stdout
    )


def test_json_of_systems(long: None) -> None:
    arguments = ["hyp", "ref", "--system", "bad=bad", "--metric", "multi-bleu", "--json"]
    plain = json.loads(run(*arguments).stdout)
    document = json.loads(
        run(*arguments, "--significance", "bootstrap", "--samples", "50", "--seed", "3").stdout
    )
    assert (
        document["test"]
        == {"kind": "bootstrap", "samples": 50, "seed": 3, "sacrebleu": sacrebleu.__version__}
        and plain["test"] is None
    )
    assert [system["name"] for system in document["systems"]] == ["hyp", "bad"] and document[
        "sentences"
    ] == 40
    for system, other in zip(document["systems"], plain["systems"], strict=True):
        [scored], [expected] = system["scores"], other["scores"]
        test = scored.pop("test")
        assert expected.pop("test") is None and scored == expected
    assert (
        test["p"] < 0.05
        and test["differ"] == 40
        and test["difference"] == scored["value"] - plain["systems"][0]["scores"][0]["value"]
    )


def test_a_test_with_few_differing_lines_is_a_warning(long: None) -> None:
    result = run(
        "hyp",
        "ref",
        "--system",
        "near=near",
        "--significance",
        "randomization",
        "--samples",
        "50",
        "--metric",
        "multi-bleu",
    )
    assert (
        "warning: multi-bleu: near and hyp differ in 1 line; with so few lines, p is too small"
        in result.stderr
    )


def test_a_p_value_of_one_is_not_too_small(files: Path) -> None:
    Path("ref").write_text("a b c d\n")
    Path("hyp").write_text("x\n")
    Path("other").write_text("y\n")
    options = ["--significance", "bootstrap", "--samples", "10", "--metric", "multi-bleu"]
    result = run("hyp", "ref", "--system", "other=other", *options)
    assert "too small" not in result.stderr and "differ in" not in result.stderr


def test_warnings_of_systems_name_them(files: Path) -> None:
    Path("bpe").write_text("the c@@ at sat on the m@@ at .\na d@@ og ran home .\n")
    assert run("hyp", "ref", "--system", "bpe=bpe").stderr.startswith(
        "warning: bpe: the hypothesis looks like subwords"
    )
    said = run("bpe", "ref", "--system", "other=bpe").stderr
    for name in ("bpe", "other"):
        assert f"warning: {name}: the hypothesis looks like subwords" in said


def test_only_named_metrics_warn_about_tokenised_text(files: Path) -> None:
    """Among the default metrics are some that tokenise and some that do not."""
    Path("tokenised").write_text("yes .\nno .\nwhy ?\n")
    assert run("tokenised", "tokenised").stderr == ""
    said = run("tokenised", "tokenised", "--metric", "sacrebleu").stderr
    assert "sacrebleu will tokenise it again" in said


def test_unequal_pipes_are_one_sentence() -> None:
    command = f"{sys.executable} -m fusetk score <(printf 'a\\nb\\nc\\n') <(printf 'a\\nb\\n')"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (
        result.returncode == 2 and "3 lines" in result.stderr and "Traceback" not in result.stderr
    )


# Scores recorded in a run folder ------------------------------------------------------------


@pytest.fixture
def folder(files: Path) -> Path:
    """A run folder with the files that recording needs."""
    for name, update in (("last", 12), ("best", 8), ("average-5", None)):
        state = Path("run/checkpoints") / name / "state.json"
        state.parent.mkdir(parents=True)
        state.write_text(
            json.dumps(
                {"format": 1, **({"progress": {"update": update}, "data": "abc"} if update else {})}
            )
        )
    Path("run/config.yaml").write_text("{}")
    return Path("run")


def test_scores_are_recorded_in_a_run(folder: Path) -> None:
    result = run(
        "hyp",
        "ref",
        "--metric",
        "multi-bleu",
        "--metric",
        "chrf",
        "--run",
        "run",
        "--set-name",
        "test",
    )
    assert result.exit_code == 0, result.output
    assert result.stderr == "recorded in run/scores.json\n" and "recorded" not in result.stdout
    records = score_log.read(folder)
    assert [record.key for record in records] == [
        ("test", "best", "multi-bleu"),
        ("test", "best", "chrf"),
    ]
    [expected] = score(HYPOTHESIS, [REFERENCE], ["multi-bleu"])
    assert (records[0].value, records[0].signature, records[0].updates, records[0].data) == (
        expected.value,
        expected.signature,
        12,
        "abc",
    )
    assert (
        records[0].references
        == score_log.fingerprint([REFERENCE])
        != score_log.fingerprint([HYPOTHESIS])
    )


def test_the_same_again_replaces_and_another_checkpoint_adds(folder: Path) -> None:
    same = ["--metric", "multi-bleu", "--set-name", "test", "--run"]
    for arguments in (
        ["hyp", "ref", *same, "run"],
        ["ref", "ref", *same, "run"],
        ["hyp", "ref", *same, "run/checkpoints/average-5"],
    ):
        assert run(*arguments).exit_code == 0
    run("hyp", "ref", *same, "run/checkpoints/last", "--checkpoint", "label", "--json")
    values = {record.checkpoint: record.value for record in score_log.read(folder)}
    assert (
        list(values) == ["best", "average-5", "label"]
        and values["best"] == pytest.approx(100)
        and values["average-5"] < 100
    )


def test_scores_do_not_wait_for_the_end_of_a_training(folder: Path) -> None:
    record = score_log.ScoreRecord("test", "best", "chrf", 50.0, "", "", 1, "abc")
    thread = Thread(target=score_log.write, args=(folder, [record]))
    with RunLock(folder) as training:
        training.take()
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
    assert score_log.read(folder) == [record]


def test_two_processes_record_scores_one_after_the_other(folder: Path) -> None:
    record = score_log.ScoreRecord("test", "best", "chrf", 50.0, "", "", 1, "abc")
    thread = Thread(target=score_log.write, args=(folder, [record]))
    with open(folder / score_log.LOCK, "a") as other:
        assert lock(other)
        thread.start()
        thread.join(0.1)
        assert thread.is_alive() and score_log.read(folder) == []
    thread.join(10)
    assert score_log.read(folder) == [record]


def test_a_checkpoint_that_the_run_does_not_have_is_a_warning(folder: Path) -> None:
    words = ["hyp", "ref", "--metric", "chrf", "--set-name", "test", "--run", "run"]
    for label, updates, warned in (("average-5", 12, False), ("bets", None, True)):
        result = run(*words, "--checkpoint", label)
        assert result.exit_code == 0, result.output
        warning = "warning: run has no checkpoint bets: .* has average-5, best and last\n"
        assert bool(re.search(warning, result.stderr)) == warned
        assert score_log.read(folder)[-1].updates == updates


def test_scores_are_recorded_even_if_the_reader_has_gone(folder: Path) -> None:
    process = run_without_reader("--run", "run", "--set-name", "test", "--metric", "chrf")
    assert process.returncode == 0, process.stderr
    assert [record.metric for record in score_log.read(folder)] == ["chrf"]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--run", "run"], "with --set-name"),
        (["--set-name", "test"], "add --run"),
        (["--checkpoint", "best"], "add --run"),
        (
            ["--run", "nowhere", "--set-name", "test"],
            "nowhere is not a run folder: there is no such folder",
        ),
        (["--run", "bare", "--set-name", "test"], "with --checkpoint"),
        (["--run", "bare", "--set-name", "a\nb"], "a character that no table can show"),
        (
            ["--run", "damaged", "--set-name", "test", "--checkpoint", "best"],
            "scores.json is damaged",
        ),
        (
            ["--run", "mapping", "--set-name", "test", "--checkpoint", "best"],
            "scores.json is damaged (its scores are not a list)",
        ),
        (
            ["--run", "empty", "--set-name", "test", "--checkpoint", "best"],
            "scores.json is damaged ('format' is missing)",
        ),
    ],
)
def test_mistakes_in_recording(folder: Path, arguments: list[str], said: str) -> None:
    for name in ("bare", "damaged", "mapping", "empty"):
        Path(name).mkdir()
        Path(name, "config.yaml").write_text("{}")
    Path("damaged/scores.json").write_text("{")
    Path("mapping/scores.json").write_text('{"format": 1, "scores": {}}')
    Path("empty/scores.json").write_text("{}")
    result = run("hyp", "ref", *arguments)
    assert result.exit_code == 2 and said in result.stderr and result.stdout == ""
    assert Path("damaged/scores.json").read_text() == "{" and not Path("run/scores.json").exists()


def test_two_records_with_one_key_are_damage(folder: Path) -> None:
    record = ["--run", "run", "--set-name", "test", "--checkpoint", "best"]
    assert run("hyp", "ref", *record).exit_code == 0
    document = json.loads(Path("run/scores.json").read_text())
    Path("run/scores.json").write_text(
        json.dumps({**document, "scores": document["scores"] + document["scores"][:1]})
    )
    said = run("hyp", "ref", *record).stderr
    assert "is damaged (2 records of test, best, " in said


# By length ----------------------------------------------------------------------------------------

SIZES = [0, 1, 4, 5, 6, 9, 10, 11, 24, 24]  # words of the source; none between 12 and 23


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Two systems, a reference and a source."""
    monkeypatch.chdir(tmp_path)
    reference = [
        " ".join(f"W{(i * k) % 7}" for k in range(size + 5)) for i, size in enumerate(SIZES)
    ]
    texts = {
        "src.de": [" ".join(["x"] * size) for size in SIZES],
        "ref.en": reference,
        "base.en": [line.replace("W3", "w4") for line in reference],
        "deep.en": [line.replace("W5", "w5") for line in reference],
    }
    for name, lines in texts.items():
        Path(name).write_text("".join(line + "\n" for line in lines))
    return texts


def by_length(*arguments: str) -> Result:
    return run("base.en", "-r", "ref.en", "--by-length", *arguments)


def test_a_picture_by_length_overwrites_no_text(texts: dict[str, list[str]]) -> None:
    Path("own.png").write_bytes(before := Path("ref.en").read_bytes())
    for hypothesis, reference, *more in (
        ("own.png", "ref.en"),
        ("base.en", "own.png"),
        ("base.en", "ref.en", "--source", "own.png"),
        ("base.en", "ref.en", "--system", "other=own.png"),
    ):
        result = run(hypothesis, "-r", reference, "--by-length", *more, "-o", "own.png")
        assert result.exit_code == 2 and "own.png is both read and written" in result.stderr
        assert Path("own.png").read_bytes() == before


def test_a_table_by_length(texts: dict[str, list[str]]) -> None:
    result = by_length(
        "--source", "src.de", "--system", "deep one=deep.en", "--bounds", "0,5,11,20"
    )
    assert result.exit_code == 0, result.output
    title, head, *rest = result.stdout.splitlines()
    rows, lines = rest[:4], rest[4:]
    assert title == "multi-bleu by the length of the source" and "\t" not in result.stdout
    assert head.split("  ")[0] == "words" and head.endswith("  sentences   base  deep one")
    assert [row.split()[:2] for row in rows[:3]] == [
        ["0-5", "4"],
        ["6-11", "4"],
        ["12-20", "0"],
    ] and rows[3].startswith("> 20")
    assert rows[2].split()[2:] == ["-", "-"]
    first = [texts[name][:4] for name in ("base.en", "ref.en")]
    assert rows[0].split()[2] == f"{score(first[0], [first[1]], ['multi-bleu'])[0].value:.2f}"
    assert (
        lines[0].startswith("base: base.en (10 sentences, ")
        and " against ref.en (" in lines[0]
        and lines[1].startswith("deep one: ")
    )
    assert lines[2:4] == [
        "lengths: words between white space in src.de",
        "blank: 1 of these lines, in the row 0-5",
    ]
    assert lines[4].startswith("signature: nrefs:1|case:mixed")


def test_longer_than_each_bound(texts: dict[str, list[str]]) -> None:
    result = by_length("--source", "src.de", "--longer-than", "--name", "one")
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["words", "sentences", "one"]
    assert [line.split()[:3] for line in lines[2:9]] == [
        [">", f"{10 * k}", f"{n}"] for k, n in enumerate([9, 3, 2, 0, 0, 0, 0])
    ]
    assert "blank: 1 of these lines, in no row" in lines


@pytest.mark.parametrize("metric", ["multi-bleu", "sacrebleu", "ter"])
def test_json_by_length(texts: dict[str, list[str]], metric: str) -> None:
    arguments = [
        "--system",
        "deep=deep.en",
        "--bounds",
        "0,30",
        "--longer-than",
        "--json",
        "--lowercase",
        "--metric",
        metric,
    ]
    document = json.loads(by_length(*arguments).stdout)
    [whole, empty] = document["rows"]
    results = {
        name: score(texts[f"{name}.en"], [texts["ref.en"]], [metric], lowercase=True)[0]
        for name in ("base", "deep")
    }
    assert whole == {
        "fewest": 1,
        "most": None,
        "sentences": 10,
        "scores": {name: result.value for name, result in results.items()},
    }
    assert empty == {
        "fewest": 31,
        "most": None,
        "sentences": 0,
        "scores": {"base": None, "deep": None},
    }
    assert (document["metric"], document["signature"]) == (
        results["base"].metric,
        results["base"].signature,
    )
    assert document["lengths"] == {
        "of": "reference",
        "file": "ref.en",
        "words": sum(SIZES) + 50,
        "blank": 0,
    }
    assert [system["name"] for system in document["systems"]] == ["base", "deep"] and document[
        "sentences"
    ] == 10
    of_source = json.loads(by_length("--source", "src.de", *arguments).stdout)
    assert of_source["lengths"]["of"] == "source"


def test_lengths_of_the_first_reference(texts: dict[str, list[str]]) -> None:
    lines = by_length("-r", "deep.en").stdout.splitlines()
    assert lines[0] == "multi-bleu by the length of the first reference"
    assert (
        "lengths: words between white space in ref.en, "
        "the first reference, because --source is not given" in lines
    )
    assert not any(line.startswith("blank") for line in lines)


def test_tokenize_by_length(texts: dict[str, list[str]]) -> None:
    assert "tok:char" in by_length("--metric", "sacrebleu", "--tokenize", "char").stdout


def test_standard_input_by_length(texts: dict[str, list[str]]) -> None:
    with gzip.open("packed.en.gz", "wt") as file:
        file.write(Path("base.en").read_text())
    source = Path("src.de").read_text()
    result = run("packed.en.gz", "ref.en", "--by-length", "--source", "-", stdin=source)
    assert (
        result.stdout.splitlines()[1].split()[2] == "packed"
        and "white space in standard input\n" in result.stdout
    )
    assert (
        "standard input can be only one"
        in run("-", "ref.en", "--by-length", "--source", "-", stdin=source).stderr
    )


def test_a_picture_by_length(texts: dict[str, list[str]]) -> None:
    result = by_length("--source", "src.de", "--system", "deep=deep.en", "-o", "a.png", "--json")
    assert (
        result.exit_code == 0
        and json.loads(result.stdout)["rows"]
        and Path("a.png").stat().st_size > 10_000
    )


def test_warnings_name_their_system(texts: dict[str, list[str]]) -> None:
    Path("bpe.en").write_text("".join(f"the c@@ at {line}\n" for line in texts["ref.en"]))
    result = by_length("--system", "bpe=bpe.en", "--json")
    assert "warning: bpe: the hypothesis looks like subwords" in result.stderr
    assert json.loads(result.stdout)["warnings"][0].startswith("bpe: the hypothesis")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--metric", "chrf", "--metric", "ter"], "one metric, not chrf, ter: give one --metric"),
        (["--metric", "all"], "one metric, not all"),
        (["--run", "run", "--set-name", "test"], "record them without --by-length"),
        (["--checkpoint", "best"], "record them without --by-length"),
        (["--tokenize", "intl"], "give --metric sacrebleu"),
        (["--bounds", "10,0"], "'10,0' is not a list of rising numbers of words"),
        (["--bounds", "0,0"], "not a list of rising numbers"),
        (["--bounds", "0,-1"], "not a list of rising numbers"),
        (["--bounds", ""], "not a list of rising numbers"),
        (["--system", "deep.en"], "'deep.en' is not NAME=FILE"),
        (["--system", "=deep.en"], "is not NAME=FILE"),
        (
            ["--system", "base=deep.en"],
            "two systems are called 'base': give other names, with --name",
        ),
        (["--system", "deep=nowhere"], "nowhere does not exist"),
        (["--system", "deep=short"], "base.en has 10 lines and short has 1"),
        (["--source", "short"], "base.en has 10 lines and short has 1"),
        (["-o", "a.json"], "must end in .png, .pdf, .svg for a picture"),
        (["-o", "nowhere/a.png"], "the folder nowhere does not exist"),
        (
            ["-o", "a.png", "--longer-than", "--bounds", "99,100"],
            "no line has more than 99 words; give lower --bounds",
        ),
    ],
)
def test_mistakes_by_length(texts: dict[str, list[str]], arguments: list[str], said: str) -> None:
    Path("short").write_text("a\n")
    result = by_length(*arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert said in result.stderr and "Traceback" not in result.stderr
    assert not Path("a.png").exists()


@pytest.mark.parametrize(
    "arguments",
    [["--longer-than"], ["--bounds", "0"], ["--output", "a.png"]],
)
def test_options_that_need_by_length(texts: dict[str, list[str]], arguments: list[str]) -> None:
    result = run("base.en", "-r", "ref.en", *arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert f"{arguments[0]} has no effect without --by-length" in result.stderr
