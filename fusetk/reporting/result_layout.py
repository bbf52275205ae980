"""The cells and notes of tables of results, and the tables as plain values."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from fusetk.reporting.formats import Cells, TextTable, signed
from fusetk.reporting.gain import SeedComparison
from fusetk.reporting.result_columns import (
    TableColumn,
    column_name,
    config_text,
    result_columns,
)
from fusetk.reporting.result_tables import SHOWN_CONFIG, TEST, ResultRow, ResultTable
from fusetk.reporting.runs import MeanScore, difference_sentence

DIFFERENCE_EPOCHS = (1, 2, 4, 8, 16, 24)
# Epochs of the baseline in the table by time. In earlier epochs, interpolation is not exact enough.
TIME_EPOCHS = (4, 8, 16, 24)


def text_tables(table: ResultTable) -> list[TextTable]:
    """Return the table of rows, and those of comparisons, losses and other configs, if any.

    A second table of comparisons has the configs that a row and its baseline have in common, except
    those that the first one compares. The tables of losses have all common configs.
    """
    columns = result_columns(table)
    rows = [[row.name, *(column.cell(row) for column in columns)] for row in table.rows]
    heads = ["", *(column.head for column in columns)]
    further: list[TextTable] = []
    compared = [row for row in table.rows if table.base_of(row) is not row]
    if compared and table.columns:
        further.append(_comparison_table(table, compared))
    pairs = [pair for row in table.rows for pair in table.hidden_equal_configs(row)]
    if pairs and table.columns:
        further.append(_equal_config_table(table, pairs))
    further += _loss_tables(table)
    if table.hidden_runs:
        further.append(_other_configs_table(table))
    # The notes come last: they name the runs that the comparisons above could not test.
    return [TextTable(table.title, heads, rows, _notes(table, columns)), *further]


# Notes --------------------------------------------------------------------------------------------


def _notes(table: ResultTable, columns: Sequence[TableColumn]) -> list[str]:
    """Return an explanation of each column, the baselines and the warnings."""
    first = table.baseline_name
    bases = {row.first.compared_with for row in table.rows} - {None, first}
    notes = list(dict.fromkeys(column.note for column in columns))
    if table.costs:
        costs = table.costs
        notes.append(f"measured in one run: {costs.settings}; on {costs.processor}, {costs.device}")
    if len(table.rows) > 1 or table.baseline is None:
        missing = ", which has no complete training" if table.baseline is None else ""
        no_line = table.first_row.first.line is None
        by_name = " (the first by name, because no row has a paper.line)" if no_line else ""
        exception = ", except for the rows named below" if bases else ""
        notes.append(f"baseline: {first}{by_name}{missing}{exception}")
    for name in sorted(filter(None, bases)):
        rows = [
            row.name for row in table.rows if row.first.compared_with == name and row.name != name
        ]
        if rows:
            notes.append(f"compared with {name}: {', '.join(rows)}")
    return [*notes, *table_warnings(table)]


def table_warnings(table: ResultTable) -> list[str]:
    """Return the reasons why the runs of a table are not comparable."""
    machines, data, precisions = [], [], []
    for stem, result in table.runs:
        training = result.training
        devices = dict.fromkeys(f"{each.processor}, {each.device}" for each in training.sessions)
        machines.append((stem, "; ".join(devices)))
        data.append((stem, training.data and training.data[:8]))
        precisions.append((stem, str(result.config["training"].get("precision"))))
    # Measured costs are comparable: they are from one run on one machine.
    measures = "peak memory is" if table.costs else "speeds and peak memory are"
    warnings = [
        *difference_sentence(f"the machine, so their {measures} not comparable", machines),
        *difference_sentence("the training data", data),
        *difference_sentence("the precision", precisions),
    ]
    for column in table.columns:
        scores = [(run.stem, score) for run in table.runs if (score := run.saved_score(column))]
        what = f"of {column.metric} on {column.set_name}"
        references = [(stem, score.references[:8]) for stem, score in scores]
        signatures = [(stem, score.signature) for stem, score in scores]
        warnings += difference_sentence(f"the references {what}", references)
        warnings += difference_sentence(f"the signature {what}", signatures)
    stems = {run.stem for row in table.rows for run in (*row.runs, *row.other_runs)}
    warnings += [note for note, stem in table.p_values.notes.items() if stem in stems]
    return list(dict.fromkeys(warnings))


# Comparisons and other configs --------------------------------------------------------------------


def _comparison_table(table: ResultTable, rows: Sequence[ResultRow]) -> TextTable:
    """Return the values that decide whether the differences to the baselines are gains."""
    tested = table.tested_columns
    names = [column_name(table.columns, column) for column in tested]
    cells: list[Cells] = []
    for row in rows:
        comparisons = [table.compare(row, column) for column in tested]
        first = comparisons[0]
        cells.append(
            [
                row.name,
                row.first.compared_with or table.baseline_name,
                signed(first.difference) if first else None,
                _deviations(first) if first else None,
                *(_by_seed(each) if each else None for each in comparisons),
                table.gain(row),
            ]
        )
    heads = ["", "compared with", f"Δ {names[0]}", "± of both"]
    heads += [*(f"{name}, by seed" for name in names), "gain"]
    notes = [
        f"Δ {names[0]}: difference of the means over all seeds",
        "± of both: sample standard deviations of the row and of its baseline",
        "by seed: seed, difference of the two runs with this seed, and in brackets the p-value of "
        f"{TEST}; - if their translations cannot be compared",
        "gain: decided by the values before it, as explained below the first table",
    ]
    return TextTable(f"{table.title}: comparisons with the baseline", heads, cells, notes)


def _equal_config_table(
    table: ResultTable, pairs: Sequence[tuple[ResultRow, ResultRow]]
) -> TextTable:
    """Return the differences between runs and runs of the baseline with the same config."""
    column = table.columns[0]
    name = column_name(table.columns, column)
    cells: list[Cells] = []
    for row, base in pairs:
        comparison = row.compare(base, column, table.p_values)
        cells.append(
            [
                row.name,
                base.name,
                config_text(row.overrides),
                _loss_difference(row, base),
                signed(comparison.difference) if comparison else None,
                _by_seed(comparison) if comparison else None,
            ]
        )
    heads = ["", "compared with", "config", "Δ valid loss", f"Δ {name}"]
    heads.append(f"{name}, by seed")
    notes = [
        "The first table may compare a row and a baseline that have different configs. This table "
        "compares runs with equal configs; keys that only the row has may have any value",
        "Δ: difference of the means over all seeds",
        "by seed: as in the table before this one",
    ]
    return TextTable(f"{table.title}: comparisons with equal configs", heads, cells, notes)


def _loss_difference(row: ResultRow, base: ResultRow) -> str | None:
    return signed(row.loss.value - base.loss.value, 3) if row.loss and base.loss else None


def _loss_tables(table: ResultTable) -> Iterator[TextTable]:
    """Yield the differences of validation losses to those of the baselines: by epoch, by time."""
    pairs = [
        (row, base)
        for shown in table.rows
        for row, base in table.equal_configs(shown)
        if row.twins(base)
    ]
    title = f"{table.title}: validation loss"
    if by_epoch := _loss_columns(pairs, [1.0] * len(pairs), DIFFERENCE_EPOCHS):
        epochs = ", ".join(by_epoch)
        by_epoch["lowest"] = [
            _mean_difference((run.best_loss, twin.best_loss) for run, twin in row.twins(base))
            for row, base in pairs
        ]
        notes = [
            f"{epochs}: the validation loss after this epoch minus that of the baseline's run with "
            "an equal config and the same seed, a mean over these seeds; negative is better; - if "
            "a run has no validation before or none after the end of the epoch",
            "lowest: the same difference of the lowest losses; it is not the difference of the two "
            "means if the systems have other seeds",
        ]
        yield _pair_table(f"{title} by epoch", pairs, by_epoch, notes)
    speeds = [table.relative_speed(row, "training") if table.costs else None for row, _ in pairs]
    if by_time := _loss_columns(pairs, speeds, TIME_EPOCHS):
        notes = [
            f"{', '.join(by_time)}: the validation loss in the time in which the baseline trains "
            "this number of epochs, minus that of the baseline then; the training speeds are the "
            "measured ones; between two validations, the loss is interpolated",
        ]
        yield _pair_table(f"{title} by time", pairs, by_time, notes)


def _loss_columns(
    pairs: Sequence[tuple[ResultRow, ResultRow]],
    speeds: Sequence[float | None],
    epochs: Sequence[int],
) -> dict[str, list[str | None]]:
    """Return columns of loss differences, except columns without a value.

    The losses are those after ``epochs`` of the baseline, and of ``speed * epoch`` of a row.
    """
    columns = {
        str(epoch): [
            _mean_difference(
                (run.loss_at(speed * epoch), twin.loss_at(epoch)) for run, twin in row.twins(base)
            )
            if speed
            else None
            for (row, base), speed in zip(pairs, speeds, strict=True)
        ]
        for epoch in epochs
    }
    return {head: column for head, column in columns.items() if any(column)}


def _pair_table(
    title: str,
    pairs: Sequence[tuple[ResultRow, ResultRow]],
    columns: Mapping[str, Sequence[str | None]],
    notes: list[str],
) -> TextTable:
    """Return a table of pairs of a row and its baseline."""
    cells: list[Cells] = []
    for (row, base), values in zip(pairs, zip(*columns.values(), strict=True), strict=True):
        seeds = " ".join(str(run.result.seed) for run, _ in row.twins(base))
        cells.append([row.name, base.name, config_text(row.overrides), seeds, *values])
    return TextTable(title, ["", "compared with", "config", "seeds", *columns], cells, notes)


def _mean_difference(losses: Iterable[tuple[float | None, float | None]]) -> str | None:
    """Return the mean of first minus second loss; None if a loss is unknown."""
    differences = [None if own is None or other is None else own - other for own, other in losses]
    known = [difference for difference in differences if difference is not None]
    return signed(fmean(known), 3) if len(known) == len(differences) else None


def _deviations(comparison: SeedComparison) -> str | None:
    deviations = (comparison.system.deviation, comparison.baseline.deviation)
    known = [deviation for deviation in deviations if deviation is not None]
    return " + ".join(f"{deviation:.2f}" for deviation in known) if len(known) == 2 else None


def _by_seed(comparison: SeedComparison) -> str | None:
    texts = [
        f"{seed}: {signed(difference)} ({_p_text(comparison.p_values.get(seed))})"
        for seed, difference in comparison.differences.items()
    ]
    return ", ".join(texts) or None


def _p_text(p: float | None) -> str:
    if p is None:
        return "-"
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def _other_configs_table(table: ResultTable) -> TextTable:
    """Return the runs with other configs than those of the rows."""
    columns = table.columns[:1]
    heads = ["", "config", "seed", "updates to best", "valid loss"]
    heads += [column_name(columns, column) for column in columns]
    rows: list[Cells] = []
    for name, run in table.hidden_runs:
        best, loss = run.result.training.best_update, run.best_loss
        scores = [run.score(column) for column in columns]
        rows.append(
            [
                name,
                config_text(run.result.overrides),
                str(run.result.seed),
                f"{best:,}" if best is not None else None,
                f"{loss:.3f}" if loss is not None else None,
                *(f"{score:.2f}" if score is not None else None for score in scores),
            ]
        )
    note = f"{SHOWN_CONFIG}. This table has the other runs"
    return TextTable(f"{table.title}: other configs", heads, rows, [note])


# Plain values -------------------------------------------------------------------------------------


def result_table_as_dict(table: ResultTable) -> dict[str, Any]:
    """Return the table for JSON."""
    return {
        "table": table.title,
        "rows": [_row_as_dict(table, row) for row in table.rows],
        "results_without_row": [
            run.stem for row in table.hidden_rows for run in row.runs + row.other_runs
        ],
        "warnings": table_warnings(table),
    }


def _row_as_dict(table: ResultTable, row: ResultRow) -> dict[str, Any]:
    base = table.base_of(row)
    scores = []
    for column in table.columns:
        mean = row.mean(column)
        base_mean = base.mean(column) if base else None
        comparison = table.compare(row, column)
        if mean:
            scores.append(
                {
                    **column._asdict(),
                    **mean.as_dict(),
                    "difference": mean.value - base_mean.value if base_mean else None,
                    "test": _comparison_as_dict(comparison) if comparison else None,
                }
            )
    cost = table.cost_of(row)
    return {
        "row": row.name,
        "system": row.first.system,
        "line": row.first.line,
        "compared_with": base.name if base else row.first.compared_with,
        "overrides": row.overrides,
        "parameters": row.parameters,
        "seeds": [run.result.seed for run in row.runs],
        "scores": scores,
        "gain": table.gain(row),
        "valid_loss": _mean_as_dict(row.loss),
        "updates_to_best": _mean_as_dict(row.updates_to_best),
        "tokens_per_second": _mean_as_dict(row.tokens_per_second),
        "relative_training_speed": table.relative_speed(row, "training"),
        "relative_decoding_speed": table.relative_speed(row, "decoding"),
        "bytes_per_token": cost.bytes_per_token if cost else None,
        "peak_memory": _mean_as_dict(row.peak_memory),
        "seconds_to_loss_of_baseline": table.seconds_to_best(row, "loss"),
        "seconds_to_bleu_of_baseline": table.seconds_to_best(row, "bleu"),
        "results": [run.stem for run in row.runs],
        "other_runs": [run.stem for run in row.other_runs],
    }


def _comparison_as_dict(comparison: SeedComparison) -> dict[str, Any]:
    return {
        "differences": comparison.differences,
        "p_values": comparison.p_values,
        "better": comparison.better,
        "worse": comparison.worse,
    }


def _mean_as_dict(mean: MeanScore | None) -> dict[str, Any] | None:
    return mean.as_dict() if mean else None
