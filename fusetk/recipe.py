"""The complete config of a run. Only this module knows all sections."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import model_validator

from fusetk import config
from fusetk.config import Config, component
from fusetk.data.config import DataConfig, load_document
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
    document = load_document(path, overrides, [("training", "start_from")])
    fill_in(document)
    return config.parse(document, Recipe)
