"""YAML to config objects: merging, overrides, and errors that say what, where and what to do."""

import io
import json
import os
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from click.testing import CliRunner
from pydantic import Field

from fusetk import config, sections
from fusetk.cli.main import main
from fusetk.config import ComponentConfig, Config, component, field_docs, source, yaml_text
from fusetk.data.config import ALTERNATIVES, BPEConfig, DataConfig, load_document
from fusetk.errors import ConfigError, ImportFailed
from fusetk.models.connect import ConnectConfig
from fusetk.recipe import load


class MeanConfig(ComponentConfig):
    """For the tests."""

    hidden: int = 3
    """Units."""


class Mean:
    Config = MeanConfig


TABLE = {"mean": Mean}


class Side(Config):
    layers: int
    fuse: Annotated[ComponentConfig, component(TABLE, "a fusion")] = MeanConfig(kind="mean")


class Top(Config):
    encoder: Side
    stages: list[Side] = []
    rate: float = 0.5


# Each list has the one before it twice.
ALIASES = "a0: &a0 []\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))

# The same with mappings.
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40)
)


def parse(folder: Path, text: str, *overrides: str) -> Top:
    path = folder / "a.yaml"
    path.write_text(text, encoding="utf-8")
    return config.parse(config.load(path, overrides), Top)


def test_extends_merges_mapping_by_mapping(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "encoder: {layers: 3, fuse: {kind: mean, hidden: 7}}\nrate: 1.0\n"
    )
    top = parse(tmp_path, "extends: base.yaml\nencoder: {layers: 4}\n")
    assert (top.encoder.layers, top.encoder.fuse.hidden, top.rate) == (4, 7, 1.0)


def test_home_and_variables_in_extends_are_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base.yaml").write_text("encoder: {layers: 3}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PLACE", str(tmp_path))
    for written in ("~/base.yaml", "$PLACE/base.yaml", "${PLACE}/base.yaml"):
        (tmp_path / "folder").mkdir(exist_ok=True)
        assert parse(tmp_path / "folder", f"extends: {written}\n").encoder.layers == 3
    monkeypatch.setenv("HOME", str(tmp_path / "a$PLACE"))
    assert config.expand_path("~/$PLACE/x") == f"{tmp_path}/a$PLACE/{tmp_path}/x"
    monkeypatch.delenv("PLACE")
    with pytest.raises(
        ConfigError, match=r"a\.yaml: extends: the environment variable PLACE in .* is not set"
    ):
        parse(tmp_path, "extends: $PLACE/base.yaml\n")


def test_a_path_without_home_and_variables_is_not_changed() -> None:
    for path in ("a/b", "./~", "a~b", "cost$5", "a$", "/x/~/y"):
        assert config.expand_path(path) == path


class NumbersConfig(Config):
    """For the tests."""

    rates: tuple[float, float] = (0.1, 0.2)
    widths: int | list[int] = 4
    weights: dict[str, float] = {}
    streams: Literal[1, 4] = 4
    switches: dict[str, bool] = {}


@pytest.mark.parametrize(
    "text", ["rates: [no, 0.2]", "widths: [yes, 4]", "weights: {news: no}", "streams: true"]
)
def test_a_truth_value_is_not_a_number(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text + "\n")
    with pytest.raises(ConfigError, match=r"(true|false).*line 1"):
        config.parse(config.load(path), NumbersConfig)
    path.write_text("switches: {a: yes}\nstreams: 1\nweights: {a: 0}\n")
    assert config.parse(config.load(path), NumbersConfig).switches == {"a": True}


def test_two_dollar_signs_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "here")
    assert config.expand_path("$$HERE/$$$HERE/$${HERE}/$$") == "$HERE/$here/${HERE}/$"


