"""``fusetk ablate``: the loss without each layer that a site reads."""

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
from fusetk.decoding.target_scores import batch_of_ids
from fusetk.decoding.translate import Translator
from fusetk.evaluation.ablation import layer_losses, loss, without_layer
from fusetk.evaluation.forward_trace import trace_forward
from fusetk.fusion.base import fusions_of_stacks
from fusetk.models import MODELS
from fusetk.models.conv import Conv, ConvConfig
from fusetk.models.seq2seq import Seq2Seq

WORDS = [f"w{i}" for i in range(8)]
PAIRS = [([4, 5, 6, EOS], [7, 8]), ([9, EOS], [4, 4, 5]), ([10, 11, EOS], [6])]


def built(kind: str = "transformer", **sides: Any) -> Seq2Seq:
    options = {"kind": kind, "width": 16, "heads": 2, "ffn": 16, **sides}
    torch.manual_seed(1)
    return MODELS[kind](MODELS[kind].Config.model_validate(options), 12, 12).eval()


def fused() -> Seq2Seq:
    return built(
        encoder={"layers": 2, "fuse": {"kind": "linear", "norm": False}},
        decoder={"layers": 3, "fuse": {"kind": "attention", "hops": 2}},
    )


ATTENDS = ["transparent", "dense-concat", "dense-sum", "layerwise"]
CONNECTS: list[dict[str, Any]] = [
    {"kind": "linear"},
    {"kind": "depth-weighted"},
    {"kind": "mudd"},
    {"kind": "mudd", "streams": 1},
    {"kind": "cross"},
]


def attending(kind: str) -> Seq2Seq:
    sides = {"encoder": {"layers": 2}, "decoder": {"layers": 2, "attend": kind}}
    return built(norm="pre", **sides)


def connected(connect: dict[str, Any]) -> Seq2Seq:
    """A model in which each layer reads each layer below it."""
    side = {"layers": 3, "connect": connect}
    model = built(norm="pre", encoder=side, decoder=side)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".connect." in name:
                parameter.add_(0.3)
    return model


READERS = [*ATTENDS, *CONNECTS, {"kind": "dense", "growth": 8}]


def reading(site: Any) -> Seq2Seq:
    return attending(site) if isinstance(site, str) else connected(site)


def differences(model: Seq2Seq, pairs: list[Any], site: str) -> list[float]:
    unchanged = loss(model, pairs)
    return [x.loss - unchanged for x in layer_losses(model, pairs) if x.site == site]


def test_a_layer_with_the_weight_0_is_not_needed() -> None:
    model = fused()
    encoder, decoder = fusions_of_stacks(model).values()
    with torch.no_grad():
        encoder.get_parameter("combine.weight")[1] = 0
    without = differences(model, PAIRS, encoder.name)
    assert without[1] == 0 and abs(without[0]) > 1e-4 and abs(without[2]) > 1e-4
    assert len(differences(model, PAIRS, decoder.name)) == 4


@pytest.mark.parametrize(
    ("fuse", "layers"),
    [
        ({"kind": "linear", "embedding": False}, [1, 2, 3, 4]),
        ({"kind": "tree", "leaves": 2, "residual": "none"}, [3, 4]),
    ],
)
def test_layers_that_a_fusion_does_not_read_are_left_out(
    fuse: dict[str, Any], layers: list[int]
) -> None:
    model = built(decoder={"layers": 4, "fuse": fuse}, encoder={"layers": 1})
    assert [each.layer for each in layer_losses(model, PAIRS)] == layers


def test_an_encoder_layer_without_weight_is_not_needed() -> None:
    model = attending("transparent")
    with torch.no_grad():
        model.get_parameter("attend.weight")[1] = -torch.inf  # its weight is 0 after the softmax
    without = differences(model, PAIRS, "decoder.attend")
    assert without[1] == 0 and abs(without[0]) > 1e-4 and abs(without[2]) > 1e-4


@pytest.mark.parametrize("kind", ATTENDS)
def test_an_attention_needs_the_encoder_layers_that_it_reads(kind: str) -> None:
    without = differences(attending(kind), PAIRS, "decoder.attend")
    reads_embedding = kind != "layerwise"
    assert [abs(each) > 1e-5 for each in without] == [reads_embedding, True, True]


def test_the_attention_values_of_conv_keep_the_source_embedding() -> None:
    side = {"layers": 2, "widths": 8}
    options = {"width": 16, "encoder": side, "decoder": {**side, "attend": "dense-sum"}}
    config = ConvConfig.model_validate(options)
    model = Conv(config, 12, 12).eval()
    with torch.inference_mode():
        memory = model.encode(torch.tensor([PAIRS[0][0]]), torch.ones(1, 4, dtype=torch.bool))
        assert memory.embedding is not None
        with without_layer(model, "decoder.attend", 0, torch.ones(8)):
            keys, values, _ = model.start(memory).per_sentence
    assert torch.equal(keys[:, 0, 0], keys[:, 0, 1]) and not torch.equal(
        keys[:, 1, 0], keys[:, 1, 1]
    )
    torch.testing.assert_close(2**0.5 * values - keys, memory.embedding[:, None].expand_as(keys))


