"""``fusetk text``: pipes of lines."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fusetk.cli.main import main

ODD = "x\u2028y\u0085z\x0c\t\0 1\u00a0%"


def call(*arguments: object, text: str | bytes = "") -> Result:
    return CliRunner().invoke(
        main, ["text", *(str(argument) for argument in arguments)], input=text
    )


def out(*arguments: object, text: str | bytes = "") -> str:
    result = call(*arguments, text=text)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes.decode()


def test_tokens_and_back() -> None:
    raw = 'He said: "isn\'t it well-known?"\n\nA & B.\n'
    tokens = "He said : &quot; isn &apos;t it well @-@ known ? &quot;\n\nA &amp; B.\n"
    assert out("tokenize", "-l", "en", "--aggressive-hyphens", text=raw) == tokens
    assert out("tokenize", "--no-escape", text="a & b\n") == "a & b\n"
    assert out("detokenize", "-l", "en", text=tokens) == raw
    assert out("detokenize", "--no-unescape", text="a &amp; b\n") == "a &amp; b\n"


@pytest.mark.parametrize("command", ["tokenize", "normalize", "detokenize", "remove-bpe"])
def test_a_line_for_each_line(command: str) -> None:
    text = f"\ufeff{ODD}\r\n\n   \n{ODD}"
    assert out(command, text=text.encode()).count("\n") == 4
    assert out(command, text="") == ""


def test_quotes_spaces_and_accents_are_normalized() -> None:
    assert out("normalize", "-l", "de", text="„e\u0301“ – 5 %\n") == '"e\u0301" - 5%\n'
    assert out("normalize", "--nfc", text="e\u0301\n") == "é\n"


def test_bpe_learned_applied_removed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("hund hunde hund\n")
    (tmp_path / "b").write_text("hunde\n\nkatze katze\n")
    learned = call(
        "learn-bpe", "-s", 50, "-i", tmp_path / "a", "-i", tmp_path / "b", "-o", tmp_path / "codes"
    )
    assert ": no other pair occurs 2 times" in learned.stderr
    text = "hund  hunden katze\n\n"
    split = out("apply-bpe", "-c", tmp_path / "codes", text=text)
    assert split == "hund hund@@ e@@ n katze\n\n"
    assert out("remove-bpe", text=split) == "hund hunden katze\n\n"
    for seed in range(3):
        options = ["apply-bpe", "-c", tmp_path / "codes", "--dropout", 0.5, "--seed", seed]
        split = out(*options, text=text * 9)
        assert split == out(*options, text=text * 9)
        assert len(set(split.splitlines())) > 3
        assert out("remove-bpe", text=split) == "hund hunden katze\n\n" * 9
    options = ["apply-bpe", "-c", tmp_path / "codes", "--dropout", 1]
    assert out(*options, text=" hund\n") == " h@@ u@@ n@@ d\n"
    assert (
        "--dropout: must be at least 0 and at most 1" in call(*options[:-1], 1.5, text="x").stderr
    )
    (tmp_path / "vocab").write_text("hund 2\nkat@@ 1\nx 5\n")
    options = ["apply-bpe", "-c", tmp_path / "codes", "--vocabulary", tmp_path / "vocab"]
    assert out(*options, text="hund\n") == "hund\n"
    assert out(*options, "--threshold", 3, text="hund\n") == "h@@ u@@ n@@ d\n"
    for name in ("marian.yml", "sockeye.JSON.gz"):
        mapping = (tmp_path / "vocab").rename(tmp_path / name)
        error = call(*options[:-1], mapping, text="hund\n").stderr
        assert f"{name} maps tokens to ids and has no counts; give a file of subword-nmt" in error
        mapping.rename(tmp_path / "vocab")


def test_learn_bpe_reads_files_as_arguments_too(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("hund hund katze\n")
    options = ("learn-bpe", "-s", 3)
    together = out(*options, "-i", tmp_path / "a", "-i", tmp_path / "b")
    assert out(*options, tmp_path / "a", tmp_path / "b") == together
    assert out(*options, "-i", tmp_path / "a", tmp_path / "b") == together


def test_standard_input_cannot_be_read_twice() -> None:
    result = call("learn-bpe", "-i", "-", "-i", "-", text="a a\n")
    assert result.exit_code == 2 and "- is given twice" in result.stderr


@pytest.mark.parametrize(
    ("option", "needed"), [("--threshold", "--vocabulary"), ("--seed", "--dropout")]
)
def test_an_option_of_bpe_without_effect_is_an_error(option: str, needed: str) -> None:
    result = call("apply-bpe", "-c", "codes", option, 1)
    assert result.exit_code == 2
    assert f"{option} has no effect without {needed}: add {needed}" in result.stderr


def test_a_filter_that_fails_changes_no_file(tmp_path: Path) -> None:
    (tmp_path / "in.de").write_text("a\nb\nc\n")
    (tmp_path / "in.en").write_text("a\nb\n")
    (tmp_path / "out.de").write_text("old\n")
    names = sorted(tmp_path.iterdir())
    words = ["text", "filter", tmp_path / "in.de", tmp_path / "in.en", "-o", tmp_path / "out"]
    assert CliRunner().invoke(main, list(map(str, words))).exit_code == 2
    assert sorted(tmp_path.iterdir()) == names and (tmp_path / "out.de").read_text() == "old\n"


def test_a_full_disk_changes_neither_filtered_file(tmp_path: Path) -> None:
    """The files are larger than the limit and smaller than a buffer."""
    for language, length in (("de", 10), ("en", 100)):
        (tmp_path / f"in.{language}").write_text(100 * ("a" * length + "\n"))
        (tmp_path / f"out.{language}").write_text("old\n")
    names = sorted(tmp_path.iterdir())
    words = ["text", "filter", tmp_path / "in.de", tmp_path / "in.en", "-o", tmp_path / "out"]
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limit[1]))
    try:
        result = CliRunner().invoke(main, list(map(str, words)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert result.exit_code == 2 and f"{tmp_path / 'out.en'} cannot be written" in result.output
    assert sorted(tmp_path.iterdir()) == names
    assert [(tmp_path / f"out.{name}").read_text() for name in ("de", "en")] == ["old\n"] * 2


def test_filtered_files_need_names(tmp_path: Path) -> None:
    for name in ("x.de", "x.en"):
        (tmp_path / name).write_text("a\n")
    for prefix in ("", f"{tmp_path}/"):
        words = ["text", "filter", f"{tmp_path}/x.de", f"{tmp_path}/x.en", "-o", prefix]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 2 and "would be their suffixes" in result.output
    assert len(list(tmp_path.iterdir())) == 2


def test_filtered_pairs_are_counted_by_reason(tmp_path: Path) -> None:
    (tmp_path / "x.de").write_text("a b\nc\n\nd d d d\na b\n")
    (tmp_path / "x.en").write_text("a\nc c c c\ny\nd\na\n")
    result = call(
        "filter",
        tmp_path / "x.de",
        tmp_path / "x.en",
        "-o",
        tmp_path / "y",
        "--max-ratio",
        2,
        "--deduplicate",
    )
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "5 pairs in, 1 out, 1 duplicate, 1 empty, 2 length ratio\n"
    assert ((tmp_path / "y.de").read_text(), (tmp_path / "y.en").read_text()) == ("a b\n", "a\n")
    refused = call("filter", tmp_path / "x.de", tmp_path / "x.en", "-o", tmp_path / "x")
    assert refused.exit_code == 2 and "give another prefix" in refused.stderr
    lengths = ["-o", tmp_path / "y", "--min-length", 4, "--max-length", 3]
    refused = call("filter", tmp_path / "x.de", tmp_path / "x.en", *lengths)
    assert refused.exit_code == 2 and "the filter would drop every pair" in refused.stderr


def test_errors_name_where(tmp_path: Path) -> None:
    result = call("tokenize", text=b"good\n\xff\n")
    assert (
        result.exit_code == 2 and "standard input, line 2: byte 0xff at offset 0" in result.stderr
    )
    result = call("tokenize", "-i", tmp_path / "none")
    assert result.exit_code == 2 and "none does not exist" in result.stderr
    result = call("learn-bpe", text="\n")
    assert result.exit_code == 2 and "standard input has no words" in result.stderr
    for command in ("remove-bpe", "learn-bpe"):
        result = call(command, "-o", tmp_path / "no" / "x", text="\n")
        assert result.exit_code == 2 and f"{tmp_path / 'no'} does not exist" in result.stderr


def test_no_output_is_begun_before_the_input_is_seen(tmp_path: Path) -> None:
    text, output = tmp_path / "text", tmp_path / "kept"
    for path in (text, output):
        path.write_text("a b\n")
    for arguments in (
        ["tokenize", "-i", text, "-o", text],
        ["tokenize", "-i", tmp_path / "typo", "-o", output],
        ["learn-bpe", "-i", text, "-o", text],
        ["filter", text, tmp_path / "typo", "-o", tmp_path / "out"],
    ):
        assert call(*arguments).exit_code == 2, arguments
    assert text.read_text() == output.read_text() == "a b\n"


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a line\n" * 200_000)
    command = [sys.executable, "-m", "fusetk", "text", "remove-bpe", "-i", str(tmp_path / "x")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == b"a line\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_text_and_prep_import_no_torch() -> None:
    code = (
        "import sys, fusetk.cli.text, fusetk.data.prepare, fusetk.data.tokenize\n"
        "import fusetk.data.corpus\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
