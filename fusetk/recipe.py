"""The complete config of a run. Only this module knows all sections."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import model_validator

from fusetk import config
from fusetk.config import Config, Document, component
from fusetk.data.config import DataConfig
from fusetk.decoding.config import SearchConfig
from fusetk.models import MODELS, Seq2Seq
from fusetk.models.seq2seq import ModelConfig
from fusetk.papers import PaperConfig, fill_in
from fusetk.training.config import TrainingConfig

# Patterns of the keys that do not change the trained model: which checkpoints training keeps, what
# it prints and how it computes. A resumed run may change them, and `fusetk report` does not list
# them as deviations from a recipe.
NEUTRAL_KEYS = (
    r"training\.(keep_last|keep_best|log_every|save_every|tensorboard|compile|shard)",
    r"model\.(encoder|decoder|stack)\.checkpoint",
    r"training\.validation\.(bleu|tokens|train_pairs|train_dropout)",
)


class Recipe(Config):
    """The complete config of a run."""

    data: DataConfig
    """Text and its preparation. Paths are relative to the config file that names them; paths in
    `--set` are relative to the current folder. `~` and environment variables (`$NAME` or `${NAME}`)
    are expanded."""
    model: Annotated[ModelConfig, component(MODELS, "a model", Seq2Seq)]
    """Backbone, layers and fusions."""
    training: TrainingConfig
    """Stages, validation and checkpoints."""
    decoding: SearchConfig = SearchConfig()
    """Settings of the search, in validation and in `fusetk decode`."""
    paper: PaperConfig | None = None
    """Row of a paper's table that this config reproduces."""

    @model_validator(mode="after")
    def _tying_needs_one_vocabulary(self) -> "Recipe":
        if getattr(self.model, "tie", None) == "all" and not self.data.vocabulary.joint:
            raise ValueError(
                "model.tie: all shares the embeddings of both sides; "
                "it needs data.vocabulary.joint: true"
            )
        return self


def load(path: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """Read and validate a config.

    Relative paths in ``data`` become absolute; they start from the folder of the file that names
    them, or from the current folder in an override. Published values that ``paper`` does not give
    are read from the file of ``paper.tables``. Raises ConfigError that lists every error at
    once. Paths that cannot be expanded are reported before all other errors.
    """
    document = config.load(path, overrides)
    fill_in(document)
    _resolve_paths(document)
    return config.parse(document, Recipe)


def _resolve_paths(document: Document) -> None:
    """Make the paths in ``data`` absolute. Raises ConfigError for paths that cannot be expanded."""
    data = document.values.get("data")
    if not isinstance(data, dict):
        return
    errors: list[str] = []
    for key in ("folder", "train", "valid", "test"):
        if key in data:
            data[key] = _absolute(data[key], document, ("data", key), errors)
    if errors:
        raise config.config_error(errors)


def _absolute(value: Any, document: Document, place: config.Place, errors: list[str]) -> Any:
    """Return the value with absolute paths; append a sentence to ``errors`` for each bad path."""
    if isinstance(value, str):
        origin = document.where(place)
        try:
            return os.path.abspath(origin.folder / config.expand_path(value))
        except ValueError as error:
            errors.append(f"{'.'.join(map(str, place))}: {error}  [{origin.text}]")
            return value
    if isinstance(value, list):
        return [_absolute(item, document, (*place, i), errors) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {
            key: _absolute(item, document, (*place, key), errors) for key, item in value.items()
        }
    return value
