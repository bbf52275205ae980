"""Files of ``fusetk decode``: shards, resumed outputs, parallel inputs and output formats."""

import gzip
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from fusetk.decoding.output_file import open_output
from tests.cli.test_decode import WORDS, decode, make_run, output
from tests.helpers.forks import Forks

FORMS = {"text": [], "n-best": ["--n-best", "2"], "json": ["--json"]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """Twenty lines; some of them, and the last one, are blank."""
    choose = random.Random(3)
    path = tmp_path_factory.mktemp("text") / "in.de"
    lines = [" ".join(choose.choices(WORDS, k=choose.choice([0, 1, 3, 6]))) for _ in range(19)]
    path.write_text("".join(f"{line}\n" for line in [*lines, ""]), encoding="utf-8")
    return path


def written(trained: Path, text: Path, out: Path, *options: object) -> str:
    result = decode("-m", trained, "-i", text, "-o", out, "--threads", 1, *options)
    assert result.exit_code == 0, result.output
    return out.read_text(encoding="utf-8")


def refused(*arguments: object) -> str:
    """Return the error message of a call that must fail: one sentence."""
    result = decode(*arguments)
    assert result.exit_code == 2, result.output
    [error] = [line for line in result.stderr.splitlines() if not line.startswith("loading ")]
    assert error.startswith("fusetk: ")
    return error


# Shards -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_the_outputs_of_all_shards_are_the_output_of_the_file(trained, text, tmp_path, form):
    # With one line in a batch, scores are equal to the last bit.
    options = [*FORMS[form], "--batch-tokens", 1, "--sample", "--seed", 3]
    whole = written(trained, text, tmp_path / "whole", *options)
    outputs = [
        written(trained, text, tmp_path / f"{i}", *options, "--shard", f"{i}/3") for i in (1, 2, 3)
    ]
    assert "".join(outputs) == whole
    if form == "text":
        assert [len(part.splitlines()) for part in outputs] == [6, 7, 7]


def test_more_shards_than_lines_and_a_compressed_file(trained, tmp_path):
    (tmp_path / "in.gz").write_bytes(gzip.compress(b"ein\nhund"))
    parts = [
        output("-m", trained, "-i", tmp_path / "in.gz", "--shard", f"{i}/3") for i in (1, 2, 3)
    ]
    assert [len(part) for part in parts] == [0, 1, 1]
    assert [line for part in parts for line in part] == output("-m", trained, lines=["ein", "hund"])


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_invalid_shards(trained, text, shard):
    result = decode("-m", trained, "-i", text, "--shard", shard)
    assert result.exit_code == 2 and "I from 1 to N" in result.stderr


def test_shards_of_a_stream_are_refused(trained, tmp_path):
    assert "standard input can be read only once" in refused("-m", trained, "--shard", "1/2")
    os.mkfifo(tmp_path / "pipe")
    assert "pipe can be read only once" in refused(
        "-m", trained, "-i", tmp_path / "pipe", "--shard", "1/2"
    )
    assert "does not exist either" in refused(
        "-m", trained, "-i", tmp_path / "no" / "in", "--shard", "1/2"
    )


# Resumed outputs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shard", [[], ["--shard", "2/2"]], ids=["whole", "part"])
@pytest.mark.parametrize("form", FORMS)
def test_an_interrupted_output_is_completed(trained, text, tmp_path, form, shard):
    options = [*FORMS[form], *shard, "--batch-tokens", 1, "--resume"]
    out = tmp_path / "out"
    whole = written(trained, text, out, *options).encode()  # a new file
    for size in (0, len(whole) // 3, len(whole) - 1, len(whole)):
        out.write_bytes(whole[:size])
        assert written(trained, text, out, *options).encode() == whole, size


def test_resuming_reports_the_count_and_skips_standard_input(trained, text, tmp_path):
    lines = text.read_text(encoding="utf-8").split("\n")[:-1]
    out = tmp_path / "out"
    whole = written(trained, text, out, "--batch-tokens", 1)
    out.write_text(
        "".join(f"{line}\n" for line in whole.split("\n")[:10]) + "half a li", encoding="utf-8"
    )
    result = decode("-m", trained, "-o", out, "--batch-tokens", 1, "--resume", lines=lines)
    assert (
        result.exit_code == 0
        and f"{out} has translations of 10 lines: continuing with line 11" in result.stderr
    )
    assert out.read_text(encoding="utf-8") == whole


def test_an_output_that_another_process_writes_is_refused(trained, text, tmp_path):
    """Otherwise the lines of both would be mixed, for example after an early --resume."""
    out = tmp_path / "out"
    with open_output(str(out), keep=0) as output:
        output.write("line 1\n")
        for options in ([], ["--resume"]):
            said = refused("-m", trained, "-i", text, "-o", out, *options)
            assert f"another fusetk process is writing {out}" in said
    assert out.read_text() == "line 1\n"


def test_an_output_is_kept_until_the_first_translation(trained, tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    out.write_text("old\n" * 9)
    source.write_bytes(b"\xff\n")
    assert "line 1: byte 0xff" in refused("-m", trained, "-i", source, "-o", out)
    assert out.read_text() == "old\n" * 9
    for lines in (["hund"], []):
        assert output("-m", trained, "-o", out, lines=lines) == []
        assert out.read_text().splitlines() == output("-m", trained, lines=lines)


def test_an_output_that_does_not_belong_to_the_input(trained, text, tmp_path):
    out = tmp_path / "out"
    arguments = ["-m", trained, "-i", text, "-o", out, "--resume"]
    for form in FORMS:
        lines = {"text": "x", "n-best": "{} ||| x", "json": '{{"id": {}}}'}
        long = "".join(lines[form].format(i) + "\n" for i in range(30))
        out.write_text(long)
        assert (
            "translations of 30 lines" in (said := refused(*arguments, *FORMS[form]))
            and "only 20 lines" in said
        )
        assert out.read_text() == long  # the file does not change
    assert "part 1/2 of" in refused(*arguments, *FORMS[form], "--shard", "1/2")
    out.write_text("words\nmore\n")
    assert "line 1: this is not a translation of input line 1" in refused(*arguments, "--n-best", 1)
    assert "line 2: this is not the JSON object of input line 2" in refused(*arguments, "--json")
    out.write_text("1 ||| x\n0 ||| x\n")
    assert "line 2" in refused(*arguments, "--n-best", 1)
    out.write_text("0 ||| x\n0 ||| y\n0 ||| z\n1 ||| x\n")
    said = refused(*arguments, "--n-best", 2)
    assert "line 3: this is not one of the 2 best translations of input line 1" in said


def test_a_translation_that_is_a_number_can_be_resumed(trained, text, tmp_path):
    out = tmp_path / "out"
    whole = written(trained, text, out, "--word-scores").splitlines()
    number = "12 ||| WordScores= -0.5 -0.25"
    out.write_text(f"{number}\n", encoding="utf-8")
    resumed = written(trained, text, out, "--word-scores", "--resume").splitlines()
    assert resumed[0] == number and len(resumed) == len(whole)


def test_outputs_that_cannot_be_resumed(trained, text, tmp_path):
    assert "an output file: name it with -o" in refused("-m", trained, "-i", text, "--resume")
    assert "not end in .gz" in refused(
        "-m", trained, "-i", text, "-o", tmp_path / "out.gz", "--resume"
    )
    assert "is a folder" in refused("-m", trained, "-i", text, "-o", tmp_path, "--resume")
    os.mkfifo(tmp_path / "pipe")
    assert "a pipe" in refused("-m", trained, "-i", text, "-o", tmp_path / "pipe", "--resume")
    for option, content in (("--json", '{"id":' * 100_000), ("--n-best=2", "1" * 5000 + " ||| ")):
        (tmp_path / "other").write_text(f"{content}\n")
        said = refused("-m", trained, "-i", text, "-o", tmp_path / "other", option, "--resume")
        assert "--resume cannot continue the file" in said
    for content in ("0 ||| a ||| LogProb= -1 ||| -1", '{"id": 0, "translations": []}'):
        (tmp_path / "other").write_text(f"{content}\n")
        said = refused("-m", trained, "-i", text, "-o", tmp_path / "other", "--resume")
        assert "line 1: this is not a line of plain text" in said


def test_a_kill_loses_nothing(trained, tmp_path):
    """After SIGKILL before the end of the input, the output is completed."""
    choose = random.Random(4)
    lines = ["".join(f"{word} " for word in choose.choices(WORDS, k=6)) for _ in range(300)]
    source, pipe, out = (tmp_path / name for name in ("in", "pipe", "out"))
    source.write_text("\n".join(lines), encoding="utf-8")
    options = ["-b", "1", "--chunk", "60", "--threads", "1", "--quiet"]
    whole = written(trained, source, tmp_path / "whole", *options)
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDWR), "w", encoding="utf-8") as writer:
        writer.writelines(f"{line}\n" for line in lines[:200])
        writer.flush()
        process = Forks(["decode", "-m", trained, "-i", pipe, "-o", out, *options])
        end = time.monotonic() + 60
        while not (out.exists() and out.stat().st_size) and time.monotonic() < end:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == [-signal.SIGKILL]
    left = out.read_bytes()
    assert left and whole.encode().startswith(left) and len(left) < len(whole)
    assert written(trained, source, out, *options, "--resume") == whole


# Parallel inputs ----------------------------------------------------------------------------------


def test_prefixes_and_constraints_apply_to_their_lines(trained, tmp_path):
    (tmp_path / "begin").write_text("und\n\n\nhund ein\n", encoding="utf-8")
    (tmp_path / "contain").write_text("\n\nbellt\tein hund\n\n", encoding="utf-8")
    arguments = [
        "-m",
        trained,
        "--tokenized",
        "--max-length-extra",
        6,
        "--prefix",
        tmp_path / "begin",
        "--constraints",
        tmp_path / "contain",
    ]
    translations = output(*arguments, lines=["ein", "hund", "läuft", "."])
    assert translations[0].split()[0] == "und" and translations[3].split()[:2] == ["hund", "ein"]
    assert (
        translations[1]
        == output("-m", trained, "--tokenized", "--max-length-extra", 6, lines=["hund"])[0]
    )
    assert translations[2].index("bellt") < translations[2].index("ein hund")
    (tmp_path / "in").write_text("ein\nhund\nläuft\n.\n", encoding="utf-8")
    assert [
        line
        for i in (1, 2, 3)
        for line in output(*arguments, "-i", tmp_path / "in", "--shard", f"{i}/3")
    ] == translations
    (tmp_path / "out").write_text(f"{translations[0]}\n{translations[1]}\n", encoding="utf-8")
    assert (
        written(trained, tmp_path / "in", tmp_path / "out", *arguments[2:], "--resume").split("\n")[
            :-1
        ]
        == translations
    )


def test_the_side_file_is_standard_input(trained, tmp_path):
    (tmp_path / "in").write_text("ein\nhund\n", encoding="utf-8")
    printed = output(
        *("-m", trained, "--tokenized", "-i", tmp_path / "in", "--prefix", "-"),
        lines=["und", "bellt"],
    )
    assert [line.split()[0] for line in printed] == ["und", "bellt"]
    assert "standard input can be only one" in refused("-m", trained, "--prefix", "-")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("decode -i PIPE", "hund"),
        ("rescore TEXT PIPE -o OUT", "hund"),
        ("rescore --tsv PIPE", "ein hund\thund"),
    ],
)
def test_a_line_of_a_pipe_is_answered_while_the_writer_waits(trained, tmp_path, words, line):
    paths = {name: tmp_path / name for name in ("PIPE", "TEXT", "OUT")}
    os.mkfifo(paths["PIPE"])
    paths["TEXT"].write_text("ein\nhund\n", encoding="utf-8")
    arguments = [paths.get(word, word) for word in words.split()]
    process = Forks([*arguments, "-m", trained, "-q"])
    with open(paths["PIPE"], "w", buffering=1) as writer:
        writer.write(f"{line}\n")
        end = time.monotonic() + 60
        while not (process.output() or (paths["OUT"].exists() and paths["OUT"].stat().st_size)):
            assert process.is_alive() and time.monotonic() < end
            time.sleep(0.005)
        writer.write(f"{line}\n")
    text = process.succeed() or paths["OUT"].read_text(encoding="utf-8")
    assert text.count("\n") == 2


