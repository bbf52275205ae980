import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from fusetk.cli.main import main
from fusetk.data.pipeline import Pipeline, Text
from fusetk.data.prepare import Lowercase
from fusetk.data.vocab import EOS, Vocabulary
from fusetk.decoding.config import SearchConfig
from fusetk.models import MODELS
from fusetk.plotting import attention

SOURCE = ["der", "mann", "привет", "$5", ",", "."]
TARGET = ["the", "man", "hello", "."]


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run that needs no training: a random Transformer of 2 + 3 layers with 4 heads."""
    monkeypatch.chdir(tmp_path)
    pipeline = Pipeline(Text([Lowercase(step="lowercase")], "de", "en"), {}, (Vocabulary(SOURCE), Vocabulary(TARGET)))
    kind = MODELS["transformer"]
    settings = {"kind": "transformer", "width": 16, "heads": 4, "ffn": 16, "encoder": {"layers": 2}, "decoder": {"layers": 3}}
    torch.manual_seed(3)
    model = kind(kind.Config.model_validate(settings), len(pipeline.source_vocab), len(pipeline.target_vocab)).eval()
    recipe = SimpleNamespace(decoding=SearchConfig.model_validate({"beam": 2}))
    found = SimpleNamespace(recipe=recipe, pipeline=pipeline, model=model, checkpoint=tmp_path / "demo" / "checkpoints" / "update-0000010")
    monkeypatch.setattr("fusetk.run.load", lambda path, device: found)
    return found


def run(*arguments: str, output: str = "a.json") -> Result:
    return CliRunner().invoke(main, ["plot-attention", "-m", "demo", "-o", output, *arguments])


def panels() -> dict[str, dict[str, Any]]:
    return {panel["name"]: panel for panel in json.loads(Path("a.json").read_text(encoding="utf-8"))["panels"]}


def test_a_forced_translation(loaded: Any) -> None:
    result = run("-s", "Der Mann .", "-t", "The man .")
    assert (result.exit_code, result.output) == (0, "")
    found = panels()
    assert list(found) == [f"decoder.layer{n}.cross" for n in (1, 2, 3)]
    for panel in found.values():
        assert panel["x"] == ["der", "mann", ".", "</s>"]
        assert panel["y"] == ["the", "man", ".", "</s>"]
        np.testing.assert_allclose(np.sum(panel["matrix"], axis=1), 1, rtol=1e-5)
    vocabularies = loaded.pipeline.source_vocab, loaded.pipeline.target_vocab
    ids = [vocabulary.encode(text.split()) for vocabulary, text in zip(vocabularies, ["der mann .", "the man ."], strict=True)]
    weights = attention.record(loaded.model, *ids)["decoder.layer2.cross"]
    np.testing.assert_allclose(found["decoder.layer2.cross"]["matrix"], weights.mean(0), rtol=1e-6)


def test_a_found_translation_is_that_of_the_search(loaded: Any) -> None:
    from fusetk.decoding.beam import search

    result = run("-s", "Der Mann .")
    assert result.exit_code == 0, result.output
    src = torch.tensor([[*loaded.pipeline.source_vocab.encode(["der", "mann", "."]), EOS]])
    best = search([loaded.model], src, src > 0, loaded.recipe.decoding)[0][0]
    words = loaded.pipeline.target_vocab.decode(best.ids)
    assert panels()["decoder.layer1.cross"]["y"] == [*words, "</s>"]
    assert f"found: {' '.join(words)}\n" in result.stderr
    assert result.stdout == ""


def test_sides_layers_and_heads(loaded: Any) -> None:
    text = ["-s", "Der Mann", "-t", "The man"]
    run(*text, "--what", "self")
    assert list(panels()) == [*(f"encoder.layer{n}.self" for n in (1, 2)), *(f"decoder.layer{n}.self" for n in (1, 2, 3))]
    run(*text, "--what", "encoder-self", "--layer", "2", "--head", "all")
    assert list(panels()) == [f"encoder.layer2.self.head{n}" for n in (1, 2, 3, 4)]
    run(*text, "--what", "decoder-self", "--layer", "3", "--head", "4")
    [panel] = panels().values()
    assert panel["y"] == ["<s>", "the", "man"]
    assert np.triu(panel["matrix"], 1).max() == 0  # nobody looks ahead


def test_with_all_heads_a_row_is_a_layer(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("fusetk.cli.plot_attention.heatmap", lambda *_, columns, **__: asked.append(columns))
    for head in ("all", "mean"):
        assert run("-s", "der", "-t", "the", "--head", head).exit_code == 0
    assert asked == [4, None]


def test_tokenized_text_is_taken_as_it_is(loaded: Any) -> None:
    result = run("-s", "Der mann", "-t", "the man", "--tokenized")
    assert panels()["decoder.layer1.cross"]["x"] == ["Der", "mann", "</s>"]
    assert "<unk>" in result.stderr and "source side: Der\n" in result.stderr


@pytest.mark.parametrize("output", ["a.png", "a.pdf", "a.svg", "a.npz"])
def test_pictures_and_numbers(loaded: Any, output: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        result = run("-s", "Привет , $5 .", "-t", "hello .", "--head", "all", "--colors", "grey", output=output)
    assert result.exit_code == 0, result.output
    assert Path(output).stat().st_size > 1000
    assert not caplog.records  # Cyrillic needs no further font


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["-s", "der", "--layer", "4"], "no layer 4: the decoder has cross-attention in layers 1 to 3"),
        (["-s", "der", "--what", "self", "--layer", "3"], "no layer 3: the encoder has self-attention in layers 1 to 2"),
        (["-s", "der", "--head", "5"], "no head 5: there are 4"),
        (["-s", "der", "--head", "-1"], "neither a number nor mean nor all"),
        (["-s", " "], "the source sentence is empty"),
        (["-s", "der", "-t", ""], "the target sentence is empty"),
        (["-s", "der\nmann"], "more than one line"),
        (["-s", "der", "-o", "a.jpg"], ".png, .pdf, .svg"),
        (["-s", "der", "-o", "nowhere/a.png"], "no folder nowhere"),
    ],
)
def test_mistakes(loaded: Any, arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr and "Traceback" not in result.stderr
    assert not Path("a.json").exists()
