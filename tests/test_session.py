"""Recording of terminal sessions as pictures."""

import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

from tools.session import final_lines, picture, record


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        ("a\r\nb\r\n", ["a", "b", ""]),
        ("bar 1\rbar 2\rbar 3\r\nend", ["bar 3", "end"]),
        ("one\r\ntwo\x1b[1A\r\x1b[2Knew\r\nend", ["new", "end"]),
        ("\x1b[32mgreen\x1b[0m b", ["\x1b[32mgreen\x1b[0m b"]),
        ("\x1b[?25lhidden cursor", ["hidden cursor"]),
    ],
)
def test_bars_are_in_their_last_state(output: str, lines: list[str]) -> None:
    assert final_lines(output) == lines


def test_a_picture_has_the_text_and_no_external_resources() -> None:
    svg = picture(["$ make demo", "\x1b[32m<green>\x1b[0m"], 40, "make demo")
    text = " ".join("".join(xml.etree.ElementTree.fromstring(svg).itertext()).split())
    assert "make demo" in text and "<green>" in text
    assert "@font-face" not in svg and "url(http" not in svg


def test_long_lines_continue_below() -> None:
    svg = picture(["$ make demo", "a" * 35 + "\x1b[1m" + "b" * 10 + "\x1b[0m", ""], 40, "make demo")
    texts = [element.text for element in xml.etree.ElementTree.fromstring(svg).iter()]
    assert {"a" * 35, "b" * 5} <= set(texts) and texts.count("b" * 5) == 2


def test_a_command_runs_in_a_terminal(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.stdout.isatty(), os.get_terminal_size().columns); sys.exit(3)"
    output, status = record([sys.executable, "-c", code], 77)
    assert (output.split(), status) == (["True", "77"], 3)
