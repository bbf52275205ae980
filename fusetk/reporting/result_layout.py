"""The cells and notes of tables of results, and the tables as plain values."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fusetk.reporting.deviations import short_keys
from fusetk.reporting.formats import TextTable
from fusetk.reporting.result_tables import (
    LEVEL,
    TEST,
    ResultRow,
    ResultTable,
    mean_of,
)
from fusetk.reporting.runs import MeanScore, ScoreColumn
from fusetk.reporting.saved_run import SavedRun

Cells = list[str | None]


def text_tables(table: ResultTable) -> list[TextTable]:
    """Return the table of rows, and a table of the pilots if there are any."""
    tables = [TextTable(table.title, *_cells(table), _notes(table))]
    pilots = [(row, run) for row in table.rows for group in row.groups[1:] for run in group]
    if pilots:
        tables.append(_pilot_table(table, pilots))
    return tables


def _cells(table: ResultTable) -> tuple[list[str], list[Cells]]:
    """Return the heads and the cells of each row."""
    heads = ["", "parameters", "seeds", "speed", "updates to best", "valid loss"]
    columns: list[Cells] = [
        [row.name for row in table.rows],
        [f"{row.parameters / 1e6:.2f}M" if row.parameters else None for row in table.rows],
        [" ".join(str(run.result.seed) for run in row.runs) for row in table.rows],
        [_speed(table, row) for row in table.rows],
        [f"{mean.value:,.0f}" if (mean := row.updates_to_best) else None for row in table.rows],
        [_mean(row.loss, len(row.runs), 3) for row in table.rows],
    ]
    for column in table.columns:
        scores, differences, tests = _score_cells(table, column)
        heads += [column_name(table.columns, column), "Δ"]
        columns += [scores, differences]
        if table.tests(column):
            heads.append(f"p < {LEVEL}")
            columns.append(tests)
    heads.append("time to baseline's loss")
    columns.append([_time_to_loss(table, row) for row in table.rows])
    return heads, [list(cells) for cells in zip(*columns, strict=True)]


def column_name(columns: Sequence[ScoreColumn], column: ScoreColumn) -> str:
    """Return the metric and the checkpoint; also the test set if there are several."""
    names = [column.metric, column.checkpoint]
    if len({other.set_name for other in columns}) > 1:
        names.insert(0, column.set_name)
    return " ".join(names)


def _mean(mean: MeanScore | None, runs: int, digits: int) -> str | None:
    """Return mean and deviation; also the number of values if it is not the number of runs."""
    if mean is None:
        return None
    spread = f" ±{mean.deviation:.{digits}f}" if mean.deviation is not None else ""
    number = f" ({mean.runs})" if mean.runs != runs else ""
    return f"{mean.value:.{digits}f}{spread}{number}"


def _speed(table: ResultTable, row: ResultRow) -> str | None:
    """Return the speed of training relative to the baseline."""
    base = table.base_of(row)
    own = row.tokens_per_second
    other = base.tokens_per_second if base else None
    return f"×{own.value / other.value:.2f}" if own and other else None


def _score_cells(table: ResultTable, column: ScoreColumn) -> list[Cells]:
    """Return the cells of mean scores, of differences to the baseline and of tests."""
    scores: Cells = []
    differences: Cells = []
    tests: Cells = []
    for row in table.rows:
        base = table.base_of(row)
        mean = row.mean(column)
        base_mean = base.mean(column) if base else None
        scores.append(_mean(mean, len(row.runs), 2))
        if base is row:
            differences.append("")
            tests.append("")
            continue
        difference = f"{mean.value - base_mean.value:+.2f}" if mean and base_mean else None
        differences.append(difference)
        test = table.test(row, column)
        tests.append(str(test) if test else None)
    return [scores, differences, tests]


def _time_to_loss(table: ResultTable, row: ResultRow) -> str | None:
    base = table.base_of(row)
    if base is None:
        return None
    seconds = row.seconds_to_loss_of(base)
    reached = mean_of(seconds)
    if reached is None:
        return "never" if base.loss and row.loss else None
    partial = f" ({reached.runs} of {len(seconds)})" if reached.runs < len(seconds) else ""
    return f"{duration(reached.value)}{partial}"


def duration(seconds: float) -> str:
    """Return a duration as seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


# Notes --------------------------------------------------------------------------------------------


def _notes(table: ResultTable) -> list[str]:
    first = table.rows[0].name
    bases = {row.first.compared_with for row in table.rows} - {None, first}
    notes = [
        f"±: sample standard deviation over seeds; Δ, p and speed: compared with {first}"
        + (", or with the row named below" if bases else ""),
        "speed: target tokens per second of training; valid loss: the lowest of each run",
        f"p: {TEST}, of the runs with the same seed; +2 -1 of 4: two runs are better than the "
        f"baseline with p < {LEVEL}, one is worse, of four pairs",
        "time to baseline's loss: mean time of updates until the lowest validation loss of the "
        "baseline with the same seed; in brackets, the runs that reach it",
    ]
    for name in sorted(filter(None, bases)):
        rows = [row.name for row in table.rows if row.first.compared_with == name]
        notes.append(f"compared with {name}: {', '.join(rows)}")
    notes += [
        f"{row.name}: {overrides_text(row.overrides)} (not the recipe's values)"
        for row in table.rows
        if row.overrides
    ]
    return [*notes, *table_warnings(table)]


