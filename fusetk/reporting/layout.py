"""The cells and notes of a paper's table with measured scores, and the table as plain values."""

import statistics
from collections.abc import Sequence
from typing import Any

from fusetk.reporting.deviations import config_deviations
from fusetk.reporting.formats import SUPERSCRIPTS, Cells, TextTable, signed
from fusetk.reporting.runs import (
    MeanScore,
    MeasuredRun,
    ScoreColumn,
    comparability_warnings,
    equal_seeds,
    format_updates,
    run_names,
)
from fusetk.reporting.tables import PRINTED, PaperRow, PaperTable, ParameterCount

_ORIGINS = {
    "paper": "the vocabulary of the recipe",
    "runs": "the runs' vocabulary",
    "data": "the prepared data's vocabulary",
}

# Cells --------------------------------------------------------------------------------------------


def text_table(table: PaperTable, costs: bool) -> TextTable:
    """Return the cells and the notes of a table.

    With ``costs``, the last columns have updates, hours, speed, hardware and seeds of the runs.
    """
    heads = ["", "parameters", "ours"]
    columns: list[Cells] = [
        _row_names(table),
        [row.paper.parameters or None for row in table.rows],
        [_millions(row.count) for row in table.rows],
    ]
    if any(row.trained for row in table.rows):
        heads.append("trained")
        columns.append([_millions(row.trained) for row in table.rows])
    for name in table.printed_sets:
        heads += [f"BLEU {name}" if name else "BLEU", "Δ"]
        columns += _printed_cells(table, [row.printed().get(name) for row in table.rows])
    measured_heads, _ = _measured_heads(table)
    for head, column in zip(measured_heads, table.columns, strict=True):
        heads += [head, "Δ"]
        means = [row.mean(column) for row in table.rows]
        columns.append([str(mean) if mean else None for mean in means])
        columns.append(_differences(table, [mean.value if mean else None for mean in means], 2))
    if costs or len({format_updates(run) for run in table.runs}) > 1:
        heads.append("updates")
        columns.append([_updates(row) for row in table.rows])
    if costs and table.runs:
        heads += ["hours", "tokens/s", "hardware", "seeds"]
        columns += [list(cells) for cells in zip(*map(_cost_cells, table.rows), strict=True)]
    rows = [list(cells) for cells in zip(*columns, strict=True)]
    return TextTable(table.title, heads, rows, table_notes(table))


def _millions(count: ParameterCount | None) -> str | None:
    return f"{count.total / 1e6:.2f}M" if count else None


def _cost_cells(row: PaperRow) -> list[str | None]:
    """Return mean hours and mean speed over the runs, the hardware, and the seeds."""
    hours = [run.cost.hours for run in row.runs if run.cost.hours is not None]
    speeds = [run.cost.tokens_per_second for run in row.runs if run.cost.tokens_per_second]
    hardware = dict.fromkeys(run.cost.hardware for run in row.runs if run.cost.hardware)
    seeds = dict.fromkeys(str(run.setting("training", "seed")) for run in row.runs)
    return [
        f"{statistics.fmean(hours):.2f}" if hours else None,
        f"{statistics.fmean(speeds):.0f}" if speeds else None,
        "; ".join(hardware) or None,
        " ".join(seeds) or None,
    ]


def _row_names(table: PaperTable) -> Cells:
    """Return the names of the rows, with the numbers of their footnotes."""
    noted = _noted_rows(table)
    return [
        row.name + (_superscript(noted.index(row) + 1) if row in noted else "")
        for row in table.rows
    ]


def _noted_rows(table: PaperTable) -> list[PaperRow]:
    """Return the rows that have a footnote."""
    return [row for row in table.rows if row.parameters_match is False or row.paper.note]


def _superscript(number: int) -> str:
    return "".join(SUPERSCRIPTS[int(digit)] for digit in str(number))


def _printed_cells(table: PaperTable, values: Sequence[float | None]) -> list[Cells]:
    """Return columns of BLEU, with as many digits as the paper prints, and of differences."""
    digits = [len(repr(float(value)).partition(".")[2]) for value in values if value is not None]
    most = max(digits, default=0)
    cells: Cells = [None if value is None else f"{value:.{most}f}" for value in values]
    return [cells, _differences(table, values, most)]


