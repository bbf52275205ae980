"""``fusetk report --save`` on run folders made by hand."""

import gzip
import itertools
import json
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from fusetk import runs
from fusetk.cli.main import main
from fusetk.errors import DataError
from fusetk.reporting import rename_results, result_files, save_results, score_log
from fusetk.reporting.result_files import (
    SavedWeights,
    columns_bytes,
    read_columns,
    read_result,
    read_results,
    result_text,
)
from fusetk.reporting.result_tables import read_tables
from tests.helpers.results import (
    REFERENCES,
    SESSION,
    SET,
    SOURCES,
    WORSE,
    make_prepared,
    make_recipes,
    make_run,
    write_result,
)
from tests.reporting.conftest import RATE


def call(*words: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, words)])


def save(*words: object) -> str:
    result = call(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stderr


@pytest.fixture
def work(toy: Path, tmp_path: Path) -> Path:
    """Two recipes, and runs of one of them with two seeds and a run with another rate."""
    recipes = make_recipes(
        tmp_path / "recipes", toy, {"plain": {}, "fused": {"model": {"attention_dropout": 0.1}}}
    )
    prepared = make_prepared(tmp_path / "prepared", toy)
    for seed, text in ((1, REFERENCES), (2, WORSE)):
        make_run(
            tmp_path / "runs" / f"a{seed}",
            recipes / "fused.yaml",
            prepared,
            seed,
            {"best": text, "average-2": REFERENCES},
        )
    other = tmp_path / "runs" / "other"
    make_run(other, recipes / "fused.yaml", prepared, 1, {"best": WORSE}, [f"{RATE}=0.02"])
    return tmp_path


def save_all(work: Path) -> str:
    return save(work / "recipes", "--runs", work / "runs", "--save", work / "results")


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_result_has_everything_that_a_report_needs(work: Path) -> None:
    assert "3 results written, 0 unchanged" in save_all(work)
    folder = work / "results"
    assert names(folder)[:3] == [
        "fused.seed1.json",
        "fused.seed1.peak=0.02.json",
        "fused.seed2.json",
    ]
    result = read_result(folder / "fused.seed2.json")
    assert (result.system, result.table, result.row, result.line) == (
        "fused",
        "Systems",
        "fused",
        2,
    )
    assert (result.seed, result.overrides) == (2, {})
    assert result.training.sessions == [SESSION]
    assert result.training.parameters and result.training.parameters > 1000
    assert (result.training.updates, result.training.best_update) == (30, 20)
    assert (result.training.update_seconds, result.training.validation_seconds) == (6.0, 3.0)
    assert (result.training.tokens_per_second, result.training.peak_memory) == (500.0, 2**20)
    assert result.valid_curve["update"] == [10, 20, 30]
    assert result.valid_curve["loss"] == [3.0, 2.0, 2.5] and "bleu" not in result.valid_curve
    assert result.train_curve["loss"] == [2.5, 1.5, 2.0]
    scores = {score.key: score.value for score in result.scores}
    assert scores[SET, "average-2", "multi-bleu"] == pytest.approx(100)
    assert scores[SET, "best", "multi-bleu"] < 90
    assert result.config["training"]["seed"] == 2 and result.config["model"]["width"] == 32
    assert read_result(folder / "fused.seed1.peak=0.02.json").overrides == {RATE: 0.02}


def test_a_result_has_the_curve_of_the_metric_that_chooses_the_best_checkpoint(work: Path) -> None:
    folder = make_run(
        work / "runs" / "chrf",
        work / "recipes" / "fused.yaml",
        work / "prepared",
        3,
        {"best": REFERENCES},
        ["training.validation.metric=chrf"],
    )
    metrics = folder / "metrics.jsonl"
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    values = [30.0, 50.0, 40.0]
    for record, value in zip([r for r in records if r["kind"] == "valid"], values, strict=True):
        record["chrf"] = value
    metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    save_all(work)
    [result] = [r for r in read_results(work / "results").values() if r.seed == 3]
    assert result.valid_curve["chrf"] == values and result.valid_curve["loss"] == [3.0, 2.0, 2.5]


def test_translations_and_texts_can_be_scored_without_the_runs(work: Path) -> None:
    save_all(work)
    folder = work / "results"
    result = read_result(folder / "fused.seed2.json")
    translations = read_columns(result_files.translations_path(folder, "fused.seed2", SET))
    assert list(translations) == result.translations[SET]
    assert translations["best.txt"] == WORSE and translations["average-2.raw"] == REFERENCES
    texts = read_columns(result_files.texts_path(folder, SET, result.texts[SET]))
    assert texts["source.raw"] == SOURCES
    assert texts["reference1.txt"] == texts["reference1.raw"] == REFERENCES
    assert len(list((folder / "texts").iterdir())) == 1, "once for all runs"


def test_results_may_be_in_the_folder_of_the_recipes(work: Path) -> None:
    """With --runs or --save it is the folder of the recipes, otherwise that of the results."""
    recipes, runs = work / "recipes", ("--runs", work / "runs")
    before = call(recipes, *runs).stdout
    save(recipes, *runs, "--save", recipes)
    assert "3 unchanged" in save(recipes, *runs, "--save", recipes)
    assert "0 results written" in save(recipes, "--save", recipes)
    assert call(recipes, *runs).stdout == before
    assert "validation loss" in call(recipes).stdout


def test_no_result_names_a_folder_of_this_machine(work: Path) -> None:
    save_all(work)
    for path in (work / "results").glob("*.json"):
        assert str(work) not in path.read_text() and "/" not in json.dumps(
            read_result(path).config["data"]
        )


def test_a_second_save_changes_no_file(work: Path) -> None:
    save_all(work)
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in (work / "results").rglob("*")
        if path.is_file()
    }
    time.sleep(0.01)
    assert "0 results written, 3 unchanged" in save_all(work)
    after = {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in (work / "results").rglob("*")
        if path.is_file()
    }
    assert after == before