@pytest.mark.parametrize("lines", [3, 6])
def test_a_parallel_file_of_another_length(trained, tmp_path, lines):
    (tmp_path / "begin").write_text("und\n" * lines)
    (tmp_path / "in").write_text("hund\n" * 5)
    arguments = ["-m", trained, "--prefix", tmp_path / "begin"]
    said = f"{tmp_path / 'in'} has 5 lines and {tmp_path / 'begin'} has {lines}"
    assert said in refused(*arguments, "-i", tmp_path / "in", "-o", tmp_path / "out")
    assert len((tmp_path / "out").read_text().split("\n")[:-1]) == min(lines, 5)
    assert said in refused(*arguments, "-i", tmp_path / "in", "--shard", "1/2")
    result = decode(*arguments, lines=["hund"] * 5)
    assert result.exit_code == 2 and len(result.stdout.split("\n")[:-1]) == min(lines, 5)
    assert (
        "standard input has more" if lines < 5 else "standard input has 5 lines"
    ) in result.stderr


# Output formats -----------------------------------------------------------------------------------


def test_word_scores_and_alignments_in_every_format(trained):
    arguments = ["-m", trained, "--word-scores", "--alignment"]
    row = json.loads(output(*arguments, "--json", lines=["Ein Hund läuft."])[0])
    best = row["translations"][0]
    assert row["source_tokens"] == ["ein", "hund", "läuft", "."]
    assert len(best["word_scores"]) == len(best["tokens"]) + 1 and sum(
        best["word_scores"]
    ) == pytest.approx(best["score"], abs=1e-4)
    assert [target for _, target in best["alignment"]] == list(range(len(best["tokens"])))
    assert all(0 <= source < 4 for source, _ in best["alignment"])
    pairs = " ".join(f"{source}-{target}" for source, target in sorted(best["alignment"]))
    scores = "WordScores= " + " ".join(f"{score:.6f}" for score in best["word_scores"])
    assert output(*arguments, lines=["Ein Hund läuft.", ""]) == [
        f"{best['text']} ||| {pairs} ||| {scores}",
        "",
    ]
    features = f"LogProb= {best['score']:.6f} {scores}"
    moses = f"0 ||| {best['text']} ||| {features} ||| {best['normalized']:.6f} ||| {pairs}"
    assert output(*arguments, "--n-best", 1, lines=["Ein Hund läuft."]) == [moses]


