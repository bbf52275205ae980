"""``fusetk decode`` on a run folder with an untrained model."""

import gzip
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from fusetk import config, runs, system
from fusetk.cli import decode as decode_command
from fusetk.cli.config_options import search_fields
from fusetk.cli.decode_options import DecodeOptions
from fusetk.cli.main import main
from fusetk.data.pipeline import Pipeline, Text
from fusetk.data.steps.lowercase import Lowercase
from fusetk.data.steps.tokenize import Tokenize
from fusetk.data.vocab import Vocabulary
from fusetk.errors import quantity
from fusetk.recipe import Recipe
from fusetk.training import checkpoint

WORDS = ["ein", "hund", "läuft", "und", "bellt", ".", ","]
LINES = ["Ein Hund läuft.", "", "Hund", "Ein\u2028Hund läuft und bellt, und bellt.", "Katze?"]
TINY = {
    "kind": "transformer",
    "width": 16,
    "heads": 2,
    "ffn": 16,
    "encoder": {"layers": 1},
    "decoder": {"layers": 1},
}
STAGE = {
    "optimizer": {"kind": "adam"},
    "schedule": {"kind": "constant", "rate": 1e-3},
    "batch": {"size": 100},
    "end": {"updates": 1},
}


def make_run(
    folder: Path, words=WORDS, seed: int = 1, fuse: str = "last", layers: int = 1, **decoding
) -> Path:
    text = Text([Tokenize(step="tokenize"), Lowercase(step="lowercase")], "de", "en")
    Pipeline(text, {}, (Vocabulary(words), Vocabulary(words))).save(folder / runs.TEXT)
    recipe = Recipe.model_validate(
        {
            "data": {
                "folder": "data",
                "source": "de",
                "target": "en",
                "train": ["train"],
                "valid": ["valid"],
            },
            "model": {**TINY, "decoder": {"layers": layers, "fuse": fuse}},
            "training": {"seed": seed, "stages": [STAGE]},
            "decoding": {"beam": 3, "max_length_factor": 1.0, "max_length_extra": 3, **decoding},
        }
    )
    (folder / runs.CONFIG).write_text(config.dump(recipe))
    model = system.build(recipe, 4 + len(words), 4 + len(words))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    where = folder / "checkpoints" / runs.checkpoint_name(1)
    where.parent.mkdir(exist_ok=True)
    checkpoint.save(where, checkpoint.model_tensors(model), {}, {})
    checkpoint.link(folder, "best", where)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


def decode(*arguments, lines=LINES) -> Result:
    text = "".join(f"{line}\n" for line in lines)
    return CliRunner().invoke(main, ["decode", *map(str, arguments)], input=text.encode())


def output(*arguments, lines=LINES) -> list[str]:
    result = decode(*arguments, lines=lines)
    assert result.exit_code == 0, result.output
    return result.stdout.split("\n")[:-1]


def test_every_option_is_read() -> None:
    names = {each.name for each in decode_command.command.params if each.expose_value}
    assert names == {field.name for field in fields(DecodeOptions)} | search_fields().keys()


def test_lines_in_lines_out_and_the_speed_on_standard_error(trained):
    result = decode("-m", trained)
    translations = result.stdout.split("\n")[:-1]
    assert [bool(line) for line in translations] == [True, False, True, True, True]
    assert (
        "4 sentences in" in result.stderr
        and "sentences/s" in result.stderr
        and "target tokens/s" in result.stderr
    )
    single = decode("-m", trained, lines=LINES[:1]).stderr
    assert (
        f"on cpu, {quantity(torch.get_num_threads(), 'thread')}\n" in single
        and "\n1 sentence in" in single
    )
    assert decode("-m", trained, "--quiet").stderr == ""
    assert output("-m", trained, "--batch-tokens", 1) == translations
    assert output("-m", trained / "checkpoints" / "best") == translations
    assert output("-m", trained, lines=[]) == []


