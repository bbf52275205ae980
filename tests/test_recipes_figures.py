"""Scripts that draw the figures of the papers."""

import importlib.util
import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fusetk.datasets import table
from fusetk.errors import DataError
from tests.helpers.published import sentence, write_files
from tests.helpers.rows import RECIPES, published

pytestmark = pytest.mark.usefixtures("commands")

spec = importlib.util.spec_from_file_location("figure3", RECIPES / "mlrf" / "figure3.py")
assert spec and spec.loader
figure3 = importlib.util.module_from_spec(spec)
spec.loader.exec_module(figure3)


def call(script: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [RECIPES / script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def fake_run(out: Path, name: str, **validated: float) -> None:
    """Write the files of a run that `fusetk plot-curves` and the scripts read."""
    run = out / f"run.{name}.seed1"
    run.mkdir(parents=True)
    (run / "config.yaml").touch()
    records: list[dict[str, Any]] = []
    for update in (10, 20, 30):
        records.append({"kind": "train", "update": update, "epoch": update / 10, "loss": 5.0})
        values = {key: value * update for key, value in validated.items()}
        records.append({"kind": "valid", "update": update, "epoch": update / 10, **values})
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.parametrize(
    ("script", "row"),
    [
        (["mlrf/figure4.sh"], "mlrf/iwslt14_deen/figure4_baseline"),
        (["mlrf/figure5.sh"], "mlrf/nist_zhen/dec_sa_4hops"),
        (["lwc/figures2to4.sh"], "lwc/iwslt14_deen/transformer"),
        (["densenmt/curves.sh", "iwslt14_tren"], "densenmt/iwslt14_tren/base_4l_e256"),
        (["densenmt/curves.sh", "wmt14_ende"], "densenmt/wmt14_ende/convs2s_en_de_15"),
    ],
)
def test_a_missing_run_names_the_command_that_trains_it(
    script: list[str], row: str, tmp_path: Path
) -> None:
    assert (RECIPES / f"{row}.yaml").exists()
    ran = call(*script, tmp_path)
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1
    command = f"fusetk run recipes/{row}.yaml --raw DIR --seed 1 --out {tmp_path}"
    assert f"call `{command}` first" in ran.stderr


@pytest.mark.parametrize(
    ("script", "option"),
    [
        ("mlrf/figure3.sh", "--seed"),
        ("mlrf/figure4.sh", "--checkpoint"),
        ("densenmt/curves.sh", "--checkpoint"),
    ],
)
def test_an_option_of_another_figure_is_an_error(script: str, option: str, tmp_path: Path) -> None:
    task = ["iwslt14_tren"] if "curves" in script else []
    ran = call(script, *task, tmp_path, option, "7")
    assert ran.returncode == 2 and f"there is no option {option}" in ran.stderr


@pytest.mark.parametrize(
    "script", [path for path in sorted(RECIPES.rglob("*.sh")) if path.name != "common.sh"]
)
def test_a_link_to_a_script_can_be_called(script: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(script)
    ran = subprocess.run([link, "--help"], capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout.startswith("Usage: "), ran.stderr


def test_a_missing_folder_of_figure_3_is_one_error(tmp_path: Path) -> None:
    ran = call("mlrf/figure3.sh", tmp_path / "missing")
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1
    row = "recipes/mlrf/iwslt14_deen/figure3_hops_1.yaml"
    assert f"call `fusetk run {row} --raw DIR --out {tmp_path / 'missing'}` first" in ran.stderr


def test_accuracy_is_drawn_on_both_texts(tmp_path: Path) -> None:
    for row in ("baseline", "baseline_dropout_0.2", "dec_sa"):
        fake_run(tmp_path, f"iwslt14_deen.figure4_{row}", accuracy=0.01, train_accuracy=0.02)
    ran = call("mlrf/figure4.sh", tmp_path, "-o", tmp_path / "numbers.json")
    assert ran.returncode == 0, ran.stderr
    drawn = json.loads((tmp_path / "numbers.json").read_text())
    assert [(curve["run"], curve["kind"]) for curve in drawn] == [
        (f"{system}", kind)
        for system in ("baseline p = 0.1", "baseline p = 0.2", "Dec-SA p = 0.1")
        for kind in ("train", "valid")
    ]
    assert drawn[0]["value"] == [0.2, 0.4, 0.6] and drawn[1]["value"] == [0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        ("iwslt14_tren_morph", ("base_4l_e256", "densenmt_4l_2_e256")),
        ("wmt14_ende", ("convs2s_en_de_15", "densenmt_en_de_15")),
    ],
)
def test_the_losses_of_two_systems_are_drawn_by_epoch(
    task: str, rows: tuple[str, str], tmp_path: Path
) -> None:
    for row in rows:
        fake_run(tmp_path, f"{task}.{row}", loss=0.1)
    ran = call("densenmt/curves.sh", task, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "curves.png").stat().st_size > 1000


@pytest.mark.parametrize("arguments", [[], ["iwslt14"]])
def test_the_task_of_the_curves_is_checked(arguments: list[str]) -> None:
    ran = call("densenmt/curves.sh", *arguments)
    assert ran.returncode == 2 and "give TASK, one of iwslt14_deen, iwslt14_tren" in ran.stderr


def test_bleu_by_hops_is_that_of_the_rows_that_ran(tmp_path: Path) -> None:
    def row(number: int, measured: float | None) -> dict[str, Any]:
        values = published()["MLRF Figure 3"].rows[number]
        means = [] if measured is None else [("my_test", 99.0), ("test", measured)]
        scores = [{"set_name": name, "mean": mean} for name, mean in means]
        return {"row": values.row, "printed": values.bleu, "measured": scores}

    rows = [row(0, 30.0), row(1, 31.0), row(4, None), row(6, 33.0)]
    measured, printed = figure3.read({"rows": rows}, tmp_path)
    assert measured == {"baseline": 30.0, "1 hop": 31.0, "6 hops": 33.0}
    assert printed == {"baseline": 32.67, "4 hops": 33.29, "6 hops": 33.54}
    assert figure3.hops(measured) == ([1, 6], [31.0, 33.0])
    [axes] = figure3.draw(measured, printed).axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [
        f"{name}, {of}" for of in ("measured", "published") for name in ("Dec-SA", "baseline")
    ]
    command = r"`fusetk run recipes/mlrf/iwslt14_deen/figure3_hops_1.yaml --raw DIR --out 'my out'`"
    with pytest.raises(DataError, match=f"no run in my out has a score: call {command} first"):
        figure3.read({"rows": [row(1, None)]}, Path("my out"))


def test_figure_3_prints_the_remarks_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = [{"set_name": "test", "mean": 31.0}]
    rows = [{"row": "1 hop", "printed": None, "measured": scores}]
    tables = [
        {"table": "MLRF Table 2", "rows": [], "warnings": []},
        {"table": "MLRF Figure 3", "rows": rows, "warnings": ["another config"]},
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"tables": tables})))
    monkeypatch.setattr("sys.argv", ["figure3.py", str(tmp_path / "a.png"), str(tmp_path)])
    assert figure3.main() == 0
    printed = capsys.readouterr()
    assert printed.out.split() == ["1", "hop", "31.00"]
    assert printed.err == "figure3.py: another config\n"