def test_soft_alignments(trained):
    arguments = ["-m", trained, "--alignment", "1.2", "--alignment-form", "soft"]
    rows = json.loads(output(*arguments, "--json", lines=["Ein Hund"])[0])["translations"][0]
    assert [len(row) for row in rows["alignment"]] == [3] * (len(rows["tokens"]) + 1)
    assert [sum(row) for row in rows["alignment"]] == pytest.approx(
        [1.0] * len(rows["alignment"]), abs=1e-4
    )
    words = output(*arguments, lines=["Ein Hund"])[0].partition(" ||| ")[2].split(" ")
    weights = [float(weight) for word in words for weight in word.split(",")]
    assert weights == pytest.approx(
        [weight for row in rows["alignment"] for weight in row], abs=1e-5
    )
    for counted_back in (["--alignment", "-1.-1"], ["--alignment=-1.2"]):
        assert output("-m", trained, *counted_back, *arguments[4:], lines=["Ein Hund"]) == output(
            *arguments, lines=["Ein Hund"]
        )


def test_unknown_words_are_replaced(trained, tmp_path):
    (tmp_path / "words").write_text("katze\tcat\n", encoding="utf-8")
    (tmp_path / "begin").write_text("xyz\n")  # gives an unknown word
    arguments = ["-m", trained, "--tokenized", "--prefix", tmp_path / "begin"]
    assert output(*arguments, lines=["katze"])[0].split()[0] == "<unk>"
    assert output(*arguments, "--replace-unknown", lines=["katze"])[0].split()[0] == "katze"
    assert (
        output(*arguments, "--replace-unknown", tmp_path / "words", lines=["katze"])[0].split()[0]
        == "cat"
    )


def test_timing_adds_seconds(trained):
    begun = time.perf_counter()
    rows = [
        json.loads(line)
        for line in output("-m", trained, "--json", "--timing", lines=["ein", "", "hund"])
    ]
    assert 0 < sum(row["seconds"] for row in rows) < time.perf_counter() - begun
    assert "--json" in refused("-m", trained, "--timing")
    assert "--alignment" in refused("-m", trained, "--alignment-form", "hard")
