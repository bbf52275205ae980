"""Tables from result files, without runs and recipes."""

import csv
import io
import json
import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sacrebleu.metrics.bleu import BLEU

from fusetk.cli.main import main
from fusetk.evaluation.metric import MetricOptions
from fusetk.evaluation.metrics import make_metrics
from fusetk.evaluation.multi_bleu import MultiBleu
from fusetk.evaluation.significance import compare_systems
from fusetk.reporting.result_files import read_result
from fusetk.reporting.result_tables import TEST
from fusetk.reporting.significance import _options
from tests.helpers.results import BAD, REFERENCES, SET, WORSE, write_result
from tests.reporting.conftest import RATE

LOWER = {"update": [10], "epoch": [1.0], "loss": [1.0]}


def call(*words: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, words)])


def output(*words: object) -> str:
    result = call(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def cells(folder: Path, *words: object) -> dict[str, dict[str, str]]:
    """The cells of the first table by row and column; Δ has the score's name before it."""
    heads, *rows = csv.reader(io.StringIO(output(folder, "--csv", *words)))
    names: list[str] = []
    for head in heads:
        names.append(head if head != "Δ" else f"{names[-1]} {head}")
    table = [row for row in rows if row[0] == rows[0][0]]
    return {row[1]: dict(zip(names, row, strict=True)) for row in table}


def as_json(folder: Path, *words: object) -> Any:
    [table] = json.loads(output(folder, "--json", *words))["tables"]
    return {row["row"]: row for row in table["rows"]}


def score_of(folder: Path, stem: str, checkpoint: str, metric: str) -> float:
    scores = {s.key: s.value for s in read_result(folder / f"{stem}.json").scores}
    return scores[SET, checkpoint, metric]


def test_a_chosen_test_set_may_be_missing_in_a_table(saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / "saved")
    path = folder / "other.seed1.json"
    text = path.read_text().replace('"table": "', '"table": "another ')
    path.write_text(text.replace(f'"{SET}"', '"more"'))
    both = output(folder, "--csv", "--set-name", SET, "--set-name", "more")
    assert "another " in both
    assert "another " in output(folder, "--csv", "--set-name", "more", "--metric", "chrf")
    assert "there is no such score" in call(folder, "--set-name", "none").stderr


def test_means_deviations_and_differences(saved: Path) -> None:
    table = cells(saved)
    assert list(table) == ["plain", "fused", "other"], "in the order of the recipes' lines"
    bleu = [score_of(saved, f"plain.seed{seed}", "best", "multi-bleu") for seed in (1, 2)]
    mean, deviation = statistics.mean(bleu), statistics.stdev(bleu)
    assert table["plain"]["multi-bleu best"] == f"{mean:.2f} ±{deviation:.2f}"
    assert table["fused"]["multi-bleu best"] == "100.00 ±0.00"
    assert table["fused"]["multi-bleu best Δ"] == f"{100 - mean:+.2f}"
    assert table["plain"]["multi-bleu best Δ"] == ""
    other = [score_of(saved, f"other.seed{seed}", "best", "multi-bleu") for seed in (1, 2)]
    assert table["other"]["multi-bleu best Δ"] == f"{statistics.mean(other) - 100:+.2f}"
    assert table["plain"]["seeds"] == "1 2" and table["plain"]["training speed"] == "×1.00"
    assert table["plain"]["valid loss"] == "2.000 ±0.000"
    assert as_json(saved)["fused"]["updates_to_best"]["mean"] == 20
    assert {"multi-bleu average-2", "chrf best"} <= set(table["plain"])
    assert "chrf average-2" not in table["plain"]
    assert "chrf average-2" in cells(saved, "--all")["plain"]
    assert "compared with fused: other" in output(saved)


def test_the_default_bleu_is_that_of_most_runs(results: Path) -> None:
    path = results / "fused.seed1.json"
    saved = json.loads(path.read_text())
    saved["scores"] += [{**saved["scores"][0], "metric": "sacrebleu", "value": 1.0}]
    path.write_text(json.dumps(saved))
    table = cells(results)
    assert table["fused"]["multi-bleu best"] == "100.00 ±0.00"
    assert not [name for name in table["plain"] if name.startswith("sacrebleu")]


def test_columns_can_be_chosen(saved: Path) -> None:
    table = cells(saved, "--metric", "chrf", "--checkpoint", "average-2")
    assert not [name for name in table["plain"] if "best" in name]
    assert "chrf average-2" in table["plain"]
    result = call(saved, "--metric", "ter")
    assert result.exit_code == 2 and "choose from multi-bleu, chrf" in result.stderr


def test_p_values_are_those_of_compare(saved: Path) -> None:
    [metric] = make_metrics([REFERENCES], ["multi-bleu"], MetricOptions())
    rows = as_json(saved)
    test = rows["fused"]["scores"][0]["test"]
    for seed, base in ((1, BAD), (2, WORSE)):
        statistics_of = {"a": metric.statistics(base), "b": metric.statistics(REFERENCES)}
        expected = compare_systems(metric, statistics_of, TEST)["b"].p
        assert test["p_values"][str(seed)] == expected
    assert test["worse"] == 0
    assert test["better"] == sum(p < 0.05 for p in test["p_values"].values())
    assert rows["plain"]["scores"][0]["test"] is None


def add_seed(results: Path, name: str, seed: int) -> None:
    """Add a run with the result of seed 1."""
    result = read_result(results / f"{name}.seed1.json")
    path = results / f"{name}.seed{seed}.json"
    write_result(path, result, seed=seed)
    translations = results / "translations"
    shutil.copy(
        translations / f"{name}.seed1.{SET}.tsv.gz",
        translations / f"{name}.seed{seed}.{SET}.tsv.gz",
    )


def test_the_table_says_whether_a_difference_is_a_gain(results: Path) -> None:
    gains = {name: row["gain"] for name, row in cells(results).items()}
    assert gains == {"plain": "", "fused": "open: 2 of 3 seeds", "other": "open: 2 of 3 seeds"}
    for name in ("plain", "fused", "other"):
        add_seed(results, name, 3)
    output(results)
    path = results / "significance" / "p_values.json"
    values = json.loads(path.read_text())
    for p, gain in ((0.01, "yes"), (0.06, "no")):
        path.write_text(json.dumps(dict.fromkeys(values, p)))
        table = cells(results)
        assert table["fused"]["gain"] == gain and table["other"]["gain"] == "no"
        assert as_json(results)["fused"]["gain"] == gain
    for path in results.glob("fused.*.json"):
        path.unlink()
    assert cells(results)["other"]["gain"] == "no baseline"
    assert cells(results)["other"]["multi-bleu best Δ"] == ""


def test_a_mean_over_test_sets_does_not_decide_about_a_gain(results: Path) -> None:
    """It has no translations, so its differences cannot be tested."""
    for name in ("plain", "fused", "other"):
        add_seed(results, name, 3)
    for path in results.glob("*.json"):
        values = json.loads(path.read_text())
        values["scores"] += [score | {"set_name": "average"} for score in values["scores"]]
        path.write_text(json.dumps(values))
    row = cells(results)["fused"]
    assert row["average multi-bleu best"] == row[f"{SET} multi-bleu best"]
    assert row["gain"] == "yes"


def test_comparisons_have_differences_and_p_values_by_seed(saved: Path) -> None:
    lines = list(csv.reader(io.StringIO(output(saved, "--csv"))))
    title = "Systems: comparisons with the baseline"
    start = next(i for i, line in enumerate(lines) if line[0] == title)
    heads, fused, other = lines[start - 1 : start + 2]
    row = dict(zip(heads, fused, strict=True))
    assert (row["row"], row["compared with"], row["gain"]) == (
        "fused",
        "plain",
        "open: 2 of 3 seeds",
    )
    assert other[1:3] == ["other", "fused"]
    scores = [score_of(saved, f"plain.seed{seed}", "best", "multi-bleu") for seed in (1, 2)]
    p_values = as_json(saved)["fused"]["scores"][0]["test"]["p_values"]
    assert all(p < 0.001 for p in p_values.values())
    expected = [f"{seed}: {100 - scores[seed - 1]:+.2f} (<0.001)" for seed in (1, 2)]
    assert row["multi-bleu best, by seed"] == ", ".join(expected)
    assert row["multi-bleu average-2, by seed"] == "1: +0.00 (1.000), 2: +0.00 (1.000)"
    assert row["± of both"] == f"0.00 + {statistics.stdev(scores):.2f}"
    assert row["Δ multi-bleu best"] == cells(saved)["fused"]["multi-bleu best Δ"]
    assert "chrf best, by seed" not in heads
    assert "chrf best, by seed" in output(saved, "--csv", "--all")


def test_every_column_is_explained(saved: Path) -> None:
    for table in output(saved, "--markdown").split("**Systems")[1:3]:
        heads = next(line for line in table.splitlines() if line.startswith("|"))
        for head in map(str.strip, heads.strip("| ").split("|")):
            name = head.removeprefix("multi-bleu best, ").removeprefix("multi-bleu average-2, ")
            assert f"\n- {name}: " in table or name in ("", "compared with")


def test_p_values_are_kept(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = output(results, "--json")
    path = results / "significance" / "p_values.json"
    content = path.read_bytes()

    def fail(*_: object) -> None:
        raise AssertionError("the test was repeated")

    monkeypatch.setattr("fusetk.reporting.significance.randomization_p_value", fail)
    assert output(results, "--json") == first
    assert path.read_bytes() == content
    path.write_text("{")
    result = call(results)
    assert result.exit_code == 2 and f"{path} is damaged" in result.stderr


def test_a_report_computes_the_statistics_of_a_run_once_and_no_bootstrap_sample(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``fused`` is compared with two systems. Both runs of ``other`` have the same translations, so
    one of them is not scored.
    """
    shutil.rmtree(results / "significance", ignore_errors=True)
    scored: list[list[str]] = []
    statistics_of = MultiBleu.statistics

    def record(metric: MultiBleu, lines: list[str]) -> Any:
        scored.append(lines)
        return statistics_of(metric, lines)

    def fail(*_: object) -> None:
        raise AssertionError("a report has no confidence intervals")

    monkeypatch.setattr(MultiBleu, "statistics", record)
    monkeypatch.setattr("fusetk.evaluation.significance._bootstrap_values", fail)
    output(results, "--metric", "multi-bleu", "--checkpoint", "best")
    assert len(scored) == 2 + 2 + 1


@pytest.mark.parametrize(
    ("tokenize", "in_signature"),
    [
        (None, "13a"),
        ("zh", "zh"),
        ("ja-mecab", "ja-mecab-0.996-IPA"),
        ("ko-mecab", "ko-mecab-0.996/ko-0.9.2-KO"),
    ],
)
def test_a_difference_is_tested_with_the_tokeniser_of_the_signature(
    tokenize: str | None, in_signature: str
) -> None:
    signature = f"nrefs:1|case:mixed|eff:no|tok:{in_signature}|smooth:exp|version:2.6.0"
    assert _options(signature) == MetricOptions(tokenize=tokenize)
    assert tokenize in (None, *BLEU.TOKENIZERS)


def test_without_the_test_text_new_differences_are_not_tested(results: Path) -> None:
    """A test text need not be public."""
    scores = cells(results)["fused"]
    shutil.rmtree(results / "texts")
    shutil.rmtree(results / "significance", ignore_errors=True)
    result = call(results)
    assert result.exit_code == 0 and f"differences in multi-bleu on {SET} are not" in result.output
    without = cells(results)["fused"]
    assert without["multi-bleu best"] == scores["multi-bleu best"]
    assert as_json(results)["fused"]["scores"][0]["test"]["p_values"] == {}


def test_translations_without_the_recorded_score_are_an_error(results: Path) -> None:
    shutil.rmtree(results / "significance", ignore_errors=True)
    path = results / "translations"
    shutil.copy(path / f"other.seed1.{SET}.tsv.gz", path / f"fused.seed1.{SET}.tsv.gz")
    result = call(results)
    assert result.exit_code == 2 and "the translations of fused.seed1 have the" in result.stderr
    (path / f"fused.seed1.{SET}.tsv.gz").unlink()
    result = call(results)
    assert result.exit_code == 2 and f"fused.seed1.{SET}.tsv.gz is missing" in result.stderr


def test_time_to_the_loss_of_the_baseline(results: Path) -> None:
    rows = as_json(results)
    # 1000 tokens in each 10 updates, 500 tokens a second: 2 s for 10 updates.
    assert rows["plain"]["seconds_to_loss_of_baseline"] == [4.0, 4.0]
    assert rows["fused"]["seconds_to_loss_of_baseline"] == [2.0, 2.0]
    assert rows["other"]["seconds_to_loss_of_baseline"] == [None, None]
    table = cells(results)
    assert table["other"]["time to baseline's loss"] == "never"
    path = results / "fused.seed2.json"
    result = read_result(path)
    curve = {**result.valid_curve, "loss": [9.0, 8.0, 7.0, 2.5]}
    write_result(path, result, valid_curve=curve)
    assert cells(results)["fused"]["time to baseline's loss"] == "2 s (1 of 2)"


def test_a_run_without_a_finite_loss_does_not_reach_the_loss_of_the_baseline(results: Path) -> None:
    """It has validations. The saved curve has no loss, because none is a number."""
    path = results / "fused.seed2.json"
    result = read_result(path)
    curve = {name: values for name, values in result.valid_curve.items() if name != "loss"}
    write_result(path, result, valid_curve=curve)
    assert cells(results)["fused"]["time to baseline's loss"] == "2 s (1 of 2)"
    assert as_json(results)["fused"]["seconds_to_loss_of_baseline"] == [2.0, None]
    write_result(path, result, valid_curve={})
    assert as_json(results)["fused"]["seconds_to_loss_of_baseline"] == [2.0]


def test_time_to_the_bleu_of_the_baseline(results: Path) -> None:
    """Only seed 1 of ``plain`` and ``other`` and both seeds of ``fused`` have BLEU."""
    assert "time to baseline's BLEU" not in output(results)
    assert as_json(results)["fused"]["seconds_to_bleu_of_baseline"] is None
    curves = {
        "fused.seed2": [30.0, 30.0, 30.0, 30.0],
        "other.seed1": [5.0, None, 13.9],  # compared with fused
        "plain.seed1": [10.0, 11.0, 12.0],
        "fused.seed1": [11.0, 12.0, 13.0, 14.0],
    }
    for stem, bleu in curves.items():
        assert stem == "fused.seed1" or "time to baseline's BLEU" not in output(results)
        path = results / f"{stem}.json"
        result = read_result(path)
        write_result(path, result, valid_curve={**result.valid_curve, "bleu": bleu})
    rows = as_json(results)
    # There are 10 updates between two validations, and they take 2 s.
    seconds = {name: rows[name]["seconds_to_bleu_of_baseline"] for name in rows}
    assert (seconds["plain"], seconds["fused"], seconds["other"]) == ([6.0], [4.0], [None])
    table = cells(results)
    names = ("plain", "fused", "other")
    assert [table[name]["time to baseline's BLEU"] for name in names] == ["6 s", "4 s", "never"]
    assert rows["fused"]["seconds_to_loss_of_baseline"] == [2.0, 2.0], "as before"


def test_other_configs_are_in_a_table_of_their_own(results: Path) -> None:
    text = output(results)
    rows, others = text.split("Systems: other configs\n")
    assert "peak =" not in rows and others.count("fused") == 2
    assert all("config" not in values for values in cells(results).values())
    assert "peak = 0.02" in others and "peak = 0.03" in others
    for seed in (2, 3):  # the other config has more seeds now
        result = read_result(results / "fused.seed1.peak=0.03.json")
        path = results / f"fused.seed{seed}.peak=0.03.json"
        write_result(path, result, seed=seed, translations={})
    rows, others = output(results).split("Systems: other configs\n")
    assert cells(results)["fused"]["config"] == "peak = 0.03"
    assert cells(results)["plain"]["config"] == "the recipe's"
    assert "the recipe's" in others and "peak = 0.02" in others and "peak = 0.03" not in others


def test_two_results_of_one_training_are_an_error(results: Path) -> None:
    """For example, after a recipe got another file name and its runs were saved again."""
    copy = results / "old_name.seed1.json"
    copy.write_bytes((results / "fused.seed1.json").read_bytes())
    process = call(results)
    assert process.exit_code == 2 and "have the same row, seed and config" in process.stderr
    assert "fused.seed1.json" in process.stderr and copy.name in process.stderr


def test_at_a_tie_of_seeds_the_mean_loss_decides(results: Path) -> None:
    result = read_result(results / "other.seed1.json")
    for rate, losses in ((0.02, (1.6, 1.6, 1.6)), (0.03, (1.5, 1.7, 1.7))):
        for seed, loss in enumerate(losses, 1):
            curve = {**result.valid_curve, "loss": [loss] * len(result.valid_curve["loss"])}
            tuned = {"overrides": {RATE: rate}, "valid_curve": curve, "seed": seed}
            path = results / f"other.seed{seed}.peak={rate}.json"
            write_result(path, result, **tuned, translations={})
    assert cells(results)["other"]["config"] == "peak = 0.02"


def test_runs_are_compared_with_those_of_the_baseline_that_have_their_config(results: Path) -> None:
    assert "equal configs" not in output(results)
    result = read_result(results / "plain.seed1.json")
    tuned = {"overrides": {RATE: 0.02}, "translations": {}, "valid_curve": LOWER}
    write_result(results / "plain.seed1.peak=0.02.json", result, **tuned)
    text = output(results, "--markdown")
    _, equal = text.split("comparisons with equal configs**")
    [line] = [line for line in equal.split("**Systems")[0].splitlines() if "| fused |" in line]
    other = read_result(results / "fused.seed1.peak=0.02.json")
    loss = min(other.valid_curve["loss"]) - 1.0
    score = other.scores[0].value - result.scores[0].value
    assert line == (
        f"| fused | plain | peak = 0.02 | {loss:+.3f} | {score:+.2f} | 1: {score:+.2f} (-) |"
    )
    for seed in (1, 2, 3):  # the row of the baseline shows this config now
        tuned = {"overrides": {RATE: 0.03}, "translations": {}, "seed": seed}
        write_result(results / f"plain.seed{seed}.peak=0.03.json", result, **tuned)
    _, equal = output(results, "--markdown").split("comparisons with equal configs**")
    lines = equal.split("**Systems")[0].splitlines()
    configs = [line.split("|")[3].strip() for line in lines if "| fused |" in line]
    assert configs == ["the recipe's", "peak = 0.02", "peak = 0.03"]


def test_losses_by_epoch_are_differences_to_the_baseline(results: Path) -> None:
    curves = {
        "plain": ([1.0, 2.0, 3.0], [3.0, 2.0, 2.5]),
        "fused": ([1.0, 2.0], [2.5, 2.25]),
        "other": ([0.5], [1.0]),  # compared with fused
    }
    for name, (epochs, losses) in curves.items():
        for path in results.glob(f"{name}.seed?.json"):
            result = read_result(path)
            shift = result.seed  # of both runs of a seed, so it has no effect
            curve = {
                "update": [10 * i for i in range(1, len(epochs) + 1)],
                "epoch": epochs,
                "loss": [loss + shift for loss in losses],
            }
            write_result(path, result, valid_curve=curve)
    _, text = output(results, "--markdown").split("validation loss by epoch**")
    heads, _, fused, other, *_ = text.strip().splitlines()
    assert heads == "|  | compared with | config | seeds | 1 | 2 | lowest |"
    assert fused == "| fused | plain | the recipe's | 1 2 | -0.500 | +0.250 | +0.250 |"
    assert other == "| other | fused | the recipe's | 1 2 | - | - | -1.250 |"


def test_the_baseline_need_not_have_the_keys_of_a_fusion(results: Path) -> None:
    for system, more in (("plain", {}), ("fused", {"model.decoder.fuse.hops": 3})):
        result = read_result(results / f"{system}.seed1.json")
        tuned = {"overrides": {RATE: 0.05, **more}, "translations": {}}
        path = results / f"{system}.seed1.peak=0.05.json"
        write_result(path, result, **tuned)
    _, equal = output(results, "--markdown").split("comparisons with equal configs**")
    assert "| fused | plain | peak = 0.05, hops = 3 |" in equal


def test_a_row_never_shows_a_trial_beside_complete_trainings(results: Path) -> None:
    end = "training.stages.0.end.epochs"
    for name in ("fused", "other"):
        for path in results.glob(f"{name}.*.json"):
            result = read_result(path)
            overrides = {**result.overrides, end: 1}
            write_result(path, result, overrides=overrides)
            if (name, result.seed) == ("fused", 2):
                write_result(results / "fused.seed3.json", result, translations={})
    rows, others = output(results).split("Systems: other configs\n")
    assert "epochs = 1" not in rows and others.count("epochs = 1") == 6
    assert cells(results)["fused"]["seeds"] == "2" and "other" not in cells(results)
    [table] = json.loads(output(results, "--json"))["tables"]
    assert table["results_without_row"] == ["other.seed1", "other.seed2"]
    for path in results.glob("plain.*.json"):  # the baseline
        result = read_result(path)
        write_result(path, result, overrides={end: 1})
    assert cells(results)["fused"]["gain"] == "no baseline" and "plain" not in cells(results)
    assert "baseline: plain, which has no complete training" in output(results)
    for name in ("plain", "fused"):
        for path in results.glob(f"{name}.*.json"):
            path.unlink()
    assert cells(results)["other"]["seeds"] == "1 2"  # no training is complete


@pytest.mark.parametrize(
    ("device", "on_gpu"),
    [("CPU, 1 threads", False), ("2 x CPU, 1 threads", False), ("2 x NVIDIA H100", True)],
)
def test_peak_memory_of_a_gpu_is_not_averaged_with_that_of_a_process(
    results: Path, device: str, on_gpu: bool
) -> None:
    path = results / "fused.seed2.json"
    result = read_result(path)
    sessions = [replace(each, device=device) for each in result.training.sessions]
    training = result.training.model_copy(update={"sessions": sessions, "peak_memory": 2**20})
    write_result(path, result, training=training)
    assert (cells(results)["fused"]["peak memory"] == "") == on_gpu


def test_a_note_says_that_the_baseline_is_the_first_name(results: Path) -> None:
    assert "baseline: plain, except" in output(results)
    for path in results.glob("*.json"):
        write_result(path, read_result(path), line=None)
    text = "baseline: fused (the first by name, because no row has a paper.line)\n"
    assert text in output(results)


def test_runs_that_are_not_comparable_are_named(results: Path) -> None:
    path = results / "fused.seed2.json"
    result = read_result(path)
    scores = [
        score.model_copy(update={"signature": "another", "references": "x" * 64})
        for score in result.scores
    ]
    sessions = [type(s)(**{**s.__dict__, "threads": 1}) for s in result.training.sessions]
    training = result.training.model_copy(update={"data": "other", "sessions": sessions})
    write_result(path, result, scores=scores, training=training)
    text = output(results)
    assert "differ in the training data: dddddddd (5 runs); other (fused.seed2)" in text
    assert "fused.seed2 and plain.seed2 are not compared on flickr" in text
    assert "the runs differ in the signature of multi-bleu on flickr" in text


def test_scores_by_a_metric_outside_fusetk_are_shown_but_not_tested(results: Path) -> None:
    """The module of the metric may be missing on this machine."""
    for path in results.glob("*.json"):
        path.write_text(path.read_text().replace('"metric": "chrf"', '"metric": "absent:Own"'))
    row = cells(results, "--metric", "absent:Own")["fused"]
    assert row["absent:Own best"] == "100.00 ±0.00"
    text = output(results, "--metric", "absent:Own")
    assert "on flickr by absent:Own: run `fusetk score --significance` with both" in text


def test_all_formats_have_the_same_cells(saved: Path) -> None:
    table = cells(saved)
    markdown = output(saved, "--markdown")
    latex = output(saved, "--latex")
    for row in table.values():
        for cell in filter(None, row.values()):
            assert cell in markdown
            assert cell.replace("±", r"$\pm$").replace("×", r"$\times$") in latex.replace(
                "\\_", "_"
            )
    assert "**Systems: other configs**" in markdown


def test_a_folder_without_results_is_named(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("The protocol.")
    result = call(tmp_path)
    assert result.exit_code == 2 and f"{tmp_path} has no results yet" in result.stderr


def test_a_foreign_file_is_an_error(results: Path) -> None:
    (results / "package.json").write_text('{"name": "x"}')
    result = call(results)
    assert result.exit_code == 2 and f"{results / 'package.json'} is not a result" in result.stderr


def test_options_that_do_not_suit_results(saved: Path, tmp_path: Path) -> None:
    for words in (["--runs", tmp_path], ["--save", tmp_path], [saved]):
        result = call(saved, *words)
        assert result.exit_code == 2 and "is a folder of results" in result.stderr
