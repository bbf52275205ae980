"""``fusetk ablate``: the loss without each layer of a fusion."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from fusetk.cli.main import main
from fusetk.data.pipeline import Pipeline, Text
from fusetk.data.vocab import EOS, Vocabulary
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.translate import Translator
from fusetk.evaluation.ablation import layer_losses, loss
from fusetk.fusion.base import fusions_of_stacks
from fusetk.models.seq2seq import Seq2Seq
from fusetk.models.transformer import Transformer

WORDS = [f"w{i}" for i in range(8)]
PAIRS = [([4, 5, 6, EOS], [7, 8]), ([9, EOS], [4, 4, 5]), ([10, 11, EOS], [6])]


def built(**sides: Any) -> Seq2Seq:
    options = {"width": 16, "heads": 2, "ffn": 16, **sides}
    torch.manual_seed(1)
    return Transformer(Transformer.Config.model_validate(options), 12, 12).eval()


def fused() -> Seq2Seq:
    return built(
        encoder={"layers": 2, "fuse": {"kind": "linear", "norm": False}},
        decoder={"layers": 3, "fuse": {"kind": "attention", "hops": 2}},
    )


def differences(model: Seq2Seq, pairs: list[Any], fusion: str) -> list[float]:
    unchanged = loss(model, pairs)
    return [x.loss - unchanged for x in layer_losses(model, pairs) if x.fusion == fusion]


def test_a_layer_with_the_weight_0_is_not_needed() -> None:
    model = fused()
    encoder, decoder = fusions_of_stacks(model).values()
    with torch.no_grad():
        encoder.get_parameter("combine.weight")[1] = 0
    without = differences(model, PAIRS, encoder.name)
    assert without[1] == 0 and abs(without[0]) > 1e-4 and abs(without[2]) > 1e-4
    assert len(differences(model, PAIRS, decoder.name)) == 4


@pytest.mark.parametrize("kind", ["in-place", "added"])
def test_layers_above_a_summary_keep_their_numbers(kind: str) -> None:
    connect = {"kind": "dense", "growth": 8, "summary_every": 3, "summary_layer": kind}
    model = built(encoder={"layers": 6, "connect": connect, "fuse": {"kind": "average"}})
    assert [each.layer for each in layer_losses(model, PAIRS)] == [0, 4, 5, 6]


def test_the_mean_of_one_position_is_the_position() -> None:
    model = fused()
    pairs = [([EOS], [4, 5, 6])]
    assert differences(model, pairs, "encoder.fuse") == pytest.approx([0, 0, 0], abs=1e-6)
    assert min(map(abs, differences(model, pairs, "decoder.fuse"))) > 1e-6


def test_nothing_remains_changed() -> None:
    model = fused()
    before = loss(model, PAIRS)
    list(layer_losses(model, PAIRS))
    assert loss(model, PAIRS) == before


# The command --------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    pipeline = Pipeline(Text([], "de", "en"), {}, (Vocabulary(WORDS), Vocabulary(WORDS)))
    recipe = SimpleNamespace(decoding=SearchConfig())
    loaded = SimpleNamespace(recipe=recipe, pipeline=pipeline, model=fused())
    loaded.translator = lambda: Translator([loaded.model], pipeline, recipe.decoding)
    monkeypatch.setattr("fusetk.system.load_model", lambda path, device, report: loaded)
    Path("a.de").write_text("w0 w1\n\nw2\nw3 w4 w5\n")
    Path("a.en").write_text("w7 w6\nw1\nw5\nw4 w3 w2\n")
    return loaded


def call(*words: str) -> Result:
    return CliRunner().invoke(main, ["ablate", "-m", "runs/my", "-i", "a.de", "-r", *words])


def test_the_table_and_the_json_have_each_layer(run: Any) -> None:
    document = json.loads(call("a.en", "--json").stdout)
    names = [(each["fusion"], each["layer"]) for each in document["layers"]]
    assert names == [
        *(("encoder.fuse", i) for i in range(3)),
        *(("decoder.fuse", i) for i in range(4)),
    ]
    title, head, first, *rows = call("a.en").stdout.splitlines()
    assert title == "loss of 3 sentence pairs" and head.split() == ["without", "loss", "difference"]
    assert first.split() == ["-", f"{document['loss']:.4f}"]
    for row, each in zip(rows, document["layers"], strict=True):
        change = each["loss"] - document["loss"]
        assert row.split()[-2:] == [f"{each['loss']:.4f}", f"{change:+.4f}"]


def test_standard_input_has_the_source(run: Any) -> None:
    words = ["ablate", "-m", "runs/my", "-i", "-", "-r", "a.en"]
    result = CliRunner().invoke(main, words, input=Path("a.de").read_text())
    assert result.stdout == call("a.en").stdout


def test_errors_say_what_to_give(run: Any) -> None:
    Path("short.en").write_text("w7\n")
    assert "short.en" in call("short.en").stderr and call("short.en").exit_code == 2
    twice = CliRunner().invoke(main, ["ablate", "-m", "runs/my", "-i", "-", "-r", "-"])
    assert twice.exit_code == 2 and "standard input can be only one of the files" in twice.stderr
    Path("blank.de").write_text("\n" * 4)
    words = ["ablate", "-m", "runs/my", "-i", "blank.de", "-r", "a.en"]
    result = CliRunner().invoke(main, words)
    assert "blank.de has no sentence: give text with words" in result.stderr
    run.model = built(
        positions="learned", max_positions=3, encoder={"layers": 2, "fuse": {"kind": "average"}}
    )
    assert "a.de and a.en, line 4: a source sentence of 3 tokens is too" in call("a.en").stderr
    run.model = built()
    result = call("a.en")
    assert result.exit_code == 2 and "runs/my has no fusion of several layers" in result.stderr
