"""``fusetk plot-attention`` on models with random weights."""

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
from fusetk.data.steps.lowercase import Lowercase
from fusetk.data.vocab import EOS, UNK, Vocabulary
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.translate import Translator
from fusetk.models import MODELS
from fusetk.plotting import attention
from fusetk.system import Loaded

SOURCE = ["der", "mann", "привет", "$5", ",", "."]
TARGET = ["the", "man", "hello", "."]


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run with a random Transformer of 2 + 3 layers with 4 heads."""
    monkeypatch.chdir(tmp_path)
    return load(monkeypatch, encoder={"layers": 2}, decoder={"layers": 3})


def load(monkeypatch: pytest.MonkeyPatch, kind: str = "transformer", **sides: Any) -> Any:
    pipeline = Pipeline(
        Text([Lowercase(step="lowercase")], "de", "en"),
        {},
        (Vocabulary(SOURCE), Vocabulary(TARGET)),
    )
    model_class = MODELS[kind]
    settings = {
        "kind": kind,
        "width": 16,
        "heads": 4,
        "ffn": 16,
        "positions": "learned",
        "max_positions": 20,
        **sides,
    }
    torch.manual_seed(3)
    model = model_class(
        model_class.Config.model_validate(settings),
        len(pipeline.source_vocab),
        len(pipeline.target_vocab),
    ).eval()
    recipe: Any = SimpleNamespace(decoding=SearchConfig.model_validate({"beam": 2}))
    loaded = Loaded(recipe, pipeline, model, Path("demo/checkpoints/update-0000010"))
    monkeypatch.setattr("fusetk.system.load_model", lambda path, device, report: loaded)
    return loaded


@pytest.fixture
def fusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run like ``loaded`` with fusions and connections."""
    monkeypatch.chdir(tmp_path)
    linear = {"layers": 2, "fuse": {"kind": "linear"}, "connect": {"kind": "linear"}}
    return load(
        monkeypatch, encoder=linear, decoder={"layers": 3, "fuse": {"kind": "attention", "hops": 2}}
    )