def _differences(table: PaperTable, values: Sequence[float | None], digits: int) -> Cells:
    """Return the difference of each row to the row that it is compared with; empty for itself."""
    by_row = dict(zip(table.rows, values, strict=True))
    cells: Cells = []
    for row, value in by_row.items():
        base = table.base_of(row)
        base_value = by_row[base] if base else None
        if base is row:
            cells.append("")
        elif value is None or base_value is None:
            cells.append(None)
        else:
            cells.append(signed(value - base_value, digits))
    return cells


def _updates(row: PaperRow) -> str | None:
    """Return the distinct numbers of updates of a row's runs, joined by slashes."""
    return " / ".join(dict.fromkeys(format_updates(run) or "?" for run in row.runs)) or None


def _measured_heads(table: PaperTable) -> tuple[list[str], list[str]]:
    """Return a head for each measured column, and the names that all columns share.

    A head contains the test set, checkpoint or metric only if it differs between columns. A column
    of scores as printed has the checkpoints and metrics of its rows.
    """
    columns = [_known_column(table, column) for column in table.columns]
    fields = list(zip(*columns, strict=True))
    differs = [len(set(names)) > 1 for names in fields]
    heads = []
    for column in columns:
        names = [name for name, differing in zip(column, differs, strict=True) if differing]
        heads.append(" ".join(["measured", *names]))
    shared = [names[0] for names, differing in zip(fields, differs, strict=True) if not differing]
    return heads, shared


def _known_column(table: PaperTable, column: ScoreColumn) -> ScoreColumn:
    """Return a column with the names of the checkpoints and metrics of its rows."""
    if column.checkpoint != PRINTED:
        return column
    own = [row.column(column) for row in table.rows if row.runs]
    checkpoints = dict.fromkeys(known.checkpoint for known in own)
    metrics = dict.fromkeys(known.metric for known in own)
    return ScoreColumn(column.set_name, " or ".join(checkpoints), " or ".join(metrics))


# Notes --------------------------------------------------------------------------------------------


def table_notes(table: PaperTable) -> list[str]:
    """Return the lines below the table: footnotes, explanations of columns, and warnings."""
    notes = [
        f"{_superscript(number)} {_footnote(row)}"
        for number, row in enumerate(_noted_rows(table), 1)
    ]
    notes += _vocabulary_notes(table)
    if any(row.trained for row in table.rows):
        notes.append("trained: parameters of the runs, with their own model and vocabulary")
    if table.columns:
        _, shared = _measured_heads(table)
        prefix = f"{', '.join(shared)}; " if shared else ""
        notes.append(f"measured: {prefix}mean ± sample standard deviation over seeds (runs)")
    return [*notes, *_notes_of_missing_bases(table), *table_warnings(table)]


def _notes_of_missing_bases(table: PaperTable) -> list[str]:
    """Return the rows that are compared with a row outside the table, so without differences."""
    groups: dict[str, list[str]] = {}
    for row in table.rows:
        if row.paper.compared_with and table.base_of(row) is None:
            groups.setdefault(row.paper.compared_with, []).append(row.name)
    return [
        f"{', '.join(names)}: no difference, because no row of the table is {base!r} "
        "(paper.compared_with)"
        for base, names in groups.items()
    ]


def _footnote(row: PaperRow) -> str:
    parts = []
    if row.parameters_match is False and row.count:
        parts.append(
            f"the paper prints {row.paper.parameters}, the described system has "
            f"{row.count.total:,} parameters"
        )
    if row.paper.note:
        parts.append(row.paper.note)
    return "; ".join(parts)


def _vocabulary_notes(table: PaperTable) -> list[str]:
    """Return the vocabulary sizes at which the parameters were counted."""
    groups: dict[str, list[str]] = {}
    for row in table.rows:
        if row.count:
            source, target = row.count.sizes
            sizes = f"with {_ORIGINS[row.count.origin]}, {source:,} and {target:,}"
            groups.setdefault(sizes, []).append(row.name)
    if len(groups) == 1:
        return [f"ours: parameters counted {sizes}" for sizes in groups]
    return [
        f"ours: parameters counted {sizes}: {', '.join(names)}" for sizes, names in groups.items()
    ]


