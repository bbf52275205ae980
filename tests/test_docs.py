"""The documentation: its links, its commands, its configs, and the site that it becomes."""

import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import yaml
from click.testing import CliRunner
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pydantic import Field

from fusetk import recipe, trace
from fusetk.cli.foreign import option_advice
from fusetk.cli.main import main as fusetk_command
from fusetk.config import FOREIGN_KEYS, Config, fusetk_key
from fusetk.data.pipeline import Text
from fusetk.evaluation.significance import SAMPLES
from fusetk.fusion import build_fusion
from fusetk.models import build_model
from fusetk.plotting.connect import panels
from fusetk.special_tokens import EOS
from fusetk.training.schedule import build as build_schedule
from fusetk.training.update import batch_loss
from fusetk.training.verify import verify
from tests.contracts.systems import SOURCE_SIZE, TARGET_SIZE
from tests.helpers.batches import random_batch
from tools import config_keys, config_site_page, diagrams, figures, markdown

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs/tutorial.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
RESULTS = sorted((ROOT / "results").glob("*.md"))
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "recipes/README.md", *RESULTS, *DOCS]
GUIDES = [README, *DOCS]
MIGRATION = [page for page in DOCS if page.parent.name == "migration" and page.stem != "index"]

UNNAMED = "VALUE"  # the value of an option that running text names without a value
# Commands that a test cannot run: they need the network, a service, or another environment.
SKIPPED = ("git ", "make ", ". .venv/", "pip ")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def tokens(page: Path) -> Iterator[Token]:
    """Yield all tokens of a page, those inside paragraphs included."""
    for token in MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8")):
        yield token
        yield from token.children or []


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of all fenced blocks of a page."""
    for token in tokens(page):
        if token.type == "fence":
            yield token.info.strip(), token.content


@cache
def anchors(page: Path) -> Counter[str]:
    """Count the anchors of a page: those in HTML, and those of headings as in GitHub and MyST."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    counts = Counter(re.findall(r'<a id="([^"]+)">', text))
    for heading in re.findall(r"^#+ (.*)$", text, flags=re.M):
        words = re.sub(r"[^\w\- ]", "", heading.lower())
        counts[words.replace(" ", "-")] += 1
    return counts


# Links --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_has_a_target(page: Path) -> None:
    links = [
        str(token.attrs.get("href") or token.attrs.get("src"))
        for token in tokens(page)
        if token.type in ("link_open", "image")
    ]
    for link in links:
        path, _, anchor = link.partition("#")
        if path.startswith("https://"):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached = set()
    waiting = [README]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        for token in tokens(page):
            link = str(token.attrs.get("href", "")).partition("#")[0]
            if token.type == "link_open" and link and not link.startswith("https://"):
                waiting.append((page.parent / link).resolve())
    assert set(DOCS) <= reached


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


# Commands -----------------------------------------------------------------------------------------


def command_lines(page: Path) -> Iterator[list[str]]:
    """Yield the words of every fusetk command of a page, without ``fusetk``."""
    lines = []
    for token in tokens(page):
        if token.type == "fence" and token.info.strip() == "bash":
            lines += token.content.replace("\\\n", " ").splitlines()
        elif token.type == "code_inline" and "fusetk " in token.content:
            # Running text may name an option without its value.
            named = token.content.split()[-1].startswith("-")
            lines.append(f"{token.content} {UNNAMED}" if named else token.content)
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|;<>&()")
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|;<>&()"):
                if words := words_after_fusetk(command):
                    yield words
                command = []
            else:
                command.append(word)


def words_after_fusetk(command: list[str]) -> list[str]:
    if command[:1] == ["fusetk"]:
        return command[1:]
    if command[:1] == ["torchrun"] and "fusetk" in command:
        return command[command.index("fusetk") + 1 :]
    return []


def check_options(words: list[str]) -> None:
    """Check the options of a command, unless a placeholder such as COMMAND is in place of it."""
    group: click.Command = fusetk_command
    context = click.Context(group)
    while isinstance(group, click.Group) and words and not words[0].startswith("-"):
        if words[0].isupper():
            return
        subcommand = group.get_command(context, words[0])
        assert subcommand, words
        group, words = subcommand, words[1:]
        context = click.Context(group, parent=context)
    values, _, _ = group.make_parser(context).parse_args(list(words))
    for parameter in group.params:
        value = values.get(parameter.name or "")
        is_choice = isinstance(parameter.type, click.Choice)
        if is_choice and isinstance(value, str) and value != UNNAMED:
            parameter.type.convert(value, parameter, context)


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_every_command_has_its_options(page: Path) -> None:
    for words in command_lines(page):
        check_options(words)


def test_a_wrong_option_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "`fusetk COMMAND --help`\n```bash\nfusetk decode -m RUN --lenpen 1 < in | head\n```\n"
    page.write_text(text)
    with pytest.raises(click.NoSuchOption):
        test_every_command_has_its_options(page)


def runnable(page: Path) -> Iterator[str]:
    """Yield the parts of a script with all commands of a page, and its files, in their order."""
    for language, text in blocks(page):
        if language == "bash":
            lines = text.replace("\\\n", " ").replace(" --jobs 2", "").splitlines()
            yield "\n".join(line for line in lines if not line.startswith(SKIPPED))
        elif language in ("yaml", "python") and text.startswith("# "):
            file, _, content = text[2:].partition("\n")
            content = small(content) if language == "yaml" else content
            yield f"cat > {file} << 'END'\n{content}\nEND"


def small(config: str) -> str:
    """Return a config whose training takes seconds."""
    values = yaml.safe_load(config)
    values["data"]["bpe"] = {"merges": 60}
    values["model"].update(width=16, ffn=32)
    values["decoding"] = {"beam": 1}
    for stage in values["training"]["stages"]:
        stage.update(end={"updates": 6}, batch={"size": 400})
    values["training"].pop("save_every", None)
    values["training"]["validation"] = {"every_updates": 2, "metric": "accuracy"}
    return yaml.safe_dump(values)


def write_text(folder: Path) -> None:
    folder.mkdir(parents=True)
    for split, lines in {"train": 60, "valid": 8, "test": 20}.items():
        for language, sentence in (("de", "Das Haus {} ist klein."), ("en", "House {} is small.")):
            text = "".join(sentence.format(i) + "\n" for i in range(lines))
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize("page", [README, TUTORIAL], ids=name)
def test_the_commands_run(page: Path, tmp_path: Path) -> None:
    """Every command of the page runs on a tiny corpus, with a smaller model."""
    write_text(tmp_path / "raw")
    write_text(tmp_path / "work/demo/raw")
    script = "\n".join(["set -euo pipefail", *runnable(page)])
    assert script.count("fusetk ") >= 5
    ran = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


# Configs ------------------------------------------------------------------------------------------

# A model of each kind, which a page completes.
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"encoder": {"layers": 2}, "decoder": {"layers": 2}, "ffn": 64},
    "conv": {"encoder": {"layers": 2}, "decoder": {"layers": 2}},
    "coordinated": {"stack": {"layers": 2}, "ffn": 64},
    "recurrent": {},
}