def test_compressed_texts_have_no_time_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"a": ["x", "", "ä b"], "b": ["", "2", "3"]}
    first = columns_bytes(columns)
    monkeypatch.setattr(time, "time", lambda: 2e9)
    assert columns_bytes(columns) == first
    assert gzip.decompress(first).decode() == "a\tb\nx\t\n\t2\nä b\t3\n"


def test_a_tab_of_a_text_is_a_backslash_and_t_in_its_column() -> None:
    columns = {"a": ["x\ty", r"C:\new\\", r"C:\to"], "b": ["1", "2", "3"]}
    rows = gzip.decompress(columns_bytes(columns)).decode().splitlines()
    assert rows == ["a\tb", "x\\ty\t1", "C:\\new\\\\\t2", "C:\\\\to\t3"]


def test_all_texts_with_tabs_and_backslashes_are_read_as_written(tmp_path: Path) -> None:
    lines = ["".join(letters) for n in range(7) for letters in itertools.product("\\\tt", repeat=n)]
    (tmp_path / "a").write_bytes(columns_bytes({"a": lines, "b": lines[::-1]}))
    assert read_columns(tmp_path / "a") == {"a": lines, "b": lines[::-1]}


def test_texts_with_tabs_are_saved(work: Path) -> None:
    source = work / "prepared" / f"test.{SET}.de.raw"
    source.write_text(source.read_text().replace("eins zwei\n", "eins\tzwei\n", 1))
    save_all(work)
    folder = work / "results"
    checksum = read_result(folder / "fused.seed1.json").texts[SET]
    assert read_columns(result_files.texts_path(folder, SET, checksum))["source.raw"] == [
        "eins\tzwei",
        *SOURCES[1:],
    ]


