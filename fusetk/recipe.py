"""The complete config of a run."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import model_validator

from fusetk import config, sections
from fusetk.config import component
from fusetk.data.manifest import differences
from fusetk.errors import CheckpointError
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


def check_unchanged(
    recipe: Recipe, file: Path, folder: Path, state: Mapping[str, Any], changeable: Iterable[str]
) -> None:
    """Raise CheckpointError if a checkpoint was trained with another config.

    ``recipe`` is the config in ``file``; ``state`` is that of the checkpoint in ``folder``.
    ``changeable`` are patterns of keys that may differ. A key that the checkpoint did not record,
    because another version of fusetk wrote it, may have any value. Stages may be added and removed,
    and a class outside fusetk may be in another module.
    """
    now = recipe.model_dump(mode="json")
    before = _with_recorded(now, state.get("config", {}))
    stages = [values["training"]["stages"] for values in (before, now)]
    common = min(map(len, stages))
    for values in stages:
        del values[common:]
    fixed = re.compile(f"(?!({'|'.join(changeable)}):)")
    changes = [change for change in differences(before, now) if fixed.match(change)]
    if changes:
        raise CheckpointError(
            f"{folder} was trained with other settings than those in {file} "
            f"({'; '.join(changes)}): restore the old values in this file"
        )


def _with_recorded(now: Any, recorded: Any) -> Any:
    """Return a copy of ``now`` with the recorded values of the same keys."""
    if isinstance(now, dict) and isinstance(recorded, dict):
        return {key: _with_recorded(value, recorded.get(key, value)) for key, value in now.items()}
    if isinstance(now, list) and isinstance(recorded, list):
        common = [_with_recorded(*values) for values in zip(now, recorded, strict=False)]
        return common + recorded[len(common) :]
    classes = [value.partition(":")[2] for value in (now, recorded) if isinstance(value, str)]
    is_moved = len(classes) == 2 and classes[0] == classes[1] != ""
    return now if is_moved else recorded