def configs(page: Path) -> list[dict[str, Any]]:
    return [yaml.safe_load(text) for language, text in blocks(page) if language == "yaml"]


@pytest.mark.parametrize("page", [page for page in GUIDES if configs(page)], ids=name)
def test_every_config_is_valid(page: Path, toy: Path, tmp_path: Path) -> None:
    """Each block of YAML is valid as it is, or as a part of a config, and its model is built."""
    plain = yaml.safe_load(toy.read_text(encoding="utf-8"))
    for values in configs(page):
        values.pop("extends", None)
        kind = values.get("model", {}).get("kind", "transformer")
        model = {"kind": kind, "width": 32, "heads": 4} | MODELS[kind] | values.pop("model", {})
        if kind == "conv":
            del model["heads"]
        document = {
            **plain,
            "model": {key: merged(MODELS[kind].get(key), value) for key, value in model.items()},
            "data": plain["data"] | values.pop("data", {}),
            "training": plain["training"] | values.pop("training", {}),
            **values,
        }
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        loaded = recipe.load(path)
        check_norms(loaded.model)
        with torch.device("meta"):
            build_model(loaded.model, 50, 60)


def check_norms(model: Any) -> None:
    """Check that each fusion of a pre-norm model normalises the layers."""
    sides = [getattr(model, name, None) for name in ("encoder", "decoder", "stack")]
    fusions = [side.fuse for side in sides if side is not None]
    if getattr(model, "norm", None) == "pre":
        assert all(getattr(fusion, "norm_layers", True) for fusion in fusions)


def merged(base: Any, value: Any) -> Any:
    return {**base, **value} if isinstance(base, dict) and isinstance(value, dict) else value


