"""Run folders with scores and translations, made by hand, for tests of result files."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fusetk import config, recipe, runs
from fusetk.evaluation.metrics import score
from fusetk.reporting import score_log
from fusetk.reporting.result_files import RunResult, result_text
from fusetk.reporting.score_log import ScoreDestination

TABLE = "Systems"
SET = "flickr"
SOURCES = ["eins zwei", "drei", "vier fünf sechs sieben", "acht neun", "zehn eins zwei drei"]
REFERENCES = ["TWO ONE", "THREE", "SEVEN SIX FIVE FOUR", "NINE EIGHT", "THREE TWO ONE TEN"]
WORSE = [*REFERENCES[:3], "EIGHT NINE", "TEN ONE"]
BAD = ["ONE TWO", "X", "FOUR FIVE SEVEN SIX", "A B C", "TEN ONE TWO THREE"]
SESSION = runs.Session(
    update=0,
    fusetk="1.0",
    revision="abc1234",
    torch="2",
    processor="A Processor",
    device="CPU, 2 threads",
    threads=2,
    processes=1,
)


def make_recipes(folder: Path, toy: Path, rows: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write a recipe for each system, with these values and a row of the table of its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for line, (name, values) in enumerate(rows.items(), 1):
        paper = {"table": TABLE, "row": name, "line": line, **values.get("paper", {})}
        content = {"extends": str(toy), **values, "paper": paper}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return folder


def make_prepared(folder: Path, toy: Path) -> Path:
    """Make a prepared folder with the pipeline of ``toy`` and the texts of a test set."""
    shutil.copytree(toy.parent / "prepared" / "text", folder / "text")
    for name, lines in ((f"test.{SET}.de", SOURCES), (f"test.{SET}.en", REFERENCES)):
        for ending in ("txt", "raw"):
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{name}.{ending}").write_text(text, encoding="utf-8")
    return folder


def make_run(
    folder: Path,
    recipe_path: Path,
    prepared: Path,
    seed: int,
    translations: Mapping[str, Sequence[str]],
    settings: Sequence[str] = (),
    metrics: Sequence[str] = ("multi-bleu", "chrf"),
    losses: Sequence[float] = (3.0, 2.0, 2.5),
) -> Path:
    """Make a run folder with translations by checkpoint, their scores, metrics and a session.

    Validations have the ``losses``, 10 updates apart.
    """
    overrides = [f"training.seed={seed}", f"data.folder={prepared}", *settings]
    updates = 10 * len(losses)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config.dump(recipe.load(recipe_path, overrides)))
    shutil.copytree(prepared / "text", folder / "text")
    state = folder / "checkpoints" / "last" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps({"format": 1, "progress": {"update": updates}, "data": "d" * 64}))
    records: list[dict[str, Any]] = []
    for i, loss in enumerate(losses, 1):
        speed = {"tokens": 1000, "tokens_per_second": 500.0, "memory": 2**20}
        records.append(
            {"kind": "train", "update": 10 * i, "epoch": i / 2, "loss": loss - 0.5, **speed}
        )
        best = loss == min(losses[:i])
        records.append(
            {"kind": "valid", "update": 10 * i, "epoch": i / 2, "loss": loss, "best": best}
            | {"seconds": 1.0}
        )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in records))
    runs.add_session(folder, SESSION)
    for checkpoint, lines in translations.items():
        for metric in metrics:
            ending = "txt" if metric.startswith("multi-bleu") else "raw"
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{SET}.{checkpoint}.{ending}").write_text(text, encoding="utf-8")
            destination = ScoreDestination(folder, SET, checkpoint)
            scores = score(lines, [REFERENCES], [metric])
            score_log.record_scores(destination, scores, [REFERENCES])
    return folder


def write_result(path: Path, result: RunResult, **changes: Any) -> None:
    """Write a result with changed fields into a result file."""
    path.write_text(result_text(result.model_copy(update=changes)))