def table_warnings(table: PaperTable) -> list[str]:
    """Return warnings about runs: not comparable, different from the recipe, or without a score."""
    scores = table.scores()
    scored = {run.folder for run, _ in scores}
    others = [run for run in table.runs if run.folder not in scored]
    other_scores = [run for run in others if run.test_scores and table.as_printed]
    unscored = [run for run in others if run not in other_scores]
    warnings = comparability_warnings(scores)
    for row in table.rows:
        runs = [run for run in row.runs if run.folder in scored]
        warnings += [f"the same row and seed: {run_names(twins)}" for twins in equal_seeds(runs)]
    warnings += _deviation_warnings(table)
    warnings += _scoring_warnings(table, other_scores)
    if unscored:
        warnings.append(f"without a score here: {run_names(unscored)}")
    return warnings


def _scoring_warnings(table: PaperTable, runs: Sequence[MeasuredRun]) -> list[str]:
    """Return the runs without a score of the kind that the paper prints, and what they have."""
    folders = {run.folder for run in runs}
    groups: dict[str, list[MeasuredRun]] = {}
    for row in table.rows:
        for run in row.runs:
            if run.folder in folders:
                kinds = dict.fromkeys(
                    f"{score.checkpoint} by {score.metric}" for score in run.test_scores
                )
                text = f"{', '.join(kinds)}, not {row.paper.checkpoint} by {row.paper.metric}"
                groups.setdefault(text, []).append(run)
    return [
        f"not scored as in the paper: {run_names(members)}: {text} (--all shows the scores)"
        for text, members in groups.items()
    ]


def _deviation_warnings(table: PaperTable) -> list[str]:
    """Return the differences of runs from their recipes, grouped by difference."""
    groups: dict[str, list[MeasuredRun]] = {}
    for row in table.rows:
        for run in row.runs:
            deviations = config_deviations(run.config, row.config)
            if deviations:
                groups.setdefault(", ".join(deviations), []).append(run)
    return [
        f"config differs from the recipe: {run_names(runs)}: {deviations}"
        for deviations, runs in groups.items()
    ]


# Plain values -------------------------------------------------------------------------------------


def table_as_dict(table: PaperTable) -> dict[str, Any]:
    """Return the table for JSON."""
    rows = [_row_as_dict(table, row) for row in table.rows]
    return {"table": table.title, "rows": rows, "warnings": table_warnings(table)}


def _row_as_dict(table: PaperTable, row: PaperRow) -> dict[str, Any]:
    base = table.base_of(row)
    scores = [
        _mean_as_dict(row.column(column), mean, base.mean(column) if base else None)
        for column in table.columns
        if (mean := row.mean(column))
    ]
    return {
        "row": row.paper.row,
        "line": row.paper.line,
        "recipe": str(row.path) if row.path else None,
        "parameters": {
            "printed": row.paper.parameters,
            "ours": row.count.total if row.count else None,
            "vocabulary": row.count.sizes if row.count else None,
            "vocabulary_of": row.count.origin if row.count else None,
            "adds_up": row.parameters_match,
            "trained": row.trained.total if row.trained else None,
        },
        "note": row.paper.note,
        "printed": row.paper.bleu,
        "printed_valid": row.paper.valid,
        "compared_with": base.name if base else row.paper.compared_with,
        "measured": scores,
        "runs": [_run_as_dict(run) for run in row.runs],
    }


def _mean_as_dict(
    column: ScoreColumn, mean: MeanScore, baseline: MeanScore | None
) -> dict[str, Any]:
    return {
        **column._asdict(),
        **mean.as_dict(),
        "difference": mean.value - baseline.value if baseline else None,
    }


def _run_as_dict(run: MeasuredRun) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "seed": run.setting("training", "seed"),
        "precision": run.setting("training", "precision"),
        "updates": run.updates,
        "data": run.data,
        **run.cost._asdict(),
        "scores": [record._asdict() for record in run.records],
    }
