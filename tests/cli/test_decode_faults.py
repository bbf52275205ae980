"""Faults of ``fusetk decode``: an error is one sentence with exit code 2, and output is kept."""

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from fusetk import system
from fusetk.data.bpe import BPE
from fusetk.data.pipeline import Pipeline
from fusetk.decoding import translate
from fusetk.errors import Diverged
from fusetk.runs import TEXT
from tests.cli.test_decode import decode, make_run, output
from tests.helpers.forks import Forks

# Each is one line: only a line feed ends a line.
ODD = [
    "ein\0hund",
    "\x1b[31mein\x1b[0m",
    "ein\u2028hund",
    "ein\u0085hund",
    "ein\u2029",
    "ein\x0b\x0chund",
    "\x1c\x1d\x1e",
    "ein\rhund",
]
ODD += ["\x7f", "\ufeff"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    run = make_run(tmp_path_factory.mktemp("run"))
    pipeline = Pipeline.load(run / TEXT)
    codes = ["#version: 0.2", "h u", "hu n", "hun d</w>", "e i", "ei n</w>"]
    pipeline.bpe = {"source": BPE(codes), "target": BPE(codes)}
    pipeline.save(run / TEXT)
    return run


def said(*arguments: object, lines: list[str] | None = None) -> str:
    """Return the error message of a call that must fail, without the lines about loading."""
    result = decode(*arguments, **({} if lines is None else {"lines": lines}))
    assert result.exit_code == 2, (arguments, result.output, result.exception)
    assert "Traceback" not in result.output and isinstance(result.exception, SystemExit)
    messages = result.stderr.splitlines(keepends=True)
    return "".join(message for message in messages if not message.startswith("loading "))


def test_an_incomplete_run_folder(trained, tmp_path):
    """Each file in turn is missing, empty or truncated; the error names it."""
    needed = sorted(
        path.relative_to(trained)
        for path in trained.rglob("*")
        if path.is_file() and path.name != "training.safetensors"
    )
    needed = [path for path in needed if "best" not in path.parts]
    assert len(needed) >= 7
    for path in needed:
        for kind in ("missing", "empty", "half"):
            run = tmp_path / "copy"
            shutil.copytree(trained, run, symlinks=True)
            if kind == "missing":
                (run / path).unlink()
            else:
                os.truncate(run / path, 0 if kind == "empty" else (run / path).stat().st_size // 2)
            message = said("-m", run)
            assert path.name in message, (path, kind, message)
            assert message.startswith("fusetk: ")
            if kind == "missing" and path.parts[0] == "text":
                assert f"{run / path} is missing; copy the folder again" in message
            shutil.rmtree(run)


def test_each_input_line_gives_one_output_line(trained):
    lines = [*ODD, "xyz xyz", "", "\u00a0", "Hund"]
    translations = output("-m", trained, lines=lines)
    assert len(translations) == len(lines)
    assert translations[-1] == output("-m", trained, lines=["Hund"])[0]
    assert (
        translations[-4] and not translations[-3] and not translations[-2]
    )  # only unknown words; blank; blank


def test_a_byte_order_mark_and_windows_line_ends(trained):
    translations = output("-m", trained, lines=["\ufeffhund\r", "ein hund\r"])
    assert translations == output("-m", trained, lines=["hund", "ein hund"])


def test_a_source_that_is_too_long(trained, caplog):
    result = decode(
        "-m", trained, "-b", 1, "--max-length-factor", 0, lines=["ein", "hund " * 1500, "hund"]
    )
    assert result.exit_code == 0 and len(result.stdout.split("\n")) == 4
    assert "line 2 has 1500 tokens: only the first" in caplog.text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            ["-n", "text.de"],
            "'text.de' is not a number; write -n alone for an exponent of 1, and -i FILE for the "
            "text",
        ),
        (["-n", "-1"], "--normalize: -1 is not between 0 and 10"),
        (["--n-best", "0"], "--n-best"),
        (["-b", "0"], "beam"),
        (["-b", "two"], "two"),
        (["--device", "gpu"], "there is no device 'gpu'"),
        (["--device", "cpu:3"], "device cpu:3 is not supported"),
        (["--device", "cuda:99"], "cuda:99"),
        (["--alignment", "9"], "has no layer 9"),
        (["--alignment", "most"], "--alignment: 'most' is not a choice of attention"),
        (
            ["--json", "--alignment", "text.de"],
            "write --alignment alone for the mean, and -i FILE for the text",
        ),
        (["--replace-unknown", "none"], "none does not exist"),
        (["--prefix", "none"], "none does not exist"),
        (["-i", "none"], "none does not exist"),
        (["-i", "."], "is a folder"),
        (["-o", "no/out"], "no/out: the folder no does not exist"),
        (["-o", "."], "cannot be written"),
        (["--precision", "fp8"], "fp8"),
        (["--chunk", "0"], "--chunk"),
        # Options without effect, also with the default value.
        (["--seed", "1"], "--seed has an effect on samples only: set --sample, too"),
        (["--temperature", "1"], "--temperature has an effect on samples only"),
        (["--top-k", "0"], "--top-k has an effect on samples only"),
        (["--diversity", "0.5"], "--diversity has an effect with --groups only: set --groups, too"),
        (["--sample", "--groups", "1"], "--groups has no effect on samples"),
        (["-n", "0", "--penalty", "power"], "--penalty has no effect with --normalize 0"),
        (["--ensemble", "log"], "--ensemble has an effect with several models only: repeat -m"),
        (["--ensemble-weights", "1"], "--ensemble-weights has an effect with several models only"),
        (["--raw"], "has no moving average of the weights (training.ema), so --raw (raw=True"),
    ],
)
def test_invalid_options(trained, options, reason):
    assert reason in said("-m", trained, *options)


