"""Tables of papers: their rows from recipes, the runs of each row, and the columns of scores."""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fusetk.errors import CheckpointError, ConfigError, FusetkError
from fusetk.papers import AVERAGE, PaperConfig, TableConfig, read_tables, tables_path
from fusetk.reporting.deviations import SECTIONS, config_deviations
from fusetk.reporting.parameters import (
    count_parameters,
    matches_printed,
    vocabulary_sizes,
    vocabulary_sizes_of,
)
from fusetk.reporting.runs import (
    VALID,
    MeanScore,
    MeasuredRun,
    ScoreColumn,
    chosen_columns,
    collect_runs,
    is_run_folder,
    mean_of,
    score_columns,
    unique_runs,
)
from fusetk.reporting.score_log import ScoreRecord
from fusetk.runs import CONFIG, TEXT

if TYPE_CHECKING:
    from fusetk.config import Document
    from fusetk.recipe import Recipe

PRINTED = "as printed"  # checkpoint and metric of a column that has those of each row
# The run folders of `fusetk run`, and the config with all settings that it writes beside each.
RUN_NAME = re.compile(r"run\..+\.seed\d+(\.yaml)?")


class ParameterCount(NamedTuple):
    """The parameters of a recipe's model at some vocabulary sizes."""

    total: int
    sizes: tuple[int, int]  # source and target entries of the vocabularies
    origin: str  # source of the sizes: paper, runs or data


@dataclass(eq=False)
class PaperRow:
    """A row of a paper's table: its published values, its recipe and the runs of this recipe."""

    paper: PaperConfig
    recipe: "Recipe | None" = None  # None for a system of other authors
    path: Path | None = None  # of the recipe
    runs: list[MeasuredRun] = field(default_factory=list)
    count: ParameterCount | None = None
    trained: ParameterCount | None = None  # of a run with another vocabulary or another model

    @property
    def name(self) -> str:
        """The name of the row in the table."""
        return str(self.paper.row)

    @property
    def key(self) -> tuple[str, str]:
        """The table and the name of the row."""
        return self.paper.table, self.name

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The recipe as plain values."""
        return self.recipe.model_dump(mode="json") if self.recipe else {}

    def printed(self) -> dict[str | None, float]:
        """Return the published BLEU by test set; None is a set that the paper does not name."""
        values: dict[str | None, float] = {}
        if self.paper.valid is not None:
            values[VALID] = self.paper.valid
        if isinstance(self.paper.bleu, dict):
            values.update(self.paper.bleu)
        elif self.paper.bleu is not None:
            values[AVERAGE if self.paper.average else None] = self.paper.bleu
        return values

    def mean(self, column: ScoreColumn) -> MeanScore | None:
        """Return the mean score of the runs in a column; None if no run has such a score."""
        records = (run.record(self.column(column)) for run in self.runs)
        return mean_of(record.value for record in records if record)

    def column(self, column: ScoreColumn) -> ScoreColumn:
        """Return the column with the checkpoint and the metric of this row's published BLEU."""
        if column.checkpoint != PRINTED:
            return column
        return column._replace(
            checkpoint=self.paper.checkpoint or "", metric=self.paper.metric or ""
        )

    @property
    def parameters_match(self) -> bool | None:
        """Whether the printed number of parameters equals our count at the paper's vocabulary.

        None if the paper prints no number, or no vocabulary size.
        """
        if self.count is None or self.count.origin != "paper" or self.paper.parameters is None:
            return None
        return matches_printed(self.paper.parameters, self.count.total)


@dataclass
class PaperTable:
    """The rows of one table of a paper, and the columns of measured scores."""

    title: str
    rows: list[PaperRow]
    columns: list[ScoreColumn]
    as_printed: bool  # whether the columns have only scores of the kind that the paper prints

    @property
    def runs(self) -> list[MeasuredRun]:
        """The runs of all rows, each once."""
        return unique_runs(run for row in self.rows for run in row.runs)

    @property
    def printed_sets(self) -> list[str | None]:
        """The test sets whose BLEU the paper prints; None for a set without a name.

        The validation text comes first.
        """
        sets = dict.fromkeys(name for row in self.rows for name in row.printed())
        return sorted(sets, key=lambda name: name != VALID)

    def base_of(self, row: PaperRow) -> PaperRow | None:
        """Return the row to which the differences of a row are computed; None if it is missing."""
        name = row.paper.compared_with
        if name is None:
            return self.rows[0]
        return next((other for other in self.rows if other.name == name), None)

    def scores(self) -> list[tuple[MeasuredRun, ScoreRecord]]:
        """Return each score in a column, with its run."""
        return [
            (run, record)
            for row in self.rows
            for run in row.runs
            for column in self.columns
            if (record := run.record(row.column(column)))
        ]


# Rows ---------------------------------------------------------------------------------------------


