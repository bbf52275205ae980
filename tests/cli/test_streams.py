"""Standard streams that are closed or cannot be written, and the encoding of the output."""

import io
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fusetk.cli.main import main
from tests.cli.test_decode import make_run
from tests.cli.test_prep import folder as prepared_folder
from tests.helpers.forks import Forks

folder = prepared_folder
FUSETK = [sys.executable, "-m", "fusetk"]
READS = [
    "decode -m RUN",
    "decode -m RUN -o OUT",
    "decode -m RUN -i TEXT --prefix -",
    "rescore -m RUN",
    "rescore -m RUN -o OUT",
    "rescore -m RUN TEXT --n-best -",
    "score - -r TEXT",
    "text tokenize",
    "text tokenize -o OUT",
    "text learn-bpe -o OUT",
    "compare TEXT TEXT -i -",
    "plot-attention -m RUN -i - -o PICTURE",
]
WRITES = [
    "decode -m RUN -i TEXT",
    "rescore -m RUN TEXT TEXT",
    "rescore -m RUN TEXT TEXT --summary",
    "score TEXT -r TEXT",
    "score TEXT -r TEXT --json",
    "text tokenize -i TEXT",
    "text learn-bpe -i TEXT",
    "compare TEXT TEXT -i TEXT",
    "describe CONFIG",
    "describe CONFIG --json",
    "--help",
    "--version",
    "train --help",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    make_run(folder / "RUN")
    (folder / "TEXT").write_text("ein hund\n")
    return folder


def run(words: str, place: Path, toy: Path, capsys: pytest.CaptureFixture) -> tuple[int, str]:
    """Return the exit status and the content of standard error."""
    (place / "OUT").write_text("old content\n")
    paths = {name: str(place / name) for name in ("RUN", "TEXT", "OUT")} | {
        "CONFIG": str(toy),
        "PICTURE": str(place / "a.html"),
    }
    with pytest.raises(SystemExit) as caught:
        main([paths.get(word, word) for word in words.split()])
    assert (place / "OUT").read_text() == "old content\n"
    assert isinstance(caught.value.code, int)
    return caught.value.code, capsys.readouterr().err


@pytest.mark.parametrize("words", READS)
def test_standard_input_is_closed(words, place, toy, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    code, said = run(words, place, toy, capsys)
    assert (
        code == 2
        and said.startswith("fusetk: standard input is closed: ")
        and said.count("\n") == 1
    )
    assert sys.stdin is None


@pytest.mark.parametrize(
    "words",
    [
        "decode -m RUN -o OUT",
        "decode -m RUN -i TEXT --prefix - -o OUT",
        "rescore -m RUN -o OUT",
        "rescore -m RUN TEXT - -o OUT",
        "text tokenize -o OUT",
        "text learn-bpe -o OUT",
    ],
)
def test_standard_input_is_the_output(words, place, toy, capsys, monkeypatch):
    (place / "OUT").touch()
    with open(place / "OUT") as file:
        monkeypatch.setattr(sys, "stdin", file)
        code, said = run(words, place, toy, capsys)
    assert code == 2 and said.endswith("OUT is both read and written; write to another file\n")


def test_standard_input_does_not_block(place, tmp_path):
    """A writer pauses between two lines, and the reader has a non-blocking descriptor."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDWR), "w", buffering=1) as writer:
        writer.write("ein hund\n")
        code = f"os.dup2(os.open({str(pipe)!r}, os.O_RDONLY | os.O_NONBLOCK), 0)"
        process = Forks(["decode", "-m", place / "RUN", "-q"], code=code)
        process.wait_for("\n")
        time.sleep(0.1)
        writer.write("hund\n")
    assert process.succeed().count("\n") == 2


@pytest.mark.parametrize("words", WRITES)
def test_standard_output_is_closed(words, place, toy, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    code, said = run(words, place, toy, capsys)
    monkeypatch.undo()
    assert code == 2 and "fusetk: standard output is closed: " in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("closed", "code", "said"),
    [
        (
            "<&-",
            2,
            "fusetk: standard input is closed: "
            "name a file instead, or connect it to a file or pipe\n",
        ),
        (
            "< TEXT >&-",
            2,
            "fusetk: standard output is closed: "
            "connect it to a file or pipe; to discard it, use > /dev/null\n",
        ),
        ("-i TEXT -o NEW <&- >&-", 0, ""),
        ("-i TEXT -o NEW <&- >&- 2>&-", 0, ""),
    ],
)
def test_the_shell_closes_streams(closed, code, said, place):
    command = f"{shlex.join(FUSETK)} text tokenize {closed}"
    ran = subprocess.run(command, shell=True, cwd=place, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr, ran.stdout) == (code, said, "")
    assert code or (place / "NEW").read_text() == "ein hund\n"
    (place / "NEW").unlink(missing_ok=True)


@pytest.mark.parametrize("words", ["--help", "--version", "text --help", "score TEXT TEXT"])
def test_a_full_disk_is_one_sentence(words, place):
    command = f"{shlex.join(FUSETK)} {words} > /dev/full"
    ran = subprocess.run(command, shell=True, cwd=place, capture_output=True, text=True)
    said = "fusetk: the output cannot be written: No space left on device; free some disk space, "
    assert (ran.returncode, ran.stderr) == (74, f"{said}and run the same command again\n")


def without_reader(arguments: list[str], stream: str, cwd: Path, **options: object) -> int:
    """Return the exit status of a command if the reader of ``stream`` has closed the pipe."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        both = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
            **options,
            stream: writing,
        }
        return subprocess.run([*FUSETK, *arguments], cwd=cwd, **both).returncode
    finally:
        os.close(writing)


def test_prep_finishes_without_a_reader_of_its_messages(folder):
    assert without_reader(["prep", "config.yaml"], "stderr", folder) == 0
    assert (folder / "out" / "manifest.json").exists()


def test_learn_bpe_finishes_without_a_reader_of_its_messages(folder):
    arguments = ["text", "learn-bpe", "-i", "train.de"]
    assert without_reader([*arguments, "-o", "codes"], "stderr", folder) == 0
    with open(folder / "printed", "wb") as out:
        assert without_reader(arguments, "stderr", folder, stdout=out) == 0
    assert (folder / "codes").read_text() == (folder / "printed").read_text() != ""


def test_compare_writes_its_file_without_a_reader_of_its_output(place):
    words = ["compare", "TEXT", "TEXT", "-i", "TEXT", "-o", "cases.json", "--all"]
    assert without_reader(words, "stdout", place) == 0
    assert (place / "cases.json").exists()


@pytest.mark.parametrize(
    ("is_terminal", "encoding", "text"),
    [(False, "utf-8", "Δ is the difference"), (True, "latin-1", "\\u0394 is the difference")],
)
def test_the_output_has_every_character_in_every_locale(is_terminal, encoding, text, monkeypatch):
    output = io.BytesIO()
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    stream = io.TextIOWrapper(output, encoding="latin-1")
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(SystemExit) as caught:
        main(["report", "--help"])
    stream.flush()
    assert caught.value.code == 0
    assert text in " ".join(output.getvalue().decode(encoding).split())
