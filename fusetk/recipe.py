"""The complete config of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import model_validator

from fusetk import config, sections
from fusetk.config import component
from fusetk.models import MODELS, Seq2Seq
from fusetk.models.seq2seq import ModelConfig
from fusetk.sections import SectionsWithoutModel

# Patterns of the keys that do not change the trained model: which checkpoints training keeps, what
# it prints, how it computes, and when it stops with an error. A resumed run may change them, and
# `fusetk report` does not list them as deviations from a recipe.
NEUTRAL_KEYS = (
    r"training\.(keep_last|keep_best|log_every|save_every|max_skipped|tensorboard)",
    r"training\.(compile|cuda_graphs|shard)",
    r"model\.(encoder|decoder|stack)\.checkpoint",
    r"training\.validation\.(bleu|tokens|train_pairs|train_dropout|share_pairs)",
)


class Recipe(SectionsWithoutModel):
    """The complete config of a run."""

    model: Annotated[ModelConfig, component(MODELS, "a model", Seq2Seq)]
    """Backbone, layers and fusions."""

    @model_validator(mode="after")
    def _tying_needs_one_vocabulary(self) -> "Recipe":
        if getattr(self.model, "tie", None) == "all" and not self.data.vocabulary.joint:
            raise ValueError(
                "model.tie: all shares the embeddings of both sides; "
                "it needs data.vocabulary.joint: true"
            )
        return self


def load(path: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """Read and validate a config; see ``fusetk.sections.read``.

    Raises ConfigError that lists every error at once. Paths that cannot be expanded are reported
    before all other errors.
    """
    return config.parse(sections.read(path, overrides), Recipe)