def read_rows(paths: Iterable[Path], run_folders: Iterable[Path] = ()) -> list[PaperRow]:
    """Return the rows of the configs in files and folders, in the order of their tables.

    Configs without ``paper.row`` are ignored. In a folder, the configs of runs and those in
    ``run_folders`` are also ignored, because they repeat the configs of the rows. If a config names
    a file of published tables, the rows of other authors in its table are included. Raises
    ConfigError if no row is left, if two configs describe the same row, or if a `paper` has an
    unknown key.
    """
    from fusetk import config as configs

    paths = list(paths)
    rows: dict[tuple[str, str], PaperRow] = {}
    published: dict[str, TableConfig] = {}
    titles: dict[str, None] = {}  # in the order of the file of tables
    for path in _config_files(paths, {Path(os.path.realpath(folder)) for folder in run_folders}):
        document = configs.load(path)
        row = _row_of_recipe(document, path)
        if row is None:
            continue
        if row.key in rows:
            raise ConfigError(
                f"{rows[row.key].path} and {path} both describe the row {row.name!r} of "
                f"{row.paper.table}: give one of them"
            )
        rows[row.key] = row
        if document.values["paper"].get("tables") and row.paper.table not in published:
            known = read_tables(tables_path(document))
            published[row.paper.table] = known[row.paper.table]
            titles.update(dict.fromkeys(known))
    if not rows:
        for path in paths:
            if (path / CONFIG).is_file():
                raise ConfigError(
                    f"{path} is a run: give the recipe first, fusetk report RECIPE --runs {path}"
                )
        raise ConfigError(
            f"{', '.join(map(str, paths))}: no config here has a paper.row, so there is nothing to "
            "report: give recipes of a paper's table; for a table of your own runs, give each row "
            "a config with a section such as paper: {table: Mine, row: plain, line: 1}"
        )
    for other in _rows_of_others(published):
        rows.setdefault(other.key, other)
    titles.update(dict.fromkeys(row.paper.table for row in rows.values()))
    order = {title: i for i, title in enumerate(titles)}

    def position(row: PaperRow) -> tuple[int, bool, int]:
        # Rows without a line number come last, in the given order.
        return order[row.paper.table], row.paper.line is None, row.paper.line or 0

    ordered = sorted(rows.values(), key=position)
    _complete_scoring(ordered)
    return ordered


def _complete_scoring(rows: Sequence[PaperRow]) -> None:
    """Complete the metric, the checkpoint and the average of rows, such as those of a user.

    They are those of the first row of the table that has a metric and a checkpoint.
    """
    first: dict[str, PaperConfig] = {}
    for row in rows:
        if row.paper.metric and row.paper.checkpoint:
            first.setdefault(row.paper.table, row.paper)
    for row in rows:
        if paper := first.get(row.paper.table):
            keys = ("metric", "checkpoint", "average")
            known = {key: getattr(row.paper, key) or getattr(paper, key) for key in keys}
            row.paper = row.paper.model_copy(update=known)


def _row_of_recipe(document: "Document", path: Path) -> PaperRow | None:
    """Return the row that the config ``path`` with this content describes, or None.

    Raises ConfigError if its `paper` has an unknown key.
    """
    from fusetk import recipe as recipes

    paper = document.values.get("paper")
    if not isinstance(paper, dict):
        return None
    unknown = paper.keys() - PaperConfig.model_fields
    if paper.get("row") is None and not unknown:
        return None
    recipe = recipes.load(path)  # refuses unknown keys
    assert recipe.paper is not None
    return PaperRow(recipe.paper, recipe, path)


def _rows_of_others(published: Mapping[str, TableConfig]) -> Iterator[PaperRow]:
    """Yield the rows of other authors in published tables, which are given by title."""
    for title, table in published.items():
        for line in table.rows:
            if line.authors:
                values = table.values(line.row) or {}
                yield PaperRow(PaperConfig(table=title, row=line.row, **values))


def _config_files(paths: Iterable[Path], run_folders: Collection[Path]) -> list[Path]:
    """Return the given files, and the config files below the given folders, each once.

    The files of runs below a folder are left out; see ``read_rows``.
    """
    files: dict[Path, Path] = {}
    for path in paths:
        candidates = [path]
        if path.is_dir():
            files_below = sorted([*path.rglob("*.yaml"), *path.rglob("*.yml")])
            candidates = [file for file in files_below if not _of_run(file, path, run_folders)]
        for file in candidates:
            files.setdefault(Path(os.path.realpath(file)), file)
    return list(files.values())


def _of_run(file: Path, folder: Path, run_folders: Collection[Path]) -> bool:
    """Whether a file below a folder belongs to a run that is also below this folder."""
    path = file.relative_to(folder)
    between = [folder / parent for parent in path.parents[:-1]]
    return any(map(RUN_NAME.fullmatch, path.parts)) or any(
        inner.resolve() in run_folders or is_run_folder(inner) for inner in between
    )


