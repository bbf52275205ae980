"""Result files: one small JSON file for each run, from which tables and pages are made.

A folder of results has a file ``SYSTEM.seedN.json`` for each run. The translations and the texts
are compressed tables of columns, so that ``zcat FILE | cut -f N`` prints one text:
``translations/SYSTEM.seedN.SET.tsv.gz`` has a column for each translation of a test set, and
``texts/SET.CHECKSUM.tsv.gz`` has its sources and references, once for all runs. A tab inside a text
is written as a backslash and t; see ``escaped``.
"""

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from fusetk.errors import DataError, one_line
from fusetk.evaluation.metrics import METRICS
from fusetk.files import read_json
from fusetk.reporting.deviations import SECTIONS
from fusetk.runs import Session

FORMAT = 1
TRANSLATIONS = "translations"
TEXTS = "texts"
ENDING = ".tsv.gz"

Columns = dict[str, list[str]]  # the lines of texts, by the names of the texts
Curve = dict[str, list[int | float | None]]  # columns by name: update, epoch, loss, ...


class SavedPart(BaseModel):
    """A part of a saved file. Its values are read strictly."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class SavedScore(SavedPart):
    """A score of a run; see ``ScoreRecord`` for the fields."""

    set_name: str
    checkpoint: str
    metric: str
    value: float
    signature: str
    details: str
    sentences: int
    references: str
    updates: int | None
    lower_is_better: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """Test set, checkpoint and metric."""
        return self.set_name, self.checkpoint, self.metric

    @model_serializer(mode="wrap")
    def _omit_default(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        if not self.lower_is_better:
            del values["lower_is_better"]
        return values


class SavedTraining(SavedPart):
    """Size and cost of a training. A value is None if the run folder does not have it."""

    parameters: int | None
    updates: int | None
    epochs: float | None
    best_update: int | None  # of the best validation
    update_seconds: float | None  # of all updates, without validations
    validation_seconds: float | None
    tokens_per_second: float | None  # target tokens, during updates
    peak_memory: int | None  # bytes
    data: str | None  # fingerprint of the training data
    sessions: list[Session]

    @property
    def on_gpu(self) -> bool:
        """Whether a part of the training ran on a GPU."""
        return any(session.on_gpu for session in self.sessions)


class SavedPanel(SavedPart):
    """A matrix of layer weights: a mean over the sentences of a text, or learned numbers."""

    name: str
    title: str
    measure: str
    axes: list[str]  # names of the columns and of the rows
    x: list[str]
    y: list[str]
    matrix: list[list[float | None]]  # (len(y), len(x))
    up: bool  # the first row is the lowest

    @model_validator(mode="after")
    def _check_shape(self) -> "SavedPanel":
        if [len(row) for row in self.matrix] != [len(self.x)] * len(self.y):
            raise PydanticCustomError(
                "shape", "the matrix does not have a row for each y and a column for each x"
            )
        return self


class SavedWeights(SavedPart):
    """Layer weights of a trained model, as ``fusetk plot-attention --corpus`` computes them."""

    checkpoint: str
    weights: str  # SHA-256 of the checkpoint's weights
    text: str  # name of the text over whose first sentences the means are
    sentences: int
    panels: list[SavedPanel]  # empty if the model has no fusion and no connection


class RunResult(SavedPart):
    """The result of a run: all that a report needs."""

    format: Literal[1] = 1
    system: str  # file name of the recipe, without its ending
    table: str
    row: str
    line: int | None  # position in the table
    compared_with: str | None  # row to which differences are computed, None for the first row
    seed: int
    overrides: dict[str, Any]  # values of the config that differ from the recipe's, by key
    training: SavedTraining
    scores: list[SavedScore]
    translations: dict[str, list[str]]  # names of the translations of each test set
    texts: dict[str, str]  # checksum of the sources and references of each test set
    layer_weights: list[SavedWeights]  # of each checkpoint for which they were computed
    train_curve: Curve  # columns by name: update, loss, ...
    valid_curve: Curve
    config: dict[str, Any]  # all settings, without the folders of files

    @model_validator(mode="after")
    def _translations_have_texts(self) -> "RunResult":
        for name in self.translations:
            if name not in self.texts:
                raise PydanticCustomError("texts", "no texts of {name}", {"name": name})
        return self

    @field_validator("scores")
    @classmethod
    def _scores_differ(cls, scores: list[SavedScore]) -> list[SavedScore]:
        for key, number in Counter(score.key for score in scores).items():
            if number > 1:
                raise PydanticCustomError(
                    "twice", "two scores have the key {key}", {"key": ", ".join(key)}
                )
        return scores

    @field_validator("train_curve", "valid_curve")
    @classmethod
    def _check_lengths(cls, curve: Curve) -> Curve:
        if len(set(map(len, curve.values()))) > 1:
            raise PydanticCustomError("lengths", "the columns have different lengths")
        return curve

    @field_validator("config")
    @classmethod
    def _check_sections(cls, config: dict[str, Any]) -> dict[str, Any]:
        for section in SECTIONS:
            if not isinstance(config.get(section), dict):
                raise PydanticCustomError("section", "no section {name}", {"name": section})
        return config


# JSON ---------------------------------------------------------------------------------------------


def result_text(result: RunResult) -> str:
    """Return the content of a result file. Equal results have equal texts."""
    return json_text(result.model_dump(mode="json")) + "\n"


def json_text(value: Any, depth: int = 0) -> str:
    """Return JSON with a line for each innermost list or object, and ``depth`` spaces before it."""
    inner = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(inner, list) or not any(isinstance(part, dict | list) for part in inner):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    space = " " * depth
    parts = [json_text(part, depth + 1) for part in inner]
    opening, closing = "[", "]"
    if isinstance(value, dict):
        opening, closing = "{", "}"
        names = [json.dumps(name, ensure_ascii=False) for name in value]
        parts = [f"{name}: {part}" for name, part in zip(names, parts, strict=True)]
    lines = f",\n{space} ".join(parts)
    return f"{opening}\n{space} {lines}\n{space}{closing}"


def read_result(path: Path) -> RunResult:
    """Read a result file. Raises DataError if it is damaged or of another kind."""
    advice = "restore it, or move it to another folder"
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text)
        version = values.get("format") if isinstance(values, dict) else None
        if isinstance(version, int) and version > FORMAT:
            raise DataError(
                f"{path} was written by a newer fusetk (format {version}, this one reads "
                f"{FORMAT}): update fusetk"
            )
        return RunResult.model_validate_json(text)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise DataError(
            f"{path} is not a result of `fusetk report --save` ({first_problem(error)}): {advice}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged ({one_line(error)}): {advice}") from None


def first_problem(error: ValidationError) -> str:
    """Return the place of the first wrong value of a file, and what is wrong."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"])) or "the file"
    return f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}"