def test_another_kind_drops_the_options_of_the_extended_config(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("encoder: {layers: 3, fuse: {kind: other, width: 7}}\n")
    assert (
        parse(tmp_path, "extends: base.yaml\nencoder: {fuse: {kind: mean}}\n").encoder.fuse.hidden
        == 3
    )


def test_errors_in_replaced_values_name_the_file_that_replaces_them(tmp_path: Path) -> None:
    base = "\n\nencoder: {layers: 3, fuse: {kind: mean, hidden: 7}}\nstages:\n- {layers: 1}\n- 3\n"
    (tmp_path / "base.yaml").write_text(base)
    for text, said in (
        ("stages: [{layer: 2}]\n", r"stages\.0\.layers: must be given .*a\.yaml, line 2"),
        ("stages:\n- layers: no\n", r"stages\.0\.layers: .*a\.yaml, line 3"),
        ("encoder: {fuse: 3}\n", r"encoder\.fuse: .*a\.yaml, line 2"),
        ("encoder: {layers: x}\n", r"encoder\.layers: .*a\.yaml, line 2"),
    ):
        with pytest.raises(ConfigError, match=said):
            parse(tmp_path, f"extends: base.yaml\n{text}")


class Inner(Config):
    layers: int = 1
    rates: list[float] = []


class WideConfig(ComponentConfig):
    hidden: int = 9
    depth: int = 1
    limit: int | None = None
    inner: Inner = Inner()


class Wide:
    Config = WideConfig


class DeepConfig(ComponentConfig):
    hidden: int = 3
    inner: Inner = Inner()
    bias: bool = True
    limit: int | None = 7


class Deep:
    Config = DeepConfig


class WithKind(Config):
    part: Annotated[ComponentConfig, component({"wide": Wide, "deep": Deep}, "a part")]


BASE = "part: {kind: deep, hidden: 5, bias: false, limit: none, inner: {layers: 4, rates: [0.1]}}\n"


@pytest.mark.parametrize(
    ("text", "overrides", "unused"),
    [
        (
            "part: {kind: wide, depth: 2}",
            [],
            "part.hidden 5 (now 9), part.inner.layers 4 (now 1), part.inner.rates a list (now an "
            "empty list)",
        ),
        ("part: wide", ["part.inner.layers=2"], "part.hidden 5 (now 9), part.inner.rates a list"),
        ("part: {kind: wide, hidden: 9, inner: {rates: []}}", [], "part.inner.layers 4 (now 1);"),
        ("part: {kind: wide, hidden: 9, inner: {rates: [], layers: 1}}", [], None),
        ("part: {kind: deep, hidden: 9}", [], None),
        ("part: {hidden: 9}", [], None),
        ("part: {kind: wide}", ["part={kind: deep}"], None),
    ],
)
def test_values_that_another_kind_does_not_use_are_named(
    tmp_path: Path, text: str, overrides: list[str], unused: str | None
) -> None:
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "middle.yaml").write_text(f"extends: base.yaml\n{text}\n")
    (tmp_path / "top.yaml").write_text("extends: middle.yaml\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config.parse(config.load(tmp_path / "top.yaml", overrides), WithKind)
    assert len(caught) == (unused is not None)
    if unused:
        said = str(caught[0].message)
        assert said.startswith(
            f"{tmp_path / 'middle.yaml'}, line 2: part.kind is wide, not deep as in "
            f"{tmp_path / 'base.yaml'}, line 1, so values of the other config are not used: "
            f"{unused}"
        )


def test_a_command_warns_once_of_values_that_are_not_used(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "conv.yaml").write_text(f"extends: {toy}\nmodel: {{kind: conv, width: 32}}\n")
    code = "from fusetk.cli.main import main; main()"
    words = [sys.executable, "-c", code, "describe", str(tmp_path / "conv.yaml"), "-q"]
    result = subprocess.run(words, capture_output=True, text=True, check=True)
    assert result.stderr.startswith(
        f"warning: {tmp_path / 'conv.yaml'}, line 2: model.kind is conv"
    )
    assert result.stderr.count("\n") == 1


def test_extends_and_overrides_change_options_of_a_short_form(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("encoder: {layers: 3, fuse: mean}\n")
    top = parse(tmp_path, "extends: base.yaml\nencoder: {fuse: {hidden: 7}}\n")
    assert top.encoder.fuse.hidden == 7
    assert parse(tmp_path, "extends: base.yaml\n", "encoder.fuse.hidden=7") == top


def test_a_short_form_of_the_same_kind_keeps_the_options(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("encoder: {layers: 3, fuse: {kind: mean, hidden: 7}}\n")
    for fuse in ("mean", "{kind: mean}"):
        top = parse(tmp_path, f"extends: base.yaml\nencoder: {{fuse: {fuse}}}\n")
        assert top.encoder.fuse.hidden == 7


def test_the_word_none_is_not_a_short_form(tmp_path: Path) -> None:
    class Keys(Config):
        bpe: BPEConfig | None

    (tmp_path / "base.yaml").write_text("bpe: none\n")
    (tmp_path / "top.yaml").write_text("extends: base.yaml\nbpe: {merges: 9}\n")
    for document in (
        config.load(tmp_path / "top.yaml"),
        config.load(tmp_path / "base.yaml", ["bpe.merges=9"]),
    ):
        assert config.parse(document, Keys).bpe == BPEConfig(merges=9)


@pytest.mark.parametrize(
    "key",
    ["data.bpe.codes", "data.vocabulary.source", "data.vocabulary.target", "training.start_from"],
)
def test_the_word_none_is_null_where_a_path_may_be_null(tmp_path: Path, key: str) -> None:
    (tmp_path / "a.yaml").write_text("data: {folder: none}\n")
    values: Any = sections.read(tmp_path / "a.yaml", [f"{key}=none"]).values
    assert values["data"]["folder"] == str(tmp_path / "none")
    for name in key.split("."):
        values = values[name]
    assert values is None


def test_another_alternative_replaces_that_of_the_extended_config(tmp_path: Path) -> None:
    for base, child, merged in (
        ("{every: 23}", "{sample: 100}", {"sample": 100}),
        ("{sample: 100, seed: 2}", "{every: 23}", {"every": 23}),
        ("{sample: 100, seed: 2}", "{sample: 50}", {"sample": 50, "seed": 2}),
        ("{sample: 100}", "{seed: 3}", {"sample": 100, "seed": 3}),
    ):
        (tmp_path / "base.yaml").write_text(f"data: {{valid: {base}}}\n")
        (tmp_path / "top.yaml").write_text(f"extends: base.yaml\ndata: {{valid: {child}}}\n")
        assert load_document(tmp_path / "top.yaml").values == {"data": {"valid": merged}}


def test_the_alternatives_are_the_required_keys_of_the_members_of_a_union() -> None:
    members = get_args(DataConfig.model_fields["valid"].annotation)
    configs = [member for member in members if get_origin(member) is None]
    fields = [field for member in configs for field in member.model_fields.items()]
    required = {key for key, field in fields if field.is_required()}
    assert ALTERNATIVES["data", "valid"] == required


def test_overrides_win_and_reach_into_lists(tmp_path: Path) -> None:
    text = "encoder: {layers: 3, fuse: mean}\nstages: [{layers: 1}, {layers: 2}]\n"
    top = parse(tmp_path, text, "stages.1.layers=5", "encoder.fuse.hidden=9", "rate=1e-3")
    assert (
        top.stages[0].layers,
        top.stages[1].layers,
        top.encoder.fuse.hidden,
        top.rate,
    ) == (1, 5, 9, 0.001)


def test_an_override_replaces_its_alternative(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("data: {valid: {every: 9}}")
    loaded = load_document(tmp_path / "a.yaml", ["data.valid.seed=3", "data.valid.sample=8"])
    assert loaded.values == {"data": {"valid": {"sample": 8, "seed": 3}}}


@pytest.mark.parametrize(
    ("base", "top", "overrides", "merged"),
    [
        ("length_penalty: 0.6", "normalize: 2", [], {"normalize": 2}),
        ("normalize: 0.6", "length_penalty: 2", [], {"length_penalty": 2}),
        ("length_penalty: 0.6", "beam: 3", ["normalize=2"], {"normalize": 2}),
        ("normalize: 0.6", "beam: 3", ["length_penalty=2"], {"length_penalty": 2}),
    ],
)
def test_a_key_replaces_its_other_name_in_an_extended_config(
    toy: Path, tmp_path: Path, base: str, top: str, overrides: list[str], merged: dict[str, int]
) -> None:
    (tmp_path / "base.yaml").write_text(f"extends: {toy}\ndecoding: {{{base}, beam: 3}}\n")
    (tmp_path / "top.yaml").write_text(f"extends: base.yaml\ndecoding: {{{top}}}\n")
    document = sections.read(tmp_path / "top.yaml", [f"decoding.{text}" for text in overrides])
    assert {"beam": 3, **merged}.items() <= document.values["decoding"].items()
    search = config.parse(document, sections.SectionsWithoutModel).decoding
    assert (search.beam, search.normalize) == (3, 2)
    last = overrides or [str(tmp_path / "top.yaml")]
    [name] = merged
    assert last[0] in document.where(("decoding", name)).text


def test_two_names_of_a_key_in_one_config_are_an_error(toy: Path, tmp_path: Path) -> None:
    names = "{normalize: 2, length_penalty: 2}"
    (tmp_path / "top.yaml").write_text(f"extends: {toy}\ndecoding: {names}\n")
    with pytest.raises(ConfigError, match="two names of one key"):
        sections.check(tmp_path / "top.yaml")


def test_a_dumped_config_is_loaded_again(tmp_path: Path) -> None:
    top = parse(tmp_path, "encoder: {layers: 3, fuse: {kind: mean, hidden: 7}}\nrate: 1e-9\n")
    assert parse(tmp_path, config.dump(top)).model_dump() == top.model_dump()


def test_a_missing_section_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must be given  \[.*\.yaml\]"):
        parse(tmp_path, "")


def test_every_error_comes_at_once_with_path_and_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(
            tmp_path,
            "encoder:\n  layer: 3\n  fuse: {kind: mean, hiden: 7}\nrates: x\n",
            "stages=[{layers: many}]",
        )
    text = str(caught.value)
    assert "5 errors" in text
    assert "encoder.layer: unknown key; did you mean 'layers'?" in text and "line 2" in text
    assert "encoder.fuse.hiden: unknown key; did you mean 'hidden'?" in text and "line 3" in text
    assert "encoder.layers: must be given" in text
    assert "rates: unknown key; did you mean 'rate'?" in text and "line 4" in text
    assert "stages.0.layers" in text and "--set stages=" in text


@pytest.mark.parametrize("key", ["str", "int", '"layers[0]"'])
def test_an_unknown_key_may_have_any_name(tmp_path: Path, key: str) -> None:
    name = key.strip('"')
    with pytest.raises(ConfigError, match=rf"^[^:]*: {re.escape(name)}: unknown key"):
        parse(tmp_path, f"encoder: {{layers: 1}}\n{key}: 3\n")
    with pytest.raises(ConfigError, match=rf"encoder\.{re.escape(name)}: unknown key"):
        parse(tmp_path, f"encoder: {{layers: 1, {key}: 3}}\n")


def test_an_override_has_an_index_after_a_dot(tmp_path: Path) -> None:
    text = "encoder: {layers: 1}\nstages: [{layers: 1}]\n"
    with pytest.raises(ConfigError, match=r"after a dot: stages\.0\.layers=2"):
        parse(tmp_path, text, "stages[0].layers=2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("encoder: {layers: 3, fuse: meen}", "did you mean 'mean'"),
        ("encoder: {layers: 3, fuse: os.nothing:Name}", "cannot be imported"),
        ("encoder: {layers: 3, fuse: os:PathLike}", "Config"),
        ("encoder: {layers: 3, fuse: 4}", "one of mean"),
        ("encoder: {layers: 3}\nencoder: {layers: 4}", "twice"),
        (
            "encoder:\n  layers: 3\n  layers: 4",
            "line 3: not valid YAML: the key 'layers' occurs twice",
        ),
        ("? [encoder]\n: 3", "not valid YAML"),
        ("encoder: [\n\n", "line 1: not valid YAML: a bracket is not closed$"),
        ("rate: [3\n\n", r"line 1: not valid YAML: the bracket \[ is not closed, or a comma is "),
        (
            "rate: {a: 3\nb: 2",
            "line 1: .* the bracket { is not closed, or a comma is missing bef",
        ),
        ("rate: {a: 3 b: 2}", "a comma is missing, or a second colon is in a value; write the"),
        ("name: a\rrate: {a: b: c}", "line 2: .*: a comma is missing, or a second colon is in"),
        ("rate: {a: 3,\nb: c: d}", "line 2: .*: a comma is missing, or a second colon is in"),
        ("rate\rb: c: d", "line 2: not valid YAML: a key cannot begin here; correct the indent"),
        ("name: a\rrate: b: c", "line 2: not valid YAML: a second colon is in the value"),
        ("name: a\r\nencoder: [\r\n", "line 2: not valid YAML: a bracket is not closed$"),
        ("name: 'it's'", "line 1: .*: text follows the closing quote or bracket$"),
        ("rate: &a 3\nname: *a b", "line 2: .*: text follows the value$"),
        ("encoder: {}\nname: [b]c", "line 2: .*: text follows the closing quote or bracket$"),
        ("name: ]", "line 1: .*: ']' is not allowed here; write the text in quotes$"),
        ("rate: 'a\nb: 2\n\n", "line 1: not valid YAML: the quote that begins here does not end"),
        ("rate:3\nb: 2", "line 1: not valid YAML: write a space after the colon: rate: 3"),
        ("encoder:\n  a:3 # b\n\n  # c\n  b: 3", "line 2: .* a space after the colon: a: 3"),
        ("encoder:\n  layers:3", "encoder: .*: write a space after the colon: layers: 3 "),
        (
            "encoder: {kind:x}",
            "'kind:x' has no value; write a space after the colon: kind: x",
        ),
        ("rate: 3\nb\nc: 2", "line 2: not valid YAML: 'b' is not a key with a value; write it as"),
        ("rate: 3\n b: 2", "line 2: not valid YAML: a key cannot begin here; correct the indent"),
        (
            "rate: a: b",
            "line 1: not valid YAML: a second colon is in the value; write the value",
        ),
        (
            "encoder:\n  a: 3\n b: 2",
            "line 3: .*: this line does not continue the block that",
        ),
        (
            "  rate: 3\nencoder: {}",
            "line 2: .*: this line does not continue the text above it; corr",
        ),
        ("rate: 3\n---\nrate: 2", "line 2: not valid YAML: a second document begins here; remove"),
        (
            "rate: - a",
            "a list cannot begin here; write it in brackets, or each item on a line of its own$",
        ),
        (
            "a: 1\nrate: *b",
            "line 2: .*: found undefined alias 'b'; write it in quotes if it is",
        ),
        ("- 1", r"must be a mapping of sections \(.*\), but the file holds a list$"),
        ("3", "but the file holds 3$"),
        ("extends: nowhere.yaml", "cannot be read"),
        ("extends: a.yaml", "extends itself"),
        ("extends: 3", "must name a file"),
        ("extends: ''\nrate: x", "extends must name a file or a list of files, not ''"),
        ("extends: false", "extends must name a file or a list of files, not False"),
        ('extends: ["a\\0b"]', r"line 1: not valid YAML: the character U\+0000 is not allowed"),
        ("encoder: {layers: 3}\n1: 2", "line 2: not valid YAML: the key 1 is not text: write it"),
        ("rate: !number [1]", "line 1: not valid YAML: the tag !number needs a number"),
        ("encoder: {layers: 3}\nlenpen: 1", "decoding.normalize"),
        ("exponential_smoothing: 1e-4", "training.ema; its value is one minus Marian's number"),
        ("encoder: {layers: 3}\nrate: .nan", "finite"),
        ("encoder: {layers: 3}\n\trate: 3", "line 2: not valid YAML: a line begins with a tab"),
        *((f"encoder: {'[' * n}{']' * n}", "at most 100 levels") for n in (101, 4900, 400_000)),
        (ALIASES, "with its aliases it has more than 100,000 values"),
        (MERGES, "with its aliases it has more than 100,000 values"),
        ("encoder: &a {layers: *a}", "not valid YAML: an alias is inside its own value"),
        ("encoder:\n  layers: 010", r"a\.yaml, line 2: .*'010' is not a decimal number .* as 8\);"),
        ("encoder: {layers: -0_7}", "as -7"),
        ("encoder: {layers: 1:30}", "as 90"),
        ("encoder: {layers: 3}\nrate: 1:30.5", "line 2: .* as 90.5"),
        ("encoder: {layers: !!int x}", "line 1: not valid YAML: 'x' is not a valid int; correct"),
        ("encoder: {layers: !!int ''}", "'' is not a valid int"),
        ("encoder: {layers: !!bool x}", "'x' is not a valid bool"),
        ("encoder:\n  layers: 2020-13-45", "line 2: .*'2020-13-45' is not a valid timestamp; "),
        ("encoder:\n  layers: 3\0", r"line 2: not valid YAML: the character U\+0000 is .* it$"),
        ('encoder: {}\nname: "a\\0b"', r"line 2: .* U\+0000 is not allowed; remove its escape"),
        ('encoder: {"a\\uD83D": 1}', r"line 1: .* U\+D83D is a surrogate.* the complete character"),
        ('encoder: {"\\uDE00\\uD83D": 1}', r"U\+DE00 is a surrogate, .* remove its escape"),
        ('"\\uD83D\\uDE00": 1', r"U\+D83D and U\+DE00 are .*; write \\U0001F600 instead of both"),
        ("# \x85\nencoder: {}", r"a\.yaml, line 1: not valid YAML: the character U\+0085 is not "),
        ("\nname: 'a\u2028b'", r"line 2: .*U\+2028 .*; remove it, or write \\u2028 in double "),
    ],
    ids=lambda text: text[:40],
)
def test_an_error_in_a_config_says_what_to_correct(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(tmp_path, text)


class Texts(Config):
    plain: dict[str, str] | None = None
    lists: dict[str, list[str]] | None = None


def test_a_text_in_place_of_a_mapping_has_advice(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("plain: x\nlists: x\n")
    with pytest.raises(ConfigError) as caught:
        config.parse(config.load(tmp_path / "a.yaml"), Texts)
    assert "it is 'x': write {NAME: x} with any name" in str(caught.value)
    assert "it is 'x': write {NAME: [x]} with any name" in str(caught.value)


def test_null_removes_a_test_set_of_an_extended_config(tmp_path: Path) -> None:
    data = "data: {source: de, target: en, folder: f, train: [t], valid: [v], test: {a: [x]}}\n"
    (tmp_path / "base.yaml").write_text(data)
    own = tmp_path / "own.yaml"
    own.write_text("extends: base.yaml\ndata: {test: {a: null, b: [y]}}\n")
    merged = DataConfig.model_validate(load_document(own).values["data"])
    assert merged.test == {"b": [str(tmp_path / "y")]}


def test_a_chain_of_extends_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / "0.yaml").write_text("encoder: {layers: 3}\n")
    for number in range(1, source.LONGEST_CHAIN + 1):
        (tmp_path / f"{number}.yaml").write_text(f"extends: {number - 1}.yaml\n")
    longest = tmp_path / f"{source.LONGEST_CHAIN - 1}.yaml"
    assert config.load(longest).values == {"encoder": {"layers": 3}}
    with pytest.raises(ConfigError, match=r"1\.yaml: .* a chain of 100 configs .*100\.yaml"):
        config.load(tmp_path / f"{source.LONGEST_CHAIN}.yaml")


@pytest.mark.parametrize(
    "text",
    [
        (Path(__file__).parents[1] / "fusetk/demo/transformer.yaml").read_text(encoding="utf-8"),
        "rate: 1e-9\nname: '1e-9'\nencoder: {'on': no}\n",
        "a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: *b, y: 3}\n",
        f"encoder: {'[' * 99}{']' * 99}",
    ],
    ids=lambda text: text[:20],
)
def test_both_parsers_read_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    fast = config.load(path)
    monkeypatch.setattr(yaml_text, "LONGEST_FAST_TEXT", -1)
    slow = config.load(path)
    assert fast.values == slow.values
    assert fast.origins == slow.origins


@pytest.mark.parametrize(
    "override",
    [
        *("rate", "stages.5.layers=3", "stages.x=3", "stages.²=1", "=3"),
        *("rate=[", "rate=2020-13-45", "rate=010", "rate=1:30", "rate=\0", "name=a\x85b"),
    ],
)
def test_errors_in_overrides_begin_with_the_option(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigError, match=r"^--set"):
        parse(tmp_path, "encoder: {layers: 3}\nstages: [{layers: 1}]\n", override)


@pytest.mark.parametrize("text", ["encoder: {layers: 3}\n", "encoder: {layers: 3, fuze: 3}\n"])
def test_an_error_in_a_section_of_an_override_names_the_override(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"encoder\.fuze: .*  \[--set encoder\.fuze\.kind=mean\]"):
        parse(tmp_path, text, "encoder.fuze.kind=mean")


@pytest.mark.parametrize("kind", ["meen", "outside_none:Idea"])
def test_an_error_in_a_kind_names_the_override_that_set_it(tmp_path: Path, kind: str) -> None:
    text = "encoder:\n  layers: 3\n  fuse: {kind: mean, hidden: 7}\n"
    with pytest.raises(ConfigError, match=rf"\[--set encoder\.fuse\.kind={kind}\]$"):
        parse(tmp_path, text, f"encoder.fuse.kind={kind}")


def test_an_error_in_a_step_names_the_override_that_set_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("steps:\n  - step: tokenize\n    escape: false\n")
    with pytest.raises(ConfigError, match=r"unknown step 'tokenise'; .*\[--set steps\.0\.step="):
        config.parse(config.load(tmp_path / "a.yaml", ["steps.0.step=tokenise"]), Steps)


def test_an_error_about_several_keys_names_their_places(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"extends: {toy}\nmodel:\n  heads: 3\n  width: 32\n")
    with pytest.raises(ConfigError, match=r"heads 3  \[\S*a\.yaml, line 3; \S*a\.yaml, line 4\]$"):
        load(tmp_path / "a.yaml")
    with pytest.raises(ConfigError, match=r"heads 5  \[\S*a\.yaml, line 4; --set model.heads=5\]$"):
        load(tmp_path / "a.yaml", ["model.heads=5"])
    with pytest.raises(ConfigError, match=r"two options  \[--set model.decoder.attend=dense-sum;"):
        load(toy, ["model.decoder.attend=dense-sum", "model.encoder.fuse=average"])
    with pytest.raises(ConfigError, match=r"joint: true  \[--set model.tie=all\]$"):
        load(toy, ["model.tie=all"])


SIDE = {"layers": 2, "residual": {"kind": "hyper"}}


@pytest.mark.parametrize(
    ("model", "error"),
    [
        (
            {"kind": "transformer", "decoder": SIDE},
            r"model: decoder: residual: hyper needs norm: pre, .*  \[--set model\.decoder=",
        ),
        (
            {"kind": "coordinated", "stack": SIDE},
            r"model: stack: residual: hyper needs norm: pre, .*  \[--set model\.stack=",
        ),
        (
            {"kind": "recurrent", "encoder": {"depth": 2, "fuse": {"kind": "groups"}}},
            r"model: encoder: 3 layers cannot be divided .*  \[--set model\.encoder=",
        ),
        (
            {"kind": "recurrent", "decoder": {"depth": 2, "fuse": {"kind": "tree", "leaves": 8}}},
            r"model: decoder: fuse: tree has 8 leaves, .*  \[--set model\.decoder=",
        ),
    ],
)
def test_an_error_of_a_component_names_its_side(
    toy: Path, model: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        load(toy, ["model=null", *(f"model.{key}={json.dumps(x)}" for key, x in model.items())])


@pytest.mark.filterwarnings("ignore:Field name")  # a warning of pydantic
@pytest.mark.parametrize("name", ["check", "width", "summary", "separate_inputs", "copy"])
def test_an_option_cannot_replace_an_attribute(name: str) -> None:
    with pytest.raises(TypeError, match=f"the option '{name}' of Own has the name of an attribute"):
        type("Own", (ConnectConfig,), {"__annotations__": {name: int}, "__module__": __name__})
    type("Own", (ConnectConfig,), {"__annotations__": {"own": int}, "__module__": __name__})


def test_a_kind_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside_idea.py").write_text(
        "from fusetk.config import ComponentConfig\n"
        "class Idea:\n    class Config(ComponentConfig):\n        depth: int\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    top = parse(tmp_path, "encoder: {layers: 3, fuse: {kind: 'outside_idea:Idea', depth: 2}}")
    assert top.encoder.fuse.depth == 2


def test_mistakes_in_a_module_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside_gates.py").write_text(
        "from fusetk.config import ComponentConfig\n"
        "class Base:\n    Config = ComponentConfig\n"
        "class Gates(Base):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportFailed, match=r"outside_gates.py has no 'Gate'; did you mean 'Gates'"):
        parse(tmp_path, "encoder: {layers: 3, fuse: 'outside_gates:Gate'}")
    advice = "set the attribute Config of the class to a config class that has it"
    with pytest.raises(ConfigError, match=f"outside_gates:Gates has no option depth: {advice}"):
        parse(tmp_path, "encoder: {layers: 3, fuse: {kind: 'outside_gates:Gates', depth: 2}}")
    with pytest.raises(ConfigError, match="did you mean 'kind'"):
        parse(tmp_path, "encoder: {layers: 3, fuse: {kind: 'outside_gates:Gates', knd: 2}}")


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (
            "depth: int = None",
            "the option depth of outside_{}:Idea is wrong: it must be a whole number, ",
        ),
        ("depth: int = 'a'", "must be a whole number, but it is 'a': give another value, or corr"),
        (
            "act: type = list",
            "the option act .* is wrong: it has the type type, which a config file ",
        ),
    ],
)
def test_a_default_that_no_config_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, reason: str
) -> None:
    """pydantic does not validate defaults. A resumed run reads them from its config."""
    module = f"outside_{abs(hash(option))}"
    (tmp_path / f"{module}.py").write_text(
        "from fusetk.config import ComponentConfig\n"
        f"class Idea:\n    class Config(ComponentConfig):\n        {option}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=reason.replace("outside_{}", module)):
        parse(tmp_path, f"encoder: {{layers: 3, fuse: '{module}:Idea'}}")


def test_options_are_checked_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside_range.py").write_text(
        "from pydantic import field_validator\n"
        "from fusetk.config import ComponentConfig\n"
        "class Range:\n"
        "    class Config(ComponentConfig):\n"
        "        low: int\n"
        "        high: int = 28\n"
        "        @field_validator('high')\n"
        "        @classmethod\n"
        "        def check(cls, high, info):\n"
        "            assert high > info.data['low']\n"
        "            return high\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    fuse = "{kind: 'outside_range:Range', low: 1, high: 5}"
    assert parse(tmp_path, f"encoder: {{layers: 3, fuse: {fuse}}}").encoder.fuse.high == 5


def test_a_default_of_a_step_that_no_config_can_have(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside_cut.py").write_text(
        "from fusetk.data.steps.base import LineStep\n"
        "class Cut(LineStep):\n"
        "    step: str\n"
        "    length: int = 'a'\n"
        "    def line_function(self, language, model):\n        return str\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="the option length of outside_cut:Cut is wrong: it must"):
        load(toy, ["data.steps=[{step: 'outside_cut:Cut'}]"])


def test_a_relative_import_needs_the_name_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside_part.py").write_text("from .other import helper\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    said = "write PACKAGE.outside_part:Idea, and set PYTHONPATH to the folder of PACKAGE"
    with pytest.raises(ImportFailed, match=said):
        parse(tmp_path, "encoder: {layers: 3, fuse: 'outside_part:Idea'}")
    with pytest.raises(ImportFailed, match="begin with the name of the package"):
        parse(tmp_path, "encoder: {layers: 3, fuse: '.outside_part:Idea'}")


def test_a_missing_module_from_outside_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside_user.py").write_text("import outside_library\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for kind, advice in (
        ("outside_none:Idea", "'outside_none'; set PYTHONPATH to the folder of outside_none "),
        ("outside_none.part:Idea", "'outside_none'; set PYTHONPATH to the folder of outside_none "),
        ("outside_user:Idea", r"'outside_library' \(\S+outside_user\.py, line 1\)  "),
    ):
        with pytest.raises(ImportFailed, match=f"cannot be imported: ModuleNotFound.*{advice}"):
            parse(tmp_path, f"encoder: {{layers: 3, fuse: '{kind}'}}")


def test_a_run_has_no_weights_of_an_ensemble(toy: Path) -> None:
    with pytest.raises(ConfigError, match="a run is one model; give --ensemble-weights to"):
        load(toy, ["decoding.ensemble_weights=[0.7, 0.3]"])


def test_not_utf8_and_missing_are_config_errors(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_bytes(b"rate: \xff\n")
    for name in ("b.yaml", "c.yaml", "."):
        with pytest.raises(ConfigError, match="cannot be read"):
            config.load(tmp_path / name)


def test_a_config_in_a_pipe_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("encoder: {layers: 3}\n",), daemon=True)
    writer.start()
    for _ in range(2):
        assert config.load(path).values == {"encoder": {"layers": 3}}
    writer.join()


def test_a_pipe_cannot_be_extended(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"a\.yaml: extends: .*pipe is not a regular file"):
        parse(tmp_path, "extends: pipe\n")


class Tokenize(Config):
    step: Literal["tokenize"]
    escape: bool = True


class Lower(Config):
    step: Literal["lowercase"]


class Steps(Config):
    steps: list[Annotated[Tokenize | Lower, Field(discriminator="step")]]


def test_the_nearest_key_is_found_inside_a_union(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "steps:\n  - {step: lowercase}\n  - {step: tokenize, escpe: true}\n"
    )
    with pytest.raises(
        ConfigError, match=r"steps\.1\.escpe: unknown key; did you mean 'escape'.*line 3"
    ):
        config.parse(config.load(tmp_path / "a.yaml"), Steps)


@pytest.mark.parametrize(
    ("step", "hint"),
    [("tokenise", "did you mean 'tokenize'?"), ("x", "known: tokenize, lowercase")],
)
def test_an_unknown_member_of_a_union_is_an_error(tmp_path: Path, step: str, hint: str) -> None:
    (tmp_path / "a.yaml").write_text(f"steps:\n  - {{step: lowercase}}\n  - {{step: {step}}}\n")
    with pytest.raises(ConfigError) as caught:
        config.parse(config.load(tmp_path / "a.yaml"), Steps)
    assert f"steps.1: unknown step {step!r}; {hint}" in str(caught.value) and "line 3" in str(
        caught.value
    )


def test_paths_of_an_override_are_relative_to_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("stages: [a, b]\n")
    document = config.load(tmp_path / "a.yaml", ["stages=[c]"])
    assert document.where(("stages", 0)).folder == Path()
    assert config.load(tmp_path / "a.yaml").where(("stages", 0)).folder == tmp_path


@pytest.mark.parametrize("name", ["12e6", "010", "1:30", "08", "007x"])
def test_strings_that_look_like_numbers_stay_strings(tmp_path: Path, name: str) -> None:
    class Named(Config):
        name: str

    path = tmp_path / "a.yaml"
    path.write_text(config.dump(Named(name=name)))
    assert config.parse(config.load(path), Named).name == name
    assert config.parse(config.load(path, [f"name='{name}'"]), Named).name == name


def test_line_breaks_of_yaml_are_kept_in_double_quotes(tmp_path: Path) -> None:
    class Named(Config):
        name: str

    path = tmp_path / "a.yaml"
    path.write_text(r'name: "a\u0085b\u2028c\u2029"')
    named = config.parse(config.load(path), Named)
    assert named.name == "a\x85b\u2028c\u2029"
    path.write_text(config.dump(named))
    assert config.parse(config.load(path), Named) == named


def test_leading_zeros_of_text_need_no_quotes(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("names: [08, 007x, 0x]\n")
    assert config.load(tmp_path / "a.yaml").values == {"names": ["08", "007x", "0x"]}


@pytest.mark.parametrize("word", ["none", "null", "~", ""])
def test_none_is_null_unless_it_is_a_value_of_the_key(tmp_path: Path, word: str) -> None:
    class Nested(Config):
        size: int

    class Keys(Config):
        number: int | None = 1
        nested: Nested | None = Nested(size=1)
        several: list[int] | None = [1]
        text: str | None = "a"
        kind: Literal["none", "one"] | None = "one"

    (tmp_path / "a.yaml").write_text("".join(f"{key}: {word}\n" for key in Keys.model_fields))
    keys = config.parse(config.load(tmp_path / "a.yaml"), Keys)
    assert keys.number is None and keys.nested is None and keys.several is None
    if word in ("none", "null"):
        assert (keys.text, keys.kind) == (("none", "none") if word == "none" else (None, None))


def test_an_error_says_where_null_is_allowed(tmp_path: Path) -> None:
    class Keys(Config):
        size: int | None = None
        count: int = 1

    (tmp_path / "a.yaml").write_text("size: None\n")
    assert config.parse(config.load(tmp_path / "a.yaml"), Keys).size is None
    (tmp_path / "a.yaml").write_text("size: ten\ncount: none\n")
    with pytest.raises(ConfigError) as caught:
        config.parse(config.load(tmp_path / "a.yaml"), Keys)
    assert "size: must be a whole number or null, but it is 'ten'" in str(caught.value)
    assert "count: must be a whole number, but it is 'none'" in str(caught.value)


def test_a_change_of_one_alias_does_not_change_the_others(tmp_path):
    (tmp_path / "base.yaml").write_text("a: &both {size: 1}\nb: *both\n")
    (tmp_path / "top.yaml").write_text("extends: base.yaml\na: {size: 2}\n")
    assert config.load(tmp_path / "top.yaml").values == {"a": {"size": 2}, "b": {"size": 1}}
    assert config.load(tmp_path / "base.yaml", ["b.size=3"]).values == {
        "a": {"size": 1},
        "b": {"size": 3},
    }
    (tmp_path / "deep.yaml").write_text("m: {a: &both {x: {size: 1}}, b: *both, c: [*both]}\n")
    assert config.load(tmp_path / "deep.yaml", ["m.b.x.size=3"]).values["m"] == {
        "a": {"x": {"size": 1}},
        "b": {"x": {"size": 3}},
        "c": [{"x": {"size": 1}}],
    }


def test_docstrings_of_fields_are_those_below_them_in_the_class_or_its_bases() -> None:
    class Wide(MeanConfig):
        width: int = 1
        """Width
        of the output."""
        depth: int = 1

    kind = "A registered name, or `package.module:Name` of a class outside fusetk."
    assert field_docs(Wide) == {"kind": kind, "hidden": "Units.", "width": "Width\nof the output."}


def test_a_resolved_config_has_the_paths_of_the_config(tmp_path: Path) -> None:
    """A dollar sign in the name of a folder is not that of a variable."""
    folder = tmp_path / "x$proj" / "${a}$"
    folder.mkdir(parents=True)
    path = folder / "a.yaml"
    path.write_text(
        "data: {source: de, target: en, folder: data, train: [a], valid: [b], test: {c: [d]},\n"
        "  bpe: {codes: codes}, vocabulary: {source: s, target: t}}\n"
        "model: {kind: transformer, width: 16, heads: 2, ffn: 16, encoder: {layers: 1},\n"
        "  decoder: {layers: 1}}\n"
        "training: {start_from: run, stages: [{optimizer: adam, batch: {size: 9},\n"
        "  schedule: {kind: constant, rate: 1}, end: {updates: 1}}]}\n"
    )
    recipe = load(path)
    assert recipe.data.test == {"c": [str(folder / "d")]}
    (tmp_path / "dumped.yaml").write_text(sections.dump(recipe))
    assert load(tmp_path / "dumped.yaml") == recipe


def test_a_config_on_standard_input_is_utf_8() -> None:
    stream = io.TextIOWrapper(io.BytesIO("folder: Läufe".encode()), encoding="latin-1")
    assert source._read_once(Path("-"), stream) == "folder: Läufe"


def test_a_resolved_config_is_a_config(toy: Path, tmp_path: Path) -> None:
    """``describe --config`` prints a config that gives the same recipe, from a file or a pipe."""
    runner = CliRunner()
    text = runner.invoke(main, ["describe", str(toy), "--config"]).stdout
    (tmp_path / "full.yaml").write_text(text, encoding="utf-8")
    assert load(tmp_path / "full.yaml") == load(toy)
    again = runner.invoke(main, ["describe", "-", "--config"], input=text)
    assert again.stdout == text
    changed = runner.invoke(main, ["describe", "-", "--set", "model.heads=3"], input=text)
    assert "[standard input, line " in changed.stderr and changed.exit_code == 2
    nameless = runner.invoke(main, ["train", "-", "--prep"], input=text)
    assert nameless.exit_code == 2 and "name the run folder with --run" in nameless.stderr
    assert nameless.output.count("\n") == 1, "the text is not prepared"
    assert runner.invoke(main, ["describe", "-", "--config", "--json"], input=text).exit_code == 2
