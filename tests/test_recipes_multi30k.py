"""recipes/run_multi30k.sh: its errors and a run. The groups of systems of
recipes/run_multi30k_fusion.sh."""

import gzip
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fusetk import recipe, system

pytestmark = pytest.mark.usefixtures("commands")

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "recipes" / "run_multi30k.sh"
GROUPS = ROOT / "recipes" / "run_multi30k_fusion.sh"
LINES = {"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000}


def call(
    *arguments: object, cwd: Path | None = None, script: Path = SCRIPT
) -> subprocess.CompletedProcess[str]:
    return subprocess.run([script, *map(str, arguments)], cwd=cwd, capture_output=True, text=True)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Files with the right numbers of lines; the English files are compressed."""
    folder = tmp_path / "task1"
    folder.mkdir()
    for name, lines in LINES.items():
        (folder / f"{name}.de").write_text("Ein Hund.\n" * lines)
        with gzip.open(folder / f"{name}.en.gz", "wt") as file:
            file.write("A dog.\n" * lines)
    return folder


def refused(ran: subprocess.CompletedProcess[str], said: str) -> None:
    assert ran.returncode == 2 and said in ran.stderr and ran.stderr.count("\n") == 1, ran.stderr


def test_help_is_on_standard_output():
    ran = call("-h")
    assert (
        ran.returncode == 0
        and ran.stdout.startswith("Usage: run_multi30k.sh DATA_DIR")
        and not ran.stderr
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give the folder of the Multi30k text"),
        (["--speed"], "there is no option --speed"),
        (["data", "--out"], "--out needs a value"),
        (["data", "more"], "more is too much"),
        (["data", "--pair", "en-fr"], "--pair is en-de or de-en, not en-fr"),
    ],
)
def test_errors_are_one_sentence(arguments, said):
    refused(call(*arguments), said)


def test_the_error_names_a_missing_file_and_its_source(text):
    (text / "val.en.gz").unlink()
    refused(
        call(text.name, cwd=text.parent),
        f"neither {text}/val.en nor val.en.gz exists: get it from data/task1/raw of https://github.com/multi30k",
    )


def test_a_file_that_is_cut_short_is_named(text):
    (text / "val.de").write_text("Ein Hund.\n" * 1013)
    refused(call(text), f"{text}/val.de has 1013 lines and should have 1014")


def test_the_last_line_needs_no_newline(text):
    (text / "train.de").write_text("Ein Hund.\n" * 28_999 + "Ein Hund.")
    (text / "val.de").write_text("Ein Hund.\n" * 1013)
    refused(call(text), f"{text}/val.de has 1013 lines and should have 1014")


def test_a_packed_file_that_is_cut_short_is_named(text):
    packed = text / "train.en.gz"
    packed.write_bytes(packed.read_bytes()[:-20])
    ran = call(text)
    assert ran.returncode == 2 and f"{packed} cannot be unpacked" in ran.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "sizes", "layers", "tied"),
    [
        ("transformer_tiny_en_de", (9_700, 9_700), (4, 4), "all"),
        ("transformer_de_en", (7_060, 5_200), (3, 3), "target"),
    ],
)
def test_configs_are_those_of_the_dataset_notes(name, sizes, layers, tied):
    config = recipe.load(ROOT / "recipes" / "multi30k" / f"{name}.yaml")
    assert (config.model.encoder.layers, config.model.decoder.layers) == layers
    assert config.model.tie == tied and [step.step for step in config.data.steps] == [
        "lowercase",
        "normalize-punctuation",
        "tokenize",
    ]
    assert config.data.bpe and config.data.bpe.merges == 10_000 and config.data.bpe.joint
    model = system.build(config, *sizes)
    assert model.output.weight is model.target.tokens.weight and (
        model.source.tokens is model.target.tokens
    ) == (tied == "all")


@pytest.mark.parametrize("group", ["fusion", "dense", "coordinated", "recurrent"])
def test_groups_are_folders_of_systems(group):
    systems = sorted(
        path.stem
        for path in (ROOT / "recipes" / "multi30k" / group).glob("*.yaml")
        if path.stem != "base"
    )
    ran = call("data", "--group", group, "--systems", "none", script=GROUPS)
    refused(ran, f"there is no system none; known: {' '.join(systems)}\n")


def test_a_list_without_a_system_or_seed_is_refused():
    refused(call("data", "--systems", " ", script=GROUPS), "--systems names no system")
    refused(call("data", "--seeds", "", script=GROUPS), "--seeds names no seed")


def test_a_list_may_have_several_lines():
    refused(call("data", "--systems", "baseline\nnone", script=GROUPS), "there is no system none")
    refused(call("data", "--seeds", "1\n2\nx", script=GROUPS), "a seed is a whole number, not x")


def shell(code: str, **options: Any) -> "subprocess.Popen[str]":
    """Start a shell that has sourced the functions of the scripts."""
    command = ["bash", "-c", f'set -eu; source "{ROOT}/recipes/common.sh"; {code}']
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_script_that_gets_a_signal_waits_for_its_command(number):
    code = (
        "import signal, sys, time\n"
        "def stop(*_):\n"
        "    time.sleep(0.1)\n"
        "    print('saved')\n"
        "    sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    process = shell(f"call {sys.executable} -S -c {shlex.quote(code)}; echo next")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=30)[0] == "saved\n" and process.returncode == 75


def test_a_called_command_keeps_its_input_and_status():
    process = shell('call cat; call true; call sh -c "exit 3" || echo "$?"', stdin=subprocess.PIPE)
    assert process.communicate("text\n", timeout=30)[0] == "text\n3\n"


def test_every_folder_of_systems_is_a_group():
    ran = call("data", "--group", "trees", script=GROUPS)
    refused(ran, "--group is fusion, dense, coordinated or recurrent, not trees")
    assert all(
        path.name in ran.stderr
        for path in (ROOT / "recipes" / "multi30k").iterdir()
        if path.is_dir()
    )


@pytest.mark.slow
@pytest.mark.skipif(
    "FUSETK_TEST_DATA" not in os.environ,
    reason="set FUSETK_TEST_DATA to a folder that holds multi30k/",
)
@pytest.mark.parametrize("pair", ["en-de", "de-en"])
def test_from_raw_text_to_bleu(tmp_path, pair):
    settings = [
        "training.stages.0.end={updates: 2}",
        "decoding.beam=1",
        "decoding.max_length_factor=0",
    ]
    options = [argument for setting in settings for argument in ("--set", setting)]
    data = Path(os.environ["FUSETK_TEST_DATA"]) / "multi30k"
    ran = call(data, "--pair", pair, "--out", "out", *options, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    scores = [line for line in ran.stdout.splitlines() if line.startswith("multi-bleu:")]
    assert len(scores) == 2 and all("ref_len=" in line for line in scores)
    again = call(data, "--pair", pair, "--out", "out", *options, cwd=tmp_path)
    assert (
        again.returncode == 0
        and "nothing changed" in again.stderr
        and "nothing to do: " in again.stderr
    )
    assert again.stdout == ran.stdout