@pytest.mark.slow
def test_figures_of_attention_are_drawn_from_trained_systems(tmp_path: Path) -> None:
    """MLRF's Figures 3 and 5, and Figures 2 to 4 of layer-wise coordination."""
    for name in ("iwslt14-de-en", "nist-zh-en"):
        (tmp_path / name / "archives").mkdir(parents=True)
        write_files(table.read(name), tmp_path / name / "archives")
        files = ["--files", tmp_path / name / "archives", "--no-fetch", "--any-data"]
        make = ["fusetk", "dataset", name, "--raw", tmp_path / name, *files]
        subprocess.run([*map(str, make)], check=True, capture_output=True)
    # The words of the figure, so that the prefix of the translation is not unknown.
    for side in ("de", "en"):
        with open(tmp_path / "iwslt14-de-en" / f"train.{side}", "a", encoding="utf-8") as file:
            text = sentence(side, 1) if side == "de" else "things happened at the same time ."
            file.write(f"{text}\n" * 20)
    rows = {
        "mlrf/iwslt14_deen": ["figure3_baseline", "figure3_hops_2"],
        "lwc/iwslt14_deen": ["transformer", "coordinated"],
        "mlrf/nist_zhen": ["dec_sa_4hops"],
    }
    for task, names in rows.items():
        raw = tmp_path / ("nist-zh-en" if task.endswith("zhen") else "iwslt14-de-en")
        for name in names:
            command = ["fusetk", "run", RECIPES / task / f"{name}.yaml", "--raw", raw, "--smoke"]
            command += ["--out", tmp_path / task.replace("/", "_")]
            for size in ("model.width=16", "model.heads=2", "model.ffn=16"):
                command += ["--set", size]
            ran = subprocess.run([*map(str, command)], capture_output=True, text=True)
            assert ran.returncode == 0, ran.stderr
    for script, folder, pictures in (
        ("mlrf/figure3.sh", "mlrf_iwslt14_deen", [3]),
        ("mlrf/figure5.sh", "mlrf_nist_zhen", [5]),
        ("lwc/figures2to4.sh", "lwc_iwslt14_deen", [2, 3, 4]),
    ):
        out = tmp_path / f"{folder}.smoke"
        ran = call(script, out)
        assert ran.returncode == 0, ran.stderr
        for number in pictures:
            assert os.path.getsize(out / f"figure{number}.png") > 1000
