"""Tables of papers: their rows from recipes, the runs of each row, and the columns of scores."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fusetk.errors import CheckpointError, ConfigError, DataError, FusetkError
from fusetk.reporting.parameters import (
    count_parameters,
    matches_printed,
    vocabulary_sizes,
    vocabulary_sizes_of,
)
from fusetk.reporting.runs import MeasuredRun, ScoreColumn, collect_runs, score_columns
from fusetk.runs import TEXT

if TYPE_CHECKING:
    from fusetk.recipe import PaperConfig, Recipe


class ParameterCount(NamedTuple):
    """The parameters of a recipe's model at some vocabulary sizes."""

    total: int
    sizes: tuple[int, int]  # source and target entries of the vocabularies
    origin: str  # source of the sizes: paper, runs or data


@dataclass(eq=False)
class PaperRow:
    """A row of a paper's table: its recipe and the runs of this recipe."""

    path: Path
    recipe: "Recipe"
    paper: "PaperConfig"
    runs: list[MeasuredRun] = field(default_factory=list)
    count: ParameterCount | None = None

    @property
    def name(self) -> str:
        """The name of the row in the table."""
        return str(self.paper.row)

    @property
    def key(self) -> tuple[str, str]:
        """The table and the name of the row."""
        return self.paper.table, self.name

    def printed_bleu(self, set_name: str | None) -> float | None:
        """Return the BLEU that the paper prints for a test set, None if it prints none.

        ``set_name`` is None for a paper that prints one BLEU without the name of a set.
        """
        bleu = self.paper.bleu
        if isinstance(bleu, dict):
            return bleu.get(set_name) if set_name is not None else None
        return bleu if set_name is None else None

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

    @property
    def runs(self) -> list[MeasuredRun]:
        """The runs of all rows."""
        return [run for row in self.rows for run in row.runs]

    @property
    def printed_sets(self) -> list[str | None]:
        """The test sets whose BLEU the paper prints; None for a set without a name."""
        sets: dict[str | None, None] = {}
        for row in self.rows:
            if isinstance(row.paper.bleu, dict):
                sets.update(dict.fromkeys(row.paper.bleu))
            elif row.paper.bleu is not None:
                sets[None] = None
        return list(sets)


# Rows ---------------------------------------------------------------------------------------------


def read_rows(paths: Iterable[Path]) -> list[PaperRow]:
    """Return the rows of the configs in files and folders, in the order of their tables.

    Configs without ``paper.row`` are ignored. Raises ConfigError if no row is left, or if two
    configs describe the same row.
    """
    from fusetk import config as configs
    from fusetk import recipe as recipes

    paths = list(paths)
    rows: dict[tuple[str, str], PaperRow] = {}
    for path in _config_files(paths):
        paper = configs.load(path).values.get("paper")
        if not isinstance(paper, dict) or paper.get("row") is None:
            continue
        recipe = recipes.load(path)
        assert recipe.paper is not None
        row = PaperRow(path, recipe, recipe.paper)
        if row.key in rows:
            raise ConfigError(
                f"{rows[row.key].path} and {path} both describe the row {row.name!r} of "
                f"{row.paper.table}: give one of them"
            )
        rows[row.key] = row
    if not rows:
        raise ConfigError(
            f"{', '.join(map(str, paths))}: no config here has a paper.row, so there is nothing to "
            "report: give recipes of a paper's table"
        )
    # Rows without a line number come last, in the given order.
    return sorted(rows.values(), key=lambda row: (row.paper.line is None, row.paper.line or 0))


def _config_files(paths: Iterable[Path]) -> list[Path]:
    """Return the given files, and the config files below the given folders, each once."""
    files: dict[Path, Path] = {}
    for path in paths:
        candidates = [path]
        if path.is_dir():
            candidates = sorted([*path.rglob("*.yaml"), *path.rglob("*.yml")])
        for file in candidates:
            files.setdefault(file.resolve(), file)
    return list(files.values())


def assign_runs(
    rows: Sequence[PaperRow], folders: Iterable[Path]
) -> tuple[dict[str, int], list[str]]:
    """Add each run in the folders to its row.

    Returns the number of runs in each folder that belong to no row, and warnings. Raises
    CheckpointError if a folder does not exist.
    """
    by_key = {row.key: row for row in rows}
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
            row = by_key.get((str(run.setting("paper", "table")), str(run.setting("paper", "row"))))
            if row is None:
                unmatched_runs[str(folder)] = unmatched_runs.get(str(folder), 0) + 1
            else:
                row.runs.append(run)
    return unmatched_runs, warnings


def row_parameters(row: PaperRow) -> ParameterCount | None:
    """Count parameters at the vocabulary of the paper, of a run, or of the prepared data.

    Returns None if no vocabulary size is known.
    """
    try:
        if row.paper.vocabulary:
            origin = "paper"
            sizes = row.paper.vocabulary
        elif texts := [run.folder / TEXT for run in row.runs if (run.folder / TEXT).is_dir()]:
            origin = "runs"
            sizes = vocabulary_sizes_of(texts[0])
        else:
            origin = "data"
            sizes = vocabulary_sizes(row.recipe)
    except FusetkError:
        return None
    return ParameterCount(sum(count_parameters(row.recipe, sizes).values()), sizes, origin)


# Tables -------------------------------------------------------------------------------------------


def make_tables(rows: Iterable[PaperRow]) -> list[PaperTable]:
    """Group rows by table; each table has the columns of all its recorded scores."""
    groups: dict[str, list[PaperRow]] = {}
    for row in rows:
        groups.setdefault(row.paper.table, []).append(row)
    return [PaperTable(title, members, _columns(members)) for title, members in groups.items()]


def _columns(rows: Sequence[PaperRow]) -> list[ScoreColumn]:
    sets = [name for row in rows if isinstance(row.paper.bleu, dict) for name in row.paper.bleu]
    return score_columns([run for row in rows for run in row.runs], list(dict.fromkeys(sets)))


def select_columns(tables: Sequence[PaperTable], choices: Mapping[str, Sequence[str]]) -> None:
    """Keep the columns with the chosen test sets, checkpoints and metrics.

    ``choices`` has the names for each option, in the order of the fields of ``ScoreColumn``; no
    names keep all columns. Raises DataError if no score has a chosen name.
    """
    for i, (option, names) in enumerate(choices.items()):
        known = dict.fromkeys(column[i] for table in tables for column in table.columns)
        for name in names:
            if known and name not in known:
                raise DataError(
                    f"{option} {name}: no run here has such a score; choose from {', '.join(known)}"
                )
        for table in tables:
            table.columns = [column for column in table.columns if not names or column[i] in names]