@pytest.mark.parametrize("columns", [{"a": ["x", "y"]}, {"a": [""], "b": [""]}, {"a": []}])
def test_columns_are_read_as_written(columns: dict[str, list[str]], tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(columns_bytes(columns))
    assert read_columns(tmp_path / "a") == columns


def test_columns_that_are_no_table_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a has 1, b has 2"):
        columns_bytes({"a": ["x"], "b": ["y", "z"]})
    for content in (b"no gzip", columns_bytes({"a": ["x"]})[:-9], gzip.compress(b"a\tb\nx\n")):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(DataError, match="is damaged"):
            read_columns(tmp_path / "a")


def test_another_config_gets_the_name_of_its_row_if_the_recipe_adopts_it(work: Path) -> None:
    save_all(work)
    path = work / "recipes" / "fused.yaml"
    values = yaml.safe_load(path.read_text())
    base = yaml.safe_load(Path(values["extends"]).read_text())["training"]["stages"]
    base[0]["schedule"]["peak"] = 0.02
    path.write_text(yaml.safe_dump({**values, "training": {"stages": base}}))
    folder = work / "results"
    other = read_columns(result_files.translations_path(folder, "fused.seed1.peak=0.02", SET))
    save(work / "recipes", "--save", folder)
    assert [name for name in names(folder) if name.endswith(".json")] == [
        "fused.seed1.json",
        "fused.seed1.peak=0.01.json",
        "fused.seed2.peak=0.01.json",
    ]
    assert read_result(folder / "fused.seed1.json").overrides == {}
    assert read_columns(result_files.translations_path(folder, "fused.seed1", SET)) == other
    renamed = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert "0 results written, 3 unchanged" in save_all(work)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == renamed


def test_layer_weights_without_a_checkpoint_belong_to_the_same_config(work: Path) -> None:
    """The checkpoints were removed, and the recipe adopts the values of another run."""
    save_all(work)
    folder = work / "results"
    for stem in ("fused.seed1", "fused.seed1.peak=0.02"):
        weights = SavedWeights(checkpoint="best", weights=stem, text="test", sentences=1, panels=[])
        path = folder / f"{stem}.json"
        write_result(path, read_result(path), layer_weights=[weights])
    path = work / "recipes" / "fused.yaml"
    values = yaml.safe_load(path.read_text())
    base = yaml.safe_load(Path(values["extends"]).read_text())["training"]["stages"]
    base[0]["schedule"]["peak"] = 0.02
    path.write_text(yaml.safe_dump({**values, "training": {"stages": base}}))
    save_all(work)
    weights_of = {
        stem: [each.weights for each in read_result(folder / f"{stem}.json").layer_weights]
        for stem in ("fused.seed1", "fused.seed1.peak=0.01")
    }
    assert weights_of == {
        "fused.seed1": ["fused.seed1.peak=0.02"],
        "fused.seed1.peak=0.01": ["fused.seed1"],
    }


@pytest.mark.parametrize("key", ["model.attention_dropout", RATE])
def test_a_save_that_was_killed_while_it_renamed_results_continues(
    work: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    make_run(
        work / "runs" / "changed",
        work / "recipes" / "fused.yaml",
        work / "prepared",
        1,
        {"best": [*WORSE[:4], *REFERENCES[4:]]},
        [f"{key}=0.25"],
    )
    save_all(work)
    path = work / "recipes" / "fused.yaml"
    adopted = yaml.safe_load(path.read_text())
    base = yaml.safe_load(Path(adopted["extends"]).read_text())["training"]["stages"]
    if key == RATE:
        base[0]["schedule"]["peak"] = 0.25
        adopted["training"] = {"stages": base}
    else:
        adopted["model"]["attention_dropout"] = 0.25
    path.write_text(yaml.safe_dump(adopted))

    def contents(folder: Path) -> dict[str, bytes]:
        return {name: (folder / name).read_bytes() for name in names(folder)}

    shutil.copytree(work / "results", work / "expected")
    save(work / "recipes", "--save", work / "expected")
    write = save_results.write_if_changed
    for number in itertools.count():
        folder = work / f"killed{number}"
        shutil.copytree(work / "results", folder)
        left = [number]

        def killed(path: Path, content: bytes, left: list[int] = left) -> bool:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return write(path, content)

        with monkeypatch.context() as patch:
            for module in (save_results, rename_results):
                patch.setattr(module, "write_if_changed", killed)
            finished = call(work / "recipes", "--save", folder).exit_code == 0
        save(work / "recipes", "--save", folder)
        assert contents(folder) == contents(work / "expected"), number
        if finished:
            break
    assert number >= 6  # a result and its translations, of three runs


def test_configs_that_differ_in_options_of_another_component_have_two_names(work: Path) -> None:
    """The recipe's connection has no growth, so only the two runs have this key."""
    for seed, growth in ((1, 32), (2, 64)):
        make_run(
            work / "runs" / f"dense{growth}",
            work / "recipes" / "plain.yaml",
            work / "prepared",
            seed,
            {"best": WORSE},
            [f"model.encoder.connect={{kind: dense, growth: {growth}}}"],
        )
    save_all(work)
    folder = work / "results"
    stems = [path.stem for path in sorted(folder.glob("plain.*.json"))]
    for stem, seed, growth in zip(stems, (1, 2), (32, 64), strict=True):
        assert stem.startswith(f"plain.seed{seed}.encoder.connect.kind=dense")
        assert f".growth={growth}" in stem
    [table] = read_tables(folder, {})
    [row] = [row for row in table.rows if row.name == "plain"]
    assert len(row.runs) == len(row.other_runs) == 1


def test_a_long_file_name_has_a_checksum_of_the_values(work: Path) -> None:
    for width in (32, 64):
        settings = [f"model={{kind: recurrent, width: {width}}}"]
        folder, recipe = work / "runs" / str(width), work / "recipes" / "plain.yaml"
        make_run(folder, recipe, work / "prepared", 1, {"best": WORSE}, settings)
    save_all(work)
    stems = [path.stem for path in (work / "results").glob("plain.*.json")]
    assert len(stems) == 2
    assert all(re.fullmatch(r"plain\.seed1\.[0-9a-f]{8}", stem) for stem in stems)


def test_missing_translations_of_a_renamed_result_are_named(work: Path) -> None:
    save_all(work)
    for path in (work / "recipes").iterdir():
        values = yaml.safe_load(path.read_text())
        values["paper"]["row"] += ", renamed"
        path.write_text(yaml.safe_dump(values))
    missing = result_files.translations_path(work / "results", "fused.seed2", SET)
    missing.unlink()
    result = call(work / "recipes", "--save", work / "results")
    assert result.exit_code == 2
    assert f"{missing} is missing: restore it, or save the results again" in result.stderr


def test_twins_are_an_error(work: Path, toy: Path) -> None:
    make_run(
        work / "runs" / "twin",
        work / "recipes" / "fused.yaml",
        work / "prepared",
        2,
        {"best": WORSE},
    )
    result = call(work / "recipes", "--runs", work / "runs", "--save", work / "results")
    assert result.exit_code == 2
    assert "a2 and" in result.stderr and "twin have the same system, seed" in result.stderr
    assert not (work / "results").exists()


def test_recipes_with_one_file_name_are_an_error(work: Path, toy: Path) -> None:
    make_recipes(work / "recipes" / "more", toy, {"plain": {"paper": {"row": "other"}}})
    result = call(work / "recipes", "--save", work / "results")
    assert result.exit_code == 2 and "have the same file name" in result.stderr


def test_the_references_are_those_of_the_prepared_text_of_the_run(tmp_path: Path) -> None:
    """Another row of the experiment has its own prepared text and its own references."""
    for name, line in (("a", "one"), ("a.0123", "two")):
        prepared, further = tmp_path / f"data.{name}", tmp_path / f"references.{name}" / "set"
        further.mkdir(parents=True)
        prepared.mkdir()
        for file in (prepared / "test.set.de.raw", prepared / "test.set.en.raw"):
            file.write_text(f"{line}\n")
        (further / "1.raw").write_text(f"further {line}\n")
    for name, line in (("a", "one"), ("a.0123", "two")):
        references = [[line], [f"further {line}"]]
        record = SimpleNamespace(
            set_name="set", metric="chrf", references=score_log.fingerprint(references)
        )
        # No report reads the text of a metric outside fusetk.
        outside = SimpleNamespace(set_name="set", metric="absent:Words", references="0")
        settings = {"source": "de", "target": "en", "folder": str(tmp_path / f"data.{name}")}
        run: Any = SimpleNamespace(
            folder=tmp_path / f"run.{name}",
            setting=lambda section, key, settings=settings: settings[key],
            records=[record, outside],
        )
        texts = save_results._texts(run, "set")
        assert [texts["reference1.raw"], texts["reference2.raw"]] == references


def test_results_say_that_a_lower_score_of_a_metric_outside_fusetk_is_better(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = work / "metrics"
    metrics.mkdir()
    (metrics / "own_errors.py").write_text(
        "from fusetk.evaluation.sacrebleu_metrics import Ter\nclass Errors(Ter):\n    pass\n"
    )
    name = "own_errors:Errors"
    monkeypatch.syspath_prepend(str(metrics))
    recipes, prepared = work / "recipes", work / "prepared"
    for recipe, text in (("plain", WORSE), ("fused", REFERENCES)):
        run, path = work / "runs" / f"e.{recipe}", recipes / f"{recipe}.yaml"
        make_run(run, path, prepared, 3, {"best": text}, metrics=[name, "chrf"])
    save_all(work)
    saved = json.loads((work / "results" / "fused.seed3.json").read_text())
    assert {score["metric"]: score.get("lower_is_better") for score in saved["scores"]} == {
        name: True,
        "chrf": None,
    }
    [table] = read_tables(work / "results", {"set-name": [], "checkpoint": [], "metric": [name]})
    [column] = table.columns
    [fused] = [row for row in table.rows if row.first.system == "fused"]
    compared = table.compare(fused, column)
    assert compared and compared.difference < 0 and compared.improves


def test_outdated_scores_are_left_out(work: Path) -> None:
    save_all(work)
    result = work / "results" / "fused.seed2.json"
    before = {score.key for score in read_result(result).scores}
    scores = work / "runs" / "a2" / "scores.json"
    scores.write_text(scores.read_text().replace('"updates": 30', '"updates": 20', 1))
    assert "1 result written, 2 unchanged" in save_all(work)
    left = {score.key for score in read_result(result).scores}
    assert left < before and len(left) == len(before) - 1


def test_runs_without_complete_results_are_left_out(work: Path) -> None:
    (work / "runs" / "a1" / "scores.json").unlink()
    state = work / "runs" / "a2" / "checkpoints" / "last" / "state.json"
    state.write_text(json.dumps({"format": 1, "progress": {"update": 40}, "data": "d" * 64}))
    told = save_all(work)
    assert "a1 is omitted: it has no score" in told
    assert "a2 is omitted: it was trained further" in told
    assert "1 result written" in told


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("scores.json", '"sentences": 5', '"sentences": null'),
        ("scores.json", '"sentences": 5', '"sentences": "x"'),
        ("scores.json", '"details": "', '"details": 7, "signature": "'),
        ("scores.json", '"value": ', '"value": true, "x": '),
        ("scores.json", '"value": ', f'"value": 1{"0" * 400}'),
        ("scores.json", '"updates": 30', '"updates": true'),
        ("scores.json", '"lower_is_better": false', '"lower_is_better": 0'),
        ("scores.json", '"data": "', '"data": 7, "signature": "'),
        ("metrics.jsonl", '"update": 10', '"update": NaN'),
        ("metrics.jsonl", '"update": 10', '"update": 1e400'),
        ("metrics.jsonl", '"update": 10', f'"update": 1{"0" * 400}'),
        ("metrics.jsonl", '"loss": 2.5', '"loss": "x"'),
        ("metrics.jsonl", '"seconds": 1.0', '"seconds": [1]'),
        ("metrics.jsonl", '"epoch": 0.5', '"epoch": true'),
        ("config.yaml", "seed: 1", "seed: [1]"),
        ("config.yaml", "seed: 1", "seed: true"),
        ("config.yaml", "precision: fp32", "precision: [1]"),
    ],
)
def test_a_run_with_a_damaged_file_is_left_out(work: Path, name: str, old: str, new: str) -> None:
    path = work / "runs" / "a1" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    output = save_all(work)
    assert re.search(rf"warning: {path}\S* (line \d+ )?is damaged", output)
    assert "omitted" in output and "2 results written" in output


def test_a_run_without_a_section_of_its_config_is_left_out(work: Path) -> None:
    path = work / "runs" / "a1" / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "training": None}))
    assert "a1 is omitted: its config has no section training" in save_all(work)


