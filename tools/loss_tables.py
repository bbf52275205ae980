"""Tables of training and validation losses, in Markdown."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fusetk.cli.tables import NONE, markdown_rows
from fusetk.errors import DataError, join_names
from fusetk.reporting.deviations import flat_values
from fusetk.reporting.formats import signed
from fusetk.reporting.result_columns import config_text
from fusetk.reporting.result_layout import text_tables
from fusetk.reporting.result_tables import ResultRow, ResultTable
from fusetk.reporting.runs import mean_of
from fusetk.reporting.saved_run import END_KEY, SavedRun

LOSS_COLUMNS = 4  # columns before the losses: system, baseline, config, seeds
LOSS_EPOCHS = (1, 2, 4, 8, 12, 16, 20)


def loss_table(tables: Sequence[ResultTable], systems: list[str]) -> str:
    """Return the mean validation losses of some systems after some epochs, and the lowest one.

    Raises DataError if a system has no such training.
    """
    lines = []
    for row in _rows_of(tables, systems):
        lowest = f"{row.loss.value:.3f}" if row.loss else NONE
        lines.append([_label(row), *_means(row, SavedRun.loss_at), lowest])
    heads = ["mean validation loss after epoch", *map(str, LOSS_EPOCHS), "lowest"]
    return markdown_rows(heads, lines)


def training_loss_table(tables: Sequence[ResultTable], systems: list[str]) -> str:
    """Return the mean training losses of some systems in some epochs.

    Raises DataError if a system has no such training.
    """
    lines = [[_label(row), *_means(row, _loss_in)] for row in _rows_of(tables, systems)]
    heads = ["mean training loss in epoch", *map(str, LOSS_EPOCHS)]
    return markdown_rows(heads, lines)


def _rows_of(tables: Sequence[ResultTable], systems: Sequence[str]) -> list[ResultRow]:
    """Return the trainings of each system; its name may be followed by @KEY=VALUE."""
    rows = {row.first.system: row for table in tables for row in table.rows}
    chosen = []
    for system in systems:
        name, _, overrides = system.partition("@")
        candidates = rows[name].by_config if name in rows else []
        row = next((row for row in candidates if _as_text(row.overrides) == overrides), None)
        if row is None:
            titles = join_names([table.title for table in tables])
            raise DataError(f"{titles} has no training of {system}")
        chosen.append(row)
    return chosen


def _as_text(overrides: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in overrides.items())


def _label(row: ResultRow) -> str:
    """Return the name of a row with the values that differ from its recipe."""
    return f"{row.name}, {config_text(row.overrides)}" if row.overrides else row.name


def _means(row: ResultRow, loss_of: Callable[[SavedRun, int], float | None]) -> list[str]:
    """Return the mean loss of a row's runs for each of ``LOSS_EPOCHS``, if all runs have it."""
    means = [mean_of(loss_of(run, epoch) for run in row.runs) for epoch in LOSS_EPOCHS]
    return [
        f"{mean.value:.3f}" if mean is not None and mean.runs == len(row.runs) else NONE
        for mean in means
    ]


def _loss_in(run: SavedRun, epoch: int) -> float | None:
    """Return the mean training loss of the updates of an epoch.

    Returns None if the epoch has not ended, or if a loss is not finite. Each loss of the curve is
    the mean of the updates since the one before it.
    """
    curve = run.result.train_curve
    updates, ends, losses = (
        np.array(curve.get(name, []), dtype=float) for name in ("update", "epoch", "loss")
    )
    if "loss" not in curve or epoch not in ends:  # a column without a finite number is not saved
        return None
    chosen = (epoch - 1 < ends) & (ends <= epoch)
    mean = np.average(losses[chosen], weights=np.diff(updates, prepend=0)[chosen])
    return float(mean) if np.isfinite(mean) else None


def tuning_table(tables: Sequence[ResultTable], key: str, epochs: int) -> str:
    """Return the lowest validation loss of each system in the first epochs by the value of a key.

    It compares trainings whose configs differ from the recipe in this key and in their ends only,
    with the first seed that has several values. The lowest loss is bold. Systems with one value
    are left out. Raises DataError if no system is left.
    """
    losses_of_rows: dict[str, dict[Any, float]] = {}
    for row in (row for table in tables for row in [*table.rows, *table.hidden_rows]):
        by_seed: dict[int, dict[Any, float]] = {}
        for run in row.runs + row.other_runs:  # a trial is after a complete training
            others = [name for name in run.result.overrides if name != key]
            value = flat_values(run.result.config).get(key)
            loss = min((loss for end, loss in run.losses if end <= epochs), default=None)
            if value is not None and loss is not None and all(map(END_KEY.fullmatch, others)):
                by_seed.setdefault(run.result.seed, {})[value] = loss
        several = [losses for _, losses in sorted(by_seed.items()) if len(losses) > 1]
        if several:
            losses_of_rows[row.name] = several[0]
    if not losses_of_rows:
        raise DataError(f"no system was trained with several values of {key}")
    values = sorted({value for losses in losses_of_rows.values() for value in losses})
    lines = []
    for name, losses in losses_of_rows.items():
        best = min(losses.values())
        cells = [f"{losses[value]:.3f}" if value in losses else NONE for value in values]
        lines.append(
            [
                name,
                *(
                    f"**{cell}**" if losses.get(value) == best else cell
                    for value, cell in zip(values, cells, strict=True)
                ),
            ]
        )
    return markdown_rows(["", *map(str, values)], lines)


def loss_counts(tables: Sequence[ResultTable]) -> str:
    """Return how many systems have a lower validation loss than their baselines, and the range of
    the differences, by epoch and by time.

    It counts the first config of each system in the tables of ``text_tables``. Raises DataError if
    these tables are missing.
    """
    lines: list[list[str]] = []
    heads: list[str] = []
    for table in tables:
        for text in text_tables(table):
            _, found, by = text.title.rpartition("validation loss by ")
            if not found:
                continue
            columns = text.heads[LOSS_COLUMNS:]
            heads = heads or columns
            first = {row[0]: row[LOSS_COLUMNS:] for row in reversed(text.rows)}
            by_column = {
                head: [float(cell) for row in first.values() if (cell := row[i]) is not None]
                for i, head in enumerate(columns)
            }
            counts = [f"by {by}: systems with a lower loss"]
            ranges = [f"by {by}: range of the differences"]
            for head in heads:
                values = by_column.get(head)
                counts.append(
                    f"{sum(value < 0 for value in values)} of {len(values)}" if values else NONE
                )
                ranges.append(
                    f"{signed(min(values), 3)} to {signed(max(values), 3)}" if values else NONE
                )
            lines += [counts, ranges]
    if not lines:
        titles = join_names([table.title for table in tables])
        raise DataError(f"{titles} has no system whose loss is compared with that of a baseline")
    return markdown_rows(["", *heads], lines)