def holds_results(path: Path, with_runs: bool = False) -> bool:
    """Whether a path is a folder with a result, or a folder without any config.

    If ``with_runs``, folders of runs belong to it, too. Then a folder that has a config is a folder
    of recipes, even if it has results.
    """
    if not path.is_dir():
        return False
    configs = (file for pattern in ("*.yaml", "*.yml") for file in path.rglob(pattern))
    if next(configs, None) is None:
        return True
    return not with_runs and any(map(_is_result, path.glob("*.json")))


def _is_result(path: Path) -> bool:
    """Whether a JSON file has all keys of a result."""
    values = read_json(path)
    return isinstance(values, dict) and values.keys() >= RunResult.model_fields.keys()


def read_results(folder: Path) -> dict[Path, RunResult]:
    """Return the results in a folder by file. Raises DataError if a file cannot be used."""
    return {path: read_result(path) for path in sorted(folder.glob("*.json"))}


# Texts --------------------------------------------------------------------------------------------


def columns_bytes(columns: Mapping[str, Sequence[str]]) -> bytes:
    """Return texts as a compressed table: a line of names, then a line for each sentence.

    Equal texts have equal bytes. Raises DataError if the texts have different numbers of lines.
    """
    numbers = {name: len(lines) for name, lines in columns.items()}
    if len(set(numbers.values())) > 1:
        counts = ", ".join(f"{name} has {number:,}" for name, number in numbers.items())
        raise DataError(f"the texts have different numbers of lines: {counts}")
    table = (tuple(columns), *zip(*columns.values(), strict=True))
    rows = ["\t".join(map(escaped, row)) for row in table]
    content = "".join(f"{row}\n" for row in rows).encode()
    return gzip.compress(content, compresslevel=9, mtime=0)


def read_columns(path: Path) -> Columns:
    """Read a file of ``columns_bytes``. Raises DataError if it is missing or damaged."""
    try:
        text = gzip.decompress(path.read_bytes()).decode()
        lines = text.removesuffix("\n").split("\n")
        names, *rows = ([unescaped(cell) for cell in line.split("\t")] for line in lines)
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
        return {name: list(column) for name, column in zip(names, columns, strict=True)}
    except FileNotFoundError:
        raise missing_text(path) from None
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(
            f"{path} is damaged ({one_line(error)}): restore it, or remove it and save the "
            "results again"
        ) from None


def column_of(columns: Columns, name: str, path: Path) -> list[str]:
    """Return a column of the file ``path``. Raises DataError if the file does not have it."""
    if name not in columns:
        raise DataError(f"{path} has no column {name}: restore it, or save the results again")
    return columns[name]


def escaped(cell: str) -> str:
    r"""Replace each tab of a line by ``\t``.

    Backslashes before a tab or before the letter t are doubled, so that ``unescaped`` can tell a
    tab from the letter. Other backslashes do not change.
    """

    def replacement(match: re.Match[str]) -> str:
        backslashes, last = match[0][:-1], match[0][-1]
        return 2 * backslashes + (r"\t" if last == "\t" else last)

    return re.sub(r"\\*\t|\\+t", replacement, cell)


def unescaped(cell: str) -> str:
    """Undo ``escaped``."""

    def replacement(match: re.Match[str]) -> str:
        pairs, odd = divmod(len(match[1]), 2)
        return "\\" * pairs + ("\t" if odd else "t")

    # Most cells have no backslash before t. The test for it is faster than the expression.
    return re.sub(r"(\\+)t", replacement, cell) if r"\t" in cell else cell


def missing_text(path: Path) -> DataError:
    """Return the error for a missing file of translations or texts."""
    return DataError(f"{path} is missing: restore it, or save the results again")


def text_kind(metric: str) -> str:
    """Return the ending of the text that a metric scores: txt if it is tokenised, else raw.

    The text of a metric outside fusetk is not known.
    """
    return "txt" if metric in METRICS and METRICS[metric].tokenizes is False else "raw"


def translations_path(folder: Path, stem: str, set_name: str) -> Path:
    """Return the file with the translations of a test set by the run with this file name."""
    return folder / TRANSLATIONS / f"{stem}.{set_name}{ENDING}"


def texts_path(folder: Path, set_name: str, checksum: str) -> Path:
    """Return the file with the sources and the references of a test set."""
    return folder / TEXTS / f"{set_name}.{checksum[:8]}{ENDING}"
