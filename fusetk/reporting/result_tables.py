"""Tables from result files: rows with their runs, and the differences to a baseline."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fusetk.errors import DataError
from fusetk.evaluation.metrics import METRICS, is_lower_better
from fusetk.evaluation.significance import SAMPLES, Sampling
from fusetk.files import digest
from fusetk.papers import AVERAGE
from fusetk.reporting.gain import SeedComparison
from fusetk.reporting.measured_costs import MeasuredCosts, SystemCost, read_costs
from fusetk.reporting.result_files import RunResult, read_results
from fusetk.reporting.runs import VALID, MeanScore, ScoreColumn, chosen_columns, mean_of
from fusetk.reporting.saved_run import CurveMetric, SavedRun
from fusetk.reporting.significance import PValues

TEST = Sampling("randomization", SAMPLES["randomization"])
# Metrics of the default columns: the first one of each line that the results have.
DEFAULT_METRICS = (("sacrebleu", "multi-bleu", "multi-bleu-lc"), ("chrf", "chrf++"))


SHOWN_CONFIG = (
    "A row has the config with the most seeds; at a tie, the one with the lowest mean validation "
    "loss. A training whose config changes training.stages.*.end is a trial. The rows do not show "
    "trials, unless all trainings of the table are trials"
)


class ResultRow:
    """A row of a table: the runs of its config, and runs with other configs."""

    def __init__(self, runs: Sequence[SavedRun]):
        """``runs`` are all runs of a row.

        The row shows the config that ``SHOWN_CONFIG`` names.
        """
        groups: dict[str, list[SavedRun]] = {}
        for run in runs:
            key = json.dumps(run.result.overrides, sort_keys=True)
            groups.setdefault(key, []).append(run)

        def rank(group: list[SavedRun]) -> tuple[Any, ...]:
            losses = [run.best_loss for run in group if run.best_loss is not None]
            mean = sum(losses) / len(losses) if losses else 0.0
            return group[0].changes_end, -len(group), not losses, mean

        self._groups = sorted(groups.values(), key=rank)
        shown, *others = self._groups
        self.runs = sorted(shown, key=lambda run: run.result.seed)
        self.other_runs = [run for group in others for run in group]
        self.first = self.runs[0].result
        self.name = self.first.row

    @property
    def by_config(self) -> list["ResultRow"]:
        """A row for each config of the runs; the first one is that which this row shows."""
        return [ResultRow(runs) for runs in self._groups]

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

    def lower_is_better(self, column: ScoreColumn) -> bool:
        """Whether a lower score of a column is better.

        The results say so of a metric outside fusetk.
        """
        scores = [run.saved_score(column) for run in self.runs]
        return is_lower_better(column.metric) or any(s.lower_is_better for s in scores if s)

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

    @property
    def peak_memory(self) -> MeanScore | None:
        """The mean of the highest memory of each training, in bytes.

        None if some trainings ran on a GPU and others did not, because it is measured differently.
        """
        if len({run.result.training.on_gpu for run in self.runs}) > 1:
            return None
        return mean_of(run.result.training.peak_memory for run in self.runs)

    def best_of_seed(self, metric: CurveMetric, seed: int) -> float | None:
        """Return the best validation value of the run with this seed.

        Without such a run, return the mean over all runs; None if no run has the metric.
        """
        if run := self.by_seed.get(seed):
            return run.best(metric)
        mean = mean_of(run.best(metric) for run in self.runs)
        return mean.value if mean else None

    def twins(self, base: "ResultRow") -> list[tuple[SavedRun, SavedRun]]:
        """Return the pairs of a run and the baseline's run with the same seed."""
        return [
            (run, base.by_seed[seed]) for seed, run in self.by_seed.items() if seed in base.by_seed
        ]

    def compare(
        self, base: "ResultRow", column: ScoreColumn, p_values: PValues
    ) -> SeedComparison | None:
        """Compare the scores with those of the baseline; None if one of them has no score."""
        mean, base_mean = self.mean(column), base.mean(column)
        if mean is None or base_mean is None:
            return None
        differences: dict[int, float] = {}
        tested: dict[int, float] = {}
        for run, twin in self.twins(base):
            score, base_score = run.score(column), twin.score(column)
            if score is None or base_score is None:
                continue
            differences[run.result.seed] = score - base_score
            p = p_values.compare(twin, run, column)
            if p is not None:
                tested[run.result.seed] = p
        return SeedComparison(mean, base_mean, differences, tested, self.lower_is_better(column))


