"""Tables of systems in Markdown: scores, differences to their baselines, and costs."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from fusetk.cli.tables import NONE, markdown_rows, markdown_table
from fusetk.errors import DataError, quantity
from fusetk.reporting.formats import signed
from fusetk.reporting.gain import SEEDS, SeedComparison
from fusetk.reporting.measured_costs import read_costs
from fusetk.reporting.result_columns import config_text
from fusetk.reporting.result_layout import text_tables
from fusetk.reporting.result_tables import ResultRow, ResultTable
from tools.power import gain_probabilities, measured_noise

MAIN_ROWS = 5  # rows of the short table
# Columns of the short table after the gain. It has all columns before the gain except the config.
MAIN_COLUMNS = ("training speed", "decoding speed")
TRUE_DIFFERENCES = (0, 0.5, 1, 1.5, 2)
POWER_SEEDS = (3, 5, 9)
# Results of a system with all seeds, in the order of the table.
SIGNIFICANCE = (
    "better with each seed",
    "better with some seeds",
    "better with some seeds, worse with others",
    "no significant difference with any seed",
    "worse with some seeds",
    "worse with each seed",
)


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
    heads, *best = main_columns([text.heads, *_best(text.heads, rows, bases)])
    column = heads.index("gain") + 1
    for other in reversed(others):
        comparisons = comparisons_of(other)
        heads.insert(column, f"Δ, {_short_title(other)}")
        for row in best:
            comparison = comparisons.get(row[0])
            row.insert(column, signed(comparison.difference) if comparison else "")
    for table in tables:
        table.p_values.save()
    return markdown_rows(heads, best)


def _best(heads: Sequence[str], rows: list[list[str]], bases: Mapping[str, str]) -> list[list[str]]:
    """Return the first row, those with the highest first scores, and their baselines, in order.

    Systems with enough seeds for the rule of a gain precede the others.
    """
    column, gain = heads.index("Δ") - 1, heads.index("gain")

    def key(row: list[str]) -> tuple[bool, float]:
        number = re.match(r"[\d.]+", row[column])
        return not row[gain].startswith("open"), float(number[0]) if number else 0.0

    best = sorted(rows[1:], key=key, reverse=True)[: MAIN_ROWS - 1]
    names = {name for row in [rows[0], *best] for name in (row[0], bases.get(row[0]))}
    return [row for row in rows if row[0] in names]


def main_columns(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the columns of the short table; the first row has the headings."""
    last = rows[0].index("gain")
    keep = [
        column
        for column, head in enumerate(rows[0])
        if (column <= last and head != "config") or head in MAIN_COLUMNS
    ]
    return [[row[i] for i in keep] for row in rows]


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
    comparisons = [comparisons_of(table) for table in tables]
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


class Comparison(NamedTuple):
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


def comparisons_of(table: ResultTable) -> dict[str, Comparison]:
    """Return the comparison of each system with its baseline, by the name of its row."""
    by_row = {row.name: _comparison(table, row) for row in table.rows}
    return {name: comparison for name, comparison in by_row.items() if comparison}


def _comparison(table: ResultTable, row: ResultRow) -> Comparison | None:
    """Return the comparison of a system with its baseline by the first score.

    Both have the same config, apart from keys that only the system has. Of several configs, it is
    the one with the most seeds of the system. Trials are not compared. Return None without a score.
    """
    for own, base in table.equal_configs(row):
        if own.runs[0].changes_end:
            continue
        scores = own.compare(base, table.columns[0], table.p_values)
        if scores and scores.differences:
            return Comparison(scores, own.overrides)
    return None


def significance_table(tables: Sequence[ResultTable]) -> str:
    """Return the systems of each table by ``SIGNIFICANCE``, with the differences of their means.

    Systems of which fewer than ``gain.SEEDS`` seeds can be compared are left out.
    """
    groups: dict[str, list[list[str]]] = {group: [[] for _ in tables] for group in SIGNIFICANCE}
    for i, table in enumerate(tables):
        comparisons = comparisons_of(table).items()
        for name, comparison in sorted(comparisons, key=lambda item: -item[1].difference):
            scores = comparison.scores
            seeds = len(scores.p_values)
            if seeds < SEEDS:
                continue
            significant = scores.better + scores.worse
            text = f"{name} ({signed(comparison.difference)}"
            text += ")" if significant in (0, seeds) else f", {significant} of {seeds} seeds)"
            groups[significance_of(scores)][i].append(text)
        table.p_values.save()
    lines = [
        [group, *("; ".join(systems) or NONE for systems in columns)]
        for group, columns in groups.items()
        if any(columns)
    ]
    heads = ["", *map(_short_title, tables)]
    return markdown_rows(heads, lines, align="---")


def significance_of(scores: SeedComparison) -> str:
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
