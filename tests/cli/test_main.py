"""The complete command: help, one-line user errors, exit codes."""

import ctypes
import errno
import importlib
import json
import logging
import os
import re
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner

from fusetk.cli import foreign
from fusetk.cli.common_options import FILES
from fusetk.cli.foreign import OPTIONS, OTHER_ADVICE
from fusetk.cli.main import COMMANDS, main
from fusetk.cli.score_system_options import parse_system
from fusetk.cli.sections import Sections
from fusetk.config import FOREIGN_KEYS, value_advice
from fusetk.errors import ConfigError
from fusetk.nn.fused import build
from fusetk.recipe import load
from fusetk.training.schedule import SCHEDULES
from tests.helpers.refusals import refused
from tools.manual import commands

TOKENS = (
    "its value is a number of target tokens; to count sentences, also set "
    "training.stages.0.batch.unit=sentences"
)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0 and "Usage:" in result.output


def test_every_option_has_a_heading() -> None:
    with_headings = {name: c for name, c in commands().items() if isinstance(c, Sections)}
    assert set(with_headings) >= {"decode", "run", "report", "plot-attention"}
    for command in with_headings.values():
        listed = [name for names in command.sections.values() for name in names]
        options = {option.name for option in command.params if isinstance(option, click.Option)}
        assert len(listed) == len(set(listed)) and options - {"debug", "quiet"} <= set(listed)


def test_the_help_has_words_as_the_user_types_them() -> None:
    help_text = CliRunner().invoke(main, ["plot-attention", "--help"]).output
    for value in ("--head N|mean|all ", "--vmax NUMBER|max ", "--size WIDTH[xHEIGHT] "):
        assert value in help_text


