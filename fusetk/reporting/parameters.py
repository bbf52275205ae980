"""Parameter counts of recipes' models, and their comparison with printed counts."""

from pathlib import Path
from typing import TYPE_CHECKING

from fusetk.errors import ConfigError
from fusetk.runs import TEXT

if TYPE_CHECKING:
    from fusetk.recipe import Recipe

ADVICE = "run fusetk prep, or give --src-vocab-size and --tgt-vocab-size"


def count_parameters(recipe: "Recipe", sizes: tuple[int, int]) -> dict[str, int]:
    """Return the parameters of each part of a recipe's model.

    ``sizes`` are the source and target vocabulary sizes. See ``models.parts.parts``.
    """
    from fusetk import system
    from fusetk.models.parts import parts

    model = system.build_shapes(recipe, *sizes)
    of_parameters = parts(model)
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        part = of_parameters[name]
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


def vocabulary_sizes(recipe: "Recipe") -> tuple[int, int]:
    """Return source and target vocabulary sizes of the prepared data, or else of the paper.

    Raises ConfigError if both are unknown, and DataError if the data was prepared with other
    settings.
    """
    from fusetk.data import integrity, manifest

    folder = Path(recipe.data.folder)
    if (folder / manifest.NAME).is_file():
        integrity.check_settings(recipe.data, manifest.read(folder), ADVICE)
        return vocabulary_sizes_of(folder / TEXT)
    if recipe.paper and recipe.paper.vocabulary:
        return recipe.paper.vocabulary
    raise ConfigError(
        f"{recipe.data.folder} is not prepared yet, so the vocabulary sizes are unknown: {ADVICE}"
    )


def vocabulary_sizes_of(text: Path) -> tuple[int, int]:
    """Return source and target vocabulary sizes of a folder with a text preparation."""
    from fusetk.data.pipeline import Pipeline

    pipeline = Pipeline.load(text)
    return len(pipeline.source_vocab), len(pipeline.target_vocab)


def matches_printed(printed: str, count: int) -> bool:
    """Whether a printed number of millions, such as 10.97M, is ``count`` rounded or truncated."""
    millions = printed.removesuffix("M")
    digits = len(millions.partition(".")[2])
    scale = 10 ** (6 - digits)
    printed_units = round(float(millions) * 10**digits)
    return printed_units in (round(count / scale), count // scale)
