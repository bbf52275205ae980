"""The priority of a command among the processes of other sessions."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusetk import priority

COMMAND = """
import os
from fusetk.cli.main import main
from fusetk.priority import AUTOGROUP_FILE

nice = os.nice(7)
try:
    main(["--version"])
except SystemExit:
    print(nice)
    print(AUTOGROUP_FILE.read_text())
"""


@pytest.mark.skipif(not priority.AUTOGROUP_FILE.exists(), reason="sessions have no priorities")
def test_a_nice_command_gives_its_own_session_its_nice_value() -> None:
    """Linux ignores nice values between sessions. Each training of a queue has its own session.

    The file of a process outside all autogroups is empty.
    """
    words = [sys.executable, "-c", COMMAND]
    leader = subprocess.check_output(words, text=True, start_new_session=True)
    _, nice, autogroup, *_ = leader.splitlines()
    assert autogroup.split()[-1] == nice
    before = priority.AUTOGROUP_FILE.read_text()
    member = subprocess.check_output(words, text=True)
    assert member.splitlines()[2] == before.strip()


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpriority", lambda which, who: 7)
    monkeypatch.setattr(os, "getsid", lambda pid: os.getpid())


@pytest.mark.usefixtures("leader")
def test_a_refused_priority_is_set_again_until_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []

    class Refuses:
        def write_text(self, text: str) -> None:
            written.append(text)
            if len(written) < 3:
                raise BlockingIOError(errno.EAGAIN, "try again")

    monkeypatch.setattr(priority, "AUTOGROUP_FILE", Refuses())
    priority.apply_nice_to_session(timeout=0.05)
    assert written == ["7"]
    priority.apply_nice_to_session()
    assert written == ["7"] * 3


@pytest.mark.usefixtures("leader")
def test_a_system_without_autogroups_is_not_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(priority, "AUTOGROUP_FILE", tmp_path / "missing" / "autogroup")
    priority.apply_nice_to_session()
    assert not (tmp_path / "missing").exists()
