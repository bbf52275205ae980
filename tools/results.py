"""The tables of results in Markdown files: ``python -m tools.results [FILE ...] [--check]``.

The command replaces the text between two markers by the tables of the folder of results that the
first marker names, relative to the file. If ``main`` follows the folder, it is a short table: the
first system and those with the highest scores, with the main columns, without title and notes. Each
other folder that the marker names then adds a column of differences. If ``costs`` follows, it is a
table of the measured costs of all systems. If ``losses`` and names of systems follow, it is a table
of their validation losses after some epochs. ``training-losses`` makes a table of their training
losses in these epochs. A name alone selects the trainings with the recipe's values;
``NAME@KEY=VALUE,KEY=VALUE`` selects those with other values. If ``tuning KEY EPOCHS`` follows, it
is a table of the lowest validation losses in the first epochs for each value of a key that was
tried. If ``loss-counts`` follows, it is a table of the number of systems whose validation loss is
lower than that of their baseline. If ``all-scores`` follows, it is a table of the differences of
all scores of the systems that have enough seeds. If ``overview`` and names of other folders follow,
it is a table of the difference of each system to its baseline in each of these folders. If
``significance`` and names of other folders follow, it is a table of the systems that differ
significantly with all, some or no seeds. If ``power`` and names of other folders follow, it is a
table of how often the rule of a gain finds a true difference. If ``measured`` and names of systems
follow, it is a table of the differences of these systems in each folder of ``TEXTS`` below the
folder. Without names, it has the first system of each page in the folder of the file. If ``counts``
follows a folder of recipes, it is a table of the numbers of parameters that the paper prints, and
of those of the models. Without files, the command updates README.md and all pages with a marker in
``results`` and ``docs``.
"""

import argparse
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from fusetk.cli.tables import NONE, markdown_rows, markdown_table
from fusetk.errors import DataError, FusetkError, join_names, quantity
from fusetk.reporting.deviations import flat_values
from fusetk.reporting.formats import signed
from fusetk.reporting.gain import SEEDS, SeedComparison
from fusetk.reporting.measured_costs import read_costs
from fusetk.reporting.result_columns import config_text
from fusetk.reporting.result_layout import text_tables
from fusetk.reporting.result_tables import ResultRow, ResultTable, read_tables
from fusetk.reporting.runs import mean_of
from fusetk.reporting.saved_run import END_KEY, SavedRun
from tools.counts import count_table, printed_rows
from tools.power import gain_probabilities, measured_noise

ROOT = Path(__file__).parent.parent
BEGIN = re.compile(
    r"<!-- results: begin (\S+?)"
    r"( costs| counts| all-scores| loss-counts| (?:main|overview|significance|power)(?: \S+?)*|"
    r" measured(?: \w+)*| (?:training-)?losses(?: [\w@.,=]+)+| tuning [\w.]+ \d+)?, "
    r"made by `python -m tools.results \S+` -->\n"
)
END = "<!-- results: end -->"
TEXTS = ("multi30k", "iwslt14")  # folders of results, in the order of the columns of ``measured``
MAIN_ROWS = 5  # rows of the short table
# Columns of the short table after the gain. It has all columns before the gain except the config.
MAIN_COLUMNS = ("training speed", "decoding speed")
LOSS_COLUMNS = 4  # columns before the losses: system, baseline, config, seeds
LOSS_EPOCHS = (1, 2, 4, 8, 12, 16, 20)
TRUE_DIFFERENCES = (0, 0.5, 1, 1.5, 2)
POWER_SEEDS = (3, 5, 9)

Reader = Callable[[Path], list[ResultTable]]


def reader() -> Reader:
    """Return a function that reads the tables of a folder of results once."""
    read = cache(lambda folder: read_tables(folder, {}))
    return lambda folder: read(folder.resolve())