def table_warnings(table: ResultTable) -> list[str]:
    """Return the reasons why the runs of a table are not comparable."""
    runs = table.runs
    machines = (
        "; ".join(
            dict.fromkeys(f"{session.processor}, {session.device}" for session in training.sessions)
        )
        for training in (run.result.training for run in runs)
    )
    data = (run.result.training.data for run in runs)
    precisions = (str(run.result.config["training"].get("precision")) for run in runs)
    warnings = [
        *_differing("the machine, so their speeds are not comparable", runs, machines),
        *_differing("the training data", runs, (known and known[:8] for known in data)),
        *_differing("the precision", runs, precisions),
    ]
    for column in table.columns:
        scored = [
            (run, score)
            for run in runs
            for score in run.result.scores
            if score.key == tuple(column)
        ]
        members = [run for run, _ in scored]
        what = f"of {column.metric} on {column.set_name}"
        warnings += _differing(
            f"the references {what}", members, (score.references[:8] for _, score in scored)
        )
        warnings += _differing(
            f"the signature {what}", members, (score.signature for _, score in scored)
        )
    stems = {run.stem for run in runs}
    warnings += [note for note, stem in table.p_values.notes.items() if stem in stems]
    return list(dict.fromkeys(warnings))


def _differing(quantity: str, runs: Sequence[SavedRun], values: Iterable[str | None]) -> list[str]:
    """Return a sentence if runs differ in a value; the most frequent value comes first."""
    groups: dict[str, list[str]] = {}
    for run, value in zip(runs, values, strict=True):
        groups.setdefault(value or "unknown", []).append(run.stem)
    if len(groups) < 2:
        return []
    (value, stems), *others = sorted(groups.items(), key=lambda group: -len(group[1]))
    rest = "; ".join(f"{other} ({', '.join(names)})" for other, names in others)
    return [f"the runs differ in {quantity}: {value} ({len(stems)} runs); {rest}"]


def overrides_text(overrides: Mapping[str, Any]) -> str:
    """Return the values in which a run differs from its recipe."""
    names = short_keys(list(overrides))
    return ", ".join(f"{names[key]} = {value}" for key, value in overrides.items())


# Pilots -------------------------------------------------------------------------------------------


def _pilot_table(table: ResultTable, pilots: Sequence[tuple[ResultRow, SavedRun]]) -> TextTable:
    """Return the runs with other configs than those of the rows."""
    columns = table.columns[:1]
    heads = ["", "config", "seed", "updates to best", "valid loss"]
    heads += [column_name(columns, column) for column in columns]
    rows: list[Cells] = []
    for row, run in pilots:
        best, loss = run.result.training.best_update, run.best_loss
        scores = [run.score(column) for column in columns]
        rows.append(
            [
                row.name,
                overrides_text(run.result.overrides) or "the recipe's",
                str(run.result.seed),
                f"{best:,}" if best is not None else None,
                f"{loss:.3f}" if loss is not None else None,
                *(f"{score:.2f}" if score is not None else None for score in scores),
            ]
        )
    note = (
        "A row of the table has the config with the most seeds; at a tie, that with the lowest "
        "validation loss. These are the runs with other configs"
    )
    return TextTable(f"{table.title}: pilots", heads, rows, [note])


# Plain values -------------------------------------------------------------------------------------


def result_table_as_dict(table: ResultTable) -> dict[str, Any]:
    """Return the table for JSON."""
    return {
        "table": table.title,
        "rows": [_row_as_dict(table, row) for row in table.rows],
        "remarks": table_warnings(table),
    }


def _row_as_dict(table: ResultTable, row: ResultRow) -> dict[str, Any]:
    base = table.base_of(row)
    scores = []
    for column in table.columns:
        mean = row.mean(column)
        base_mean = base.mean(column) if base else None
        test = table.test(row, column)
        if mean:
            scores.append(
                {
                    **column._asdict(),
                    **(_mean_as_dict(mean) or {}),
                    "difference": mean.value - base_mean.value if base_mean else None,
                    "test": test._asdict() if test else None,
                }
            )
    return {
        "row": row.name,
        "system": row.first.system,
        "line": row.first.line,
        "compared_with": base.name if base else row.first.compared_with,
        "overrides": row.overrides,
        "parameters": row.parameters,
        "seeds": [run.result.seed for run in row.runs],
        "tokens_per_second": _mean_as_dict(row.tokens_per_second),
        "updates_to_best": _mean_as_dict(row.updates_to_best),
        "valid_loss": _mean_as_dict(row.loss),
        "seconds_to_loss_of_baseline": row.seconds_to_loss_of(base) if base else None,
        "scores": scores,
        "results": [run.stem for run in row.runs],
        "pilots": [run.stem for group in row.groups[1:] for run in group],
    }


def _mean_as_dict(mean: MeanScore | None) -> dict[str, Any] | None:
    if mean is None:
        return None
    return {"mean": mean.value, "deviation": mean.deviation, "runs": mean.runs}