class ResultTable(NamedTuple):
    """A table of results."""

    title: str
    rows: list[ResultRow]
    columns: list[ScoreColumn]
    p_values: PValues
    only_bleu: bool  # test the differences of BLEU only
    costs: MeasuredCosts | None  # of all systems in one run
    hidden_rows: list[ResultRow]  # rows that have trials only
    baseline: ResultRow | None  # of rows that name none; None if it is hidden

    @property
    def first_row(self) -> ResultRow:
        """The first row of the table, also if it is hidden."""
        return self.baseline or self.hidden_rows[0]

    @property
    def baseline_name(self) -> str:
        """The name of the first row of the table, also if it is hidden."""
        return self.first_row.name

    @property
    def hidden_runs(self) -> list[tuple[str, SavedRun]]:
        """The runs that the table does not show, each with the name of its row."""
        others = [(row.name, run) for row in self.rows for run in row.other_runs]
        hidden = [(row.name, run) for row in self.hidden_rows for run in row.runs + row.other_runs]
        return others + hidden

    @property
    def tested_columns(self) -> list[ScoreColumn]:
        """The columns whose differences are tested. The first one decides about gains."""
        names = DEFAULT_METRICS[0]
        return [
            column
            for i, column in enumerate(self.columns)
            if i == 0 or not self.only_bleu or column.metric in names
        ]

    def compare(self, row: ResultRow, column: ScoreColumn) -> SeedComparison | None:
        """Compare a row with its baseline.

        Return None for the baseline itself, if the baseline or a score is missing, or if the column
        is not tested.
        """
        base = self.base_of(row)
        if base is None or base is row or column not in self.tested_columns:
            return None
        return row.compare(base, column, self.p_values)

    def equal_configs(self, row: ResultRow) -> list[tuple[ResultRow, ResultRow]]:
        """Return the runs of a row and of its baseline for each config that both have.

        Keys that the baseline does not have may have any value.
        """
        base = self.base_of(row)
        if base is None or base is row:
            return []
        return [
            (own, other)
            for own in row.by_config
            for other in base.by_config
            if _known_overrides(own, other) == other.overrides
        ]

    def hidden_equal_configs(self, row: ResultRow) -> list[tuple[ResultRow, ResultRow]]:
        """Return the pairs of ``equal_configs``, except the one that the rows show."""
        base = self.base_of(row)
        shown_overrides = base and (row.overrides, base.overrides)
        return [
            (own, other)
            for own, other in self.equal_configs(row)
            if (own.overrides, other.overrides) != shown_overrides
        ]

    def gain(self, row: ResultRow) -> str | None:
        """Whether the first score of a row is a gain, by ``gain.RULE``.

        It is ``yes`` or ``no``; ``open: ...`` with the numbers of seeds or tests that the rule
        needs; ``no baseline`` if that row is missing; or empty for the baseline itself. It is None
        if there is no score.
        """
        base = self.base_of(row)
        if base is row:
            return ""
        if base is None:
            return "no baseline"
        comparison = self.compare(row, self.columns[0]) if self.columns else None
        return comparison.verdict if comparison else None

    def cost_of(self, row: ResultRow) -> SystemCost | None:
        """Return the measured cost of a row's system; None if it was not measured."""
        return self.costs.systems.get(row.first.system) if self.costs else None

    def relative_speed(
        self, row: ResultRow, quantity: Literal["training", "decoding"]
    ) -> float | None:
        """Return a speed relative to the baseline; None if it is unknown.

        If no costs were measured, the training speeds are those of the logs of the trainings.
        """
        base = self.base_of(row)
        if base is None:
            return None
        if self.costs:
            names = row.first.system, base.first.system
            known = all(name in self.costs.systems for name in names)
            return self.costs.ratio(quantity, *names) if known else None
        own, other = row.tokens_per_second, base.tokens_per_second
        return own.value / other.value if own and other and quantity == "training" else None

    def seconds_to_best(self, row: ResultRow, metric: CurveMetric) -> list[float | None] | None:
        """Return for each run the seconds of training to the best validation of the baseline.

        A run that does not reach it has None. The baseline's run is that of the same seed. Runs
        without the metric or without a speed are left out. The speed is the measured one; if no
        costs were measured, that of the training. Return None if there is no such run or no
        baseline.
        """
        base = self.base_of(row)
        if base is None:
            return None
        times: list[float | None] = []
        for run in row.runs:
            goal = base.best_of_seed(metric, run.result.seed)
            seconds = self._seconds_per_update(row, run)
            if goal is None or seconds is None or not run.has_computed(metric):
                continue
            updates = run.updates_to(metric, goal)
            times.append(updates * seconds if updates is not None else None)
        return times or None

    def _seconds_per_update(self, row: ResultRow, run: SavedRun) -> float | None:
        if not self.costs:
            return run.seconds_per_update
        cost, tokens = self.cost_of(row), run.tokens_per_update
        return tokens / cost.training_speed if cost and tokens is not None else None

    def base_of(self, row: ResultRow) -> ResultRow | None:
        """Return the row to which the differences of a row are computed; None if it is missing."""
        name = row.first.compared_with
        if name is None:
            return self.baseline
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
    groups = _runs_by_table_and_row(results)
    p_values = PValues(folder, TEST)
    costs = read_costs(folder)
    by_default = not all_scores and not any(choices.values())
    all_runs = [run for rows in groups.values() for runs in rows.values() for run in runs]
    chosen = chosen_columns(_columns(all_runs), choices)
    tables = []
    for title, members in sorted(groups.items()):
        all_rows = sorted(map(ResultRow, members.values()), key=_position)
        rows_of_table = [row for row in all_rows if not row.runs[0].changes_end] or all_rows
        hidden_rows = [row for row in all_rows if row not in rows_of_table]
        baseline = all_rows[0] if all_rows[0] in rows_of_table else None
        runs = [run for row in rows_of_table for run in row.runs]
        columns = [column for column in _columns(runs) if column in chosen]
        columns = _default_columns(columns, runs) if by_default else columns
        tables.append(
            ResultTable(
                title, rows_of_table, columns, p_values, by_default, costs, hidden_rows, baseline
            )
        )
    return tables