def write(name: str, *lines: str) -> str:
    Path(name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return name


def run(*arguments: str, output: str = "a.json") -> Result:
    return CliRunner().invoke(main, ["plot-attention", "-m", "demo", "-o", output, *arguments])


def panels() -> dict[str, dict[str, Any]]:
    return {
        panel["name"]: panel
        for panel in json.loads(Path("a.json").read_text(encoding="utf-8"))["panels"]
    }


def test_a_forced_translation(loaded: Any) -> None:
    result = run("-s", "Der Mann .", "-t", "The man .")
    assert (result.exit_code, result.output) == (0, "")
    by_name = panels()
    assert list(by_name) == [f"decoder.layer{n}.cross" for n in (1, 2, 3)]
    for panel in by_name.values():
        assert panel["x"] == ["der", "mann", ".", "</s>"]
        assert panel["y"] == ["the", "man", ".", "</s>"]
        np.testing.assert_allclose(np.sum(panel["matrix"], axis=1), 1, rtol=1e-5)
    source = [*loaded.pipeline.source_vocab.encode(["der", "mann", "."]), EOS]
    target = loaded.pipeline.target_vocab.encode(["the", "man", "."])
    weights = attention.record(loaded.model, (source, target))["decoder.layer2.cross"]
    np.testing.assert_allclose(
        by_name["decoder.layer2.cross"]["matrix"], weights.mean(0), rtol=1e-6
    )


def test_a_missing_translation_is_found_by_search(loaded: Any) -> None:
    from fusetk.decoding.beam import search

    result = run("-s", "Der Mann .")
    assert result.exit_code == 0, result.output
    src = torch.tensor([[*loaded.pipeline.source_vocab.encode(["der", "mann", "."]), EOS]])
    best = search([loaded.model], src, src > 0, loaded.recipe.decoding)[0][0]
    words = loaded.pipeline.target_vocab.decode(best.ids)
    assert panels()["decoder.layer1.cross"]["y"] == [*words, "</s>"]
    assert f"translation: {' '.join(words)}\n" in result.stderr
    assert result.stdout == ""


def test_an_unknown_token_of_the_search_needs_no_warning(
    loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_best = [[SimpleNamespace(ids=[UNK, *loaded.pipeline.target_vocab.encode(["man"])])]]
    name = "fusetk.decoding.translate.Translator.translate_ids"
    monkeypatch.setattr(name, lambda *arguments: n_best)
    result = run("-s", "Der Mann")
    assert result.stderr == "translation: <unk> man\n"
    assert panels()["decoder.layer1.cross"]["y"] == ["<unk>", "man", "</s>"]
    result = run("-s", "Der Mann", "-t", "the cat")
    assert "target tokens are unknown to the model and read as <unk>: cat" in result.stderr


def test_sides_layers_and_heads(loaded: Any) -> None:
    text = ["-s", "Der Mann", "-t", "The man"]
    run(*text, "--what", "self")
    assert list(panels()) == [
        *(f"encoder.layer{n}.self" for n in (1, 2)),
        *(f"decoder.layer{n}.self" for n in (1, 2, 3)),
    ]
    run(*text, "--what", "encoder-self", "--layer", "2", "--head", "all")
    assert list(panels()) == [f"encoder.layer2.self.head{n}" for n in (1, 2, 3, 4)]
    run(*text, "--what", "decoder-self", "--layer", "3", "--head", "4")
    [panel] = panels().values()
    assert panel["y"] == ["<s>", "the", "man"]
    assert np.triu(panel["matrix"], 1).max() == 0  # no future token is attended to


@pytest.fixture
def mixing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A coordinated model of 3 layers; its decoder has mixed attention."""
    monkeypatch.chdir(tmp_path)
    return load(monkeypatch, kind="coordinated", stack={"layers": 3})


@pytest.mark.parametrize("output", ["a.png", "a.npz", "a.html"])
@pytest.mark.parametrize(
    "more",
    [[], ["--head", "all"], ["--head", "all", "--step", "man"], ["--step", "3", "--layer", "1"]],
    ids=str,
)
def test_mixed_attention(mixing: Any, more: list[str], output: str) -> None:
    result = run("-s", "Der Mann .", "-t", "The man .", "--what", "mixed", *more, output=output)
    assert (result.exit_code, result.output) == (0, "")
    assert Path(output).stat().st_size > 500


def test_a_step_is_a_row_of_mixed_attention(mixing: Any) -> None:
    text = ["-s", "Der Mann .", "-t", "The man .", "--what", "mixed", "--head", "all"]
    run(*text, "--layer", "2")
    full = panels()
    assert list(full) == [f"decoder.layer2.mixed.head{n}" for n in (1, 2, 3, 4)]
    first = full["decoder.layer2.mixed.head1"]
    assert (
        first["x"] == ["der", "mann", ".", "</s>", "<s>", "the", "man", "."] and first["cut"] == 4
    )
    assert first["y"] == ["the", "man", ".", "</s>"]
    for step in ("man", "2"):
        run(*text, "--step", step)
        by_name = panels()
        assert list(by_name) == [f"decoder.layer{n}.mixed.heads" for n in (1, 2, 3)]
        heads = by_name["decoder.layer2.mixed.heads"]
        assert heads["x"] == first["x"][:6] and heads["y"] == [f"head {n}" for n in (1, 2, 3, 4)]
        np.testing.assert_allclose(
            heads["matrix"], [panel["matrix"][1][:6] for panel in full.values()], rtol=1e-5
        )


def test_all_heads_of_a_layer_share_a_row(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    columns_of_calls = []
    monkeypatch.setattr(
        "fusetk.cli.plot_attention.save", lambda *_, columns, **__: columns_of_calls.append(columns)
    )
    for head in ("all", "mean"):
        assert run("-s", "der", "-t", "the", "--head", head).exit_code == 0
    assert columns_of_calls == [4, None]


def test_tokenized_text_is_not_changed(loaded: Any) -> None:
    result = run("-s", "Der mann", "-t", "the man", "--tokenized")
    assert panels()["decoder.layer1.cross"]["x"] == ["Der", "mann", "</s>"]
    assert "these source tokens are unknown" in result.stderr and "<unk>: Der\n" in result.stderr


@pytest.mark.parametrize("output", ["a.png", "a.pdf", "a.svg", "a.npz", "a.html"])
def test_pictures_and_numbers(loaded: Any, output: str, caplog: pytest.LogCaptureFixture) -> None:
    colors = [] if output == "a.npz" else ["--colors", "grey"]
    with caplog.at_level(logging.WARNING):
        text = ["-s", "Привет , $5 .", "-t", "hello ."]
        result = run(*text, "--head", "all", *colors, output=output)
    assert result.exit_code == 0, result.output
    assert Path(output).stat().st_size > 1000
    assert not caplog.records  # the default font has Cyrillic


# Fusions ------------------------------------------------------------------------------------------

TEXT = ["-s", "Der Mann .", "-t", "The man ."]
HOPS = [f"decoder.fuse.hop{h}" for h in (1, 2)]
SHARES = [f"encoder.fuse.{name}" for name in ("contribution", "contribution.mean", "weights")]


def test_fusions_of_both_sides_and_of_one(fusing: Any) -> None:
    for what, names in (("fuse", SHARES + HOPS), ("encoder-fuse", SHARES), ("decoder-fuse", HOPS)):
        result = run(*TEXT, "--what", what)
        assert (result.exit_code, result.output) == (0, "")
        by_name = panels()
        assert list(by_name) == names
        for name in set(names) - {"encoder.fuse.weights"}:
            np.testing.assert_allclose(np.sum(by_name[name]["matrix"], axis=0), 1, rtol=1e-5)
    assert by_name[HOPS[0]]["x"] == ["<s>", "the", "man", "."] and by_name[HOPS[0]]["y"] == [
        "l0",
        "l1",
        "l2",
        "l3",
    ]
    run(*TEXT, "--what", "fuse", "--head", "2")
    assert list(panels()) == [*SHARES, HOPS[1]]
    run(*TEXT, "--what", "decoder-fuse", "--head", "mean")
    assert list(panels()) == ["decoder.fuse.hops"]


def test_similarity_of_a_text_is_the_mean_over_its_positions(fusing: Any) -> None:
    write("a.de", "der", "der mann")
    write("a.en", "the", "the man")
    text = ["-i", "a.de", "-r", "a.en", "--what", "similarity"]
    assert run(*text).exit_code == 0
    numbers = [np.array(panels()[f"{n}.decoder.similarity"]["matrix"]) for n in (1, 2)]
    assert run(*text, "--corpus").exit_code == 0
    mean = panels()["decoder.similarity"]["matrix"]
    lengths = [2, 3]  # with <s>
    np.testing.assert_allclose(mean, np.average(numbers, 0, lengths), atol=1e-5)


def test_connections_need_no_sentence(fusing: Any) -> None:
    result = run("--what", "connect")
    assert (result.exit_code, result.output) == (0, "")
    assert list(panels()) == ["encoder.connect"]
    matrix = panels()["encoder.connect"]["matrix"]
    assert matrix[0] == [1.0, *[None] * (len(matrix[0]) - 1)]
    write("a.de", "der")
    for text in (["-s", "der"], ["-i", "a.de", "--corpus"]):
        result = run("--what", "connect", *text)
        assert result.exit_code == 0
        assert "are the same for every sentence; the text is not read" in result.stderr
        assert panels()["encoder.connect"]["matrix"] == matrix


def test_the_connections_of_one_side(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mudd = {"layers": 2, "connect": {"kind": "mudd", "streams": 1}}
    dense = {"layers": 2, "connect": {"kind": "dense", "growth": 8}, "attend": "transparent"}
    load(monkeypatch, encoder=mudd, decoder=dense)
    warning = "warning: decoder.connect (dense) is not drawn: it recorded no weights\n"
    result = run("--what", "decoder-connect", "-s", "der")
    note = "the weights that are drawn are the same for every sentence; the text is not read\n"
    assert (result.exit_code, result.stderr) == (0, warning + note)
    assert list(panels()) == ["decoder.attend"]
    result = run(*TEXT, "--what", "encoder-connect")
    assert (result.exit_code, result.stderr) == (0, "")
    means = ["encoder.connect.mean", "encoder.connect.deviation"]
    assert list(panels()) == means
    result = run(*TEXT, "--what", "connect")
    assert result.stderr == warning and list(panels()) == [*means, "decoder.attend"]
    run(*TEXT, "--what", "encoder-connect", "--layer", "2")
    assert list(panels()) == ["encoder.connect.l2"]
    result = run("--what", "connect")
    advice = "these weights depend on the words: give a sentence with -s, or a file with -i"
    assert result.exit_code == 2 and advice in result.stderr


@pytest.mark.parametrize("output", ["a.png", "a.npz", "a.html"])
@pytest.mark.parametrize(
    "more",
    [[*TEXT, "--what", "fuse"], [*TEXT, "--what", "fuse", "--corpus"], ["--what", "connect"]],
    ids=str,
)
def test_pictures_of_fusions(fusing: Any, more: list[str], output: str) -> None:
    result = run(*more, output=output)
    assert result.exit_code == 0, result.output
    assert Path(output).stat().st_size > 500


def test_sentences_of_a_file(fusing: Any) -> None:
    write("a.de", "Der Mann", "", "der .", "mann " * 20, "Mann", "der")
    write("a.en", "the man", "the", "the .", "man", "", "the")
    result = run("-i", "a.de", "-r", "a.en", "--what", "fuse")
    assert result.exit_code == 0, result.output
    assert "skipped 2 lines (blank): 2 5\n" in result.stderr
    assert "skipped 1 line (longer than the model's positions): 4\n" in result.stderr
    assert list(panels()) == [f"{n}.{name}" for n in (1, 3, 6) for name in SHARES + HOPS]
    third = panels()["3.decoder.fuse.hop1"]["matrix"]
    sentences = json.loads(Path("a.json").read_text(encoding="utf-8"))["sentences"]
    assert sentences[1] == {"number": 3, "source": "der .", "target": "the ."}
    run("-i", "a.de", "-r", "a.en", "--what", "fuse", "--lines", "3")
    assert panels()["decoder.fuse.hop1"]["matrix"] == third
    run("-i", "a.de", "-r", "a.en", "--lines", "2-3")
    assert list(panels()) == [
        f"decoder.layer{n}.cross" for n in (1, 2, 3)
    ]  # names of one sentence have no number
    run("-s", "der mann", "-t", "the man", "-s", "der .", "-t", "the .", "--what", "fuse")
    assert panels()["2.decoder.fuse.hop1"]["matrix"] == third
    assert run("-i", "a.de", "-r", "a.en", output="a.html").exit_code == 0
    with np.load(_npz("-i", "a.de", "-r", "a.en", "--what", "decoder-fuse")) as arrays:
        np.testing.assert_allclose(arrays["3.decoder.fuse.hop1"], third)
        assert arrays["6.decoder.fuse.hop2.x"].tolist() == ["<s>", "the"]


def test_an_input_file_is_not_overwritten(fusing: Any) -> None:
    for option in ("-i", "-r"):
        write("a.json", "der mann")
        write("b", "the man")
        files = {"-i": "b", "-r": "b"} | {option: "a.json"}
        result = run(*(word for pair in files.items() for word in pair))
        assert result.exit_code == 2 and "a.json is both read and written" in result.stderr
        assert Path("a.json").read_text() == "der mann\n"


def _npz(*arguments: str) -> str:
    assert run(*arguments, output="b.npz").exit_code == 0
    return "b.npz"


def test_missing_translations_of_a_file_are_found_by_search(fusing: Any) -> None:
    write("a.de", "der mann", "der", "mann der .")
    result = run("-i", "a.de", "--what", "decoder-fuse")
    assert (result.exit_code, result.output) == (0, "")
    many = panels()
    run("-s", "der", "--what", "decoder-fuse")
    for name, panel in panels().items():
        assert many[f"2.{name}"]["x"] == panel["x"]
        np.testing.assert_allclose(many[f"2.{name}"]["matrix"], panel["matrix"], rtol=1e-5)
    piped = CliRunner().invoke(
        main,
        ["plot-attention", "-m", "x", "-o", "a.json", "-i", "-", "--what", "decoder-fuse"],
        input="der\n",
    )
    assert piped.exit_code == 0 and list(panels()) == HOPS


def test_the_search_truncates_a_line_as_decode_does(
    fusing: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The picture has the tokens that the search has read, and a warning names the line."""
    fusing.recipe.decoding = SearchConfig(max_source_length=2)
    write("a.de", "der", "der mann , .")
    assert run("-i", "a.de", "--lines", "2").exit_code == 0
    assert "line 2 has 4 tokens: only the first 2 are read" in caplog.text
    assert panels()["decoder.layer1.cross"]["x"] == ["der", "mann", "</s>"]


def test_a_sample_is_that_of_the_line(fusing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[Any] = []
    translate_ids = Translator.translate_ids

    def spied(self: Translator, sources: Any, lines: Any = None) -> Any:
        numbers.append(lines)
        return translate_ids(self, sources, lines)

    monkeypatch.setattr(Translator, "translate_ids", spied)
    write("a.de", "der", "mann", "der mann")
    assert run("-i", "a.de", "--lines", "2-3").exit_code == 0
    assert numbers == [[2, 3]]


def test_sentences_without_a_translation_are_named(fusing: Any) -> None:
    """A translation of many tokens would repeat a token of the small vocabulary."""
    search = {"no_repeat_ngram": 1, "min_length_factor": 3, "max_length_factor": 4}
    fusing.recipe.decoding = SearchConfig.model_validate(search)
    write("a.de", "der", "der mann , .")
    result = run("-i", "a.de", "--what", "fuse")
    assert result.exit_code == 2
    assert "line 2 has no translation with the search settings" in result.stderr
    assert "give one with -r" in result.stderr
    assert "sentence 1 has no translation" in run("-s", "der mann , .", "--what", "fuse").stderr
    result = run("-i", "a.de", "--what", "fuse", "--corpus")
    assert result.exit_code == 0, result.output
    assert "skipped 1 line (no translation with the search settings of the run): 2" in result.stderr


def test_means_over_a_corpus(fusing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.de", "der mann", "", "der", "mann der .")
    write("a.en", "the man", "", "the", "man the hello .")
    result = run("-i", "a.de", "-r", "a.en", "--what", "fuse", "--corpus")
    assert result.exit_code == 0 and "skipped 1 line (blank): 2" in result.stderr
    document, by_name = json.loads(Path("a.json").read_text(encoding="utf-8")), panels()
    assert "mean over 3 sentences" in document["title"]
    run("-i", "a.de", "-r", "a.en", "--what", "fuse")
    hops = [np.array(panels()[f"{n}.decoder.fuse.hop2"]["matrix"]) for n in (1, 3, 4)]
    mean = np.array(by_name["decoder.fuse.hops.mean"]["matrix"])[:, 1]
    np.testing.assert_allclose(mean, np.concatenate(hops, 1).mean(1), rtol=1e-4)
    monkeypatch.setattr("fusetk.plotting.pages.CHUNK", 2)
    run("-i", "a.de", "-r", "a.en", "--what", "fuse", "--corpus")
    for name, panel in panels().items():
        np.testing.assert_allclose(
            np.array(panel["matrix"], float), np.array(by_name[name]["matrix"], float), rtol=1e-4
        )
    assert run("-i", "a.de", "--what", "fuse", "--corpus", output="a.png").exit_code == 0


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["-s", "der", "--what", "fuse", "--layer", "1"], "omit --layer"),
        (
            ["-s", "der", "--what", "fuse", "--head", "3"],
            "--head 3 is out of range: the decoder fusion has 2",
        ),
        (
            ["-s", "der", "--what", "encoder-fuse", "--head", "1"],
            "no fusion of this model has hops",
        ),
        (["--what", "connect", "--layer", "1"], "omit --layer"),
        (["--what", "connect", "--corpus"], "either on the command line (-s) or in a file (-i)"),
        (["--what", "connect", "-t", "the"], "either on the command line (-s) or in a file (-i)"),
        (["--what", "connect", "--head", "1"], "omit them with --what connect"),
        (["-s", "der", "--what", "similarity", "--layer", "1"], "omit --layer and --head"),
        (["-s", "der", "--what", "similarity", "--head", "all"], "omit --layer and --head"),
        (["-s", "der", "--what", "similarity", "--step", "1"], "--step selects a step"),
        (["--what", "fuse"], "these weights depend on the words: give a sentence with -s, or a"),
        (["-s", "der", "-i", "a.de"], "either on the command line (-s) or in a file (-i)"),
        (["-s", "der", "-r", "a.en"], "-r and --lines need a file"),
        (["-s", "der", "--lines", "1"], "-r and --lines need a file"),
        (["-i", "a.de", "-t", "the"], "-t needs -s"),
        (["-s", "der", "-s", "mann", "-t", "the"], "sentences and 1 translation were given"),
        (
            ["-i", "a.de", "--corpus"],
            "use --corpus with --what fuse, encoder-fuse, decoder-fuse, connect, encoder-connect, "
            "decoder-connect or similarity",
        ),
        (
            ["-i", "a.de", "--what", "self", "--corpus"],
            "attention belongs to the tokens of one sentence",
        ),
        (["-i", "a.de", "-r", "short.en"], "a.de has 3 lines and short.en has 1"),
        (["-i", "a.de", "-r", "short.en", "--lines", "1"], "a.de has 3 lines and short.en has 1"),
        (["-i", "a.de", "--lines", "2-4"], "a.de has 3 lines; --lines asks for 4"),
        (["-i", "a.de", "--lines", "3-2"], "neither a line nor a range"),
        (["-i", "a.de", "--lines", "0-2"], "neither a line nor a range"),
        (["-i", "none.de"], "none.de does not exist"),
        (["-i", "-", "-r", "a.de"], "neither file can be standard input"),
        (["-i", "blank.de"], "blank.de has no sentence to draw"),
        (["-i", "blank.de", "--what", "fuse", "--corpus"], "blank.de has no sentence to draw"),
    ],
)
def test_mistakes_with_files_and_fusions(fusing: Any, arguments: list[str], said: str) -> None:
    write("a.de", "der", "mann", "der mann")
    write("short.en", "the")
    write("blank.de", "", " ")
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr and "Traceback" not in result.stderr
    assert not Path("a.json").exists()


@pytest.mark.parametrize(
    "arguments", [["-i", "a.de"], ["-s", "der", "-s", "mann"], ["-i", "a.de", "--what", "fuse"]]
)
def test_a_picture_of_several_sentences_is_refused(fusing: Any, arguments: list[str]) -> None:
    write("a.de", "der", "mann", "der mann")
    result = run(*arguments, output="a.png")
    assert result.exit_code == 2 and "HTML" in result.stderr and "--corpus" in result.stderr


def test_a_model_without_fusions(loaded: Any) -> None:
    for more, said in (
        (["-s", "der", "--what", "fuse"], "neither side of this model fuses"),
        (["--what", "connect"], "no connections"),
    ):
        result = run(*more)
        assert (
            result.exit_code == 2 and said in result.stderr and "translation:" not in result.stderr
        )


# Mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, said",
    [
        (
            ["-s", "der", "--layer", "4"],
            "--layer 4 is out of range: the decoder has cross-attention in layers 1 to 3",
        ),
        (
            ["-s", "der", "--what", "self", "--layer", "3"],
            "--layer 3 is out of range: the encoder has self-attention in layers 1 to 2",
        ),
        (["-s", "der", "--head", "5"], "--head 5 is out of range: choose a head from 1 to 4"),
        (["-s", "der", "--head", "-1"], "not a number from 1, mean or all"),
        (
            ["-s", "der", "--what", "mixed"],
            "no mixed attention in its decoder: choose --what cross",
        ),
        (
            ["-s", "der", "-t", "the man", "--step", "hello"],
            "does not contain 'hello': it is the man </s>",
        ),
        (
            ["-s", "der", "-t", "the man", "--step", "4"],
            "--step 4 is out of range: the translation has 3 tokens",
        ),
        (
            ["-s", "der", "--what", "encoder-self", "--step", "1"],
            "--step selects a step of the decoder's attention",
        ),
        (
            ["-s", "der", "--what", "fuse", "--step", "1"],
            "--step selects a step of the decoder's attention",
        ),
        (["--what", "connect", "--step", "1"], "omit them with --what connect"),
        (["-s", " "], "the source sentence is empty"),
        (["-s", "der", "-t", ""], "the target sentence is empty"),
        (["-s", "der\nmann"], "more than one line"),
        (["-s", "der", "-o", "a.jpg"], ".png, .pdf, .svg"),
        (["-s", "der", "-o", "nowhere/a.png"], "the folder nowhere does not exist"),
    ],
)
def test_mistakes(loaded: Any, arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr and "Traceback" not in result.stderr
    assert not Path("a.json").exists()


def test_title_scale_size_and_style_of_a_picture(loaded: Any, monkeypatch: Any) -> None:
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(
        "fusetk.cli.plot_attention.save", lambda *pages, **k: drawn.update(k, p=pages)
    )
    text = ["-s", "Der Mann", "-t", "The man"]
    run(*text, output="a.png")
    assert drawn["title"] == "cross-attention, mean of 4 heads (demo, update-0000010)"
    assert drawn["style"].widths == () and drawn["size"] is None
    assert {panel.top for panel in drawn["p"][0][0].panels} == {1.0}
    run(*text, "--style", "paper", "--size", "3", "--vmax", "0.5", output="a.png")
    assert drawn["title"] == "" and drawn["style"].font == 7 and drawn["size"].width == 3
    assert {panel.top for panel in drawn["p"][0][0].panels} == {0.5}
    run(*text, "--title", "mine", "--vmax", "max", output="a.html")
    assert drawn["title"] == "mine"
    assert {panel.top for panel in drawn["p"][0][0].panels} == {None}


@pytest.mark.parametrize(
    ("arguments", "output", "reason"),
    [
        (["--size", "3"], "a.html", "--size is for pictures"),
        (["--style", "paper"], "a.npz", "--style paper is for pictures"),
        (["--colors", "blue"], "a.npz", "--colors changes no number in a.npz: remove --colors"),
        (["--vmax", "max"], "a.json", "--vmax changes no number in a.json"),
        (["--title", "a"], "a.npz", "--title changes no number in a.npz"),
        (["--size", "3x2"], "a.png", "give only the width"),
        (["--size", "wide"], "a.png", "WIDTHxHEIGHT in inches"),
        (["--vmax", "0"], "a.png", "not a number above 0"),
        (["--size", "0.6"], "a.png", "at least"),
    ],
)
def test_options_of_pictures_are_checked(
    loaded: Any, arguments: list[str], output: str, reason: str
) -> None:
    result = run("-s", "Der Mann", "-t", "The man", *arguments, output=output)
    assert result.exit_code == 2 and reason in " ".join(result.output.split())
    assert not Path(output).exists()
