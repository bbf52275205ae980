"""The columns of a table of results: heads, cells, and a sentence that explains each column."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fusetk.reporting.deviations import short_keys
from fusetk.reporting.formats import signed
from fusetk.reporting.gain import RULE
from fusetk.reporting.result_tables import ResultRow, ResultTable
from fusetk.reporting.runs import MeanScore, ScoreColumn, mean_of
from fusetk.reporting.saved_run import CurveMetric
from fusetk.runs import num_averaged


class TableColumn(NamedTuple):
    """A column of a table."""

    head: str
    cell: Callable[[ResultRow], str | None]  # of a row; None: the value is unknown
    explanation: str  # the rest of a sentence after the head

    @property
    def note(self) -> str:
        """The line below the table that explains the column."""
        return f"{self.head}: {self.explanation}"


def result_columns(table: ResultTable) -> list[TableColumn]:
    """Return the columns after the names of the rows: scores first, then costs."""
    columns = [
        TableColumn(
            "parameters",
            lambda row: f"{row.parameters / 1e6:.2f}M" if row.parameters else None,
            "number of parameters of the model, in millions",
        ),
        TableColumn(
            "seeds",
            lambda row: " ".join(str(run.result.seed) for run in row.runs),
            "seeds of the trainings; all means and sample standard deviations (±) are over them",
        ),
    ]
    if any(row.overrides for row in table.rows):
        columns.append(
            TableColumn(
                "config",
                lambda row: config_text(row.overrides),
                "values that differ from the recipe's; if a row and its baseline have different "
                "configs, their difference is not that of the systems alone",
            )
        )
    for i, column in enumerate(table.columns):
        columns += _score_columns(table, column)
        if i == 0:
            columns.append(gain_column(table))
    loss = TableColumn(
        "valid loss",
        lambda row: mean_text(row.loss, len(row.runs), 3),
        "mean of the lowest validation loss of each training, for a target token",
    )
    return [*columns, loss, *_cost_columns(table)]


def config_text(overrides: Mapping[str, Any]) -> str:
    """Return the values in which a run differs from its recipe."""
    names = short_keys(list(overrides))
    values = [f"{names[key]} = {value}" for key, value in overrides.items()]
    return ", ".join(values) or "the recipe's"


# Scores -------------------------------------------------------------------------------------------


def column_name(columns: Sequence[ScoreColumn], column: ScoreColumn) -> str:
    """Return the metric and the checkpoint; also the test set if there are several."""
    names = [column.metric, column.checkpoint]
    if len({other.set_name for other in columns}) > 1:
        names.insert(0, column.set_name)
    return " ".join(names)


def _score_columns(table: ResultTable, column: ScoreColumn) -> list[TableColumn]:
    """Return the mean scores and the differences to the baseline."""
    averaged = num_averaged(column.checkpoint)
    checkpoint = f"the checkpoint `{column.checkpoint}`"
    if column.checkpoint == "best":
        checkpoint = "the best checkpoint in validation"
    elif averaged:
        checkpoint = f"the mean of the last {averaged} checkpoints"
    signatures = {
        score.signature for run in table.runs if (score := run.saved_score(column)) is not None
    }
    signature = f", with the signature {signatures.pop()}" if len(signatures) == 1 else ""
    return [
        TableColumn(
            column_name(table.columns, column),
            lambda row: mean_text(row.mean(column), len(row.runs), 2),
            f"mean {column.metric} on {column.set_name}, translated with {checkpoint}{signature}",
        ),
        TableColumn(
            "Δ",
            lambda row: _difference(table, row, column),
            "difference to the mean of the baseline in the column before it",
        ),
    ]


def _difference(table: ResultTable, row: ResultRow, column: ScoreColumn) -> str | None:
    base = table.base_of(row)
    if base is row:
        return ""
    mean, base_mean = row.mean(column), base.mean(column) if base else None
    return signed(mean.value - base_mean.value) if mean and base_mean else None


def mean_text(mean: MeanScore | None, runs: int, digits: int) -> str | None:
    """Return mean and deviation; also the number of values if it is not the number of runs."""
    if mean is None:
        return None
    spread = f" ±{mean.deviation:.{digits}f}" if mean.deviation is not None else ""
    number = f" ({mean.runs})" if mean.runs != runs else ""
    return f"{mean.value:.{digits}f}{spread}{number}"


def gain_column(table: ResultTable) -> TableColumn:
    """Return the column that says whether the first score is a gain; see ``ResultTable.gain``."""
    name = column_name(table.columns, table.columns[0])
    explanation = (
        f"yes if, by {name}, {RULE}; otherwise no, or open if more seeds or tests are needed; "
        "'open: 1 of 3 seeds' means that one of three seeds has this score"
    )
    return TableColumn("gain", table.gain, explanation)


# Costs --------------------------------------------------------------------------------------------


def _cost_columns(table: ResultTable) -> list[TableColumn]:
    """Return speeds, memory and time. Some of them exist only if the costs were measured."""
    measured = table.costs is not None
    source = "measured in one run" if measured else "from the logs of training"
    columns = [
        TableColumn(
            "training speed",
            lambda row: _times(table.relative_speed(row, "training")),
            f"target tokens a second in training, relative to the baseline; {source}",
        )
    ]
    if measured:
        columns += [
            TableColumn(
                "decoding speed",
                lambda row: _times(table.relative_speed(row, "decoding")),
                f"sentences a second in beam search, relative to the baseline; {source}",
            ),
            TableColumn(
                "memory a token",
                lambda row: (
                    f"{cost.bytes_per_token / 1e3:,.1f} KB"
                    if (cost := table.cost_of(row))
                    else None
                ),
                "memory that a batch keeps for its gradients, divided by its target tokens",
            ),
        ]
    return [
        *columns,
        TableColumn(
            "peak memory",
            lambda row: f"{mean.value / 1e6:,.0f} MB" if (mean := row.peak_memory) else None,
            "mean of the highest memory of the training process, or of PyTorch on the GPU",
        ),
        *(_time_column(table, metric) for metric in _curve_metrics(table)),
    ]


def _curve_metrics(table: ResultTable) -> list[CurveMetric]:
    """Return the loss, and BLEU if a row and its baseline computed it in validations."""
    with_bleu = any(table.seconds_to_best(row, "bleu") is not None for row in table.rows)
    return ["loss", "bleu"] if with_bleu else ["loss"]


def _time_column(table: ResultTable, metric: CurveMetric) -> TableColumn:
    """Return the column of the time until a row reaches the best validation of its baseline."""
    best = "lowest validation loss" if metric == "loss" else "highest validation BLEU"
    speed = "that was measured" if table.costs is not None else "of the training"
    compared = "" if metric == "loss" else ", if both computed BLEU in validations"
    return TableColumn(
        f"time to baseline's {'loss' if metric == 'loss' else 'BLEU'}",
        lambda row: _time_to_best(table, row, metric),
        f"mean time of updates until the {best} of the baseline with the same seed{compared}, at "
        f"the speed {speed}; in brackets, the runs that reach it",
    )


def _times(ratio: float | None) -> str | None:
    return f"×{ratio:.2f}" if ratio is not None else None


def _time_to_best(table: ResultTable, row: ResultRow, metric: CurveMetric) -> str | None:
    seconds = table.seconds_to_best(row, metric)
    if seconds is None:
        return None
    reached = mean_of(seconds)
    if reached is None:
        return "never"
    partial = f" ({reached.runs} of {len(seconds)})" if reached.runs < len(seconds) else ""
    return f"{duration(reached.value)}{partial}"


def duration(seconds: float) -> str:
    """Return a duration as seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