def _runs_by_table_and_row(
    results: Mapping[Path, RunResult],
) -> dict[str, dict[str, list[SavedRun]]]:
    """Return the runs by table, then by row.

    Raises DataError if two results have the same row, seed and config.
    """
    groups: dict[str, dict[str, list[SavedRun]]] = {}
    known: dict[str, Path] = {}
    for path, result in results.items():
        identity = digest([result.table, result.row, result.seed, result.overrides])
        if other := known.get(identity):
            raise DataError(
                f"{other} and {path} have the same row, seed and config: remove one of them"
            )
        known[identity] = path
        rows = groups.setdefault(result.table, {})
        rows.setdefault(result.row, []).append(SavedRun(path.stem, result))
    return groups


def _position(row: ResultRow) -> tuple[bool, int, str]:
    return row.first.line is None, row.first.line or 0, row.name


def _columns(runs: Iterable[SavedRun]) -> list[ScoreColumn]:
    """Return the columns of all scores: by test set, then BLEU first, then the best checkpoint.

    The validation text and the mean over several test sets come last: the first column decides
    about gains, and the differences of these two cannot be tested.
    """
    order = [name for names in DEFAULT_METRICS for name in names]
    order += [name for name in METRICS if name not in order]

    def rank(column: ScoreColumn) -> tuple[Any, ...]:
        metric = order.index(column.metric) if column.metric in order else len(order)
        is_last = column.set_name in (AVERAGE, VALID)
        return is_last, column.set_name, metric, column.checkpoint != "best", column.checkpoint

    columns = {ScoreColumn(*score.key) for run in runs for score in run.result.scores}
    return sorted(columns, key=rank)


def _default_columns(columns: Sequence[ScoreColumn], runs: list[SavedRun]) -> list[ScoreColumn]:
    """Return the columns of BLEU with all checkpoints, and of chrF with the best one.

    If runs have several kinds of BLEU or chrF, the kind that most runs have is chosen.
    """
    scored = Counter(
        metric
        for run in runs
        for metric in {score.metric for score in run.result.scores if score.set_name != VALID}
    )
    bleu, chrf = (
        max((name for name in names if name in scored), key=scored.__getitem__, default=None)
        for names in DEFAULT_METRICS
    )
    return [
        column
        for column in columns
        if column.set_name != VALID
        and (column.metric == bleu or (column.metric == chrf and column.checkpoint == "best"))
    ]


def _known_overrides(row: ResultRow, base: ResultRow) -> dict[str, Any]:
    """Return the overrides of a row whose keys are in the config of its baseline."""

    def knows(key: str) -> bool:
        value: Any = base.first.config
        for part in key.split("."):
            if isinstance(value, list) and part.isdigit() and int(part) < len(value):
                value = value[int(part)]
            elif isinstance(value, dict) and part in value:
                value = value[part]
            else:
                return False
        return True

    return {key: value for key, value in row.overrides.items() if knows(key)}