def updated(text: str, folder: Path, read: Reader | None = None) -> str:
    """Return the text with current tables; ``folder`` is that of the file.

    Several files that share ``read`` read the results once.

    Raises DataError if results are damaged, and ValueError if a marker is missing, or if it needs
    one table and a folder has several.
    """
    begins = list(BEGIN.finditer(text))
    if not begins:
        raise ValueError("there is no marker `<!-- results: begin FOLDER, ... -->`")
    read = read or reader()
    parts = [text[: begins[0].end()]]
    next_begins = [begin.start() for begin in begins[1:]] + [len(text)]
    next_ends = [begin.end() for begin in begins[1:]] + [len(text)]
    for begin, next_begin, next_end in zip(begins, next_begins, next_ends, strict=True):
        end = text.find(END, begin.end(), next_begin)
        if end < 0:
            raise ValueError(f"{END} is missing after the marker of {begin[1]}")
        content = _content(begin[1], (begin[2] or "all").split(), folder, read)
        parts.append(f"{content}\n")
        parts.append(text[end:next_end])
    return "".join(parts)


def _content(results: str, words: Sequence[str], folder: Path, read: Reader) -> str:
    """Return the text after a marker.

    ``results`` is the name of the folder of results, or of recipes, below ``folder``. ``words`` are
    the kind of the table and the names that follow it. ``read`` returns the tables of a folder of
    results.
    """
    kind, *names = words
    if kind == "counts":
        return count_table(printed_rows(folder / results))
    if kind == "measured":
        tables = [_only_table(read(folder / results / name)) for name in TEXTS]
        systems = {name: None for name in names} or _systems_of_pages(folder)
        return measured_table(tables, systems, f"{results}/README.md")
    if not any((folder / results).glob("*.json")):
        return f"There are no results in `{results}` yet."
    if make := TABLES_OF_FOLDERS.get(kind):
        return make([_only_table(read(folder / name)) for name in (results, *names)])
    if kind == "costs":
        return cost_table(folder / results)
    tables = read(folder / results)
    if kind == "all-scores":
        return all_scores(_only_table(tables))
    if kind == "loss-counts":
        return loss_counts(tables)
    if kind == "losses":
        return loss_table(tables, names)
    if kind == "tuning":
        return tuning_table(tables, names[0], int(names[1]))
    if kind == "training-losses":
        return training_loss_table(tables, names)
    return all_tables(tables)


def _only_table(tables: Sequence[ResultTable]) -> ResultTable:
    """Return the table of a folder. Raises ValueError if the folder has several."""
    if len(tables) > 1:
        titles = join_names([table.title for table in tables])
        raise ValueError(f"the results have the tables {titles}, but the marker needs one table")
    return tables[0]


def all_tables(tables: Sequence[ResultTable]) -> str:
    """Return the tables of a folder of results as Markdown."""
    texts = []
    for table in tables:
        for text in text_tables(table):
            rows = [_without_none(row) for row in text.rows]
            texts.append(markdown_table(text.title, text.heads, rows, text.notes))
        table.p_values.save()
    return "\n\n".join(texts)


def main_table(tables: Sequence[ResultTable]) -> str:
    """Return the systems of the first table with the highest scores.

    Each other table adds a column: the difference of each of these systems to its baseline there.
    """
    first, *others = tables
    text = text_tables(first)[0]
    rows = [_without_none(row) for row in text.rows]
    bases = {row.name: base.name for row in first.rows if (base := first.base_of(row))}
    heads, *best = _main_columns([text.heads, *_best(text.heads, rows, bases)])
    column = heads.index("gain") + 1
    for other in reversed(others):
        comparisons = _comparisons(other)
        heads.insert(column, f"Δ, {_short_title(other)}")
        for row in best:
            comparison = comparisons.get(row[0])
            row.insert(column, signed(comparison.difference) if comparison else "")
    for table in tables:
        table.p_values.save()
    return markdown_rows(heads, best)


def _without_none(row: Sequence[str | None]) -> list[str]:
    return [NONE if cell is None else cell for cell in row]


def _short_title(table: ResultTable) -> str:
    """Return the title up to the first comma: the name of the text."""
    return table.title.partition(",")[0]