def test_a_users_error_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["train", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert "none.yaml cannot be read" in result.output


@pytest.mark.parametrize(
    "error", [MemoryError("std::bad_alloc"), OSError(errno.ENOMEM, "Cannot allocate memory")]
)
def test_too_little_memory_is_one_sentence(
    error: Exception, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*values: object) -> None:
        raise error

    monkeypatch.setattr("fusetk.cli.describe.load_recipe", fail)
    result = CliRunner().invoke(main, ["describe", str(toy)])
    assert result.exit_code == 2 and "Traceback" not in result.stderr
    assert result.stderr.startswith("fusetk: there is not enough memory (")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("prep", "interrupted; the complete stages are kept: run the same command again"),
        ("describe", "interrupted\n"),
    ],
)
def test_after_an_interruption_the_user_learns_how_to_continue(
    name: str, said: str, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*values: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fusetk.cli.prep.load_data", interrupt)
    monkeypatch.setattr("fusetk.cli.describe.load_recipe", interrupt)
    result = CliRunner().invoke(main, [name, str(toy)])
    assert result.exit_code == 130 and result.stderr.startswith(f"fusetk: {said}")


def test_all_warnings_have_one_form(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_with_messages(*values: object) -> None:
        log = logging.getLogger("fusetk.some.module")
        log.warning("line %d is long", 3)
        log.error("the request failed")
        raise ConfigError("the config is wrong")

    monkeypatch.setattr("fusetk.cli.describe.load_recipe", load_with_messages)
    with monkeypatch.context() as without_handlers_of_pytest:
        without_handlers_of_pytest.setattr(logging.root, "handlers", [])
        result = CliRunner().invoke(main, ["describe", str(toy)])
    assert result.stderr.splitlines() == [
        "warning: line 3 is long",
        "the request failed",
        "fusetk: the config is wrong",
    ]
    text = warnings.formatwarning("no compiler", UserWarning, build.__file__, 7)
    assert text == "warning: no compiler\n"
    outside = warnings.formatwarning("no compiler", UserWarning, torch.__file__, 7)
    assert outside.startswith(f"{torch.__file__}:7: UserWarning: no compiler\n")


def test_describe_counts_the_parameters_of_mlrf(toy: Path) -> None:
    sizes = "width: 256, heads: 4, ffn: 1024, encoder: {layers: 3}, decoder: {layers: 3}"
    command = ["describe", str(toy), "--set", f"model={{kind: transformer, {sizes}}}"]
    command += ["--src-vocab-size", "8389", "--tgt-vocab-size", "6428"]
    result = CliRunner().invoke(main, [*command, "--json"])
    document = json.loads(result.output)
    assert document["parameters"] == sum(document["parts"].values()) == 10_974_748
    assert document["config"]["model"]["width"] == 256
    assert "10,974,748" in CliRunner().invoke(main, command).output


def test_describe_reads_the_prepared_vocabularies(toy: Path) -> None:
    assert CliRunner().invoke(main, ["describe", str(toy)]).exit_code == 0
    result = CliRunner().invoke(main, ["describe", str(toy), "--set", "data.folder=nowhere"])
    assert result.exit_code == 2 and "--src-vocab-size" in result.output


@pytest.mark.parametrize(
    "setting", ["model.width=4000000000", f"model.ffn={10**19}", f"model.ffn={10**40}"]
)
def test_sizes_without_a_tensor_are_one_sentence(toy: Path, setting: str) -> None:
    result = CliRunner().invoke(main, ["describe", str(toy), "--set", setting])
    assert result.exit_code == 2 and "a tensor of the model is too large" in result.stderr


def test_from_config_to_translation(toy: Path, tmp_path: Path) -> None:
    """prep, train, average, decode, score, plot: each command reads the output of the last."""
    run, text = tmp_path / "run", tmp_path / "in.de"
    text.write_text("eins zwei\n\ndrei\n", encoding="utf-8")

    def call(*words: object) -> str:
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == 0, (words, result.output, result.exception)
        return result.output

    call("prep", toy)
    call("train", toy, "--run", run, "--device", "cpu", "--quiet")
    call("average", run, "--last", 2)
    call("decode", "-m", run / "checkpoints" / "average", "-i", text, "-o", tmp_path / "out.en")
    lines = (tmp_path / "out.en").read_text().split("\n")
    assert len(lines) == 4 and lines[1] == lines[3] == ""
    assert "BLEU" in call(
        "score", tmp_path / "out.en", "-r", tmp_path / "out.en", "--metric", "multi-bleu"
    )
    call("plot-attention", "-m", run, "-s", "eins zwei drei", "-o", tmp_path / "heat.png")
    call("plot-curves", run, "-o", tmp_path / "curves.png")
    assert all((tmp_path / name).stat().st_size > 5000 for name in ("heat.png", "curves.png"))


@pytest.mark.parametrize(
    ("options", "said"),
    [([], "give exactly one of"), (["--last", "1", "--best", "1"], "give exactly one of")]
    + [
        (["--last", "1", "--name", name], "is reserved")
        for name in ("best", "..", "update-0000001")
    ]
    + [(["--last", "1", "--name", name], "is not the name of a folder") for name in ("a/b", "")]
    + [(["--last", "1", "--metric", "bleu"], "--metric has an effect with --best only")],
)
def test_average_refuses_invalid_options(options: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["average", "run", *options])
    assert result.exit_code == 2 and said in result.output


@pytest.mark.parametrize(
    ("words", "here"),
    [
        (
            "train a.yaml --max-tokens 3",
            "it is a key of the config: use --set training.stages.0.batch.size=VALUE",
        ),
        (
            "train a.yaml --lenpen=3",
            "it is a key of the config: use --set decoding.normalize=VALUE",
        ),
        (
            "train a.yaml --mini-batch 3",
            f"it is a key of the config: use --set training.stages.0.batch.size=VALUE; {TOKENS}",
        ),
        (
            "train a.yaml --batch-size 3",
            f"it is a key of the config: use --set training.stages.0.batch.size=VALUE; {TOKENS}",
        ),
        ("train a.yaml --arch big", "it is a key of the config: use --set model.kind=VALUE"),
        (
            "train a.yaml --lr 0.1",
            "it is a key of the config: use --set training.stages.0.schedule.peak=VALUE; with the "
            "schedules constant, plateau and rnmt-plus, the key is `rate`",
        ),
        (
            "train a.yaml --after-epochs 3",
            "it is a key of the config: use --set training.stages.0.end.epochs=VALUE",
        ),
        (
            "train a.yaml --epochs 3",
            "it is a key of the config: use --set training.stages.0.end.epochs=VALUE",
        ),
        (
            "train a.yaml --valid-freq 3",
            "it is a key of the config: use --set training.validation.every_updates=VALUE",
        ),
        (
            "train a.yaml --exponential-smoothing 1e-4",
            "it is a key of the config: use --set training.ema=VALUE; its value is one minus "
            "Marian's number",
        ),
        ("train a.yaml --seed 3", "it is a key of the config: use --set training.seed=VALUE"),
        ("train a.yaml --fp16", "it is a key of the config: use --set training.precision=fp16"),
        ("train --config a.yaml", "give the config without an option: fusetk train CONFIG"),
        ("train -c a.yaml", "give the config without an option: fusetk train CONFIG"),
        ("train a.yaml --save-dir b", "use --run"),
        ("train a.yaml --model b", "use --run"),
        ("train a.yaml --cpu-threads 2", "use --threads"),
        ("train a.yaml --log-file b", "the log is always written to log.txt in the run folder"),
        (
            "train a.yaml --no-shuffle",
            "training.seed and the epoch always determine the order of batches",
        ),
        ("train a.yaml --verbose", "progress is printed by default"),
        ("decode -m a --lenpen 0.6", "use -n"),
        ("decode -m a --max-tokens 100", "use --batch-tokens"),
        ("decode -m a --mini-batch 8", "use --batch-tokens (it counts tokens)"),
        ("rescore -m a --batch-size 8", "use --batch-tokens (it counts tokens)"),
        (
            "prep a.yaml --nwordssrc 8000",
            "it is a key of the config: use --set data.vocabulary.size.source=VALUE",
        ),
        ("decode -m a --max-len-b 100", "use --max-length-extra"),
        ("decode -m a --fp16", "use --precision bf16"),
        ("decode --path a", "use --model"),
        ("rescore -m a --lenpen 0.6", "use -n"),
        (
            "score --patience 3",
            "it is a key of the config: use fusetk train CONFIG "
            "--set training.stages.0.end.patience=VALUE",
        ),
        (
            "score --trainpref a",
            "it is a key of the config: use fusetk prep CONFIG --set data.train=VALUE",
        ),
        (
            "score --lenpen 3",
            "fusetk decode has this option; for other commands, set the key decoding.normalize "
            "in the config.yaml of the run",
        ),
        ("serve run --beam 3", "it is a key of the config: use --set decoding.beam=VALUE"),
        ("serve run --top-k 3", "it is a key of the config: use --set decoding.top_k=VALUE"),
        ("decode -m a --max-length 9", "use --max-length-factor 0 --max-length-extra"),
        ("score --sys a -r b", "give the translations without an option: fusetk score HYP -r REF"),
        (
            "average run --checkpoints a",
            "--last N, --best N and --update U choose checkpoints of RUN",
        ),
        (
            "train a.yaml --reset-optimizer",
            "training.start_from=RUN starts a new training with the weights of another run",
        ),
        (
            "decode --max-input-length 3",
            "set the key decoding.max_source_length in the config.yaml of the run",
        ),
        ("prep a.yaml --workers 3", "use --jobs"),
        ("text apply-bpe --vocabulary-threshold 50", "use --threshold"),
        (
            "score --input a -r b",
            "give the translations without an option: fusetk score HYP -r REF",
        ),
    ],
)
def test_options_of_other_toolkits_are_translated(words: str, here: str) -> None:
    option = next(word for word in words.split() if word.startswith(("--", "-c"))).partition("=")[0]
    assert refused(*words.split()) == f"unknown option {option}; {here}"


@pytest.mark.parametrize("setting", sorted({key for key in FOREIGN_KEYS.values() if "=" in key}))
def test_every_value_that_is_advised_is_valid(toy: Path, setting: str) -> None:
    try:
        load(toy, [setting])
    except ConfigError as error:  # only these need another key
        assert "tie: all" in str(error) or "extend has an effect with source" in str(error)


def test_the_advice_for_the_learning_rate_names_the_schedules_that_have_no_peak() -> None:
    schedules: dict[str, Any] = SCHEDULES
    with_rate = {
        kind for kind, schedule in schedules.items() if "rate" in schedule.Config.model_fields
    }
    advice = value_advice("lr")
    assert {kind for kind in SCHEDULES if re.search(rf"\b{kind}\b", advice)} == with_rate


def test_the_advice_for_a_key_of_another_toolkit_names_its_stage(toy: Path) -> None:
    stages = load(toy).training.model_dump(mode="json")["stages"] * 2
    stages[1] = {**stages[1], "patience": 3}
    with pytest.raises(ConfigError, match=r"fusetk calls it training\.stages\.1\.end\.patience"):
        load(toy, [f"training.stages={json.dumps(stages)}"])


def test_every_option_that_is_advised_exists() -> None:
    """The advice names only options and commands of fusetk."""
    members = commands().values()
    every = {
        name
        for member in members
        for command in getattr(member, "commands", {"": member}).values()
        for parameter in command.params
        for name in parameter.opts
    }
    for names in OPTIONS.values():
        assert {name.partition(" ")[0] for name in names} <= every
    assert {name for commands, _ in OTHER_ADVICE.values() for name in commands} <= set(COMMANDS)
    assert {name.partition(" ")[0] for name in foreign.COMMANDS.values()} <= {*COMMANDS, "--help"}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("trian", "train"),
        ("translate", "decode"),
        ("evalute", "score"),
        ("help", "--help"),
        ("plot-curve", "plot-curves"),
    ],
)
def test_a_mistyped_command(name: str, near: str) -> None:
    assert refused(name, "x") == f"unknown command {name!r}; did you mean `fusetk {near}`?"