def test_files_may_be_compressed_and_no_input_is_overwritten(trained, tmp_path):
    translations = output("-m", trained)
    (tmp_path / "in.gz").write_bytes(gzip.compress("\r\n".join(LINES).encode()))
    assert output("-m", trained, "-i", tmp_path / "in.gz", "-o", tmp_path / "out") == []
    assert (tmp_path / "out").read_bytes().decode().split("\n")[:-1] == translations
    for _ in range(2):  # the second time, the file exists
        assert output("-m", trained, "-i", tmp_path / "out", "-o", tmp_path / "out.gz") == []
        written = gzip.decompress((tmp_path / "out.gz").read_bytes()).decode()
        assert written.split("\n")[:-1] == output("-m", trained, lines=translations)
    before = (tmp_path / "in.gz").read_bytes()
    result = decode("-m", trained, "-i", tmp_path / "in.gz", "-o", tmp_path / "in.gz")
    assert (
        result.exit_code == 2
        and "is both read and written" in result.stderr
        and (tmp_path / "in.gz").read_bytes() == before
    )
    result = decode("-m", trained, "-o", tmp_path / "no" / "out")
    assert result.exit_code == 2 and "no does not exist" in result.stderr


def test_n_best_in_moses_form(trained):
    rows = [line.split(" ||| ") for line in output("-m", trained, "--n-best", 2, "-n", "0.5")]
    assert [int(row[0]) for row in rows] == [0, 0, 2, 2, 3, 3, 4, 4]
    best = output("-m", trained, "-n", "0.5")
    assert [row[1] for row in rows[::2]] == [line for line in best if line]
    for row in rows:
        name, score = row[2].split(" ")
        assert name == "LogProb=" and float(score) <= float(row[3]) <= 0
    assert all(float(a[3]) >= float(b[3]) for a, b in zip(rows[::2], rows[1::2], strict=True))