def overview(tables: Sequence[ResultTable]) -> str:
    """Return a row for each system of these tables, with its difference to its baseline in each.

    The systems with the largest differences in the first table come first. Speeds are those of the
    last table that has the system.
    """
    comparisons = [_comparisons(table) for table in tables]
    names = dict.fromkeys(name for by_name in comparisons for name in by_name)
    baselines, speeds = _baselines_and_speeds(tables)

    def order(name: str) -> list[float]:
        return [
            -by_name[name].difference if name in by_name else math.inf for by_name in comparisons
        ]

    lines = []
    for name in sorted(names, key=order):
        line = [name, baselines[name]]
        for by_name in comparisons:
            if comparison := by_name.get(name):
                line += [str(comparison), comparison.scores.verdict.partition(":")[0]]
            else:
                line += [NONE, NONE]
        lines.append(line + speeds[name])
    heads = ["", "compared with"]
    for table in tables:
        heads += [f"{_short_title(table)}: Δ {table.columns[0].metric}", "gain"]
        table.p_values.save()
    return markdown_rows([*heads, *MAIN_COLUMNS], lines)


def _baselines_and_speeds(
    tables: Sequence[ResultTable],
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the baseline and the relative speeds of each row, in the last table that has it."""
    baselines: dict[str, str] = {}
    speeds: dict[str, list[str]] = {}
    for table in tables:
        for row in table.rows:
            baselines[row.name] = row.first.compared_with or table.baseline_name
            ratios = [table.relative_speed(row, kind) for kind in ("training", "decoding")]
            speeds[row.name] = [f"×{ratio:.2f}" if ratio else NONE for ratio in ratios]
    return baselines, speeds


def measured_table(
    tables: Sequence[ResultTable], systems: Mapping[str, str | None], source: str
) -> str:
    """Return the differences of some systems to their baselines in each table, after a sentence.

    ``systems`` has the page of each system, to which its name is a link, or None. ``source`` is the
    page that explains the numbers. Systems without a comparison are left out. Speeds are those of
    the first table that has the system.
    """
    baselines, speeds = _baselines_and_speeds(tables[::-1])
    rows = [{row.first.system: row for row in table.rows} for table in tables]
    lines = []
    for system, page in systems.items():
        name, cells = "", []
        for table, by_system in zip(tables, rows, strict=True):
            row = by_system.get(system)
            comparison = row and _comparison(table, row)
            cells.append(comparison.summary if comparison else NONE)
            name = row.name if row else name
        if any(cell != NONE for cell in cells):
            label = f"[{name}]({page})" if page else name
            lines.append([label, baselines[name], *cells, *speeds[name]])
    heads = ["", "compared with", *(f"{_short_title(table)}: Δ BLEU" for table in tables)]
    for table in tables:
        table.p_values.save()
    text = (
        f"[Measured]({source}) with models of width 128 on small texts: mean BLEU over the seeds "
        "minus that of the system in the second column, and speeds divided by its speeds."
    )
    return f"{fill(text, 100)}\n\n{markdown_rows([*heads, *MAIN_COLUMNS], lines)}"


def _systems_of_pages(folder: Path) -> dict[str, str]:
    """Return the first system that each page in a folder names, and the name of the page."""
    systems = {}
    for page in sorted(folder.glob("*.md")):
        for begin in BEGIN.finditer(page.read_text(encoding="utf-8")):
            kind, *names = (begin[2] or "all").split()
            if kind == "measured" and names:
                systems[names[0]] = page.name
    return systems


class _Comparison(NamedTuple):
    """Comparison of a system with its baseline, and the values of the system that are not those of
    its recipe.
    """

    scores: SeedComparison
    overrides: Mapping[str, Any]

    @property
    def difference(self) -> float:
        """The difference of the means."""
        return self.scores.difference

    def __str__(self) -> str:
        """Return the difference of the means, the sum of both standard deviations, and the config.

        If a system has one seed, there is no sum, and * marks a significant difference.
        """
        text = signed(self.difference)
        if self.scores.system.deviation is not None and self.scores.baseline.deviation is not None:
            text += f" (±{self.scores.spread:.2f})"
        elif self.scores.better or self.scores.worse:
            text += " *"
        return f"{text}, {config_text(self.overrides)}" if self.overrides else text

    @property
    def summary(self) -> str:
        """The difference of the means, the number of common seeds, whether it is a gain, and the
        config.
        """
        details = [quantity(len(self.scores.differences), "seed")]
        if self.scores.verdict == "yes":
            details.append("a gain")
        if self.overrides:
            details.append(config_text(self.overrides))
        return f"{signed(self.difference)} ({', '.join(details)})"


def _comparisons(table: ResultTable) -> dict[str, _Comparison]:
    """Return the comparison of each system with its baseline, by the name of its row."""
    by_row = {row.name: _comparison(table, row) for row in table.rows}
    return {name: comparison for name, comparison in by_row.items() if comparison}


def _comparison(table: ResultTable, row: ResultRow) -> _Comparison | None:
    """Return the comparison of a system with its baseline by the first score.

    Both have the same config, apart from keys that only the system has. Of several configs, it is
    the one with the most seeds of the system. Trials are not compared. Return None without a score.
    """
    for own, base in table.equal_configs(row):
        if own.runs[0].changes_end:
            continue
        scores = own.compare(base, table.columns[0], table.p_values)
        if scores and scores.differences:
            return _Comparison(scores, own.overrides)
    return None


# Results of a system with all seeds, in the order of the table.
SIGNIFICANCE = (
    "better with each seed",
    "better with some seeds",
    "better with some seeds, worse with others",
    "no significant difference with any seed",
    "worse with some seeds",
    "worse with each seed",
)


def significance_table(tables: Sequence[ResultTable]) -> str:
    """Return the systems of each table by ``SIGNIFICANCE``, with the differences of their means.

    Systems of which fewer than ``gain.SEEDS`` seeds can be compared are left out.
    """
    groups: dict[str, list[list[str]]] = {group: [[] for _ in tables] for group in SIGNIFICANCE}
    for i, table in enumerate(tables):
        comparisons = _comparisons(table).items()
        for name, comparison in sorted(comparisons, key=lambda item: -item[1].difference):
            scores = comparison.scores
            seeds = len(scores.p_values)
            if seeds < SEEDS:
                continue
            significant = scores.better + scores.worse
            text = f"{name} ({signed(comparison.difference)}"
            text += ")" if significant in (0, seeds) else f", {significant} of {seeds} seeds)"
            groups[_significance(scores)][i].append(text)
        table.p_values.save()
    lines = [
        [group, *("; ".join(systems) or NONE for systems in columns)]
        for group, columns in groups.items()
        if any(columns)
    ]
    heads = ["", *map(_short_title, tables)]
    return markdown_rows(heads, lines, align="---")


def _significance(scores: SeedComparison) -> str:
    """Return the entry of ``SIGNIFICANCE`` for a comparison."""
    seeds = len(scores.p_values)
    if scores.better and scores.worse:
        return "better with some seeds, worse with others"
    for name, count in (("better", scores.better), ("worse", scores.worse)):
        if count:
            return f"{name} with {'each seed' if count == seeds else 'some seeds'}"
    return "no significant difference with any seed"


def all_scores(table: ResultTable) -> str:
    """Return the difference of each system to its baseline by each score, and the sum of both
    standard deviations.

    A difference that is better by more than this sum is bold, unless the configs of the system and
    of its baseline differ from their recipes in other keys. Then both configs are named. Systems
    with fewer seeds than ``gain.SEEDS`` are left out. Raises DataError if no system is left.
    """
    lines = []
    for row in table.rows:
        base = table.base_of(row)
        if base is None or base is row or len(row.twins(base)) < SEEDS:
            continue
        cells = []
        for column in table.columns:
            own, other = row.mean(column), base.mean(column)
            if own is None or other is None:
                cells.append(NONE)
                continue
            scores = SeedComparison(own, other, {}, {}, row.lower_is_better(column))
            text = signed(scores.difference)
            is_gain = scores.improves and row.overrides == base.overrides
            cells.append(f"{f'**{text}**' if is_gain else text}, {scores.spread:.2f}")
        names = [row.name, base.name]
        if row.overrides != base.overrides:
            names = [f"{each.name}, {config_text(each.overrides)}" for each in (row, base)]
        lines.append([*names, *cells])
    if not lines:
        raise DataError(f"{table.title} has no system with {SEEDS} seeds")
    heads = [f"Δ {column.metric} {column.checkpoint}, ± of both" for column in table.columns]
    return markdown_rows(["", "compared with", *heads], lines)


def power_table(tables: Sequence[ResultTable]) -> str:
    """Return how often the rule finds a gain, for some true differences and numbers of seeds.

    Raises DataError if a table has too few seeds.
    """
    lines = []
    for table in tables:
        noise = measured_noise(table)
        table.p_values.save()
        for seeds in POWER_SEEDS:
            label = f"{_short_title(table)}, {seeds} seeds"
            shares = gain_probabilities(noise, TRUE_DIFFERENCES, seeds)
            lines.append([label, *(f"{share:.0%}" for share in shares)])
    heads = ["true difference", *map(str, TRUE_DIFFERENCES)]
    return markdown_rows(heads, lines)


def cost_table(results: Path) -> str:
    """Return the measured costs of all systems as Markdown, relative to the first system.

    Raises DataError if nothing was measured.
    """
    costs = read_costs(results)
    if costs is None:
        raise DataError(f"{results} has no measured costs: tests/benchmarks/costs.py makes them")
    first = next(iter(costs.systems))
    rows = [
        [
            name,
            f"×{costs.ratio('training', name, first):.2f}",
            f"×{costs.ratio('decoding', name, first):.2f}",
            f"×{cost.bytes_per_token / costs.systems[first].bytes_per_token:.2f}",
        ]
        for name, cost in costs.systems.items()
    ]
    heads = ["recipe", "training speed", "decoding speed", "memory a token"]
    return markdown_rows(heads, rows)


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
            value, loss = flat_values(run.result.config).get(key), _lowest_loss(run, epochs)
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


def _lowest_loss(run: SavedRun, epochs: int) -> float | None:
    """Return the lowest loss of the validations in the first epochs; None if there is none."""
    curve = run.result.valid_curve
    ends = zip(curve["epoch"], curve["loss"], strict=True)
    losses = [loss for end, loss in ends if end is not None and end <= epochs and loss is not None]
    return min(losses, default=None)


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
    updates, ends, losses = (
        np.array(run.result.train_curve[name], dtype=float) for name in ("update", "epoch", "loss")
    )
    if epoch not in ends:
        return None
    chosen = (epoch - 1 < ends) & (ends <= epoch)
    mean = np.average(losses[chosen], weights=np.diff(updates, prepend=0)[chosen])
    return float(mean) if np.isfinite(mean) else None


def _best(heads: Sequence[str], rows: list[list[str]], bases: Mapping[str, str]) -> list[list[str]]:
    """Return the first row, those with the highest first scores, and their baselines, in order."""
    column = heads.index("Δ") - 1

    def score(row: list[str]) -> float:
        number = re.match(r"[\d.]+", row[column])
        return float(number[0]) if number else 0.0

    best = sorted(rows[1:], key=score, reverse=True)[: MAIN_ROWS - 1]
    names = {name for row in [rows[0], *best] for name in (row[0], bases.get(row[0]))}
    return [row for row in rows if row[0] in names]


def _main_columns(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the columns of the short table; the first row has the headings."""
    last = rows[0].index("gain")
    keep = [
        column
        for column, head in enumerate(rows[0])
        if (column <= last and head != "config") or head in MAIN_COLUMNS
    ]
    return [[row[i] for i in keep] for row in rows]


# The tables that compare folders of results, by the word in the marker.
TABLES_OF_FOLDERS: dict[str, Callable[[Sequence[ResultTable]], str]] = {
    "main": main_table,
    "overview": overview,
    "significance": significance_table,
    "power": power_table,
}


def pages() -> list[Path]:
    """Return the pages with a marker: README.md, and those in ``results`` and ``docs``."""
    files = [ROOT / "README.md", *(ROOT / "results").glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(file for file in files if "<!-- results: begin" in file.read_text("utf-8"))


def main() -> int:
    """Rewrite the files, or with --check return 1 if one is not up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "files", type=Path, nargs="*", help="default: README.md and all pages with a marker"
    )
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args()
    outdated = False
    read = reader()
    for file in options.files or pages():
        old = file.read_text(encoding="utf-8")
        try:
            new = updated(old, file.parent, read)
        except (FusetkError, ValueError) as error:
            sys.exit(f"tools.results: {file}: {error}")
        outdated |= new != old
        if new != old and not options.check:
            file.write_text(new, encoding="utf-8")
    return int(options.check and outdated)


if __name__ == "__main__":
    sys.exit(main())