@pytest.mark.parametrize("connect", CONNECTS, ids=str)
def test_a_layer_without_weight_in_a_connection_is_not_needed(connect: dict[str, Any]) -> None:
    model = connected(connect)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("decoder.connect.") and "norm" not in name:
                axis = 0 if parameter.dim() == 1 else 1  # of the outputs that are read
                if name.endswith(("w2", "dynamic")):  # weights that depend on the position
                    parameter.zero_()
                elif not name.endswith("w1") and parameter.shape[axis] > 1:
                    parameter.select(axis, 1).zero_()
    without = differences(model, PAIRS, "decoder.connect")
    assert [each == 0 for each in without] == [False, True, False, False]


@pytest.mark.parametrize("kind", ["in-place", "added"])
def test_layers_above_a_summary_keep_their_numbers(kind: str) -> None:
    connect = {"kind": "dense", "growth": 8, "summary_every": 3, "summary_layer": kind}
    model = built(encoder={"layers": 6, "connect": connect, "fuse": {"kind": "average"}})
    layers: dict[str, list[int | str]] = {}
    for each in layer_losses(model, PAIRS):
        layers.setdefault(each.site, []).append(each.layer)
    summary = ["summary1"] if kind == "added" else []
    # The average does not read the top input, so no part reads layer 6 by the connection.
    assert layers == {
        "encoder.fuse": [0, 4, 5, 6],
        "encoder.connect": [0, 1, 2, 3, *summary, 4, 5],
    }


def test_the_mean_of_one_position_is_the_position() -> None:
    model = fused()
    pairs = [([EOS], [4, 5, 6])]
    assert differences(model, pairs, "encoder.fuse") == pytest.approx([0, 0, 0], abs=1e-6)
    assert min(map(abs, differences(model, pairs, "decoder.fuse"))) > 1e-6


@torch.no_grad()
def test_the_mean_is_that_of_all_positions() -> None:
    model = fused()
    watched: dict[str, Any] = {"fuse": model.get_submodule("encoder.fuse")}
    traces = [trace_forward(model, [pair], "", watched) for pair in PAIRS]
    positions = torch.cat([each.inputs["fuse"][1][0] for each in traces])  # of layer 1
    with without_layer(model, "encoder.fuse", 1, positions.mean(0)):
        expected = loss(model, PAIRS)
    losses = {(each.site, each.layer): each.loss for each in layer_losses(model, PAIRS)}
    assert losses["encoder.fuse", 1] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("site", READERS, ids=str)
def test_the_mean_of_one_position_is_the_position_at_other_sites(site: Any) -> None:
    model = reading(site)
    pairs = [([EOS], [4, 5, 6])]
    unchanged = loss(model, pairs)
    for each in layer_losses(model, pairs):
        has_one_position = each.site != "decoder.connect"
        assert (abs(each.loss - unchanged) < 1e-5) == has_one_position, each


@pytest.mark.parametrize("site", READERS, ids=str)
def test_packed_sentences_and_padding_have_the_same_result(site: Any) -> None:
    model = reading(site)
    batch = batch_of_ids(PAIRS)
    arguments = (batch.src, batch.src_mask, batch.tgt_in)
    name = "decoder.attend" if isinstance(site, str) else "encoder.connect"
    with torch.inference_mode(), without_layer(model, name, 1, torch.ones(1)):
        padded = model(*arguments).flatten(0, 1)[batch.target_index]
        packed = model(*arguments, batch.target_index)
    torch.testing.assert_close(packed, padded, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shared", [True, False])
def test_a_connection_of_a_stack_for_both_languages_is_measured_for_each(shared: bool) -> None:
    stack = {"layers": 2, "connect": "linear"}
    model = built("coordinated", stack=stack, share_weights=shared)
    pairs = [([EOS], [4, 5, 6])]
    assert differences(model, pairs, "encoder.connect") == pytest.approx([0, 0], abs=1e-6)
    assert min(map(abs, differences(model, pairs, "decoder.connect"))) > 1e-6


def test_nothing_remains_changed() -> None:
    for model in (fused(), attending("transparent"), connected({"kind": "linear"})):
        before = loss(model, PAIRS)
        assert any(each.loss != before for each in layer_losses(model, PAIRS))
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
    hyper = {"layers": 2, "residual": "hyper"}
    run.model = built(norm="pre", encoder=hyper, decoder=hyper)
    result = call("a.en")
    assert result.exit_code == 2 and "runs/my has no site that can be measured" in result.stderr


def test_the_table_names_layers_of_the_encoder_that_the_decoder_reads(run: Any) -> None:
    run.model = attending("transparent")
    rows = call("a.en").stdout.splitlines()[3:]
    names = [row.rsplit(maxsplit=2)[0] for row in rows]
    assert names == [f"decoder.attend, encoder layer {i}" for i in range(3)]
