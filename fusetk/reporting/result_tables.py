"""Tables from result files: rows with their runs, the differences to a baseline, and pilots."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from fusetk.errors import DataError
from fusetk.evaluation.metrics import METRICS
from fusetk.evaluation.significance import SAMPLES, Sampling
from fusetk.reporting.result_files import RunResult, read_results
from fusetk.reporting.runs import VALID, MeanScore, ScoreColumn
from fusetk.reporting.significance import PValues

TEST = Sampling("randomization", SAMPLES["randomization"])
LEVEL = 0.05  # of significance
# Metrics of the default columns: the first one of each line that the results have.
DEFAULT_METRICS = (("sacrebleu", "multi-bleu", "multi-bleu-lc"), ("chrf", "chrf++"))


class SavedRun(NamedTuple):
    """A result and the name of its file without the ending."""

    stem: str
    result: RunResult

    @property
    def best_loss(self) -> float | None:
        """The lowest validation loss."""
        losses = [loss for loss in self.result.valid_curve.get("loss", []) if loss is not None]
        return min(losses, default=None)

    def score(self, column: ScoreColumn) -> float | None:
        """Return the score of a column; None if the run has no such score."""
        return next((s.value for s in self.result.scores if s.key == tuple(column)), None)

    def seconds_to_loss(self, loss: float) -> float | None:
        """Return the seconds of updates to the first validation with at most this loss."""
        training = self.result.training
        if not training.updates or training.update_seconds is None:
            return None
        curve = self.result.valid_curve
        for update, value in zip(curve.get("update", []), curve.get("loss", []), strict=False):
            if update is not None and value is not None and value <= loss:
                return training.update_seconds * update / training.updates
        return None


class TestedDifference(NamedTuple):
    """The significance tests of a row's runs against the runs of its baseline."""

    p_values: dict[int, float]  # by seed
    better: int  # runs that are better than the baseline with p < LEVEL
    worse: int

    def __str__(self) -> str:
        parts = [f"+{self.better}"] * bool(self.better) + [f"-{self.worse}"] * bool(self.worse)
        return f"{' '.join(parts) or '0'} of {len(self.p_values)}"


class ResultRow:
    """A row of a table: the runs of its config, and runs with other configs."""

    def __init__(self, runs: Sequence[SavedRun]):
        """``runs`` are all runs of a row.

        The row shows the config with the most seeds; at a tie, that with the lowest validation
        loss. The other runs are pilots.
        """
        groups: dict[str, list[SavedRun]] = {}
        for run in runs:
            key = json.dumps(run.result.overrides, sort_keys=True)
            groups.setdefault(key, []).append(run)

        def rank(group: list[SavedRun]) -> tuple[Any, ...]:
            loss = min(group, key=lambda run: run.result.seed).best_loss
            return -len(group), loss is None, loss or 0.0

        self.groups = sorted(groups.values(), key=rank)
        self.runs = sorted(self.groups[0], key=lambda run: run.result.seed)
        self.first = self.runs[0].result
        self.name = self.first.row

    @cached_property
    def by_seed(self) -> dict[int, SavedRun]:
        """The runs of the row by seed."""
        return {run.result.seed: run for run in self.runs}

    @property
    def overrides(self) -> Mapping[str, Any]:
        """The values in which the runs differ from the recipe."""
        return self.first.overrides

    @property
    def parameters(self) -> int | None:
        """The number of parameters."""
        return self.first.training.parameters

    def mean(self, column: ScoreColumn) -> MeanScore | None:
        """Return the mean score of a column over the seeds; None without a score."""
        return mean_of(run.score(column) for run in self.runs)

    @property
    def loss(self) -> MeanScore | None:
        """The mean of the best validation losses."""
        return mean_of(run.best_loss for run in self.runs)

    @property
    def updates_to_best(self) -> MeanScore | None:
        """The mean number of updates to the best validation."""
        return mean_of(run.result.training.best_update for run in self.runs)

    @property
    def tokens_per_second(self) -> MeanScore | None:
        """The mean speed of training."""
        return mean_of(run.result.training.tokens_per_second for run in self.runs)

    def seconds_to_loss_of(self, base: "ResultRow") -> list[float | None]:
        """Return for each run the seconds of updates to the best loss of the baseline.

        The loss is that of the baseline with the same seed, or its mean if there is none.
        """
        seconds = []
        for run in self.runs:
            twin = base.by_seed.get(run.result.seed)
            loss = twin.best_loss if twin else base.loss and base.loss.value
            seconds.append(run.seconds_to_loss(loss) if loss is not None else None)
        return seconds

    def test(
        self, base: "ResultRow", column: ScoreColumn, p_values: PValues
    ) -> TestedDifference | None:
        """Compare each run with that of the baseline with the same seed; None if none can be."""
        values: dict[int, float] = {}
        better = worse = 0
        for seed, run in self.by_seed.items():
            twin = base.by_seed.get(seed)
            p = p_values.compare(twin, run, column) if twin else None
            if twin is None or p is None:
                continue
            values[seed] = p
            gain = (run.score(column) or 0.0) - (twin.score(column) or 0.0)
            if column.metric in METRICS and METRICS[column.metric].lower_is_better:
                gain = -gain
            better += p < LEVEL and gain > 0
            worse += p < LEVEL and gain < 0
        return TestedDifference(values, better, worse) if values else None