def test_the_types_of_keys_are_words() -> None:
    words = config_keys.words_of
    assert words(list[str]) == "list of strings" and words(tuple[float, ...]) == "list of numbers"
    assert words(tuple[int, int]) == "list of 2: whole number, whole number"


def test_the_bounds_of_keys_are_exact() -> None:
    class Bounded(Config):
        seed: int = Field(1, ge=0, lt=2**32)
        rate: float | None = Field(None, gt=0, le=1e-5)

    types = [config_keys.type_of(key, field) for key, field in Bounded.model_fields.items()]
    assert types == [
        "whole number, at least 0, below 4,294,967,296",
        "number or null, above 0, at most 1e-05",
    ]


def keys_exist(path: str) -> bool:
    """Whether a config can have the key at ``path``, such as training.stages.0.clip."""
    candidates: list[type[Config]] = [recipe.Recipe]
    for part in re.sub(r"\[\]", ".0", path).split("."):
        if part.isdigit():
            continue
        fields = [config.model_fields[part] for config in candidates if part in config.model_fields]
        if not fields:
            return False
        candidates = [
            config for field in fields for config in config_keys.config_of(field.annotation)
        ]
        if any(config_keys.is_choice(field) for field in fields):
            kinds = config_keys.REGISTRIES[part].values()
            candidates += [kind.Config for kind in kinds]  # type: ignore[attr-defined]
    return True


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_every_key_exists(page: Path) -> None:
    for token in tokens(page):
        if token.type == "code_inline" and re.match(
            r"(data|model|training|decoding)\.(?!py\b)[a-z]", token.content
        ):
            path = re.split(r"[=: ]", token.content)[0]
            assert keys_exist(path), token.content


def test_a_wrong_key_is_noticed() -> None:
    assert keys_exist("training.stages[].schedule.peak") and keys_exist("model.decoder.fuse.hops")
    assert not keys_exist("training.stages.0.schedule.peek") and not keys_exist("training.clip")


@pytest.mark.parametrize("setting", sorted(set(FOREIGN_KEYS.values())))
def test_every_key_that_is_advised_exists(setting: str) -> None:
    assert keys_exist(setting.partition("=")[0])


def context_of(command: str) -> click.Context:
    found = fusetk_command.get_command(click.Context(fusetk_command), command)
    assert found is not None
    return click.Context(found, info_name=command)


@pytest.mark.parametrize("page", MIGRATION, ids=name)
def test_the_commands_have_advice_about_each_option_of_a_migration_page(page: Path) -> None:
    """The first column of a table has options of another toolkit, the second those of fusetk."""
    commands: list[str] = []
    checked = 0
    for line in page.read_text(encoding="utf-8").splitlines():
        if not line.startswith("| "):
            commands = [] if not line else commands
            continue
        foreign, own = (cell.strip("| ") for cell in line.split(" | "))
        commands = commands or (["decode"] if own == "fusetk decode" else ["train", "prep"])
        for option in re.findall(r"(?<![\w-])-{1,2}[a-zA-Z][\w-]*", foreign):
            contexts = [context_of(command) for command in commands]
            known = {
                own_name
                for each in contexts
                for parameter in each.command.params
                for own_name in parameter.opts
            }
            assert option in known or any(option_advice(option, each) for each in contexts), option
            checked += 1
    assert checked > 40


@pytest.mark.parametrize("page", MIGRATION, ids=name)
def test_migration_agrees_with_the_advice_of_the_commands(page: Path) -> None:
    """If the commands know an option of another toolkit, its row has the same key."""
    checked = 0
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = line.strip("|").split(" | ")
        options = re.findall(r"`-{1,2}(\w[\w-]*)", cells[0]) if len(cells) == 2 else []
        own = re.findall(r"`([^`]+)`", cells[-1])
        keys = {re.sub(r"[=: ].*", "", key) for key in own if re.match(r"[a-z]+\.", key)}
        for option in options if keys else []:
            if advised := fusetk_key(option):
                checked += 1
                assert any(advised.split("=")[0].startswith(key) for key in keys), option
    assert checked >= 10


# Config keys --------------------------------------------------------------------------------------

KEYS = ROOT / "docs/config-keys.md"


def key_paths(config: type[Config], place: str) -> Iterator[str]:
    """Yield the paths of all keys of a config class, except those of its kinds."""
    for key, field in config.model_fields.items():
        yield f"{place}-{key}"
        if not config_keys.is_choice(field):
            for inner in config_keys.config_of(field.annotation):
                yield from key_paths(inner, f"{place}-{key}")


