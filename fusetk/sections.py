"""All sections of a config but ``model``, whose classes need torch.

This module does not import torch, whose import takes two seconds.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import model_validator

from fusetk import config
from fusetk.config import Aliases, Config
from fusetk.data.config import PATHS, DataConfig, load_document
from fusetk.decoding.config import SearchConfig
from fusetk.papers import PaperConfig, fill_in
from fusetk.training.config import TrainingConfig

START_FROM = ("training", "start_from")  # a path outside of ``data``
ALIASES: Aliases = {("decoding",): SearchConfig.aliases}


class SectionsWithoutModel(Config):
    """The sections of a config. ``fusetk.recipe.Recipe`` also validates ``model``."""

    data: DataConfig
    """Text and its preparation. Paths are relative to the config file that names them; paths in
    `--set` are relative to the current folder. `~` and environment variables (`$NAME` or `${NAME}`)
    are expanded; `$$` is a dollar sign."""
    model: Any
    """Backbone, layers and fusions."""
    training: TrainingConfig
    """Stages, validation and checkpoints."""
    decoding: SearchConfig = SearchConfig()
    """Settings of the search, in validation and in `fusetk decode`."""
    paper: PaperConfig | None = None
    """Row of a paper's table that this config reproduces."""

    @model_validator(mode="after")
    def _has_no_ensemble_weights(self) -> "SectionsWithoutModel":
        if self.decoding.ensemble_weights:
            raise ValueError(
                "decoding.ensemble_weights: a run is one model; give --ensemble-weights to "
                "fusetk decode"
            )
        return self


def read(path: Path | str, overrides: Sequence[str] = ()) -> config.Document:
    """Read a config with its overrides and with the published values of its paper.

    Relative paths in ``data`` become absolute; they start from the folder of the file that names
    them, or from the current folder in an override. Published values that ``paper`` does not give
    are read from the file of ``paper.tables``. Raises ConfigError.
    """
    document = load_document(path, overrides, [START_FROM], ALIASES)
    fill_in(document)
    return document


def dump(recipe: SectionsWithoutModel) -> str:
    """Return a recipe with all its defaults as YAML that ``read`` can read."""
    return config.dump(recipe, [*PATHS, START_FROM])


def check(path: Path | str, overrides: Sequence[str] = ()) -> None:
    """Validate all sections of a config but ``model``.

    Raises ConfigError that lists every error in these sections at once.
    """
    config.parse(read(path, overrides), SectionsWithoutModel)
