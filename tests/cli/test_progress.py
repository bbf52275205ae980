"""Progress of long commands: a bar on a terminal, plain lines in a log, nothing with --quiet."""

import io
import math
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from fusetk import display
from fusetk.display import INTERVAL, MIN_BAR, Display, Task
from fusetk.recipe import load
from fusetk.runs import read_metrics
from fusetk.train import train
from fusetk.training import reporter
from fusetk.training.progress import Progress
from fusetk.training.reporter import Updates

terminal = pytest.mark.skipif(os.name != "posix", reason="needs a terminal")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_log_has_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Display(clock=clock), display.task("", "lines", 2000) as task:
        for _ in range(8):
            clock.now += 10
            task.advance(250)
    assert INTERVAL == 30 and capsys.readouterr().err.splitlines() == [
        "750 of 2,000 lines, 25.0 lines/s, 0:00:50 left",
        "1,500 of 2,000 lines, 25.0 lines/s, 0:00:20 left",
    ]


def test_without_a_total_when_disabled_and_without_a_display(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    for disabled in (False, True):
        with Display(disabled, clock=clock), display.task("reading a", "lines") as task:
            clock.now += 40
            task.advance(80)
    assert list(display.tracked("abc", "letters", "letters", step=2)) == ["a", "b", "c"]
    assert capsys.readouterr().err == "reading a  80 lines, 2.0 lines/s\n"


def test_items_that_are_counted_together_are_all_counted() -> None:
    with Display(clock=Clock()) as shown:
        for _ in display.tracked("abcde", "letters", "letters", 5, step=2):
            [task] = shown.tasks
    assert task.count == 5


def test_an_inner_task_hides_the_outer_one(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Display(clock=clock), display.task("outer", "lines") as outer:
        with display.task("inner", "pairs", 8) as inner:
            clock.now += 40
            inner.advance()
        clock.now += 40
        outer.advance()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("inner  1 of 8 pairs") and second.startswith("outer  1 lines")


def test_a_narrow_terminal_drops_the_last_fields() -> None:
    clock = Clock()
    task = Updates(Progress())
    task.clock = clock
    task.begin_stage(Progress())
    task.values = {"loss": 4.1234, "speed": 3612.4, "rate": 1e-3}
    clock.now = 90.0
    task.move(Progress(update=90, stage_update=90, epochs=2.7, position=20), 30, 210)
    assert task.bar() == (90, 300)
    for width, texts in (
        (70, ("loss 4.123", "3,612 tokens/s", "0:03:30")),
        (120, ("loss 4.123", "3,612 tokens/s", "ppl 61.8", "lr 1.0e-03", "0:03:30")),
        (40, ()),
    ):
        before, after, bar = display._fitting(task, width)
        assert before == "epoch 3  update 90 of 300"
        assert all(text in after for text in texts), (width, after)
        assert bool(after) == bool(texts)
        assert len(before) + sum(2 + size for size in (bar, len(after)) if size) <= width
        assert bar == 0 or bar >= MIN_BAR
    task.values = {"loss": 650.0}
    assert f"ppl {math.exp(650):.3g}" in task.fields(), "a diverged training has a short line"


def test_the_bar_shows_the_epoch_if_the_end_is_unknown() -> None:
    task = Updates(Progress(update=40, stage_update=40))
    task.move(Progress(update=60, stage_update=60, epochs=2.0), 30, float("inf"))
    assert task.position() == "epoch 2  update 60" and task.bar() == (30, 30)
    task.move(Progress(update=61, stage_update=61, epochs=2.1, position=1), 30, float("inf"))
    assert task.position() == "epoch 3  update 61" and task.bar() == (1, 30)


@pytest.fixture(scope="module")
def run(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("progress") / "run"
    train(load(toy, ["training.log_every=100"]), run, "cpu", quiet=True)
    return run


def test_a_short_run_has_a_curve(run: Path) -> None:
    """The validation after update 4, and the end after update 8, are at powers of two."""
    records = [record for record in read_metrics(run) if record["kind"] == "train"]
    assert [record["update"] for record in records] == [1, 2, 4, 8]
    assert all(record["loss"] > 0 and record["tokens"] > 0 for record in records)


def test_a_rare_log_line_does_not_keep_all_updates_in_memory(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "MAX_UPDATES", 3)
    options = ["training.log_every=1000000", "training.validation.every_updates=8"]
    train(load(toy, options), tmp_path, "cpu", quiet=True)
    records = [record for record in read_metrics(tmp_path) if record["kind"] == "train"]
    assert [record["update"] for record in records] == [1, 2, 4, 7, 8]


def test_no_update_is_missing_in_the_averages(toy: Path, tmp_path: Path) -> None:
    """A validation does not discard the updates before it."""
    overrides = ["training.log_every=100", "training.validation.every_updates=3"]
    for name, more in (("a", []), ("b", ["training.log_every=1"])):
        train(load(toy, [*overrides, *more]), tmp_path / name, "cpu", quiet=True)
    records = {name: list(read_metrics(tmp_path / name)) for name in "ab"}
    tokens = {
        name: sum(record["tokens"] for record in lines if record["kind"] == "train")
        for name, lines in records.items()
    }
    assert tokens["a"] == tokens["b"]
    updates = [r["update"] for r in records["a"] if r["kind"] == "train"]
    assert updates == [1, 2, 3, 4, 6, 8]


def run_in_terminal(command: list[str], width: int, folder: Path) -> str:
    """Run a command with standard error on a terminal, and return all that it prints there.

    The test must use the fixture ``commands``.
    """
    parent, child = pty.openpty()
    null = subprocess.DEVNULL
    environment = {**os.environ, "COLUMNS": str(width), "TERM": "xterm"}
    process = subprocess.Popen(
        ["fusetk", *command], stdin=null, stdout=null, stderr=child, env=environment, cwd=folder
    )
    os.close(child)
    text = read(parent)
    assert process.wait() == 0, text
    return text


def read(descriptor: int) -> str:
    """Return all that a process writes to a terminal."""
    content = io.BytesIO()
    while True:
        try:
            part = os.read(descriptor, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        content.write(part)
    os.close(descriptor)
    return content.getvalue().decode()


def bars(text: str) -> list[str]:
    """Return the lines of a terminal that the bar occupied, without control sequences."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.replace("\x1b[2K", "\n"))
    return [line for line in re.split(r"[\r\n]+", plain) if re.match(r"[^┏┡└]+━", line)]


@terminal
@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize("width", [70, 120])
def test_decode_has_a_bar_in_one_line(run: Path, tmp_path: Path, width: int) -> None:
    text = tmp_path / "in.de"
    text.write_text("eins zwei\n" * 300, encoding="utf-8")
    command = ["decode", "-m", str(run), str(text), "-b", "1", "--batch-tokens", "40", "-d", "cpu"]
    command += ["-o", str(tmp_path / "out")]
    assert run_in_terminal([*command, "-q"], width, tmp_path) == ""
    messages = run_in_terminal(command, width, tmp_path)
    assert "300 sentences in" in messages
    plain = " ".join(messages.split())
    assert f"loading {run}/checkpoints/best (update-0000008) on cpu, " in plain
    lines = bars(messages)
    assert any(" of 300 lines" in line for line in lines)
    assert all(len(line) <= width for line in lines)


@terminal
@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize("width", [70, 120])
def test_train_shows_updates_and_validations(toy: Path, tmp_path: Path, width: int) -> None:
    command = ["train", str(toy), "--run", "run", "-d", "cpu", "--set", "training.log_every=100"]
    command += ["--set", "training.stages.0.end={epochs: 3}"]
    command += ["--set", "training.stages.0.batch.size=60"]
    command += ["--set", "training.validation.every_updates=50"]
    assert run_in_terminal([*command, "-q", "--run", "quiet"], width, tmp_path) == ""
    messages = run_in_terminal(command, width, tmp_path)
    lines = bars(messages)
    assert all(len(line) <= width for line in lines)
    updates = [line for line in lines if line.startswith("epoch ")]
    assert updates and any("loss " in line and "tokens/s" in line for line in updates)
    assert not any(line.startswith("epoch 4") or "loss 0.000" in line for line in lines)
    # The line of an average is cut to the width of the terminal; the log file has all of it.
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", messages)
    averages = [line for line in re.split(r"[\r\n]+", plain) if line.startswith("train  ")]
    assert averages and all(len(line) <= width for line in averages)
    log = (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")
    assert log.count(" MB\n") == len(averages)


@terminal
@pytest.mark.usefixtures("commands")
def test_prep_rescore_and_score_have_bars(run: Path, toy: Path, tmp_path: Path) -> None:
    folder = toy.parent
    overrides = ["--set", f"data.folder={tmp_path / 'data'}", "--set", "data.bpe={merges: 30}"]
    assert run_in_terminal(["prep", str(toy), *overrides, "--force", "-q"], 100, tmp_path) == ""
    for name in ("de", "en"):
        text = (folder / f"train.{name}").read_text(encoding="utf-8")
        (tmp_path / f"big.{name}").write_text(text * 40, encoding="utf-8")
    commands = {
        "of 24,000 lines  ": [
            "prep",
            str(toy),
            *overrides,
            "--set",
            f"data.train=[{tmp_path}/big]",
        ],
        "of 24,000 pairs": ["rescore", "-m", str(run), "big.de", "big.en", "-o", "scores"],
        "of 24,000 lines": ["score", "big.en", "-r", "big.en", "--metric", "chrf"],
    }
    for text, command in commands.items():
        messages = run_in_terminal(command, 100, tmp_path)
        lines = bars(messages)
        assert any(text in line for line in lines), (command, messages[-2000:])
        assert not [line for line in lines if len(line) > 100]


def test_a_count_stays_below_the_total() -> None:
    task = Task("", "lines", 10)
    task.advance(16)
    assert task.count == 10
