"""The whole config of a run. The one file that sees all sections."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt, model_validator

from fusetk import config
from fusetk.config import Config, Document, component
from fusetk.data.prepare import DataConfig
from fusetk.decoding.config import SearchConfig
from fusetk.models import MODELS, Seq2Seq
from fusetk.models.seq2seq import ModelConfig
from fusetk.training.config import TrainingConfig

# Patterns of keys that do not decide which model is trained: what training keeps and prints, and
# how it computes. They may change when a run is resumed, and are not departures from a recipe.
NEUTRAL_KEYS = (
    r"training\.(keep_last|keep_best|log_every|save_every|tensorboard|compile|shard)",
    r"model\.(encoder|decoder|stack)\.checkpoint",
    r"training\.validation\.(bleu|tokens)",
)


class PaperConfig(Config):
    """What the paper says of this system: printed beside what is found, used for nothing else."""

    table: str
    """The paper and its table."""
    row: str | None = None
    """The system's name there; null in a config that only others extend."""
    line: int | None = None
    """Its place among the rows of the table."""
    parameters: str | None = Field(None, pattern=r"^\d+(\.\d+)?M$")
    """Parameter count as printed, in millions, such as 10.97M."""
    counted: str | None = Field(None, pattern=r"^\d+(\.\d+)?M$")
    """What the system that is described there counts, where that is not what is printed."""
    vocabulary: tuple[PositiveInt, PositiveInt] | None = None
    """Source and target entries, special ones included, with which the count comes out."""
    bleu: float | dict[str, float] | None = None
    """BLEU as printed, of one test set or by name."""
    note: str | None = None
    """What the paper leaves open here, or what in it does not agree."""


class Recipe(Config):
    """Everything that decides a run."""

    data: DataConfig
    """Text and its preparation. Paths are relative to the config file that names them, or to the current folder in `--set`; `~`
    and environment variables (`$NAME` or `${NAME}`) in them are expanded."""
    model: Annotated[ModelConfig, component(MODELS, "a model", Seq2Seq)]
    """The backbone and its wiring."""
    training: TrainingConfig
    """Stages, validation, checkpoints."""
    decoding: SearchConfig = SearchConfig()
    """Beam search, in validation and in `fusetk decode`."""
    paper: PaperConfig | None = None
    """The row of the paper's table that this config stands for."""

    @model_validator(mode="after")
    def _tying_needs_one_vocabulary(self) -> "Recipe":
        if getattr(self.model, "tie", None) == "all" and not self.data.vocabulary.joint:
            raise ValueError(
                "model.tie: all shares the embeddings of both sides, which needs data.vocabulary.joint: true"
            )
        return self


def load(path: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """Read and validate a config; relative paths in ``data`` become relative to the file (or command line) that names them.

    Raises ConfigError with every error at once, but for paths that cannot be expanded, which come first.
    """
    document = config.load(path, overrides)
    _resolve(document)
    return config.parse(document, Recipe)


def _resolve(document: Document) -> None:
    """Make the paths in ``data`` absolute. Raises ConfigError for those that ``config.expand_path`` refuses."""
    data = document.values.get("data")
    if not isinstance(data, dict):
        return
    wrong: list[str] = []
    for key in ("folder", "train", "valid", "test"):
        if key in data:
            data[key] = _absolute(data[key], document, ("data", key), wrong)
    if wrong:
        raise config.error_of(wrong)


def _absolute(value: Any, document: Document, place: config.Place, wrong: list[str]) -> Any:
    """The value with all paths in it absolute; ``wrong`` gets a sentence for each that cannot be expanded."""
    if isinstance(value, str):
        origin = document.where(place)
        try:
            return os.path.abspath(origin.folder / config.expand_path(value))
        except ValueError as error:
            wrong.append(f"{'.'.join(map(str, place))}: {error}  [{origin.text}]")
            return value
    if isinstance(value, list):
        return [_absolute(item, document, (*place, i), wrong) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: _absolute(item, document, (*place, key), wrong) for key, item in value.items()}
    return value
