"""Recipes that stand for rows of papers' tables, for the tests of each paper's."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from fusetk import recipe
from fusetk.data.config import DataConfig
from fusetk.data.prepare import Manifest, prepare
from fusetk.recipe import Recipe

GROUNDS = {"base", "big"}  # what rows extend, and not always whole
RECIPES = Path(__file__).parents[2] / "recipes"


@cache
def load(path: Path) -> Recipe:
    return recipe.load(path)


def rows(folder: str) -> dict[str, Recipe]:
    """Configs of a folder that stand for a row, by the file's name."""
    paths = [path for path in sorted((RECIPES / folder).glob("*.yaml")) if path.stem not in GROUNDS]
    found = {path.stem: load(path) for path in paths}
    return {name: one for name, one in found.items() if one.paper and one.paper.row}


def check_tables(folder: str, sizes: dict[str, int]) -> None:
    """The rows of a folder make tables of these sizes; lines are 1, 2, ..., and no row stands twice."""
    found: dict[str, list[tuple[int | None, str | None]]] = {}
    for one in rows(folder).values():
        assert one.paper
        found.setdefault(one.paper.table, []).append((one.paper.line, one.paper.row))
    assert {table: sorted(line for line, _ in lines) for table, lines in found.items()} == {
        table: list(range(1, number + 1)) for table, number in sizes.items()
    }
    assert all(len({row for _, row in lines}) == len(lines) for lines in found.values())


def prepared(
    tmp_path: Path, data: DataConfig, write: Callable[[Path, str, int, tuple[str, str]], None]
) -> Manifest:
    """What ``write(folder, name, lines, languages)`` makes up for each file that ``data`` names, prepared as that says."""
    assert data.bpe and isinstance(data.valid, list)
    for prefix in {
        *data.train,
        *data.valid,
        *(prefix for prefixes in data.test.values() for prefix in prefixes),
    }:
        write(tmp_path, Path(prefix).name, 40, (data.source, data.target))
    changes = {
        "folder": str(tmp_path / "prepared"),
        "train": [str(tmp_path / Path(p).name) for p in data.train],
        "valid": [str(tmp_path / Path(p).name) for p in data.valid],
        "test": {
            name: [str(tmp_path / Path(p).name) for p in paths] for name, paths in data.test.items()
        },
        "bpe": data.bpe.model_copy(update={"merges": 30}),
    }
    return prepare(data.model_copy(update=changes))
