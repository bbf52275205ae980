"""The cells and notes of a paper's table with measured scores, and the table as plain values."""

from collections.abc import Sequence
from typing import Any

from fusetk.reporting.deviations import config_deviations
from fusetk.reporting.runs import (
    MeanScore,
    MeasuredRun,
    ScoreColumn,
    comparability_warnings,
    format_updates,
    mean_score,
    run_names,
)
from fusetk.reporting.tables import PaperRow, PaperTable

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_ORIGINS = {
    "paper": "the paper's vocabulary",
    "runs": "the runs' vocabulary",
    "data": "the prepared data's vocabulary",
}

Cells = list[str | None]  # None: the value is unknown


# Cells --------------------------------------------------------------------------------------------


def table_cells(table: PaperTable) -> tuple[list[str], list[list[str | None]]]:
    """Return the heads of the table and the cells of each row; None for an unknown value."""
    heads = ["", "parameters", "ours"]
    columns: list[Cells] = [
        _row_names(table),
        [row.paper.parameters or None for row in table.rows],
        [f"{row.count.total / 1e6:.2f}M" if row.count else None for row in table.rows],
    ]
    for name in table.printed_sets:
        heads += [f"BLEU {name}" if name else "BLEU", "Δ"]
        columns += _printed_cells([row.printed_bleu(name) for row in table.rows])
    measured_heads, _ = _measured_heads(table)
    for head, column in zip(measured_heads, table.columns, strict=True):
        heads += [head, "Δ"]
        means = [mean_score(row.runs, column) for row in table.rows]
        columns.append([str(mean) if mean else None for mean in means])
        columns.append(_differences([mean.value if mean else None for mean in means], 2))
    if len({format_updates(run) for run in table.runs}) > 1:
        heads.append("updates")
        columns.append([_updates(row) for row in table.rows])
    return heads, [list(cells) for cells in zip(*columns, strict=True)]


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
    return str(number).translate(_SUPERSCRIPTS)


def _printed_cells(values: Sequence[float | None]) -> list[Cells]:
    """Return columns of BLEU, with as many digits as the paper prints, and of differences."""
    digits = [len(repr(float(value)).partition(".")[2]) for value in values if value is not None]
    most = max(digits, default=0)
    cells: Cells = [None if value is None else f"{value:.{most}f}" for value in values]
    return [cells, _differences(values, most)]


def _differences(values: Sequence[float | None], digits: int) -> Cells:
    """Return the differences to the first value; the first cell is empty."""
    first, *others = values
    cells: Cells = [""]
    for value in others:
        if value is None or first is None:
            cells.append(None)
        else:
            cells.append(f"{value - first:+.{digits}f}")
    return cells


def _updates(row: PaperRow) -> str | None:
    """Return the distinct numbers of updates of a row's runs, joined by slashes."""
    return " / ".join(dict.fromkeys(format_updates(run) or "?" for run in row.runs)) or None


def _measured_heads(table: PaperTable) -> tuple[list[str], list[str]]:
    """Return a head for each measured column, and the names that all columns share.

    A head contains the test set, checkpoint or metric only if it differs between columns.
    """
    fields = list(zip(*table.columns, strict=True))
    differs = [len(set(names)) > 1 for names in fields]
    heads = []
    for column in table.columns:
        names = [name for name, differing in zip(column, differs, strict=True) if differing]
        heads.append(" ".join(["measured", *names]))
    shared = [names[0] for names, differing in zip(fields, differs, strict=True) if not differing]
    return heads, shared


# Notes --------------------------------------------------------------------------------------------


def table_notes(table: PaperTable) -> list[str]:
    """Return the lines below the table: footnotes, explanations of columns, and warnings."""
    notes = [
        f"{_superscript(number)} {_footnote(row)}"
        for number, row in enumerate(_noted_rows(table), 1)
    ]
    notes += _vocabulary_notes(table)
    if table.columns:
        _, shared = _measured_heads(table)
        prefix = f"{', '.join(shared)}; " if shared else ""
        notes.append(f"measured: {prefix}mean ± sample standard deviation over seeds (runs)")
    return [*notes, *table_warnings(table)]


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
            sizes = f"at {_ORIGINS[row.count.origin]} of {source:,} and {target:,}"
            groups.setdefault(sizes, []).append(row.name)
    if len(groups) == 1:
        return [f"ours: parameters counted {sizes}" for sizes in groups]
    return [
        f"ours: parameters counted {sizes}: {', '.join(names)}" for sizes, names in groups.items()
    ]


def table_warnings(table: PaperTable) -> list[str]:
    """Return warnings about runs: not comparable, different from the recipe, or without a score."""
    unscored = [
        run for run in table.runs if not any(run.record(column) for column in table.columns)
    ]
    warnings = [*comparability_warnings(table.runs, table.columns), *_deviation_warnings(table)]
    if unscored:
        warnings.append(f"without a score here: {run_names(unscored)}")
    return warnings


def _deviation_warnings(table: PaperTable) -> list[str]:
    """Return the differences of runs from their recipes, grouped by difference."""
    groups: dict[str, list[MeasuredRun]] = {}
    for row in table.rows:
        for run in row.runs:
            deviations = config_deviations(run.config, row.recipe)
            if deviations:
                groups.setdefault(", ".join(deviations), []).append(run)
    return [
        f"config differs from the recipe: {run_names(runs)}: {deviations}"
        for deviations, runs in groups.items()
    ]


# Plain values -------------------------------------------------------------------------------------


def table_as_dict(table: PaperTable) -> dict[str, Any]:
    """Return the table for JSON."""
    baseline = table.rows[0]
    rows = [_row_as_dict(row, baseline, table.columns) for row in table.rows]
    return {"table": table.title, "rows": rows, "remarks": table_warnings(table)}


def _row_as_dict(
    row: PaperRow, baseline: PaperRow, columns: Sequence[ScoreColumn]
) -> dict[str, Any]:
    scores = [
        _mean_as_dict(column, mean, mean_score(baseline.runs, column))
        for column in columns
        if (mean := mean_score(row.runs, column))
    ]
    return {
        "row": row.paper.row,
        "line": row.paper.line,
        "recipe": str(row.path),
        "parameters": {
            "printed": row.paper.parameters,
            "ours": row.count.total if row.count else None,
            "vocabulary": row.count.sizes if row.count else None,
            "vocabulary_of": row.count.origin if row.count else None,
            "adds_up": row.parameters_match,
        },
        "note": row.paper.note,
        "printed": row.paper.bleu,
        "measured": scores,
        "runs": [_run_as_dict(run) for run in row.runs],
    }


def _mean_as_dict(
    column: ScoreColumn, mean: MeanScore, baseline: MeanScore | None
) -> dict[str, Any]:
    return {
        **column._asdict(),
        "mean": mean.value,
        "deviation": mean.deviation,
        "runs": mean.runs,
        "difference": mean.value - baseline.value if baseline else None,
    }


def _run_as_dict(run: MeasuredRun) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "seed": run.setting("training", "seed"),
        "precision": run.setting("training", "precision"),
        "updates": run.updates,
        "data": run.data,
        "scores": [record._asdict() for record in run.records],
    }
