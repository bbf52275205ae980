"""``fusetk report`` on run folders made by hand."""

import csv
import json
import re
import statistics
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

import fusetk
from fusetk import config, recipe, runs
from fusetk.cli.main import main
from fusetk.cli.tables import show
from fusetk.errors import CheckpointError, ConfigError, DataError
from fusetk.experiment.places import Places
from fusetk.reporting import score_log
from fusetk.reporting.result_files import read_results
from fusetk.reporting.score_log import ScoreRecord

TABLE = "A Paper, Table 1"
FOLDERS = sorted(
    path
    for path in (Path(fusetk.__file__).parent.parent / "recipes" / "mlrf").glob("*")
    if path.is_dir()
)


def call(*words: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, words)])


def report(*words: object) -> str:
    result = call(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def tables(*words: object) -> Any:
    return json.loads(report(*words, "--json"))


def line(output: str, begin: str) -> list[str]:
    """The cells of a row of the plain table."""
    [row] = [line for line in output.splitlines() if line.startswith(begin)]
    return row.split()


@pytest.fixture
def recipes(toy: Path, tmp_path: Path) -> Path:
    """Three rows of a table, printed out of order, and a base without a row. Configs differ."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    papers: dict[str, dict[str, Any]] = {
        "base": {"table": TABLE},
        "a_wide": {"table": TABLE, "row": "wide", "line": 3, "bleu": 32.97},
        "b_plain": {"table": TABLE, "row": "plain", "line": 1, "bleu": 32.6},
        "c_none": {"table": TABLE, "row": "none", "line": 2},
    }
    rates = {"a_wide": 0.01, "c_none": 0.02}
    for name, paper in papers.items():
        values: dict[str, Any] = {"extends": str(toy), "paper": paper}
        if name in rates:
            values["model"] = {"attention_dropout": rates[name]}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(values))
    return folder


def make_run(
    folder: Path,
    recipe_path: Path,
    seed: int,
    *scores: ScoreRecord,
    updates: int = 100,
    settings: tuple[str, ...] = (),
) -> Path:
    """Make a run folder with a config, a state and scores, but without weights."""
    folder.mkdir(parents=True)
    loaded = recipe.load(recipe_path, [f"training.seed={seed}", *settings])
    (folder / "config.yaml").write_text(config.dump(loaded))
    state = folder / "checkpoints" / "last" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps({"format": 1, "progress": {"update": updates}, "data": "d" * 64}))
    if scores:
        score_log.write(folder, scores)
    return folder


def bleu(
    value: float,
    set_name: str = "test",
    checkpoint: str = "best",
    metric: str = "multi-bleu",
    **others: Any,
) -> ScoreRecord:
    return ScoreRecord(
        set_name, checkpoint, metric, value, "sig", "", 2, "r" * 64, **{"updates": 100, **others}
    )


# The table ----------------------------------------------------------------------------------------


def test_printed_figures_and_counts_without_runs(recipes: Path) -> None:
    output = report(recipes)
    rows = output.splitlines()
    assert rows[0] == TABLE
    assert rows[1].split() == ["parameters", "ours", "BLEU", "Δ"]
    assert [row.split()[0] for row in rows[2:5]] == ["plain", "none", "wide"]
    assert line(output, "wide")[3:] == ["32.97", "+0.37"]
    assert line(output, "plain")[3:] == ["32.60"], "as many digits as the column has"
    assert line(output, "none")[3:] == ["-", "-"]
    assert "the prepared data's vocabulary," in output and "measured" not in output


def test_mean_deviation_and_number_of_seeds(recipes: Path, tmp_path: Path) -> None:
    values = [41.0, 41.5, 40.2]
    for seed, value in enumerate(values):
        make_run(
            tmp_path / "runs" / "wide" / f"seed{seed}", recipes / "a_wide.yaml", seed, bleu(value)
        )
    make_run(tmp_path / "runs" / "plain", recipes / "b_plain.yaml", 1, bleu(40.0))
    output = report(recipes, "--runs", tmp_path / "runs")
    mean = statistics.mean(values)
    assert line(output, "wide")[-4:] == [
        f"{mean:.2f}",
        f"±{statistics.stdev(values):.2f}",
        "(3)",
        f"{mean - 40:+.2f}",
    ]
    assert line(output, "plain")[-2:] == ["40.00", "(1)"]
    assert line(output, "none")[-2:] == ["-", "-"]
    assert "measured: test, best, multi-bleu; mean" in output
    assert (
        "differ" not in output
        and "updates" not in output
        and "differs from the recipe" not in output
        and "seed:" not in output
    )
    [table] = tables(recipes, "--runs", tmp_path / "runs")["tables"]
    [score] = table["rows"][2]["measured"]
    assert score == {
        "set_name": "test",
        "checkpoint": "best",
        "metric": "multi-bleu",
        "mean": pytest.approx(mean),
        "deviation": pytest.approx(statistics.stdev(values)),
        "runs": 3,
        "difference": pytest.approx(mean - 40),
    }
    assert [run["seed"] for run in table["rows"][2]["runs"]] == [0, 1, 2]
    assert table["rows"][1]["measured"] == [] and table["warnings"] == []


@pytest.mark.parametrize("text", ['{"panels": []}', "[]", "{", "\x00"])
def test_a_folder_of_recipes_may_have_other_json_files(recipes: Path, text: str) -> None:
    before = report(recipes)
    (recipes / "heat.json").write_text(text)
    assert report(recipes) == before


def test_markdown_has_the_table_and_its_notes(recipes: Path, tmp_path: Path) -> None:
    make_run(tmp_path / "run", recipes / "b_plain.yaml", 1, bleu(40.0))
    text = report(recipes, "--runs", tmp_path / "run", "--markdown")
    rows = [row for row in text.splitlines() if row.startswith("|")]
    assert text.startswith(f"**{TABLE}**\n\n|")
    assert len(rows) == 5 and len({row.count("|") for row in rows}) == 1
    assert rows[2].startswith("| plain | - |") and "| 40.00 (1) |" in rows[2]
    assert text.splitlines()[-1].startswith("- measured: test, best")
    assert call(recipes, "--json", "--markdown").exit_code == 2


def test_no_cell_is_cut_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    cells = ["[red]", "1.0", *[f"{i:.10f}" for i in range(9)]]
    show("[b]title", [""] * len(cells), [cells], ["a line"])
    output = capsys.readouterr().out
    assert all(text in output for text in ("[b]title", "a line", "───", *cells)), (
        "no cell is cut on a narrow terminal"
    )


def test_a_column_for_each_set_checkpoint_and_metric(recipes: Path, tmp_path: Path) -> None:
    scores = [
        bleu(1.0),
        bleu(2.0, checkpoint="average-5"),
        bleu(3.0, metric="ter"),
        bleu(4.0, set_name="a set"),
    ]
    make_run(tmp_path / "run", recipes / "b_plain.yaml", 1, *scores)
    rows = report(recipes, "--runs", tmp_path / "run").splitlines()
    names = ("a set best multi-bleu", "test best multi-bleu", "test best ter", "test average-5")
    places = [rows[1].index(f"measured {name}") for name in names]
    assert places == sorted(places)
    chosen = report(recipes, "--runs", tmp_path / "run", "--checkpoint", "average-5")
    assert (
        line(chosen, "plain")[-2:] == ["2.00", "(1)"]
        and "measured: test, average-5, multi-bleu;" in chosen
    )
    rows = report(
        recipes, "--runs", tmp_path / "run", "--set-name", "test", "--metric", "multi-bleu"
    ).splitlines()
    assert rows[1].split()[4:] == ["measured", "best", "Δ", "measured", "average-5", "Δ"]
    result = call(recipes, "--runs", tmp_path / "run", "--checkpoint", "last")
    assert (
        result.exit_code == 2
        and "--checkpoint last: there is no such score; choose from best, average-5"
        in result.stderr
    )


def test_bleu_of_several_sets_has_a_column_each(toy: Path, tmp_path: Path) -> None:
    for number, printed in enumerate([{"tst13": 30.1, "tst12": 28.0}, {"tst13": 31.0}], 1):
        paper = {"table": TABLE, "row": f"row{number}", "line": number, "bleu": printed}
        values = {
            "extends": str(toy),
            "paper": paper,
            "model": {"attention_dropout": number / 100},
        }
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    make_run(tmp_path / "runs" / "x", tmp_path / "1.yaml", 1, bleu(5, "tst12"), bleu(6, "tst13"))
    output = report(tmp_path / "1.yaml", tmp_path / "2.yaml", "--runs", tmp_path / "runs")
    assert output.splitlines()[1].split()[2:6] == ["BLEU", "tst13", "Δ", "BLEU"]
    assert line(output, "row1")[3:] == ["30.1", "28.0", "6.00", "(1)", "5.00", "(1)"]
    assert line(output, "row2")[3:] == ["31.0", "+0.9", "-", "-", "-", "-", "-", "-"]


def test_a_count_that_does_not_add_up_has_a_footnote(toy: Path, tmp_path: Path) -> None:
    for number, (printed, note) in enumerate(
        [("0.03M", None), ("9.99M", "A misprint."), (None, None)], 1
    ):
        paper = {
            "table": TABLE,
            "row": f"row{number}",
            "line": number,
            "parameters": printed,
            "vocabulary": [100, 100],
            "note": note,
        }
        (tmp_path / f"{number}.yaml").write_text(
            yaml.safe_dump({"extends": str(toy), "paper": paper})
        )
    rows = tables(tmp_path)["tables"][0]["rows"]
    assert [row["parameters"]["adds_up"] for row in rows] == [True, False, None]
    total = rows[0]["parameters"]["ours"]
    output = report(tmp_path)
    assert line(output, "row2")[0] == "row2¹" and line(output, "row1")[0] == "row1"
    assert (
        f"¹ the paper prints 9.99M, the described system has {total:,} parameters; A misprint."
        in output
    )
    assert "with the vocabulary of the recipe, 100 and 100" in output


def test_parameters_are_unknown_without_any_vocabulary(recipes: Path, tmp_path: Path) -> None:
    path = recipes / "d.yaml"
    values = {
        "extends": "b_plain.yaml",
        "data": {"folder": "nowhere"},
        "paper": {"row": "unprepared"},
    }
    path.write_text(yaml.safe_dump(values))
    assert line(report(path), "unprepared")[1:3] == ["-", "-"]
    text = make_run(tmp_path / "run", path, 1, bleu(1.0)) / "text"
    text.symlink_to(Path(recipe.load(recipes / "b_plain.yaml").data.folder) / "text")
    output = report(path, "--runs", tmp_path / "run")
    assert "the runs' vocabulary," in output and line(output, "unprepared")[2].endswith("M")


def test_parameters_of_a_run_are_those_of_its_own_model(
    recipes: Path, toy: Path, tmp_path: Path
) -> None:
    path = recipes / "b_plain.yaml"
    text = Path(recipe.load(toy).data.folder) / "text"
    same = make_run(tmp_path / "same" / "run", path, 1, bleu(1.0)) / "text"
    same.symlink_to(text)
    [row] = tables(path, "--runs", tmp_path / "same")["tables"][0]["rows"]
    assert row["parameters"]["trained"] is None
    settings = ("model.ffn=96",)
    larger = make_run(tmp_path / "larger" / "run", path, 1, bleu(1.0), settings=settings) / "text"
    larger.symlink_to(text)
    [row] = tables(path, "--runs", tmp_path / "larger")["tables"][0]["rows"]
    # One layer a side: two matrices of the feed-forward network, and the bias of the first.
    assert row["parameters"]["trained"] - row["parameters"]["ours"] == 2 * (96 - 64) * (2 * 32 + 1)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_recipes_of_the_project_can_be_reported(folder: Path) -> None:
    reported = tables(folder)["tables"]
    assert reported and all(
        row["parameters"]["ours"] or not row["recipe"]
        for table in reported
        for row in table["rows"]
    )


# Scores as the paper has them ---------------------------------------------------------------------


SETS = ["a", "b"]


@pytest.fixture
def printed(toy: Path, tmp_path: Path) -> Path:
    """Recipes of three rows whose published values are in a file, and a row of other authors."""
    folder = tmp_path / "printed"
    folder.mkdir()
    rows = [
        {"row": "theirs", "authors": "Other 2016", "bleu": 20.0},
        {"row": "base", "bleu": 30.0},
        {"row": "big", "bleu": 33.0, "compared_with": "big", "checkpoint": "average-2"},
        {"row": "bigger", "bleu": 34.5, "compared_with": "big", "checkpoint": "average-2"},
    ]
    table = {
        "metric": "multi-bleu-lc",
        "checkpoint": "best",
        "average": SETS,
        "compared_with": "base",
        "rows": rows,
    }
    again = {**table, "average": None, "rows": [{"row": "base again", "bleu": {"a": 31.0}}]}
    (folder / "papers.txt").write_text(yaml.safe_dump({"tables": {TABLE: table, "T2": again}}))
    for name, title, row, rate in (
        ("1", TABLE, "base", 0.01),
        ("2", TABLE, "big", 0.02),
        ("3", TABLE, "bigger", 0.03),
        ("4", "T2", "base again", 0.01),
    ):
        values = {
            "extends": str(toy),
            "model": {"attention_dropout": rate},
            "paper": {"tables": "papers.txt", "table": title, "row": row},
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(values))
    return folder


def scores_of(checkpoint: str, *values: float, metric: str = "multi-bleu-lc") -> list[ScoreRecord]:
    return [bleu(value, name, checkpoint, metric) for name, value in zip(SETS, values, strict=True)]


def test_published_values_come_from_the_file_of_tables(printed: Path) -> None:
    paper = recipe.load(printed / "3.yaml").paper
    assert paper and (paper.bleu, paper.line, paper.average) == (34.5, 4, SETS)
    assert (paper.metric, paper.checkpoint, paper.compared_with) == (
        "multi-bleu-lc",
        "average-2",
        "big",
    )
    own = recipe.load(printed / "3.yaml", ["paper.bleu=1"]).paper
    assert own and own.bleu == 1
    for override, said in (
        ("paper.row=biger", "has no row 'biger'; did you mean 'bigger'?"),
        ("paper.table=T9", "has no table 'T9'"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            recipe.load(printed / "3.yaml", [override])


def test_a_run_keeps_its_published_values_without_the_file(printed: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", printed / "2.yaml", 1)
    (printed / "papers.txt").unlink()
    paper = recipe.load(run / "config.yaml").paper
    assert paper and (paper.bleu, paper.tables) == (33.0, None)


def test_the_average_of_the_sets_is_beside_the_printed_one(printed: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    make_run(runs / "base", printed / "1.yaml", 1, *scores_of("best", 10.0, 20.0))
    make_run(runs / "big", printed / "2.yaml", 1, *scores_of("average-2", 20.0, 21.0))
    make_run(runs / "bigger", printed / "3.yaml", 1, *scores_of("average-2", 21.0, 23.0)[:1])
    (table, second) = tables(printed, "--runs", runs)["tables"]
    means = [[score["mean"] for score in row["measured"]] for row in table["rows"]]
    assert means == [[], [15.0], [20.5], []], "one of two sets has no average"
    assert table["rows"][1]["measured"][0]["set_name"] == "average"
    assert table["rows"][2]["measured"][0]["checkpoint"] == "average-2"
    assert [score["mean"] for row in second["rows"] for score in row["measured"]] == [10.0]
    assert [row["compared_with"] for row in table["rows"]] == ["base", "base", "big", "big"]
    output = report(printed, "--runs", runs)
    assert line(output, "theirs")[1:] == ["-", "-", "20.0", "-10.0", "-", "-"]
    assert line(output, "bigger")[3:5] == ["34.5", "+1.5"]
    assert "measured: average, best or average-2, multi-bleu-lc; mean" in output


def test_a_row_of_a_user_has_the_average_of_the_table(printed: Path, toy: Path) -> None:
    values = {
        "extends": str(toy),
        "model": {"attention_dropout": 0.04},
        "paper": {"table": TABLE, "row": "mine"},
    }
    (printed / "mine.yaml").write_text(yaml.safe_dump(values))
    run = make_run(printed / "runs" / "mine", printed / "mine.yaml", 1, *scores_of("best", 12, 24))
    table, _ = tables(printed, "--runs", run)["tables"]
    [mine] = [row for row in table["rows"] if row["row"] == "mine"]
    assert [score["mean"] for score in mine["measured"]] == [18.0]


def test_a_run_serves_each_row_with_its_config(printed: Path, tmp_path: Path) -> None:
    make_run(tmp_path / "run", printed / "4.yaml", 1, *scores_of("best", 10.0, 20.0))
    first, second = tables(printed, "--runs", tmp_path / "run")["tables"]
    assert [len(row["runs"]) for row in first["rows"]] == [0, 1, 0, 0]
    assert [len(row["runs"]) for row in second["rows"]] == [1]
    assert not first["warnings"] and not second["warnings"]


def test_a_misspelt_key_of_a_row_is_an_error(toy: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(yaml.safe_dump({"extends": str(toy), "paper": {"table": TABLE, "rwo": "one"}}))
    result = call(path)
    assert result.exit_code == 2 and "paper.rwo: unknown key; did you mean 'row'?" in result.stderr


def test_runs_that_were_scored_otherwise_are_named(printed: Path, tmp_path: Path) -> None:
    scores = [
        *scores_of("best", 1.0, 2.0, metric="sacrebleu"),
        *scores_of("last", 3.0, 4.0),
    ]
    make_run(tmp_path / "run", printed / "2.yaml", 1, *scores)
    [table, _] = tables(printed, "--runs", tmp_path / "run")["tables"]
    assert table["warnings"] == [
        "not scored as in the paper: run: best by sacrebleu, last by multi-bleu-lc, not "
        "average-2 by multi-bleu-lc (--all shows the scores)"
    ]
    for words in (["--all"], ["--checkpoint", "last"], ["--metric", "sacrebleu"]):
        [table, _] = tables(printed, "--runs", tmp_path / "run", *words)["tables"]
        assert table["rows"][2]["measured"] and not table["warnings"]


def test_a_row_without_a_metric_is_scored_as_the_other_rows(recipes: Path, tmp_path: Path) -> None:
    plain = recipes / "b_plain.yaml"
    values = yaml.safe_load(plain.read_text())
    values["paper"] |= {"metric": "multi-bleu", "checkpoint": "best"}
    plain.write_text(yaml.safe_dump(values))
    make_run(tmp_path / "runs" / "plain", plain, 1, bleu(30.0))
    make_run(tmp_path / "runs" / "wide", recipes / "a_wide.yaml", 1, bleu(31.0))
    other = bleu(33.0, metric="chrf")
    make_run(tmp_path / "runs" / "none", recipes / "c_none.yaml", 1, other)
    output = report(recipes, "--runs", tmp_path / "runs")
    assert "measured: test, best, multi-bleu;" in output
    assert line(output, "wide")[-3:] == ["31.00", "(1)", "+1.00"]
    assert "not scored as in the paper: none: best by chrf, not best by multi-bleu" in output


def test_a_row_that_is_compared_with_a_missing_row_is_named(recipes: Path) -> None:
    assert "no difference" not in report(recipes)
    wide = recipes / "a_wide.yaml"
    values = yaml.safe_load(wide.read_text())
    values["paper"]["compared_with"] = "plane"
    wide.write_text(yaml.safe_dump(values))
    assert "wide: no difference, because no row of the table is 'plane'" in report(recipes)


def test_the_best_validation_is_beside_the_printed_one(toy: Path, tmp_path: Path) -> None:
    paper = {"table": TABLE, "row": "one", "valid": 34.1, "bleu": 32.6}
    paper |= {"metric": "multi-bleu-lc", "checkpoint": "best"}
    values = {"extends": str(toy), "paper": paper, "data": {"steps": [{"step": "lowercase"}]}}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(values))
    run = make_run(tmp_path / "run", tmp_path / "one.yaml", 1, bleu(30.0, metric="multi-bleu-lc"))
    records = [
        {"kind": "valid", "update": 1, "bleu": 33.5, "best": True},
        {"kind": "valid", "update": 2, "bleu": 33.0, "best": False},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    output = report(tmp_path / "one.yaml", "--runs", run)
    heads = output.splitlines()[1]
    assert heads.index("BLEU valid") < heads.index("measured valid") < heads.index("measured test")
    assert line(output, "one")[3:] == ["34.1", "32.6", "33.50", "(1)", "30.00", "(1)"]
    # A recorded score of the validation text replaces that of training.
    recorded = bleu(31.0, metric="multi-bleu-lc")._replace(set_name="valid")
    score_log.write(run, [recorded])
    assert line(report(tmp_path / "one.yaml", "--runs", run), "one")[5] == "31.00"
    report(tmp_path / "one.yaml", "--runs", run, "--save", tmp_path / "results")
    [result] = read_results(tmp_path / "results").values()
    assert [score.set_name for score in result.scores].count("valid") == 1


def test_the_bleu_of_training_has_its_own_name(toy: Path, tmp_path: Path) -> None:
    """It is multi-bleu, even if the paper has another metric; it is no score of a test set."""
    paper = {"table": TABLE, "row": "one", "metric": "mteval-v13a", "checkpoint": "best"}
    paper["bleu"] = {"test": 40.0}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({"extends": str(toy), "paper": paper}))
    run = make_run(tmp_path / "run", tmp_path / "one.yaml", 1)
    (run / "metrics.jsonl").write_text('{"kind": "valid", "update": 1, "bleu": 33.5, "best": true}')
    [table] = tables(tmp_path / "one.yaml", "--runs", run)["tables"]
    assert table["warnings"] == ["without a score here: run"]
    [table] = tables(tmp_path / "one.yaml", "--runs", run, "--all")["tables"]
    [score] = table["rows"][0]["measured"]
    assert (score["set_name"], score["metric"], score["mean"]) == ("valid", "multi-bleu", 33.5)


def test_costs_are_in_markdown_csv_and_latex(recipes: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        run = make_run(tmp_path / "runs" / str(seed), recipes / "b_plain.yaml", seed, bleu(40.0))
        records: list[dict[str, Any]] = [
            {"kind": "train", "update": 4, "tokens": 4000, "tokens_per_second": 2.0},
            {"kind": "train", "update": 8, "tokens": 2000, "tokens_per_second": 1.0},
            {"kind": "valid", "update": 8, "loss": 1.0, "seconds": 1400.0, "best": True},
        ]
        for record in records[:2]:
            record["device"] = "2 x GPU"
        (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    cells = {"updates": "100", "hours": "1.50", "tokens/s": "2", "hardware": "2 x GPU"}
    cells |= {"seeds": "1 2", "measured": "40.00 ±0.00 (2)"}
    rows = list(csv.DictReader(report(recipes, "--runs", tmp_path, "--csv").splitlines()))
    assert [row["row"] for row in rows] == ["plain", "none", "wide"]
    assert {name: rows[0][name] for name in cells} == cells and rows[1]["hours"] == ""
    markdown = report(recipes, "--runs", tmp_path, "--markdown")
    assert "| 100 | 1.50 | 2 | 2 x GPU | 1 2 |" in markdown
    latex = report(recipes, "--runs", tmp_path, "--latex")
    assert r"40.00 $\pm$0.00 (2)" in latex and r"100 & 1.50 & 2 & 2 x GPU & 1 2 \\" in latex
    [row] = [text for text in latex.splitlines() if text.startswith("plain")]
    assert row.count("&") == latex.splitlines()[2].count("r") - latex.splitlines()[2].count(
        "tabular"
    )
    [table] = tables(recipes, "--runs", tmp_path)["tables"]
    assert table["rows"][0]["runs"][0]["hours"] == 1.5


def test_latex_has_no_special_character_of_its_own(recipes: Path) -> None:
    path = recipes / "d.yaml"
    paper = {"row": "50 % & A_1 #2 {x} $", "note": "a~b^c\\d"}
    path.write_text(yaml.safe_dump({"extends": "b_plain.yaml", "paper": paper}))
    latex = report(path, "--latex")
    assert r"50 \% \& A\_1 \#2 \{x\} \$\textsuperscript{1}" in latex
    assert r"a\textasciitilde{}b\textasciicircum{}c\textbackslash{}d" in latex


# Runs that are not comparable ------------------------------------------------------------


def table_warnings(recipes: Path, runs: Path) -> list[str]:
    [table] = tables(recipes, "--runs", runs)["tables"]
    return list(table["warnings"])


def test_different_updates_are_a_column_and_a_warning(recipes: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    make_run(runs / "a", recipes / "b_plain.yaml", 1, bleu(1.0, updates=1294), updates=1294)
    make_run(runs / "b", recipes / "b_plain.yaml", 2, bleu(1.0, updates=2588), updates=2588)
    make_run(runs / "c", recipes / "a_wide.yaml", 2, bleu(1.0, updates=2588), updates=2588)
    output = report(recipes, "--runs", runs)
    assert (
        line(output, "plain")[-3:] == ["1,294", "/", "2,588"]
        and line(output, "wide")[-1] == "2,588"
        and line(output, "none")[-1] == "-"
    )
    assert "the runs differ in updates trained: 2,588 (2 runs); 1,294 (a)" in output


def test_updates_come_from_the_metrics_or_the_score_log_without_checkpoints(
    recipes: Path, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        run = make_run(
            tmp_path / "runs" / name,
            recipes / "b_plain.yaml",
            1,
            bleu(1.0, updates=70, data="e" * 64),
        )
        (run / "checkpoints" / "last" / "state.json").unlink()
    (run / "metrics.jsonl").write_text(
        '{"kind": "train", "update": 40}\n{"kind": "train", "update": 80}\n{"upd'
    )
    [table] = tables(recipes, "--runs", tmp_path / "runs")["tables"]
    assert [(run["updates"], run["data"]) for run in table["rows"][0]["runs"]] == [
        (70, "e" * 64),
        (80, "e" * 64),
    ]


def test_scores_with_an_unknown_number_of_updates_are_shown(recipes: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", recipes / "b_plain.yaml", 1, bleu(3.0, updates=None))
    assert "3.00 (1)" in report(recipes, "--runs", run)
    assert table_warnings(recipes, run) == []
    (run / "checkpoints" / "last" / "state.json").unlink()
    assert "3.00 (1)" in report(recipes, "--runs", run)


def test_precision_data_references_and_signatures(recipes: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    make_run(runs / "a", recipes / "b_plain.yaml", 1, bleu(1.0))
    make_run(
        runs / "b",
        recipes / "b_plain.yaml",
        2,
        bleu(1.0)._replace(references="s" * 64),
        settings=("training.precision=bf16",),
    )
    (runs / "b" / "checkpoints" / "last" / "state.json").write_text(
        json.dumps({"progress": {"update": 100}, "data": "e" * 64})
    )
    make_run(runs / "c", recipes / "b_plain.yaml", 3, bleu(1.0)._replace(signature="lc"))
    assert table_warnings(recipes, runs) == [
        "the runs differ in training.precision: fp32 (2 runs); bf16 (b)",
        "the runs differ in training data: dddddddd (2 runs); eeeeeeee (b)",
        "the runs differ in the references of test: rrrrrrrr (2 runs); ssssssss (b)",
        "the runs differ in the signature of multi-bleu on test: sig (2 runs); lc (c)",
        'config differs from the recipe: b: training.precision "bf16", not "fp32"',
    ]


def test_warnings_about_configs_missing_scores_seeds_and_later_training(
    recipes: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    for name in "abcd":
        make_run(
            runs / name,
            recipes / "b_plain.yaml",
            1,
            bleu(1.0),
            settings=("model.dropout=0.3", "data.folder=elsewhere"),
        )
    make_run(runs / "e", recipes / "a_wide.yaml", 1, bleu(1.0, updates=90))
    make_run(runs / "f", recipes / "a_wide.yaml", 2)
    assert table_warnings(recipes, runs) == [
        "trained further after a score was recorded: e",
        "the same row and seed: a, b, c and 1 more",
        "config differs from the recipe: a, b, c and 1 more: model.dropout 0.3, not 0.1",
        "without a score here: f",
    ]


def test_neutral_settings_are_no_deviations(recipes: Path, tmp_path: Path) -> None:
    """The length of training may change on resume, but it is a deviation."""
    free = (
        "training.keep_last=9",
        "training.log_every=1",
        "training.save_every=2",
        "training.validation.tokens=99",
    )
    free += ("training.tensorboard=true", "model.encoder.checkpoint=true")
    make_run(tmp_path / "a", recipes / "b_plain.yaml", 1, bleu(1.0), settings=free)
    assert table_warnings(recipes, tmp_path) == []
    make_run(
        tmp_path / "b",
        recipes / "b_plain.yaml",
        2,
        bleu(1.0),
        settings=(*free, "training.stages.0.end.updates=4"),
    )
    assert table_warnings(recipes, tmp_path) == [
        "config differs from the recipe: b: training.stages.0.end.updates 4, not 8"
    ]


@pytest.fixture
def sets(recipes: Path) -> Path:
    """A row with two test sets, one of two files, and a row that validates on training text."""
    data: dict[str, Any] = {"test": {"ted": ["raw/dev2010", "raw/tst2010"], "news": ["raw/news"]}}
    paper = {"table": TABLE, "row": "sets", "line": 4}
    (recipes / "d_sets.yaml").write_text(
        yaml.safe_dump({"extends": "base.yaml", "data": data, "paper": paper})
    )
    data = {"valid": {"every": 23}}
    paper = {"table": TABLE, "row": "every", "line": 5}
    (recipes / "e_every.yaml").write_text(
        yaml.safe_dump({"extends": "base.yaml", "data": data, "paper": paper})
    )
    return recipes


def test_other_validation_and_test_sets_are_deviations(sets: Path, tmp_path: Path) -> None:
    ted = "data.test={ted: [/raw/dev2010, /raw/tst2011], news: [/raw/news]}"
    for row, settings, said in (
        ("d_sets", (ted,), 'data.test.ted ["dev2010", "tst2011"], not ["dev2010", "tst2010"]'),
        (
            "d_sets",
            ("data.test={ted: [tst2010, dev2010], news: [news]}",),
            'data.test.ted ["tst2010", "dev2010"], not ["dev2010", "tst2010"]',
        ),
        ("d_sets", ("data.test={ted: [dev2010, tst2010]}",), 'data.test.news null, not ["news"]'),
        ("d_sets", ("data.test.more=[more]",), 'data.test.more ["more"], not null'),
        ("d_sets", ("data.valid=[other]",), 'data.valid ["other"], not ["valid"]'),
        ("d_sets", ("data.train=[other]",), 'data.train.0 "other", not "train"'),
        ("e_every", ("data.valid={every: 10}",), 'data.valid {"every": 10}, not {"every": 23}'),
        (
            "e_every",
            ("data.valid={sample: 9}",),
            'data.valid {"sample": 9, "seed": 1}, not {"every": 23}',
        ),
        ("e_every", ("data.valid=[valid]",), 'data.valid ["valid"], not {"every": 23}'),
    ):
        name = str(len(list(tmp_path.glob("runs*"))))
        make_run(
            tmp_path / f"runs{name}" / "a", sets / f"{row}.yaml", 1, bleu(1.0), settings=settings
        )
        assert table_warnings(sets, tmp_path / f"runs{name}") == [
            f"config differs from the recipe: a: {said}"
        ]


def test_the_same_sets_in_another_folder_are_no_deviation(sets: Path, tmp_path: Path) -> None:
    moved = (
        "data.folder=/x",
        "data.train=[/x/train]",
        "data.valid=[/x/valid]",
        "data.test={news: [/x/news], ted: [/x/dev2010, /y/tst2010]}",
    )
    make_run(tmp_path / "runs" / "a", sets / "d_sets.yaml", 1, bleu(1.0), settings=moved)
    make_run(tmp_path / "runs" / "b", sets / "e_every.yaml", 1, bleu(1.0), settings=(*moved[:2],))
    assert table_warnings(sets, tmp_path / "runs") == []


def test_only_the_names_of_codes_and_vocabularies_count(recipes: Path, tmp_path: Path) -> None:
    bpe = {"merges": None, "codes": ["old/both.codes"]}
    vocabulary = {"source": "old/vocab.de", "target": "old/vocab.en"}
    values = {
        "extends": "base.yaml",
        "data": {"bpe": bpe, "vocabulary": vocabulary},
        "paper": {"table": TABLE, "row": "given", "line": 4},
    }
    (recipes / "d_given.yaml").write_text(yaml.safe_dump(values))
    for name, codes in (("a", "both.codes"), ("b", "other.codes")):
        settings = (
            f"data.bpe.codes=/new/{codes}",
            "data.vocabulary.source=/new/vocab.de",
            "data.vocabulary.target=/new/vocab.en",
        )
        run = tmp_path / "runs" / name
        make_run(run, recipes / "d_given.yaml", 1, bleu(1.0), settings=settings)
    assert table_warnings(recipes, tmp_path / "runs")[-1] == (
        'config differs from the recipe: b: data.bpe.codes.0 "other.codes", not "both.codes"'
    )


def test_runs_without_a_row_are_counted(recipes: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    make_run(runs / "a", recipes / "b_plain.yaml", 1, bleu(1.0))
    changed = "model.dropout=0.3"
    for name, key in (("b", "row"), ("c", "table")):
        settings = (f"paper.{key}=another", changed)
        make_run(runs / name, recipes / "b_plain.yaml", 1, bleu(9.0), settings=settings)
    result = call(recipes, "--runs", runs, "--runs", runs / "a")
    assert f"2 runs in {runs} do not belong to a row of these tables" in result.stderr
    assert tables(recipes, "--runs", runs)["unmatched_runs"] == {str(runs): 2}
    assert line(result.stdout, "plain")[-2:] == ["1.00", "(1)"], (
        "a run that is found twice counts once"
    )


def test_the_runs_may_be_in_the_folder_of_the_recipes(recipes: Path) -> None:
    """`fusetk run` writes a config beside each run folder, which has the row of the recipe."""
    out = recipes / "out"
    for seed in (1, 2):
        where = Places(out, "recipes", f"recipes.b_plain.seed{seed}")
        run = make_run(where.run, recipes / "b_plain.yaml", seed, bleu(1.0))
        where.config.write_text((run / "config.yaml").read_text())
    make_run(recipes / "mine", recipes / "b_plain.yaml", 3, bleu(1.0))
    for folder, number in ((out, 2), (recipes, 3)):
        assert line(report(recipes, "--runs", folder), "plain")[-1] == f"({number})"
    assert line(report(recipes), "plain")[-1] == "32.60"
    copy = out / "b_plain.yaml"
    copy.write_text((out / "run.recipes.b_plain.seed1.yaml").read_text())
    report(recipes, "--runs", out)
    assert line(report(copy, "--runs", out), "plain")[-1] == "(2)", "a config that is named is read"


def test_a_damaged_run_is_a_warning(recipes: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    make_run(runs / "good", recipes / "b_plain.yaml", 1, bleu(1.0))
    for name, text in {"yaml": "a: [", "list": "- 1", "bytes": "\xff"}.items():
        (make_run(runs / name, recipes / "b_plain.yaml", 1, bleu(9.0)) / "config.yaml").write_text(
            text, encoding="latin-1"
        )
    (make_run(runs / "scores", recipes / "b_plain.yaml", 2) / score_log.NAME).write_text("{")
    (
        make_run(runs / "state", recipes / "b_plain.yaml", 3, bleu(1.0))
        / "checkpoints/last/state.json"
    ).write_text("[]")
    (runs / "loop").symlink_to(runs)
    result = call(recipes, "--runs", runs)
    assert result.exit_code == 0, result.output
    for name in ("yaml", "list", "bytes"):
        assert f"warning: {runs / name / 'config.yaml'} cannot be read" in result.stderr
    assert f"{runs / 'scores' / score_log.NAME} is damaged" in result.stderr
    assert (
        " ".join(line(result.stdout, "plain")).startswith("plain - ")
        and "1.00 ±0.00 (2)" in result.stdout
    )


def test_mistakes_are_one_sentence(recipes: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for words, said in (
        ([recipes / "base.yaml"], "no config here has a paper.row"),
        ([recipes / "base.yaml"], "paper: {table: Mine, row: plain, line: 1}"),
        ([tmp_path / "none.yaml"], "cannot be read"),
        ([recipes, "--runs", tmp_path / "none"], "there is no such folder"),
        ([recipes, "--runs", recipes / "base.yaml"], "it is a file"),
    ):
        result = call(*words)
        assert result.exit_code == 2 and said in result.stderr and "Traceback" not in result.stderr
    assert "there is no run folder in" in call(recipes, "--runs", tmp_path / "empty").stderr
    (recipes / "twin.yaml").write_text("extends: b_plain.yaml\n")
    assert "both describe the row 'plain'" in call(recipes).stderr


# The score log ------------------------------------------------------------


def test_a_record_replaces_the_old_one_with_its_key(tmp_path: Path) -> None:
    score_log.write(tmp_path, [bleu(1.0), bleu(2.0, checkpoint="last")])
    score_log.write(tmp_path, [bleu(3.0)])
    assert {record.key: record.value for record in score_log.read(tmp_path)} == {
        bleu(0, checkpoint="last").key: 2.0,
        bleu(0).key: 3.0,
    }


def test_a_failed_write_keeps_the_old_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score_log.write(tmp_path, [bleu(1.0)])

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(DataError, match="cannot be written: No space left"):
        score_log.write(tmp_path, [bleu(2.0)])
    assert score_log.read(tmp_path) == [bleu(1.0)]
    assert {path.name for path in tmp_path.iterdir()} == {score_log.NAME, score_log.LOCK}


def test_writers_wait_for_each_other(tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=score_log.write, args=(tmp_path, [bleu(i, checkpoint=str(i))]))
        for i in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {record.checkpoint for record in score_log.read(tmp_path)} == set(map(str, range(12)))


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"format": 1}',
        '{"format": 1, "scores": [1]}',
        '{"format": 2, "scores": []}',
        '{"format": 1, "scores": [{}]}',
        "[" * 100_000,
    ],
    ids=range(8),
)
def test_a_damaged_log_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / score_log.NAME).write_text(text)
    with pytest.raises(DataError, match=r"scores\.json"):
        score_log.read(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"value": "1"}, {"value": float("nan")}, {"metric": 3}, {"updates": "3"}, {"more": 1}],
)
def test_damaged_values_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    entry = {**bleu(1.0)._asdict(), **change}
    (tmp_path / score_log.NAME).write_text(json.dumps({"format": 1, "scores": [entry]}))
    with pytest.raises(DataError, match="is damaged"):
        score_log.read(tmp_path)


def test_a_run_and_a_checkpoint_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints" / "update-0000004"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match="keep it in its run folder"):
        runs.run_and_checkpoint(folder)
    (tmp_path / "run" / "config.yaml").write_text("")
    assert runs.run_and_checkpoint(tmp_path / "run") == (tmp_path / "run", "")
    (folder.parent / "best").symlink_to(folder.name)
    assert runs.run_and_checkpoint(tmp_path / "run") == (tmp_path / "run", "best")
    assert runs.run_and_checkpoint(folder.parent / "best") == (tmp_path / "run", "best")
    assert runs.run_and_checkpoint(folder) == (tmp_path / "run", "update-0000004")
    for path in (tmp_path, tmp_path / "none", tmp_path / "run" / "config.yaml"):
        with pytest.raises(CheckpointError, match="is not a run folder"):
            runs.run_and_checkpoint(path)


def test_from_training_to_the_report(recipes: Path, tmp_path: Path) -> None:
    """``report`` reads the files of train, average and score."""
    run, text = tmp_path / "runs" / "plain", tmp_path / "out.en"
    text.write_text("A B C D E\n")
    for words in (
        ["train", recipes / "b_plain.yaml", "--run", run, "--device", "cpu", "--quiet"],
        ["average", run, "--last", 2],
        [
            "score",
            text,
            "-r",
            text,
            "--metric",
            "multi-bleu",
            "--run",
            run / "checkpoints" / "average",
            "--set-name",
            "news",
        ],
    ):
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == 0, result.output
    [table] = tables(recipes, "--runs", tmp_path / "runs")["tables"]
    [values] = table["rows"][0]["runs"]
    assert (values["updates"], values["seed"], values["precision"], len(values["data"])) == (
        8,
        1,
        "fp32",
        64,
    )
    assert table["warnings"] == [] and table["rows"][0]["measured"][0]["checkpoint"] == "average"
    assert line(report(recipes, "--runs", tmp_path / "runs"), "plain")[-2:] == ["100.00", "(1)"]