def test_the_page_of_config_keys_is_up_to_date() -> None:
    assert KEYS.read_text(encoding="utf-8") == config_site_page.site_page(), (
        "docs/config-keys.md is out of date: run `make man`"
    )


def test_every_config_key_has_an_anchor() -> None:
    counts = anchors(KEYS)
    expected = {path for path in key_paths(recipe.Recipe, "") if not path.endswith("-step")}
    for key, table in config_keys.REGISTRIES.items():
        for kind, component in table.items():
            paths = key_paths(component.Config, f"-{key}-{kind}")  # type: ignore[attr-defined]
            expected.update(path for path in paths if not path.endswith("-kind"))
    assert len(expected) > 300
    assert {path[1:].replace("_", "-") for path in expected} <= counts.keys()
    assert [anchor for anchor, count in counts.items() if count > 1] == []


def test_the_keys_of_an_alternative_are_in_its_item() -> None:
    text = KEYS.read_text(encoding="utf-8")
    tokenize = text.index("\n- `data.steps[]: {step: tokenize}`\n")
    escape = text.index("`data.steps[].escape`")
    assert text[tokenize:escape].count("\n- ") == 1 and "\n\n  - " in text[tokenize:escape]


def test_plain_text_is_plain_text_in_markdown() -> None:
    text = "h_l, _a_, *b*, ~~c~~, [d](e) $f$ <unk> &amp; \\\\ a | b"
    [paragraph] = markdown.prose(f"{text} `x_*`")
    [inline] = [token for token in MarkdownIt().parse(paragraph) if token.type == "inline"]
    parsed = inline.children or []
    assert {token.type for token in parsed} == {"text", "code_inline"}
    assert "".join(token.content for token in parsed) == f"{text} x_*"
    assert r"\$f\$" in paragraph, "a formula in MyST"


# Fusions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("site", ["connect", "residual", "fuse", "attend"])
def test_every_kind_has_a_page(site: str) -> None:
    texts = [page.read_text(encoding="utf-8") for page in DOCS if page.parent.name == "fusions"]
    index = (ROOT / "docs/fusions/index.md").read_text(encoding="utf-8")
    for kind in config_keys.REGISTRIES[site]:
        assert f"`{kind}`" in index
        if kind not in ("last", "plain"):
            named = re.compile(rf"`{kind}`|: {kind}(?![\w-])")
            assert sum(bool(named.search(text)) for text in texts) >= 2, kind


@pytest.mark.parametrize("site", ["connect", "residual", "fuse", "attend"])
def test_every_option_is_on_a_page(site: str) -> None:
    pages = [page for page in DOCS if page.parent.name == "fusions"]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    for kind, cls in config_keys.REGISTRIES[site].items():
        for option in cls.Config.model_fields.keys() - {"kind"}:
            assert re.search(rf"`[^`\n]*\b{option}\b", text), f"{kind}: {option}"


def test_every_fusion_has_a_picture() -> None:
    for page in (ROOT / "docs/fusions").glob("*.md"):
        assert any(token.type == "image" for token in tokens(page)), page


@pytest.mark.parametrize("name", diagrams.DIAGRAMS)
def test_diagrams_are_up_to_date(name: str) -> None:
    drawn = diagrams.DIAGRAMS[name]().svg()
    assert (ROOT / f"docs/{name}.svg").read_text(encoding="utf-8") == drawn


def test_a_picture_has_a_model_and_a_command() -> None:
    pages = [page for page in DOCS if page.parent.name == "fusions"]
    read = [figure for page in pages if (figure := figures.read_figure(page))]
    assert {figure.name for figure in read} == {
        path.stem for path in (ROOT / "docs/figures").glob("*.png")
    }
    for figure in read:
        assert figure.command[:2] == ["fusetk", "plot-attention"] and figure.model