def test_numbers_of_metrics_that_are_not_finite_are_not_saved(work: Path) -> None:
    path = work / "runs" / "a1" / "metrics.jsonl"
    text = path.read_text().replace('"loss": 2.5', '"loss": NaN', 1)
    text = text.replace('"memory": ', '"memory": 1e400, "grad_norm": ', 1)
    path.write_text(text.replace('"seconds": 1.0', '"seconds": NaN', 1) + '{"kind')
    assert "3 results written" in (output := save_all(work))
    assert "the last line (7) is damaged and was skipped" in output
    result = read_result(work / "results" / "fused.seed1.json")
    assert result.train_curve["loss"] == [None, 1.5, 2.0]
    assert (result.training.validation_seconds, result.training.peak_memory) == (2.0, 2**20)


def test_other_references_than_those_of_the_scores_are_not_saved(work: Path) -> None:
    (work / "prepared" / f"test.{SET}.en.txt").write_text("x\n" * 5)
    told = save_all(work)
    assert "is not the reference of the scores" in told
    result = read_result(work / "results" / "fused.seed1.json")
    assert result.translations == {} and result.texts == {} and len(result.scores) == 4


def test_incomplete_translations_are_not_saved(work: Path) -> None:
    path = work / "runs" / "a1" / f"{SET}.best.raw"
    assert path.is_file()
    path.write_text("x\n" * 2)
    assert "best.raw has 2 lines, and the source has 5" in save_all(work)
    result = read_result(work / "results" / "fused.seed1.json")
    assert result.translations == {} and result.texts == {} and len(result.scores) == 4


