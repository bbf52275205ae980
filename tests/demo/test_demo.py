"""``fusetk demo``: from nothing to the page, for both models, with a tiny corpus and three updates.

The models are not trained well, so the scores are not tested.
"""

import errno
import io
import re
import shlex
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fusetk import recipe, sections
from fusetk.cli.main import main
from fusetk.demo import steps, terminal
from fusetk.demo.results import (
    FUSING,
    PLAIN,
    DemoFiles,
    attention_to_source,
    describe_model,
    next_commands,
    sentence_to_plot,
)
from fusetk.errors import DataError
from fusetk.runs import checkpoints

ROOT = Path(__file__).parents[2]
SETTINGS = ["training.stages.0.end={updates: 3}", "model.width=16", "model.ffn=16"]
SETTINGS += ["decoding={beam: 1, max_length_factor: 0, max_length_extra: 8}"]


def call(*arguments: str) -> Result:
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    return CliRunner().invoke(main, ["demo", *words, *arguments])


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The folder of a demo of the fusing model, and the result of the command."""
    folder = tmp_path_factory.mktemp("demo") / "my [red] demo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            steps, "write_corpus", lambda raw, write=steps.write_corpus: write(raw, SIZES)
        )
        result = call("--out", str(folder))
    assert result.exit_code == 0, result.output
    return folder, result


SIZES = {"test": 20, "valid": 5, "train": 60}


class Page(HTMLParser):
    """The attributes of a page's pictures, its text, and the names of all attributes."""

    def __init__(self, path: Path):
        super().__init__()
        self.pictures: list[dict[str, str | None]] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes |= {name for name, _ in attrs}
        if tag == "img":
            self.pictures.append(dict(attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_demo_ends_with_layer_weights_attention_and_a_page(demo) -> None:
    folder, result = demo
    files = DemoFiles(folder, FUSING)
    assert files.layers
    for picture in (files.layers, files.attention, files.curves):
        assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(files.translation.read_text(encoding="utf-8").splitlines()) == SIZES["test"]
    assert "BLEU" in result.stdout
    for path in (files.layers, files.attention, files.curves, files.page):
        assert str(path) in result.stdout
    assert f"$ fusetk train {shlex.quote(str(files.config))}" in result.stderr
    page = Page(files.page)
    assert len(page.pictures) == 3
    assert all(picture["src"].startswith("data:image/png;base64,") for picture in page.pictures)
    assert "href" not in page.attributes and not re.search("@[a-z]+@", page.text)
    source, target = sentence_to_plot(files)
    assert source in page.text and target in page.text and "Dec-SA" in page.text
    for comment, command in next_commands(files._replace(settings=tuple(SETTINGS))):
        assert f"# {comment}\n{command}" in page.text


def test_the_layers_of_each_token_add_up(demo) -> None:
    folder, _ = demo
    weights = terminal.layer_weights(DemoFiles(folder, FUSING))
    assert weights.tokens[0] == "<s>" and list(weights.layers) == ["l0", "l1", "l2", "l3"]
    assert weights.shares.shape == (len(weights.tokens), 4)
    assert weights.shares.sum(1) == pytest.approx(1, abs=1e-5)


def test_a_second_call_does_nothing_and_a_changed_file_is_made_again(demo) -> None:
    folder, _ = demo
    files = DemoFiles(folder, FUSING)
    before = files.attention.read_bytes()
    again = call("--out", str(folder))
    commands = re.findall(r"^\$ fusetk (\S+)", again.stderr, re.MULTILINE)
    assert commands == ["prep", "train"] and again.stderr.count("nothing to do") == 2
    files.attention.write_bytes(b"")
    again = call("--out", str(folder))
    commands = re.findall(r"^\$ fusetk (\S+)", again.stderr, re.MULTILINE)
    assert commands == ["prep", "train", "plot-attention"]
    assert files.attention.read_bytes() == before


def test_the_plain_model_uses_the_same_text_and_its_page_has_both_models(demo) -> None:
    folder, _ = demo
    result = call("--out", str(folder), "--plain", "--quiet")
    assert result.exit_code == 0 and not re.search("^[$=]", result.stderr, re.MULTILINE)
    page = Page(DemoFiles(folder, PLAIN).page)
    assert len(page.pictures) == 2 and "Transformer without fusion" in page.text
    assert "the decoder fuses its layers" in page.text
    fusing, plain = (recipe.load(folder / f"{name}.yaml") for name in (FUSING, PLAIN))
    assert fusing.model.decoder.fuse.kind == "attention"
    assert fusing.model.model_copy(update={"decoder": plain.model.decoder}) == plain.model
    assert (fusing.data, fusing.training) == (plain.data, plain.training)


@pytest.mark.parametrize(
    ("model", "said", "attention"),
    [
        (
            "kind: recurrent, width: 16",
            "recurrent; encoder of depth 1; decoder of depth 1",
            "cross",
        ),
        ("kind: coordinated, stack: {layers: 2}", "coordinated; stack of 2 layers", "mixed"),
        (
            "kind: coordinated, stack: {layers: 2}, mixed_attention: false",
            "coordinated; stack of 2 layers",
            "cross",
        ),
    ],
)
def test_the_demo_describes_every_backbone(
    tmp_path: Path, model: str, said: str, attention: str
) -> None:
    files = DemoFiles(tmp_path, PLAIN)
    files.run.mkdir(parents=True)
    config = files.run / "config.yaml"
    settings = [f"model={{{model}}}", "data.vocabulary={joint: true}"]
    config.write_text(sections.dump(recipe.load(steps.CONFIGS / f"{PLAIN}.yaml", settings)))
    assert describe_model(files).startswith(said)
    assert attention_to_source(files) == attention


def test_the_next_commands_work(demo, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = demo
    monkeypatch.chdir(folder.parent)
    files = DemoFiles(Path(folder.name), FUSING, tuple(SETTINGS))
    commands = [command for _, command in next_commands(files)]
    assert any("fusetk demo --plain" in command or "compare" in command for command in commands)
    for command in commands:
        words, text = shlex.split(command), None
        if words[0] == "echo":
            text, words = words[1] + "\n", words[words.index("|") + 1 :]
        if words[0] == "." or words[1] == "demo":
            continue
        result = CliRunner().invoke(main, words[1:], input=text)
        assert result.exit_code == 0, (command, result.output)
    assert checkpoints(files.folder / "runs" / "linear")
    fuse = recipe.load(files.folder / "runs" / "linear" / "config.yaml").model.decoder.fuse
    assert fuse.kind == "linear" and fuse.norm_layers


def test_the_next_commands_activate_an_environment_that_is_not_active(
    demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = DemoFiles(demo[0], FUSING)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in ("activate", "fusetk"):
        (tmp_path / ".venv/bin" / name).touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.prefix", str(tmp_path / ".venv"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert next_commands(files)[0][1] == ". .venv/bin/activate"
    monkeypatch.setenv("PATH", str(tmp_path / ".venv/bin"))
    assert next_commands(files)[0][1].startswith("echo ")


@pytest.mark.parametrize(
    ("path", "reason"), [("", "has files that are not the demo's"), ("notes.txt", "is a file")]
)
def test_files_of_the_user_are_not_touched(tmp_path: Path, path: str, reason: str) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = call("--out", str(tmp_path / path))
    assert result.exit_code == 2 and reason in result.stderr and "--out" in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_failing_step_ends_the_demo_with_its_error(demo) -> None:
    folder, _ = demo
    result = call("--out", str(folder), "--set", "model.widht=8")
    assert result.exit_code == 2 and "did you mean 'width'" in result.stderr
    assert "== translate" not in result.stderr


def test_ctrl_c_in_a_step_gives_the_advice_for_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fusetk.cli.prep.prepare", interrupt)
    result = call("--out", str(tmp_path / "demo"))
    assert result.exit_code == 130
    assert result.stderr.endswith(
        "the complete steps are kept: run the same command again to continue\n"
    )


def test_a_folder_whose_name_is_like_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of the demo have its path among their arguments."""
    folders = []

    def stop(files: DemoFiles, *values: object) -> None:
        folders.append(files.folder)
        raise DataError("stop")

    monkeypatch.setattr("fusetk.demo.steps.Demo", stop)
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(main, ["demo", "--out=-demo"])
    assert folders == [tmp_path / "-demo"]


def test_translations_without_words_are_an_error(tmp_path: Path) -> None:
    files = DemoFiles(tmp_path, PLAIN)
    files.raw.mkdir()
    for path, line in ((files.raw / "test.de", "a"), (files.raw / "test.en", "b")):
        path.write_text(f"{line}\n")
    files.translation.write_text("\n")
    with pytest.raises(DataError, match="are empty: train the model longer"):
        sentence_to_plot(files)


def test_the_plain_model_has_no_settings_of_the_fusion(demo) -> None:
    settings = ("model.decoder.fuse.hops=2", "model.width=16")
    files = DemoFiles(demo[0], FUSING, settings)
    files.other.scores.unlink(missing_ok=True)
    [plain] = [command for _, command in next_commands(files) if "--plain" in command]
    assert "--set model.width=16" in plain and "decoder.fuse" not in plain


def test_other_search_settings_translate_again(demo) -> None:
    folder, _ = demo
    again = call("--out", str(folder), "--set", "decoding.max_length_extra=9")
    commands = re.findall(r"^\$ fusetk (\S+)", again.stderr, re.MULTILINE)
    assert again.exit_code == 0 and commands[:4] == ["prep", "train", "decode", "score"]


def test_text_of_other_settings_is_refused_before_prep(demo) -> None:
    folder, _ = demo
    manifest = folder / "data" / "manifest.json"
    before = manifest.read_bytes()
    again = call("--out", str(folder), "--set", "data.bpe.merges=50")
    assert again.exit_code == 2 and "choose another --out, or undo the change" in again.stderr
    assert "$ fusetk" not in again.stderr and manifest.read_bytes() == before


def test_other_text_is_refused(tmp_path: Path) -> None:
    for setting in ("data.folder=a", "data.train=[a]", "data.test.b=[a]"):
        result = call("--out", str(tmp_path / "new"), "--set", setting)
        assert result.exit_code == 2 and not (tmp_path / "new").exists()
        assert f"--set {setting}: the demo makes its own text: omit this" in result.stderr


def test_text_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(steps, "write_corpus", fail)
    result = call("--out", str(tmp_path / "new"))
    assert result.exit_code == 2
    assert f"{tmp_path}/new/raw cannot be written: File too large; raise the limit" in result.stderr


def test_a_closed_pipe_raises_the_usual_error() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        terminal.SummaryConsole(file=Closed()).print("text")


@pytest.mark.usefixtures("commands")
def test_the_script_has_the_options_of_the_command() -> None:
    script = ROOT / "recipes" / "run_demo.sh"
    result = subprocess.run([script, "--help"], capture_output=True, text=True)
    assert result.returncode == 0 and "--plain" in result.stdout