def assign_runs(
    rows: Sequence[PaperRow], folders: Iterable[Path]
) -> tuple[dict[str, int], list[str]]:
    """Add each run in the folders to the row that it names, and to each row with an equal config.

    Returns the number of runs in each folder that belong to no row, and warnings. Raises
    CheckpointError if a folder does not exist.
    """
    visited: set[Path] = set()
    unmatched_runs: dict[str, int] = {}
    warnings: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            reason = "it is a file" if folder.exists() else "there is no such folder"
            raise CheckpointError(f"{folder} is not a folder of runs: {reason}")
        runs, run_warnings = collect_runs(folder)
        warnings += run_warnings
        if not runs:
            warnings.append(f"there is no run folder in {folder}")
        for run in runs:
            if run.folder.resolve() in visited:
                continue
            visited.add(run.folder.resolve())
            served = [row for row in rows if _serves(run, row)]
            for row in served:
                row.runs.append(run.with_average(row.paper.average) if row.paper.average else run)
            if not served:
                unmatched_runs[str(folder)] = unmatched_runs.get(str(folder), 0) + 1
    return unmatched_runs, warnings


def _serves(run: MeasuredRun, row: PaperRow) -> bool:
    """Whether a run names a row, or has the config of its recipe."""
    if row.recipe is None:
        return False
    if (str(run.setting("paper", "table")), str(run.setting("paper", "row"))) == row.key:
        return True
    complete = all(isinstance(run.setting(section), dict) for section in SECTIONS)
    return complete and not config_deviations(run.config, row.config)


def count_row(row: PaperRow) -> None:
    """Count the parameters of a row at the vocabulary of the paper, of a run, or of the data.

    If the first run has another vocabulary or another model, its parameters are counted too.
    Without a known vocabulary size, there is no count.
    """
    from fusetk import recipe as recipes

    run = next((run for run in row.runs if (run.folder / TEXT).is_dir()), None)
    if row.recipe is None:
        return
    try:
        run_sizes = vocabulary_sizes_of(run.folder / TEXT) if run else None
        if row.paper.vocabulary:
            row.count = _count(row.recipe, row.paper.vocabulary, "paper")
        elif run_sizes:
            row.count = _count(row.recipe, run_sizes, "runs")
        else:
            row.count = _count(row.recipe, vocabulary_sizes(row.recipe), "data")
        same_model = run is None or run.setting("model") == row.config["model"]
        if run and run_sizes and not (same_model and run_sizes == tuple(row.count.sizes)):
            row.trained = _count(recipes.load(run.folder / CONFIG), run_sizes, "runs")
    except FusetkError:
        return


def _count(recipe: "Recipe", sizes: tuple[int, int], origin: str) -> ParameterCount:
    return ParameterCount(sum(count_parameters(recipe, sizes).values()), sizes, origin)


# Tables -------------------------------------------------------------------------------------------


def make_tables(rows: Iterable[PaperRow], all_scores: bool = False) -> list[PaperTable]:
    """Group rows by table.

    A table has the columns of the scores that the paper prints, if its rows have ``paper.metric``
    and ``paper.checkpoint``. Other tables, and with ``all_scores`` all tables, have the columns of
    all recorded scores.
    """
    groups: dict[str, list[PaperRow]] = {}
    for row in rows:
        groups.setdefault(row.paper.table, []).append(row)
    tables = []
    for title, members in groups.items():
        says = any(row.paper.metric and row.paper.checkpoint for row in members)
        as_printed = says and not all_scores
        columns = _printed_columns(members) if as_printed else _columns(members)
        tables.append(PaperTable(title, members, columns, as_printed))
    return tables


def _columns(rows: Sequence[PaperRow]) -> list[ScoreColumn]:
    """Return the columns of all recorded scores, in the order of the printed test sets."""
    sets = dict.fromkeys(name for row in rows for name in row.printed() if name is not None)
    return score_columns([run for row in rows for run in row.runs], list(sets))


def _printed_columns(rows: Sequence[PaperRow]) -> list[ScoreColumn]:
    """Return a column for each test set that the paper prints and that has a score.

    If the paper does not name its test set, all test sets have a column.
    """
    sets = {name for row in rows for name in row.printed() if name is not None}
    named = sets - {VALID}
    printed = []
    for name in dict.fromkeys(column.set_name for column in _columns(rows)):
        column = ScoreColumn(name, PRINTED, PRINTED)
        wanted = name in sets if named or name == VALID else True
        if wanted and any(row.mean(column) for row in rows):
            printed.append(column)
    return printed


def select_columns(tables: Sequence[PaperTable], choices: Mapping[str, Sequence[str]]) -> None:
    """Keep the columns with the chosen test sets, checkpoints and metrics.

    For ``choices`` see ``chosen_columns``. Raises DataError if no score has a chosen name, unless
    there is no score.
    """
    columns = [column for table in tables for column in table.columns]
    chosen = set(chosen_columns(columns, choices)) if columns else set()
    for table in tables:
        table.columns = [column for column in table.columns if column in chosen]