def repeat_first(text: str, key: str) -> str:
    """Return a result file in which a list has its first entry twice."""
    values = json.loads(text)
    values[key].insert(0, values[key][0])
    return json.dumps(values)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text[:200], "is damaged"),
        (lambda text: re.sub(r'"texts": \{[^}]*\}', '"texts": {}', text), "no texts of"),
        (lambda text: '{"a": 1}', r"is not a result of `fusetk report --save` \((format|system): "),
        (lambda text: "[1]", "is not a result"),
        (lambda text: text.replace('"seed": 1', '"seed": "one"', 1), r"\(seed: "),
        (lambda text: text.replace('"format": 1', '"format": 2', 1), "newer fusetk"),
        (lambda text: re.sub('"value": [0-9.]+', '"value": NaN', text, count=1), "value: "),
        (
            lambda text: text.replace('"config": {', '"config": {}, "x": {'),
            "config: no section d",
        ),
        (lambda text: text.replace('  "training": {', '  "training": 3, "x": {'), "no section tr"),
        (lambda text: "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "damaged"),
        (lambda text: repeat_first(text, "scores"), r"two scores have the key flickr, best, "),
        (
            lambda text: re.sub(r'("valid_curve": \{\s*"update": \[)', r"\g<1>0, ", text),
            r"\(valid_curve: the columns have different lengths\)",
        ),
    ],
)
def test_damaged_results_are_errors_that_name_the_file(
    work: Path, change: object, reason: str
) -> None:
    save_all(work)
    path = work / "results" / "fused.seed1.json"
    text = path.read_text()
    changed = change(text)  # type: ignore[operator]
    assert changed != text
    path.write_text(changed)
    result = call(work / "recipes", "--save", work / "results")
    assert result.exit_code == 2 and str(path) in result.stderr
    assert re.search(reason, result.stderr)


def test_results_are_read_as_written(work: Path) -> None:
    save_all(work)
    for path in (work / "results").glob("*.json"):
        assert result_text(read_result(path)) == path.read_text()


def test_a_folder_that_cannot_be_made_is_an_error(work: Path) -> None:
    (work / "file").write_text("")
    result = call(work / "recipes", "--runs", work / "runs", "--save", work / "file" / "results")
    assert result.exit_code == 2 and "cannot be written" in result.stderr


def test_sessions_whose_updates_are_repeated_are_forgotten(tmp_path: Path) -> None:
    for update in (0, 40, 80, 40):
        runs.add_session(tmp_path, runs.Session(**{**SESSION.__dict__, "update": update}))
    assert [session.update for session in runs.read_sessions(tmp_path)] == [0, 40]
    with (tmp_path / runs.SESSIONS).open("a") as file:
        file.write("{damaged\n")
    assert len(runs.read_sessions(tmp_path)) == 2
    damaged = (tmp_path / runs.SESSIONS).read_text().replace('"update": 40', '"update": null')
    (tmp_path / runs.SESSIONS).write_text(damaged)
    assert [session.update for session in runs.read_sessions(tmp_path)] == [0]