def test_json_has_an_object_for_each_line(trained):
    rows = [json.loads(line) for line in output("-m", trained, "--json", "--n-best", 2)]
    assert [row["id"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[1] == {"id": 1, "text": "", "source_tokens": [], "translations": []}
    assert [row["text"] for row in rows] == output("-m", trained)
    translation = rows[0]["translations"][1]
    assert set(translation) == {"text", "tokens", "score", "normalized"}
    assert translation["normalized"] == pytest.approx(
        translation["score"] / (len(translation["tokens"]) + 1)
    )


def test_tokenized_text_is_translated_into_tokens(trained):
    words = "ein hund läuft ."
    [translation] = output("-m", trained, "--tokenized", lines=[words])
    [row] = output("-m", trained, "--json", lines=["Ein Hund läuft."])
    assert translation == " ".join(json.loads(row)["translations"][0]["tokens"])


def test_settings_come_from_the_run_and_options_win(tmp_path, trained):
    greedy = make_run(tmp_path / "greedy", beam=1)
    assert output("-m", greedy) == output("-m", trained, "-b", 1)
    result = decode("-m", greedy, "--n-best", 2)
    assert result.exit_code == 2 and "--n-best 2 is more than --beam 1" in result.stderr
    result = decode("-m", greedy, "-b", 0)
    assert result.exit_code == 2 and "--beam" in result.stderr
    normalized = output("-m", trained, "--json", "-n", 2)
    assert normalized == output("-m", trained, "--json", "--length-penalty", 2)
    assert normalized != output("-m", trained, "--json")


def test_an_ensemble(tmp_path, trained):
    other = make_run(tmp_path / "other", seed=2)
    score = {}
    for name, models in {
        "a": [trained],
        "b": [other],
        "both": [trained, other],
        "twice": [trained, trained],
    }.items():
        rows = output(
            *(argument for model in models for argument in ("-m", model)), "--json", lines=LINES[:1]
        )
        score[name] = json.loads(rows[0])["translations"][0]
    assert score["twice"]["tokens"] == score["a"]["tokens"]
    assert score["twice"]["score"] == pytest.approx(score["a"]["score"], abs=1e-4)
    assert score["both"]["score"] not in (score["a"]["score"], score["b"]["score"])
    alone, unequal = ["-m", trained], ["-m", trained, "-m", other, "--ensemble-weights", "1,1e-6"]
    assert output(*unequal, lines=LINES) == output(*alone, lines=LINES)
    unequal[-1] = "1e-6,1"
    assert output(*unequal, lines=LINES) == output("-m", other, lines=LINES)
    for weights, reason in {
        "1,2,3": "--ensemble-weights has 3 numbers for 2 models: give a weight for each model",
        "1,x": "'1,x' is not a list of numbers such as 0.7,0.3",
        "1,0": "1,0: give numbers above 0",
        "1,nan": "1,nan: give numbers above 0",
    }.items():
        result = decode(*unequal[:-1], weights)
        assert result.exit_code == 2 and reason in " ".join(result.stderr.split())
    foreign = make_run(tmp_path / "foreign", words=[*WORDS, "katze"])
    result = decode("-m", trained, "-m", foreign)
    assert result.exit_code == 2 and "vocabularies differ (11 and 12 tokens)" in result.stderr
    description = other / "text" / "pipeline.json"
    text = json.loads(description.read_text())
    description.write_text(json.dumps({**text, "steps": [*text["steps"], {"step": "lowercase"}]}))
    result = decode("-m", trained, "-m", other)
    assert result.exit_code == 2
    assert "the steps of their text preparation differ" in result.stderr


def test_a_wide_beam_gets_one_warning_with_its_cost(trained):
    """A step has at most beam * vocabulary candidates."""
    said = decode(
        "-m", trained, "-b", 101, "--chunk", 1, "-q", "--max-length-factor", 0, lines=["Hund"] * 3
    ).stderr
    assert (
        said.count("\n") == 1
        and "warning: beam 101 is slow: each step sorts 1,111 candidates for each sentence" in said
    )
    assert "--stop beam may end sentences earlier" in said
    for options in (["-b", 100], ["--sample", "--n-best", 200]):
        assert (
            decode("-m", trained, "-q", "--max-length-factor", 0, *options, lines=["Hund"]).stderr
            == ""
        )


def test_an_option_can_turn_off_sampling_of_the_run(tmp_path, trained):
    sampled = make_run(tmp_path / "sampled", sample=True, beam=1)
    said = decode("-m", sampled, "-b", 3).stderr
    assert "omit --beam, or turn off the sampling of the run (--no-sample)" in said
    searched = output("-m", sampled, "--no-sample", "-b", 3, lines=LINES)
    assert searched == output("-m", trained, lines=LINES) != output("-m", sampled, lines=LINES)


def test_search_options_without_effect_on_samples_are_refused(trained):
    for option in (["--beam", 4], ["--stop", "first"]):
        result = decode("-m", trained, "--sample", *option, lines=["Hund"])
        assert result.exit_code == 2 and f"{option[0]} has no effect on samples" in result.stderr


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_lower_precision_is_close(trained, precision):
    rows = [
        output("-m", trained, "--json", "-b", 1, "--precision", each)[0]
        for each in ("fp32", precision)
    ]
    plain, short = (json.loads(row)["translations"][0]["score"] for row in rows)
    assert short == pytest.approx(plain, rel=0.2) and short != plain


@pytest.mark.parametrize("slower", [True, False])
def test_a_precision_that_is_slower_than_fp32_gets_a_warning(trained, monkeypatch, slower):
    measured = []
    monkeypatch.setattr(system, "slower_than_float32", lambda kind: measured.append(kind) or slower)
    warning = "warning: int8 is slower than fp32 on this processor: use precision fp32"
    said = decode("-m", trained, "--precision", "int8", lines=["Hund"]).stderr
    assert (warning in said.splitlines()) == slower and measured == [torch.int8]
    decode("-m", trained, lines=["Hund"])
    assert measured == [torch.int8]


def test_translations_before_a_broken_line_are_kept(trained, tmp_path):
    (tmp_path / "in").write_bytes(b"Hund\nEin Hund\nHund \xff\nHund\n")
    result = decode("-m", trained, "-i", tmp_path / "in", "-o", tmp_path / "out")
    assert result.exit_code == 2 and "in, line 3" in result.stderr
    assert len((tmp_path / "out").read_text().split("\n")[:-1]) == 2
    assert decode("-m", tmp_path).exit_code == 2


def test_a_typed_line_is_answered_at_once_and_a_closed_pipe_is_no_error(trained):
    command = [sys.executable, "-m", "fusetk", "decode", "-m", str(trained), "--threads", "1"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(b"Ein Hund\n")
        process.stdin.flush()
        assert process.stdout.readline().strip()
        process.stdout.close()
        process.stdin.write(b"Hund\n" * 20000)
        process.stdin.close()
        assert process.stderr.read().startswith(b"loading ")
        assert process.wait() == 0