def test_the_error_for_raw_names_all_models(trained):
    reason = f"{trained} and {trained} have no moving average of the weights"
    assert reason in said("-m", trained, "-m", trained, "--raw")


def test_the_model_of_an_ensemble_without_the_layer_of_an_alignment_is_named(trained, tmp_path):
    deep = make_run(tmp_path / "deep", layers=2)
    pipeline = Pipeline.load(trained / TEXT)
    pipeline.save(deep / TEXT)
    missing = "attention to the source has no layer 2; this model has layer 1"
    for ensemble in ([deep, trained], [trained, deep]):
        models = [word for run in ensemble for word in ("-m", run)]
        assert said(*models, "--alignment", "2.1") == f"fusetk: {trained}: {missing}\n"
        assert decode(*models, "--alignment", "1.1", "-q").exit_code == 0


@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_an_error_before_the_first_translation_keeps_the_output(
    trained, tmp_path, monkeypatch, name
):
    (tmp_path / name).write_text("earlier\n")
    assert "no layer 9" in said("-m", trained, "--alignment", "9", "-o", tmp_path / name)
    assert (tmp_path / name).read_text() == "earlier\n"
    monkeypatch.setattr("fusetk.decoding.translate.search", Mock(side_effect=Diverged()))
    assert "NaN" in said("-m", trained, "-o", tmp_path / name)
    assert (tmp_path / name).read_text() == "earlier\n"


def test_a_full_disk(trained, tmp_path):
    (tmp_path / "in").write_text("hund\n")
    to_full_disk = "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
    process = Forks(["decode", "-m", trained, "-i", tmp_path / "in", "-q"], code=to_full_disk)
    assert process.wait() == [74] and process.output().count("\n") == 1
    assert "fusetk: standard output cannot be written: No space left on device" in process.output()
    for name in ("full", "full.gz"):
        (tmp_path / name).symlink_to("/dev/full")
        result = decode("-m", trained, "-q", "-o", tmp_path / name)
        assert result.exit_code == 74 and result.stderr.count("\n") == 1
        assert "No space left on device; free some disk space" in result.stderr


def test_an_input_file_is_not_overwritten(trained, tmp_path):
    (tmp_path / "a").write_text("hund\n")
    for option in ("--input", "--prefix", "--constraints", "--replace-unknown"):
        assert "is both read and written" in said(
            "-m", trained, option, tmp_path / "a", "-o", tmp_path / "a"
        )
    assert (tmp_path / "a").read_text() == "hund\n"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nMore"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
    ids=["host", "GPU", "CPU"],
)
def test_exhausted_memory_is_one_sentence(trained, monkeypatch, error):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(translate, "search", fail)
    message = said("-m", trained, "-b", 50, lines=["hund"])
    assert message.count("\n") == 1 and "there is not enough memory" in message
    assert "lower --batch-tokens or the beam (-b)" in message


def test_a_model_that_does_not_fit_into_memory_is_one_sentence(trained, monkeypatch):
    def to(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nMore")

    monkeypatch.setattr(torch.nn.Module, "to", to)
    message = said("-m", trained, lines=["hund"])
    assert message.count("\n") == 1 and "does not fit into the memory of cpu" in message
    assert "20.00 GiB" in message


def test_code_outside_fusetk_may_print(trained, monkeypatch):
    """Standard output has only translations."""
    translations, search = output("-m", trained, lines=["hund"]), translate.search
    load_model = system.load_model

    def prints(function, words):
        def call(*arguments, **options):
            print(words)
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(translate, "search", prints(search, "searching"))
    monkeypatch.setattr(system, "load_model", prints(load_model, "importing"))
    result = decode("-m", trained, lines=["hund"])
    assert result.exit_code == 0 and result.stdout.splitlines() == translations
    assert "importing\n" in result.stderr and "searching\n" in result.stderr


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_another_error_of_the_search_is_not_called_a_lack_of_memory(trained, monkeypatch, kind):
    def fail(*arguments, **options):
        raise kind("sizes differ")

    monkeypatch.setattr(translate, "search", fail)
    result = decode("-m", trained, lines=["hund"])
    assert result.exit_code == 1
    assert f"code outside fusetk failed: {kind.__name__}: sizes differ (" in result.stderr