@pytest.fixture
def provide_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes a module of the page docs/extending.md importable."""
    pieces = [text for _, text in blocks(ROOT / "docs/extending.md")]
    monkeypatch.syspath_prepend(str(tmp_path))

    def provide(name: str) -> None:
        [code] = [text for text in pieces if text.startswith(f"# {name}.py")]
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")

    return provide


def test_the_fusion_on_the_page_extending(
    toy: Path, provide_example: Callable[[str], None]
) -> None:
    provide_example("my_fusion")
    option = "{kind: 'my_fusion:FeatureMix', temperature: 0.5, norm: false}"
    model: Any = recipe.load(toy, [f"model.decoder.fuse={option}"]).model
    fusion = build_fusion(model.decoder.fuse, [4, 4, 4], 4, "decoder.fuse")
    weights = torch.randn(3, 4)
    fusion.load_state_dict({"weight": weights})
    layers = torch.randn(3, 5, 4)
    expected = (layers * (weights / 0.5).softmax(0)[:, None]).sum(0)
    torch.testing.assert_close(fusion(list(layers)), expected)


def test_the_parts_on_the_page_extending(toy: Path, provide_example: Callable[[str], None]) -> None:
    provide_example("my_parts")
    settings = ["model.decoder.attend=my_parts:MeanOfTwo"]
    for side in ("encoder", "decoder"):
        settings.append(f"model.{side}.residual=my_parts:GatedResidual")
    loaded = recipe.load(
        toy, [*settings, "training.stages.0.schedule={kind: 'my_parts:Inverse', peak: 0.1}"]
    )
    verify(build_model(loaded.model, 20, 20), 20, 20, ["my_parts"])
    schedule = build_schedule(loaded.training.stages[0].schedule, 16)
    assert [schedule.rate(t) for t in (1, 4)] == [0.1, 0.025]


def test_the_connection_on_the_page_extending(
    toy: Path, provide_example: Callable[[str], None]
) -> None:
    provide_example("my_connection")
    encoder = "{layers: 2, connect: my_connection:WeightedConnection}"
    model: Any = build_model(recipe.load(toy, [f"model.encoder={encoder}"]).model, 20, 20)
    assert not verify(model, 20, 20, ["my_connection"])
    means = torch.tensor(panels(model)[0].matrix).nan_to_num().float()
    read = torch.ones(3, 3).tril()
    torch.testing.assert_close(means, read / read.sum(1, keepdim=True))


def test_the_attention_on_the_page_extending(
    toy: Path, provide_example: Callable[[str], None]
) -> None:
    provide_example("my_attention")
    sides = [f"model.{side}.self_attention=my_attention:Alibi" for side in ("encoder", "decoder")]
    loaded = recipe.load(toy, ["model.positions=none", *sides])
    model: Any = build_model(loaded.model, 20, 20)
    assert not verify(model, 20, 20, ["my_attention"])
    attention = model.decoder.layers[0].attention
    q, k = torch.zeros(1, 2, 2, 16), torch.randn(1, 2, 3, 16)
    scores = attention.scores(q, k, torch.tensor([4, 1]), torch.tensor([0, 2, 4]))
    distances = torch.tensor([[4, 2, 0], [1, 1, 3]])
    expected = torch.stack([-distances / 2**4, -distances / 2**8])  # two heads
    torch.testing.assert_close(scores[0], expected)


def test_the_model_on_the_page_extending(toy: Path, provide_example: Callable[[str], None]) -> None:
    provide_example("my_model")
    loaded = recipe.load(toy, ["model.kind=my_model:RunningMean", "model.scale=0.5"])
    model: Any = build_model(loaded.model, 20, 20)
    assert model.config.scale == 0.5
    assert not verify(model, 20, 20, ["my_model"])


def test_the_layer_on_the_page_extending(toy: Path, provide_example: Callable[[str], None]) -> None:
    provide_example("my_layer")
    settings = ["model.kind=my_layer:SourceFirst", "model.decoder={layers: 3, ffn_growth: 0.5}"]
    model: Any = build_model(recipe.load(toy, settings).model, 20, 20)
    assert not verify(model, 20, 20, ["my_layer"])
    hidden = [layer.ffn.hidden.out_features for layer in model.decoder.layers]
    assert hidden == sorted(set(hidden))


@pytest.mark.parametrize("connect", ["last", "{kind: dense, growth: 8, summary_every: 2}"])
def test_the_backbone_on_the_page_extending(
    connect: str, toy: Path, provide_example: Callable[[str], None]
) -> None:
    provide_example("my_backbone")
    side = f"{{layers: 3, connect: {connect}}}"
    kind = "my_backbone:Gated"
    option = f"model={{kind: '{kind}', width: 16, encoder: {side}, decoder: {side}}}"
    model: Any = build_model(recipe.load(toy, [option]).model, 20, 20)
    assert not verify(model, 20, 20, ["my_backbone"])
    source, target = torch.full((1, 2), EOS), torch.full((1, 3), EOS)
    mask = torch.ones_like(source, dtype=torch.bool)
    # As in training with `precision: bf16`.
    with trace.listen("decoder.layer1.cross") as records, torch.autocast("cpu", torch.bfloat16):
        model(source, mask, target)
    assert records["decoder.layer1.cross"][0].shape == (1, 1, 3, 2)


def test_the_metric_on_the_page_extending(
    tmp_path: Path, provide_example: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    provide_example("my_metric")
    monkeypatch.chdir(tmp_path)
    reference = [f"Haus {i}" for i in range(40)]
    texts = {"ref": reference, "hyp": reference[:20] + ["x"] * 20, "near": [*reference[:39], "x"]}
    for file, lines in texts.items():
        Path(file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    Path("lower").write_text(Path("near").read_text().lower(), encoding="utf-8")

    def scores(*arguments: str) -> list[dict[str, Any]]:
        words = ["score", "hyp", "ref", "--metric", "my_metric:ExactMatch", "--json", *arguments]
        result = CliRunner().invoke(fusetk_command, words)
        assert result.exit_code == 0, result.output
        document = json.loads(result.stdout)
        systems = document.get("systems", [document])
        return [score for system in systems for score in system["scores"]]

    [score] = scores()
    assert score["metric"] == "my_metric:ExactMatch" and score["value"] == 50
    assert score["signature"] == "nrefs:1|case:mixed"
    systems = ["--system", "near=near", "--system", "lower=lower"]
    assert [score["value"] for score in scores(*systems)] == [50, 97.5, 0]
    for kind in SAMPLES:
        tested = scores(*systems, "--lowercase", "--significance", kind, "--samples", "200")
        assert [score["value"] for score in tested] == [50, 97.5, 97.5]
        _, near, lower = [score["test"] for score in tested]
        assert near == lower and near["differ"] == 19 and near["p"] < 0.01


def test_the_losses_on_the_page_extending(
    toy: Path, provide_example: Callable[[str], None]
) -> None:
    provide_example("my_diversity")
    kind = "{kind: 'my_diversity:Diverse', diversity: 0.2, penalty: 0.5}"
    settings = [f"model.{side}.fuse={kind}" for side in ("encoder", "decoder")]
    model: Any = build_model(recipe.load(toy, settings).model, SOURCE_SIZE, TARGET_SIZE)
    assert not verify(model, SOURCE_SIZE, TARGET_SIZE, ["my_diversity"])
    model.train()
    batch = random_batch()
    tokens = len(batch.target_index)
    losses = batch_loss(model, batch, 0.1).additional
    for side in ("encoder", "decoder"):
        squares = model.get_submodule(side).fuse.combine.weight.square().sum()
        torch.testing.assert_close(losses[f"{side}.fuse.penalty"], 0.5 * squares * tokens)
    words = int(batch.src_mask.sum())
    assert 0 < float(losses["encoder.fuse.similarity"].detach()) < 0.2 * words


def test_the_loss_of_a_layer_on_the_page_extending(
    toy: Path, provide_example: Callable[[str], None]
) -> None:
    provide_example("my_exit")
    settings = ["model.kind=my_exit:Exit", "model.norm=pre", "model.exit_factor=0.25"]
    model: Any = build_model(recipe.load(toy, settings).model, SOURCE_SIZE, TARGET_SIZE)
    assert not verify(model, SOURCE_SIZE, TARGET_SIZE, ["my_exit"])
    result = batch_loss(model, random_batch(), 0.0)  # the exit is the only layer
    torch.testing.assert_close(result.additional["decoder.exit"], 0.25 * result.nll)


def test_the_step_on_the_page_extending(toy: Path, provide_example: Callable[[str], None]) -> None:
    provide_example("my_steps")
    loaded = recipe.load(toy, ["data.steps=[{step: my_steps:Characters, side: target}]"])
    text = Text(loaded.data.steps, "de", "en")
    assert text.words("source", "ab c") == "ab c"
    assert text.words("target", "ab c") == "a b _ c" and text.raw("a b _ c") == "ab c"


# The site -----------------------------------------------------------------------------------------


@pytest.mark.skipif(not find_spec("sphinx"), reason="the extra docs is not installed")
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", ROOT / "docs", tmp_path]
    ran = subprocess.run(words, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "index.html").exists()
