"""The smoke test of an experiment: all steps on the first pairs of the text, in a few updates."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from fusetk import recipe as recipes
from fusetk.data.config import Every, Sample
from fusetk.data.text import locate, read_lines
from fusetk.experiment.places import (
    Places,
    further_references,
    prefixes_by_use,
    recipe_with_folders,
)
from fusetk.experiment.references import write_lines
from fusetk.recipe import Recipe

LINES = {"train": 3000, "valid": 50, "test": 20}  # lines of each file
MERGES = 1000
SEGMENTATIONS = 2  # segmentations of the training text with BPE dropout
SUBWORDS = 200  # most subwords of a side of a training pair
UPDATES = 3  # updates of each stage
TOKENS = 1024  # most tokens of a batch
SENTENCES = 8  # most sentences of a batch


def smoke_recipe(
    config: str, settings: Sequence[str], recipe: Recipe, raw: Path, where: Places
) -> Recipe:
    """Write the text of the smoke test below ``where``, and return the recipe that reads it.

    ``recipe`` is that of ``config`` with the user's ``settings``.
    """
    text = where.out / "raw"
    write_smoke_text(recipe_with_folders(recipe, raw, where), text)
    recipe = recipes.load(config, with_smoke_settings(settings, recipe))
    if recipe.paper:  # the counts are those of the complete text
        recipe = recipe.model_copy(update={"paper": recipe.paper.model_copy(update={"text": {}})})
    return recipe_with_folders(recipe, text, where)


def with_smoke_settings(settings: Sequence[str], recipe: Recipe) -> list[str]:
    """Return the user's ``settings`` and the overrides of the smoke test.

    The user's settings have precedence, except for a list or mapping such as ``training.stages``
    with a key that the smoke test changes.
    """
    smoke = smoke_settings(recipe)
    changed = [setting.partition("=")[0] for setting in smoke]
    last = [
        setting
        for setting in settings
        if not any(key.startswith(f"{setting.partition('=')[0]}.") for key in changed)
    ]
    return [*settings, *smoke, *last]


def smoke_settings(recipe: Recipe) -> list[str]:
    """Return the overrides of the smoke test. The model is unchanged."""
    data = recipe.data
    settings = [
        "training.keep_last=2",
        "training.save_every=2",
        "training.log_every=1",
        # A model after a few updates translates until the length limit.
        "decoding.max_length_factor=0",
        "decoding.max_length_extra=10",
    ]
    if isinstance(data.valid, Sample):
        settings.append(f"data.valid.sample={min(data.valid.sample, LINES['valid'])}")
    if isinstance(data.valid, Every):
        most = LINES["train"] // LINES["valid"]
        settings.append(f"data.valid.every={min(data.valid.every, most)}")
    if data.bpe:
        if data.bpe.merges:
            settings.append(f"data.bpe.merges={min(data.bpe.merges, MERGES)}")
        settings.append(f"data.bpe.max_subwords={min(data.bpe.max_subwords or SUBWORDS, SUBWORDS)}")
        if data.bpe.dropout:
            settings.append(f"data.bpe.segmentations={min(data.bpe.segmentations, SEGMENTATIONS)}")
    for i, stage in enumerate(recipe.training.stages):
        most = SENTENCES if stage.batch.unit == "sentences" else TOKENS
        settings.append(f"training.stages.{i}.batch.size={min(stage.batch.size, most)}")
        settings.append(f"training.stages.{i}.batch.accumulate={min(stage.batch.accumulate, 2)}")
        settings.append(f"training.stages.{i}.end={{updates: {UPDATES}}}")
    return settings


def write_smoke_text(recipe: Recipe, folder: Path) -> None:
    """Write the first lines of each file of a recipe's text into the folder, with references.

    Raises DataError if a file is missing.
    """
    data = recipe.data
    for use, prefix in prefixes_by_use(data):
        sources = {language: locate(prefix, language) for language in (data.source, data.target)}
        for number, [path] in enumerate(further_references([prefix], data.target), 1):
            sources[f"{data.target}{number}"] = path
        for language, path in sources.items():
            lines = list(islice(read_lines(path), LINES[use]))
            write_lines(folder / f"{Path(prefix).name}.{language}", lines)
