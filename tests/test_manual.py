"""The manual pages in man/ are up to date and valid troff."""

import shutil
import subprocess
from pathlib import Path

import click
import pytest

from fusetk.config import Config
from fusetk.recipe import Recipe, load
from tools import manual
from tools.troff import escape, prose

MAN = Path(__file__).parent.parent / "man"
PAGES = sorted(manual.pages())


def test_there_is_a_page_for_each_command():
    assert sorted(path.name for path in MAN.iterdir()) == PAGES


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name):
    assert (MAN / name).read_text(encoding="ascii") == manual.pages()[name], (
        "the manual is out of date: run `make man`"
    )


@pytest.mark.skipif(not shutil.which("groff"), reason="groff is not installed")
@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_valid_troff(name):
    ran = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", MAN / name], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_every_command_has_its_options_in_its_page():
    for name, command in manual.commands().items():
        text = manual.pages()[f"fusetk-{name}.1"]
        members = command.commands.values() if isinstance(command, click.Group) else [command]
        for option in (
            option
            for member in members
            for option in member.params
            if isinstance(option, click.Option)
        ):
            assert all(escape(written) in text for written in option.opts), f"{name}: {option.opts}"


def test_every_key_of_a_config_is_in_the_config_page():
    text = manual.pages()["fusetk-config.5"]

    def keys(config: type[Config]) -> set[str]:
        inner = [
            keys(nested)
            for field in config.model_fields.values()
            for nested in manual.config_of(field.annotation)
        ]
        return set(config.model_fields).union(*inner)

    chosen = [kind.Config for table in manual.REGISTRIES.values() for kind in table.values()]
    expected = keys(Recipe).union(*map(keys, chosen)) - {"kind", "step"}
    assert len(expected) > 50
    for key in expected:
        assert (
            any(f"{mark}{escape(key)}\\fR" in text for mark in (".", "fB")) or f".SH {key}" in text
        ), key


def test_null_is_called_null(toy: Path):
    """The page prints null, and a config accepts null and none."""
    text = manual.pages()["fusetk-config.5"]
    for key in ("data.bpe", "data.vocabulary.size", "training.ema", "training.save_every"):
        [line] = [line for line in text.splitlines() if line.startswith(f"\\fB{escape(key)}\\fR (")]
        assert " or null" in line and "default null" in line and "none" not in line
        for word in ("null", "none"):
            value = load(toy, [f"{key}={word}"]).model_dump()
            for part in key.split("."):
                value = value[part]
            assert value is None


def test_special_characters_are_escaped():
    assert escape("-m \\n .x") == "\\-m \\en .x"
    assert escape(".x\n'y") == "\\&.x\n\\&'y"
    assert escape("α") == "\\[u03B1]"
    assert prose("one\ntwo\n\nand `a-b`") == "one two\n.PP\nand \\fBa\\-b\\fR"
    assert prose("\b\nkept\n  as is") == ".nf\nkept\n  as is\n.fi"
