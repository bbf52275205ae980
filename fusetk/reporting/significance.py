"""Significance tests of saved translations, and a file that keeps their p-values.

A test takes a fraction of a second, and a report needs hundreds of them. So its result is kept in
``significance/p_values.json`` in the folder of results, under a checksum of everything that
determines it.
"""

import json
import re
from pathlib import Path

import numpy as np

from fusetk.errors import DataError, one_line
from fusetk.evaluation.metric import Metric, MetricOptions
from fusetk.evaluation.metrics import LEARNED_METRICS, is_outside_metric, make_metrics
from fusetk.evaluation.significance import Sampling, randomization_p_value
from fusetk.files import digest, write_if_changed
from fusetk.reporting.result_files import (
    Columns,
    SavedScore,
    column_of,
    read_columns,
    text_kind,
    texts_path,
    translations_path,
)
from fusetk.reporting.runs import ScoreColumn
from fusetk.reporting.saved_run import SavedRun

NAME = Path("significance") / "p_values.json"
TOLERANCE = 0.005  # between a recorded score and that of the saved translations


class PValues:
    """The p-values of the results in a folder. Call ``save`` to keep new ones."""

    def __init__(self, folder: Path, sampling: Sampling):
        """Read the kept values. ``sampling`` is an approximate randomisation.

        Raises DataError if the file is damaged.
        """
        self.folder = folder
        self.sampling = sampling
        self.notes: dict[str, str] = {}  # runs by the reasons for tests that are missing
        self.path = folder / NAME
        self._known = self._read()
        self._changed = False
        self._columns: dict[Path, Columns] = {}
        self._statistics: dict[tuple[str, ScoreColumn], np.ndarray] = {}

    def _read(self) -> dict[str, float]:
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
            if not all(0 < float(value) <= 1 for value in values.values()):
                raise ValueError("a value is not between 0 and 1")
            return dict(values)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror}") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(
                f"{self.path} is damaged ({one_line(error)}): remove it; the tests are repeated"
            ) from None

    def compare(self, base: SavedRun, run: SavedRun, column: ScoreColumn) -> float | None:
        """Return the p-value of the difference between two runs.

        Return None if one of them has no translations, if they were scored with different
        references or settings, or if a new test needs a test text that is missing; ``notes`` gets
        the reason. Raises DataError if translations are missing, or if they do not have the
        recorded scores.
        """
        first, second = base.saved_score(column), run.saved_score(column)
        if first is None or second is None or base is run:
            return None
        pair = f"{run.stem} and {base.stem} are not compared on {column.set_name}"
        if (first.references, first.signature) != (second.references, second.signature):
            reason = f"their references or the signatures of {column.metric} differ"
            self.notes[f"{pair}: {reason}"] = run.stem
            return None
        if column.metric in LEARNED_METRICS or is_outside_metric(column.metric):
            advice = "run `fusetk score --significance` with both translations"
            self.notes[f"{pair} by {column.metric}: {advice}"] = run.stem
            return None
        name = f"{column.checkpoint}.{text_kind(column.metric)}"
        base_lines, lines = (self._lines(side, column.set_name, name) for side in (base, run))
        if base_lines is None or lines is None:
            return None
        key = digest([first.references, first.signature, [base_lines, lines], self.sampling])
        if key not in self._known:
            text = texts_path(self.folder, column.set_name, run.result.texts[column.set_name])
            if not text.exists():
                self.notes[
                    f"differences in {column.metric} on {column.set_name} are not tested, because "
                    f"{text} is missing"
                ] = run.stem
                return None
            [metric] = make_metrics(
                self._references(text, column), [column.metric], _options(first.signature)
            )
            rows = self._statistics_of(metric, base, column, base_lines)
            other_rows = self._statistics_of(metric, run, column, lines)
            self._known[key] = randomization_p_value(metric, rows, other_rows, self.sampling)
            self._changed = True
        return self._known[key]

    def _statistics_of(
        self, metric: Metric, run: SavedRun, column: ScoreColumn, lines: list[str]
    ) -> np.ndarray:
        """Return the metric's statistics of a run's translations, which are computed once.

        Raises DataError if they do not have the recorded score.
        """
        key = (run.stem, column)
        if key not in self._statistics:
            rows = np.asarray(metric.statistics(lines), dtype=np.float64)
            score = run.saved_score(column)
            assert score is not None
            _check_score(score, metric.value(rows.sum(0)), run.stem)
            self._statistics[key] = rows
        return self._statistics[key]

    def _lines(self, run: SavedRun, set_name: str, name: str) -> list[str] | None:
        """Return saved translations; None if the run has none."""
        if name not in run.result.translations.get(set_name, []):
            return None
        path = translations_path(self.folder, run.stem, set_name)
        return column_of(self._columns_of(path), name, path)

    def _references(self, path: Path, column: ScoreColumn) -> list[list[str]]:
        """Return the references in a text file that a column's metric scores against."""
        ending = f".{text_kind(column.metric)}"
        columns = self._columns_of(path)
        column_of(columns, f"reference1{ending}", path)  # raises DataError if there is none
        return [
            lines
            for name, lines in columns.items()
            if name.startswith("reference") and name.endswith(ending)
        ]

    def _columns_of(self, path: Path) -> Columns:
        """Return the texts of a file, which is read once."""
        if path not in self._columns:
            self._columns[path] = read_columns(path)
        return self._columns[path]

    def save(self) -> None:
        """Write new values. Nothing is written if the folder is read-only."""
        if not self._changed:
            return
        text = json.dumps(self._known, indent=1, sort_keys=True) + "\n"
        try:
            write_if_changed(self.path, text.encode())
        except OSError:
            return  # the tests are repeated the next time


def _options(signature: str) -> MetricOptions:
    """Return the options of a metric with this signature."""
    parts = dict(part.split(":", 1) for part in signature.split("|") if ":" in part)
    # The signature of a MeCab tokeniser is its name with a version, such as ja-mecab-0.996-IPA.
    tokenize = re.sub(r"(?<=-mecab)-.*", "", parts["tok"]) if "tok" in parts else None
    return MetricOptions(
        lowercase=parts.get("case") == "lc",
        tokenize=tokenize if tokenize not in (None, "13a") else None,
        compound_split="compounds" in parts,
    )


def _check_score(score: SavedScore, value: float, stem: str) -> None:
    if abs(score.value - value) > TOLERANCE:
        raise DataError(
            f"the translations of {stem} have the {score.metric} {value:.2f}, but the result has "
            f"{score.value:.2f}: score the run and save its result again"
        )
