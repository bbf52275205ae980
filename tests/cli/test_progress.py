"""Progress of long commands: a bar on a terminal, plain lines in a log, nothing with --quiet."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from fusetk.cli.progress import INTERVAL, LineProgress
from fusetk.recipe import load
from fusetk.train import train


def test_a_log_has_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with LineProgress(2000, clock=lambda: now[0]) as progress:
        translate = progress.tracked(lambda chunk: progress.batch(len(chunk)))
        for _ in range(8):
            now[0] += 10
            translate(range(250))
    assert INTERVAL == 30 and capsys.readouterr().err.splitlines() == [
        "750 of 2,000 lines, 25.0 lines/s, 0:00:50 left",
        "1,500 of 2,000 lines, 25.0 lines/s, 0:00:20 left",
    ]


def test_without_a_total_or_when_disabled(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    for disabled in (False, True):
        with LineProgress(None, disabled, clock=lambda: now[0]) as progress:
            now[0] += 40
            progress.batch(80)
    assert capsys.readouterr().err == "80 lines, 2.0 lines/s\n"


@pytest.fixture(scope="module")
def run(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("progress") / "run"
    train(load(toy, ["training.stages.0.end.updates=1"]), run, "cpu", quiet=True)
    return run


@pytest.mark.skipif(os.name != "posix", reason="needs a terminal")
@pytest.mark.parametrize("width", [70, 120])
def test_a_terminal_has_a_bar_in_one_line(run: Path, tmp_path: Path, width: int) -> None:
    text = tmp_path / "in.de"
    text.write_text("eins zwei\n" * 120, encoding="utf-8")
    command = [sys.executable, "-m", "fusetk", "decode", "-m", str(run), str(text), "-b", "1"]
    command += ["--batch-tokens", "40", "-d", "cpu", "-o", str(tmp_path / "out")]
    messages = {}
    for quiet in ([], ["-q"]):
        terminal, other = pty.openpty()
        environment = {
            **os.environ,
            "COLUMNS": str(width),
            "TERM": "xterm",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        process = subprocess.Popen([*command, *quiet], stderr=other, env=environment)
        os.close(other)
        messages[bool(quiet)] = read(terminal)
        assert process.wait() == 0
    assert messages[True] == ""
    assert " of 120 lines" in messages[False] and "lines/s" in messages[False]
    assert "120 sentences in" in messages[False]
    bars = [line for line in messages[False].split("\r") if "lines/s" in line]
    assert bars and not any("\n" in bar.rstrip("\n") for bar in bars)


def read(terminal: int) -> str:
    """Return all that a process writes to a terminal."""
    content = io.BytesIO()
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        content.write(part)
    os.close(terminal)
    return content.getvalue().decode()
