"""The manual pages in man/ are up to date and valid troff."""

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import click
import pytest

import fusetk
from fusetk import runs
from fusetk.cli.main import COMMANDS
from fusetk.config import Config
from fusetk.fusion import FUSIONS
from fusetk.recipe import Recipe, load
from fusetk.spinning import USER_SETTINGS
from tools import config_keys, manual
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
            for nested in config_keys.config_of(field.annotation)
        ]
        return set(config.model_fields).union(*inner)

    chosen = [kind.Config for table in config_keys.REGISTRIES.values() for kind in table.values()]
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


def test_the_config_page_says_nothing_twice():
    lines = manual.pages()["fusetk-config.5"].splitlines()
    texts = [line for line in lines if len(line) > 50 and not line.startswith("\\fB")]
    assert len(texts) > 150
    assert [text for text, count in Counter(texts).items() if count > 1] == []


def test_a_key_of_both_sides_and_of_several_kinds_is_described_once():
    page = manual.pages()["fusetk-config.5"].splitlines()
    [place] = [i for i, line in enumerate(page) if line.startswith("\\fBencoder.connect\\fR")]
    assert page[place].startswith(
        "\\fBencoder.connect\\fR, \\fBdecoder.connect\\fR, \\fBstack.connect\\fR (last | "
    )
    assert page[place + 3] == "Kinds: transformer, conv, coordinated."
    [place] = [i for i, line in enumerate(page) if line.startswith("Add a learned vector to each")]
    assert "(default false)" in page[place + 2] and "(default true)" in page[place + 2]
    kinds = page[place + 2].removeprefix("Kinds: ").removesuffix(".")
    named = re.sub(r" \(default \w+\)", "", kinds).replace(";", ",").split(", ")
    key = "layer_embedding"
    fusions = [name for name, cls in FUSIONS.items() if key in cls.Config.model_fields]
    assert sorted(named) == sorted(fusions), "each kind is named once"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_page_has_all_sections(name):
    lines = manual.pages()[f"fusetk-{name}.1"].splitlines()
    titles = [line[4:] for line in lines if line.startswith(".SH ")]
    assert titles[:2] == ["NAME", "SYNOPSIS"]
    files = [] if name in ("dataset", "text") else ["FILES"]
    last = ["EXIT STATUS", "ENVIRONMENT", *files, "SEE ALSO"]
    assert titles[-len(last) :] == last
    assert (f"\\fB{130}\\fR" in lines) != (name in ("train", "run"))


def test_environment_variables_are_documented():
    """Every variable that the package reads is in the manual, except two that torchrun sets.

    Every variable of the manual is in the documentation.
    """
    code = "".join(
        path.read_text(encoding="utf-8") for path in Path(fusetk.__file__).parent.rglob("*.py")
    )
    read = set(re.findall(r'environ(?:\.get|\.setdefault)?[(\[]"(\w+)"', code))
    assert len(read) > 5
    documented = set(", ".join(manual.ENVIRONMENT).split(", "))
    assert read | set(USER_SETTINGS) <= documented | {
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
    }
    page = Path(manual.__file__).parents[1] / "docs" / "commands.md"
    assert documented <= set(re.findall(r"`([A-Z_]+)(?:=\w+)?`", page.read_text(encoding="utf-8")))


def test_files_of_a_run_are_documented():
    text = "".join(f"{names} {text}" for names, (text, _) in manual.FILES.items())
    for name in (runs.CONFIG, runs.TEXT, runs.MACHINE, runs.CHECKPOINTS, runs.METRICS, runs.LOG):
        assert name in text
    for name in (runs.SESSIONS, runs.STATE, runs.MODEL, runs.TRAINING, runs.EMA):
        assert name in text


def test_only_commands_have_environment_and_files():
    for table in (manual.ENVIRONMENT, manual.FILES):
        for _, commands in table.values():
            assert commands <= set(COMMANDS)


def test_pages_of_commands_that_read_or_run_a_model_are_complete():
    options = {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in manual.commands().items()
    }
    assert {name for name in COMMANDS if "--model" in options[name]} <= manual.RUN_COMMANDS
    assert {name for name in COMMANDS if "--threads" in options[name]} <= manual.MODEL_COMMANDS


def test_special_characters_are_escaped():
    assert escape("-m \\n .x") == "\\-m \\en .x"
    assert escape(".x\n'y") == "\\&.x\n\\&'y"
    assert escape("α") == "\\[u03B1]"
    assert prose("one\ntwo\n\nand `a-b`") == "one two\n.PP\nand \\fBa\\-b\\fR"
    assert prose("\b\nkept\n  as is") == ".nf\nkept\n  as is\n.fi"