def mean_of(values: Iterable[float | None]) -> MeanScore | None:
    """Return mean and sample standard deviation of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    deviation = statistics.stdev(known) if len(known) > 1 else None
    return MeanScore(statistics.fmean(known), deviation, len(known))


class ResultTable(NamedTuple):
    """A table of results."""

    title: str
    rows: list[ResultRow]
    columns: list[ScoreColumn]
    p_values: PValues
    only_bleu: bool  # test the differences of BLEU only

    def tests(self, column: ScoreColumn) -> bool:
        """Whether the differences of a column are tested."""
        return not self.only_bleu or column.metric in DEFAULT_METRICS[0]

    def test(self, row: ResultRow, column: ScoreColumn) -> TestedDifference | None:
        """Compare each run of a row with that of its baseline with the same seed.

        Return None if there is no such pair with translations, or if the column is not tested.
        """
        base = self.base_of(row)
        if base is None or base is row or not self.tests(column):
            return None
        return row.test(base, column, self.p_values)

    def base_of(self, row: ResultRow) -> ResultRow | None:
        """Return the row to which the differences of a row are computed; None if it is missing."""
        name = row.first.compared_with
        if name is None:
            return self.rows[0]
        return next((other for other in self.rows if other.name == name), None)

    @property
    def runs(self) -> list[SavedRun]:
        """The runs that the rows show."""
        return [run for row in self.rows for run in row.runs]


def read_tables(
    folder: Path, choices: Mapping[str, Sequence[str]], all_scores: bool = False
) -> list[ResultTable]:
    """Return the tables of the results in a folder.

    The columns are those of the chosen names (see ``chosen_columns``), of all scores with
    ``all_scores``, or else BLEU and chrF. Raises DataError if there is no result, if a file is
    damaged, or if no score has a chosen name.
    """
    results = read_results(folder)
    if not results:
        raise DataError(
            f"{folder} has no results yet: `fusetk report RECIPE --runs DIR --save {folder}` "
            "writes them"
        )
    groups: dict[str, dict[str, list[SavedRun]]] = {}
    for path, result in results.items():
        rows = groups.setdefault(result.table, {})
        rows.setdefault(result.row, []).append(SavedRun(path.stem, result))
    p_values = PValues(folder, TEST)
    tables = []
    for title, members in sorted(groups.items()):
        rows_of_table = sorted(map(ResultRow, members.values()), key=_position)
        runs = [run for row in rows_of_table for run in row.runs]
        columns = _columns(runs)
        by_default = not all_scores and not any(choices.values())
        columns = _default_columns(columns) if by_default else chosen_columns(columns, choices)
        tables.append(ResultTable(title, rows_of_table, columns, p_values, by_default))
    return tables


def _position(row: ResultRow) -> tuple[bool, int, str]:
    return row.first.line is None, row.first.line or 0, row.name


def _columns(runs: Iterable[SavedRun]) -> list[ScoreColumn]:
    """Return the columns of all scores: by test set, then BLEU first, then the best checkpoint."""
    order = [name for names in DEFAULT_METRICS for name in names]
    order += [name for name in METRICS if name not in order]

    def rank(column: ScoreColumn) -> tuple[Any, ...]:
        metric = order.index(column.metric) if column.metric in order else len(order)
        return column.set_name, metric, column.checkpoint != "best", column.checkpoint

    columns = {ScoreColumn(*score.key) for run in runs for score in run.result.scores}
    return sorted(columns, key=rank)


def _default_columns(columns: Sequence[ScoreColumn]) -> list[ScoreColumn]:
    """Return the columns of BLEU with all checkpoints, and of chrF with the best one."""
    known = {column.metric for column in columns if column.set_name != VALID}
    bleu, chrf = (
        next((name for name in names if name in known), None) for names in DEFAULT_METRICS
    )
    return [
        column
        for column in columns
        if column.set_name != VALID
        and (column.metric == bleu or (column.metric == chrf and column.checkpoint == "best"))
    ]


def chosen_columns(
    columns: Sequence[ScoreColumn], choices: Mapping[str, Sequence[str]]
) -> list[ScoreColumn]:
    """Return the columns with the chosen names.

    ``choices`` has the names for each option, in the order of the fields of ``ScoreColumn``; no
    names choose all. Raises DataError if no column has a chosen name.
    """
    for i, (option, names) in enumerate(choices.items()):
        known = dict.fromkeys(column[i] for column in columns)
        for name in names:
            if name not in known:
                raise DataError(
                    f"{option} {name}: no result has such a score; choose from {', '.join(known)}"
                )
        columns = [column for column in columns if not names or column[i] in names]
    return list(columns)
