"""Published values of systems: the rows of the tables of papers, in a config or in a file."""

import difflib
import os
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from fusetk import config
from fusetk.config import Config, Document
from fusetk.errors import ConfigError

AVERAGE = "average"  # name of the column with the mean over several test sets
MILLIONS = r"^\d+(\.\d+)?M$"


class ScoringConfig(Config):
    """The way in which published scores were computed."""

    metric: str | None = None
    """Metric of the published BLEU, as in `fusetk score --metric`."""
    checkpoint: str | None = Field(None, pattern=r"^(best|last|average-[1-9]\d*)$")
    """Checkpoint of the published BLEU: `best`, `last`, or `average-5` for the mean of the last
    five."""
    average: list[str] | None = Field(None, min_length=1)
    """Test sets over which the paper averages. The published average is `bleu.average`, or `bleu`
    if that is one number."""
    compared_with: str | None = None
    """Row of the same table to which differences are computed; by default the first row."""


class PublishedConfig(ScoringConfig):
    """Published values of one row."""

    parameters: str | None = Field(None, pattern=MILLIONS)
    """Published number of parameters in millions, such as 10.97M."""
    valid: float | None = None
    """Published BLEU of the validation text."""
    bleu: float | dict[str, float] | None = None
    """Published BLEU of the test text: one number, or a mapping of test set names to numbers."""


class TextCountsConfig(Config):
    """Published counts of a prepared text."""

    pairs: int | Annotated[str, Field(pattern=r"^\d+(\.\d+)?[KM]$")]
    """Number of pairs after the steps. A number such as 4.5M is rounded: it allows 5 %."""
    tokens: tuple[PositiveInt, PositiveInt] | None = None
    """Source and target tokens with EOS, with the BPE of this config."""


class PaperConfig(PublishedConfig):
    """Published values of this system. Commands print them beside the measured values, and
    `fusetk run` compares the counts of the text."""

    table: str
    """Name of the paper and its table, such as MLRF Table 2."""
    row: str | None = None
    """Name of the system in the table; null in a config that only serves as a base for others."""
    tables: str | None = None
    """File with the published values of all tables, such as `recipes/papers.yaml`. Keys of this
    section that are not given are read from its row of this name."""
    line: int | None = None
    """Position of the row in the table."""
    counted: str | None = Field(None, pattern=MILLIONS)
    """Number of parameters of the described system, if it differs from the published number."""
    vocabulary: tuple[PositiveInt, PositiveInt] | None = None
    """Source and target vocabulary sizes for the number of parameters, special tokens included."""
    note: str | None = None
    """Details that the paper leaves open or states inconsistently."""
    dataset: str | None = None
    """Data set of `fusetk dataset` with the raw text of this config."""
    dataset_note: str | None = None
    """The end of an error message: steps after `fusetk dataset` that the user must take."""
    text: dict[str, TextCountsConfig] = {}
    """Counts of the prepared text, by `train`, `valid` and `test.NAME` for each test set. The
    number of pairs is that of the paper, or of public preparations if the paper has none."""


class TableRowConfig(PublishedConfig):
    """A row of a published table."""

    row: str
    """Name of the system."""
    authors: str | None = None
    """Authors of the number, if it is not the paper's own."""


class TableConfig(ScoringConfig):
    """A published table. Its scoring keys hold for all rows without their own."""

    rows: list[TableRowConfig] = Field(min_length=1)
    """Rows in the printed order."""

    def values(self, name: str) -> dict[str, Any] | None:
        """Return the values of a row for ``PaperConfig``; None if the table has no such row."""
        shared = self.model_dump(exclude={"rows"}, exclude_unset=True)
        for line, row in enumerate(self.rows, 1):
            if row.row == name:
                own = row.model_dump(exclude={"row", "authors"}, exclude_unset=True)
                return {**shared, **own, "line": line}
        return None


class TablesConfig(Config):
    """The tables of papers."""

    tables: dict[str, TableConfig]
    """Tables by name, such as MLRF Table 2."""


def read_tables(path: Path) -> dict[str, TableConfig]:
    """Return the tables of a file by name. Raises ConfigError if it is not valid."""
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        changed = 0
    return _read_tables(path, changed)


@cache
def _read_tables(path: Path, changed: int) -> dict[str, TableConfig]:
    """Read a file once for each time at which it ``changed``."""
    return config.parse(config.load(path), TablesConfig).tables


def fill_in(document: Document) -> None:
    """Add the published values of a config's row to its section ``paper``.

    Values that the config gives itself remain. Raises ConfigError if the file of ``paper.tables``
    is not valid, or has no such table or row.
    """
    paper = document.values.get("paper")
    if not isinstance(paper, dict) or not isinstance(paper.get("tables"), str):
        return
    path = tables_path(document)
    paper["tables"] = None  # the values are in the config now
    title, row = paper.get("table"), paper.get("row")
    if not isinstance(title, str) or not isinstance(row, str):
        return
    tables = read_tables(path)
    if title not in tables:
        raise _unknown(document, "table", title, list(tables), path)
    values = tables[title].values(row)
    if values is None:
        known = [known_row.row for known_row in tables[title].rows]
        raise _unknown(document, "row", row, known, path)
    for key, value in values.items():
        paper.setdefault(key, value)


def tables_path(document: Document) -> Path:
    """Return the path of the file that ``paper.tables`` names.

    Raises ConfigError if it cannot be expanded.
    """
    origin = document.where(("paper", "tables"))
    try:
        name = config.expand_path(document.values["paper"]["tables"])
    except ValueError as error:
        raise config.config_error([f"paper.tables: {error}  [{origin.text}]"]) from None
    return Path(os.path.normpath(origin.folder / name))


def _unknown(document: Document, key: str, name: str, known: list[str], path: Path) -> ConfigError:
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    origin = document.where(("paper", key)).text
    return config.config_error([f"paper.{key}: {path} has no {key} {name!r}; {hint}  [{origin}]"])