def test_a_command_that_resembles_none() -> None:
    assert refused("xyzzy") == f"unknown command 'xyzzy'; the commands are {', '.join(COMMANDS)}"


def test_the_home_folder_in_a_run_option(
    toy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A shell does not expand the ~ of --run=~/x; fusetk does."""
    folders: list[Path] = []
    monkeypatch.setattr(
        "fusetk.train.train", lambda recipe, run, device, quiet: folders.append(run)
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    for words in (["--run=~/x"], ["-r", "./~"], []):
        assert CliRunner().invoke(main, ["train", str(toy), *words]).exit_code == 0
    assert folders == [tmp_path / "x", Path("~"), Path("runs/toy")]


def test_the_home_folder_in_every_option_and_argument_for_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    options: set[tuple[str | None, str]] = set()
    members = [
        command
        for member in commands().values()
        for command in getattr(member, "commands", {"": member}).values()
    ]
    for command in members:
        context = click.Context(command)
        for parameter in command.params:
            words = re.findall("[A-Z]+", parameter.make_metavar(context))
            is_text = parameter.type.name == "text"
            if isinstance(parameter.type, click.Path) or (is_text and set(words) & set(FILES)):
                value = parameter.type.convert("~/x", parameter, context)
                assert str(value) == str(tmp_path / "x"), (command.name, parameter.opts)
                options |= {(command.name, option) for option in parameter.opts}
    assert {
        *(("run", "--out"), ("run", "--raw"), ("train", "--run"), ("report", "--runs")),
        *(("report", "--save"), ("filter", "--output"), ("decode", "--model")),
        ("score", "--comet-model"),
    } <= options
    assert parse_system("a=~/x") == ("a", str(tmp_path / "x"))


def test_the_output_folder_of_run_in_the_home_folder(
    toy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders: list[Path | None] = []

    def places(config: Path, recipe: object, out: Path | None) -> None:
        folders.append(out)
        raise ConfigError("enough")

    monkeypatch.setattr("fusetk.experiment.places.places", places)
    monkeypatch.setenv("HOME", str(tmp_path))
    CliRunner().invoke(main, ["run", str(toy), "--raw=~/raw", "--out=~/x"])
    assert folders == [tmp_path / "x"]


@pytest.mark.parametrize("name", ["train", "decode", "rescore", "compare"])
def test_no_more_threads_than_processors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [option] = [option for option in commands()[name].params if option.name == "threads"]
    command = click.Command(
        "x", params=[option], callback=lambda threads: click.echo(f"threads: {threads}")
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    for words, used in (
        (["--threads=1000"], 3),
        (["--threads=3"], 3),
        (["--threads=1"], 1),
        ([], None),
    ):
        result = CliRunner().invoke(command, words)
        assert result.stdout == f"threads: {used}\n"
        said = (
            "warning: --threads 1000 is limited to 3, "
            "the number of processors that this process may use\n"
        )
        assert result.stderr == (said if "1000" in "".join(words) else "")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such signal")
def test_a_process_ends_with_torchrun_during_its_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    class Library:
        @staticmethod
        def prctl(*arguments: int) -> None:
            calls.append(arguments)

    def import_module(name: str) -> None:
        calls.append(name)
        raise KeyboardInterrupt

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library)
    monkeypatch.setattr(importlib, "import_module", import_module)
    CliRunner().invoke(main, ["train"])
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    CliRunner().invoke(main, ["train"])
    assert calls == ["fusetk.cli.train", (1, signal.SIGTERM), "fusetk.cli.train"]


def test_only_commands_that_share_their_work_start_in_several_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    for size in ("1", "2"):
        monkeypatch.setenv("WORLD_SIZE", size)
        for name in ("train", "decode", "rescore", "prep"):
            is_refused = size == "2" and name in ("rescore", "prep")
            result = CliRunner().invoke(main, [name, "--help"])
            assert result.exit_code == (2 if is_refused else 0)
            said = f"torchrun started fusetk {name} in 2 processes"
            assert (said in result.stderr) == is_refused
