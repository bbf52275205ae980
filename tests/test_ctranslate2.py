"""Export to CTranslate2: the scores and translations are those of fusetk."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from fusetk import ctranslate2 as exporter
from fusetk.cli.main import main
from fusetk.config import dump
from fusetk.data.pipeline import Pipeline
from fusetk.errors import ConfigError
from fusetk.files import checksum, digest
from fusetk.models.transformer import Transformer
from fusetk.recipe import load as load_recipe
from fusetk.runs import CONFIG, MODEL, TEXT
from fusetk.system import Loaded, System, build, load_model


def untrained(toy: Path, run: Path, *settings: str) -> Path:
    """Write a run folder with random weights; biases and norms are random, too."""
    recipe = load_recipe(toy, settings)
    prepared = toy.parent / "prepared" / TEXT
    folder = run / "checkpoints" / "update-0000001"
    folder.mkdir(parents=True)
    shutil.copytree(prepared, run / TEXT)
    (run / CONFIG).write_text(dump(recipe), encoding="utf-8")
    pipeline = Pipeline.load(prepared)
    torch.manual_seed(5)
    model = build(recipe, len(pipeline.source_vocab), len(pipeline.target_vocab))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    save_file(dict(model.named_parameters()), folder / MODEL)
    state: dict[str, Any] = {"format": 1, "sha256": {MODEL: checksum(folder / MODEL)}}
    (folder / "state.json").write_text(json.dumps({**state, "digest": digest(state)}))
    (run / "checkpoints" / "best").symlink_to(folder.name)
    return run


PLAIN = [
    [],
    ["model.norm=pre", "model.tie=target", "model.activation=gelu"],
    ["model.positions=learned", "model.max_positions=40", "model.output_bias=false"],
    ["model.attention_bias=false", "model.activation=swish", "model.encoder.layers=2"],
]


@pytest.mark.parametrize("settings", PLAIN, ids=str)
def test_the_scores_are_equal(toy: Path, tmp_path: Path, settings: list[str]) -> None:
    library = pytest.importorskip("ctranslate2")
    run = untrained(toy, tmp_path / "run", *settings)
    loaded = load_model(run, "cpu")
    exporter.export(loaded, tmp_path / "out")
    sources = ["eins zwei drei", "vier", "zehn neun acht sieben fünf eins zwei"]
    targets = ["DREI ZWEI", "VIER VIER VIER EINS", "UNBEKANNT EINS"]
    system = System([loaded.model], loaded.pipeline, loaded.recipe.decoding)
    translator = library.Translator(str(tmp_path / "out"), compute_type="float32")
    pipeline = Pipeline.load(tmp_path / "out" / TEXT)

    def tokens(side: str, lines: list[str]) -> list[list[str]]:
        return [pipeline.subwords(side, pipeline.words(side, line)) for line in lines]

    scored = translator.score_batch(tokens("source", sources), tokens("target", targets))
    expected = system.score(sources, targets)
    for result, score in zip(scored, expected, strict=True):
        assert sum(result.log_probs) == pytest.approx(score, abs=2e-4)
    decoded = translator.translate_batch(
        tokens("source", sources),
        beam_size=1,
        max_decoding_length=15,
        suppress_sequences=[["<pad>"], ["<s>"]],  # search in fusetk never produces them
    )
    translations = system.translate(sources, beam=1, max_length_factor=0, max_length_extra=15)
    assert [" ".join(result.hypotheses[0]) for result in decoded] == translations


def test_tied_embeddings_and_a_joint_vocabulary(toy: Path) -> None:
    """The output matrix of the specification is the embedding of both sides."""
    library = pytest.importorskip("ctranslate2")
    recipe = load_recipe(toy, ["model.tie=all", "data.vocabulary.joint=true"])
    pipeline = Pipeline.load(toy.parent / "prepared" / TEXT)
    joint = Pipeline(pipeline, {}, (pipeline.source_vocab, pipeline.source_vocab))
    loaded = Loaded(recipe, joint, build(recipe, *[len(joint.source_vocab)] * 2), Path())
    spec = exporter._specification(loaded, library.specs)
    parts = (spec.decoder.projection, spec.decoder.embeddings, spec.encoder.embeddings[0])
    assert all(np.array_equal(part.weight, parts[0].weight) for part in parts)
    spec.validate()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["model.encoder.fuse=average", "model.encoder.layers=2"], "fuse: average"),
        (["model.decoder.connect=dense", "model.decoder.layers=2"], "connect: dense"),
        (["model.context_gate=scalar"], "context_gate: scalar"),
        (["model.positions=rotary"], "positions: rotary"),
        (["model.normalization=rms"], "normalization: rms"),
        (["model.activation=swiglu"], "activation: swiglu"),
        (["model.kv_heads=1"], "kv_heads: 1"),
        (["model.encoder.residual=rezero", "model.norm=none"], "residual: rezero"),
        (
            ["model={kind: conv, width: 32, encoder: {layers: 1}, decoder: {layers: 1}}"],
            "kind: conv",
        ),
    ],
)
def test_other_models_are_refused_with_the_reason(
    toy: Path, tmp_path: Path, settings: list[str], reason: str
) -> None:
    run = untrained(toy, tmp_path / "run", *settings)
    with pytest.raises(ConfigError, match=f"CTranslate2 cannot compute {reason}"):
        exporter.export(load_model(run, "cpu"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_subclass_may_compute_anything(toy: Path, tmp_path: Path) -> None:
    class Other(Transformer):
        pass

    loaded = load_model(untrained(toy, tmp_path / "run"), "cpu")
    assert not exporter.unsupported(loaded)
    loaded.model.__class__ = Other
    assert exporter.unsupported(loaded)


def test_the_command_writes_a_new_folder(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = untrained(toy, tmp_path / "run")
    words = ["export", str(run), "-o", str(tmp_path / "out")]
    with monkeypatch.context() as context:
        context.setitem(__import__("sys").modules, "ctranslate2", None)
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 2 and "pip install 'fusetk[ctranslate2]'" in result.stderr
    pytest.importorskip("ctranslate2")
    assert CliRunner().invoke(main, [*words, "--quantization", "int8"]).exit_code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"model.bin", "text"}
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2 and "out exists already" in result.stderr
    result = CliRunner().invoke(main, [*words, "--raw"])
    assert (
        result.exit_code == 2
        and "so --raw (raw=True in Python) has no effect: omit --raw" in result.stderr
    )


def test_the_export_does_not_change_the_model(toy: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    loaded = load_model(untrained(toy, tmp_path / "run"), "cpu")
    before = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    exporter.export(loaded, tmp_path / "out", "int16")
    after = loaded.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_other_formats_are_answered_with_what_to_use() -> None:
    for form, advice in (("onnx", "use ctranslate2, or read"), ("ctranslate", "did you mean")):
        result = CliRunner().invoke(main, ["export", "runs/my", "--to", form, "-o", "my.out"])
        assert result.exit_code == 2 and "--to: " in result.output and advice in result.output


def test_a_library_that_cannot_be_loaded_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "libctranslate2.so: cannot enable executable stack"
    (tmp_path / "ctranslate2").mkdir()
    (tmp_path / "ctranslate2" / "__init__.py").write_text(f"raise ImportError({message!r})")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "ctranslate2"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=rf"cannot be imported \({message}\)"):
        exporter._library()
