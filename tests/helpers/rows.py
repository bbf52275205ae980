"""Recipes of rows in the papers' tables."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from shutil import copyfile

from fusetk import recipe
from fusetk.data.config import DataConfig
from fusetk.data.prepare import PreparedFolder, prepare
from fusetk.papers import TableConfig, read_tables
from fusetk.recipe import Recipe
from fusetk.reporting.parameters import count_parameters
from fusetk.reporting.tables import PaperRow, ParameterCount
from tools.counts import count_table

GROUNDS = {"base", "big"}  # configs that rows extend; they may be incomplete
RECIPES = Path(__file__).parents[2] / "recipes"
COUNTS_PAGE = RECIPES.parent / "docs" / "reproduction.md"
COUNTS: dict[tuple[str, int, int], int] = {}


@cache
def load(path: Path) -> Recipe:
    return recipe.load(path)


def rows(folder: str) -> dict[str, Recipe]:
    """Return the recipes of a folder that describe a row, by file name."""
    paths = [path for path in sorted((RECIPES / folder).glob("*.yaml")) if path.stem not in GROUNDS]
    recipes = {path.stem: load(path) for path in paths}
    return {name: row for name, row in recipes.items() if row.paper and row.paper.row}


def count(row: Recipe, source: int, target: int) -> int:
    """Return the number of parameters at these vocabulary sizes; equal models are built once."""
    key = row.model.model_dump_json(), source, target
    if key not in COUNTS:
        COUNTS[key] = sum(count_parameters(row, (source, target)).values())
    return COUNTS[key]


def check_counts(paper: str, *folders: str) -> None:
    """Check the table of a paper's printed numbers of parameters in ``COUNTS_PAGE``.

    ``folders`` have all recipes with such a number.
    """
    counted = []
    for row in (row for folder in folders for row in rows(f"{paper}/{folder}").values()):
        if row.paper and row.paper.parameters and row.paper.vocabulary:
            sizes = row.paper.vocabulary
            total = ParameterCount(count(row, *sizes), sizes, "paper")
            counted.append(PaperRow(row.paper, row, count=total))
    counted.sort(key=lambda row: (row.paper.table, row.paper.line))
    block = COUNTS_PAGE.read_text(encoding="utf-8").partition(f"begin ../recipes/{paper} counts")[2]
    table = block.partition("-->\n")[2].partition("\n<!--")[0]
    assert table == count_table(counted), "run `python -m tools.results docs/reproduction.md`"


def published() -> dict[str, TableConfig]:
    """Return the tables of the papers by name."""
    return read_tables(RECIPES / "papers.yaml")


def check_tables(folder: str, sizes: dict[str, int]) -> None:
    """Check that the rows of a folder make tables of these sizes.

    Each row is in its table once, with its own line. The lines of a table are 1, 2, ..., except
    those of the rows of other authors. All rows of a table have the same metric.
    """
    tables: dict[str, list[tuple[int | None, str | None]]] = {}
    metrics: dict[str, set[str | None]] = {}
    for row in rows(folder).values():
        assert row.paper
        tables.setdefault(row.paper.table, []).append((row.paper.line, row.paper.row))
        metrics.setdefault(row.paper.table, set()).add(row.paper.metric)
    assert all(len(names) == 1 for names in metrics.values())
    assert {table: len(members) for table, members in tables.items()} == sizes
    for lines in tables.values():
        assert len({line for line, _ in lines}) == len({row for _, row in lines}) == len(lines)
    for table, lines in tables.items():
        if table not in published():
            assert sorted(line for line, _ in lines) == list(range(1, len(lines) + 1))


def prepared(
    tmp_path: Path, data: DataConfig, write: Callable[[Path, str, int, tuple[str, str]], None]
) -> PreparedFolder:
    """Prepare generated text as in ``data``; ``write(folder, name, lines, languages)`` writes a
    file of it."""
    assert isinstance(data.valid, list)
    for prefix in {
        *data.train,
        *data.valid,
        *(prefix for prefixes in data.test.values() for prefix in prefixes),
    }:
        write(tmp_path, Path(prefix).name, 40, (data.source, data.target))
    for prefix in data.valid:
        first = tmp_path / f"{Path(prefix).name}.{data.target}"
        for number in range(1, data.valid_references):
            copyfile(first, f"{first}{number}")
    changes = {
        "folder": str(tmp_path / "prepared"),
        "train": [str(tmp_path / Path(p).name) for p in data.train],
        "valid": [str(tmp_path / Path(p).name) for p in data.valid],
        "test": {
            name: [str(tmp_path / Path(p).name) for p in paths] for name, paths in data.test.items()
        },
        "bpe": data.bpe and data.bpe.model_copy(update={"merges": 30}),
    }
    return prepare(data.model_copy(update=changes))
