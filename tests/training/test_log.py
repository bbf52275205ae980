"""Output of a run: JSON lines, a log that outlives its reader, TensorBoard files."""

import errno
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fusetk.errors import ConfigError
from fusetk.training.log import Log, forget_after
from fusetk.training.progress import Progress


def test_lines_for_people_and_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Log(tmp_path) as log:
        log.line("update 1: [100] done")
        log.record("train", {"update": 1, "loss": 2.5})
    assert capsys.readouterr().err == "update 1: [100] done\n"
    assert (tmp_path / "log.txt").read_text().endswith("  update 1: [100] done\n")
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {
        "kind": "train",
        "update": 1,
        "loss": 2.5,
    }


def test_a_reader_that_has_gone_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    with Log(tmp_path) as log:
        monkeypatch.setattr(sys, "stderr", Closed())
        log.line("unread")
        monkeypatch.undo()
    assert "unread" in (tmp_path / "log.txt").read_text()


def test_later_updates_and_an_incomplete_line_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [f'{{"kind": "train", "update": {update}}}\n' for update in (1, 2, 3)]
    path.write_text("".join(lines) + '{"kind": "tra')
    forget_after(tmp_path, Progress(update=2))
    assert path.read_text() == "".join(lines[:2])
    forget_after(tmp_path / "none", Progress(update=2))


def test_a_validation_that_is_repeated_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [
        f'{{"kind": "{kind}", "update": {update}}}\n'
        for update in (4, 8)
        for kind in ("train", "valid")
    ]
    path.write_text("".join(lines))
    forget_after(tmp_path, Progress(update=8, ranking=[(4, 1.0, 1.0), (8, 1.0, 1.0)]))
    assert path.read_text() == "".join(lines)
    forget_after(tmp_path, Progress(update=8, ranking=[(4, 1.0, 1.0)]))
    assert path.read_text() == "".join(lines[:3])


def test_tensorboard_gets_every_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[Any, ...]] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int):
            assert folder == str(tmp_path / "tensorboard")
            assert purge_step == 7, "a resumed run repeats the updates after 6"

        def add_scalar(self, *values: Any) -> None:
            written.append(values)

        def close(self) -> None:
            written.append(("closed",))

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with Log(tmp_path, quiet=True, tensorboard=True, update=6) as log:
        log.record("valid", {"update": 7, "loss": 2.5, "name": "x", "shares": {"l1": 0.5}})
    assert written == [
        ("valid/update", 7, 7),
        ("valid/loss", 2.5, 7),
        ("valid/shares/l1", 0.5, 7),
        ("closed",),
    ]


def test_a_write_error_of_tensorboard_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def __init__(self, folder: str, purge_step: int):
            pass

        def add_scalar(self, *values: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Full  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with Log(tmp_path, quiet=True, tensorboard=True) as log:
        for update in (1, 2):
            log.record("train", {"update": update, "loss": 2.5})
    said = (tmp_path / "log.txt").read_text()
    assert said.count("TensorBoard files cannot be written") == 1
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_once_and_again_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with Log(tmp_path, quiet=True) as log:
        for update in (1, 2):
            log.record("train", {"update": update})
    first, last = capsys.readouterr().err.splitlines()
    assert "metrics.jsonl cannot be written (No space left on device)" in first
    assert "metrics.jsonl lacks its last lines" in last


def test_a_quiet_log_prints_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Log(tmp_path, quiet=True) as log:
        log.line("stage 1 of 1 starts")
        log.line("warning: no weight was copied")
    assert capsys.readouterr().err == "warning: no weight was copied\n"
    assert len((tmp_path / "log.txt").read_text().splitlines()) == 2


def test_a_log_that_is_not_a_terminal_has_complete_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Log(tmp_path) as log:
        log.line("loss " + 50 * "1.0 ")
    assert capsys.readouterr().err == "loss " + 50 * "1.0 " + "\n"


def test_a_program_without_standard_error_can_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", None)
    with Log(tmp_path, quiet=True) as log:
        log.line("stage 1 of 1 starts")
    assert (tmp_path / "log.txt").read_text().endswith("  stage 1 of 1 starts\n")


def test_missing_tensorboard_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install 'fusetk\[tensorboard\]'"):
        Log(tmp_path, tensorboard=True)
