"""Reading of the complete config of a command."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusetk.recipe import Recipe


def load_recipe(config: str, overrides: Sequence[str]) -> "Recipe":
    """Read and validate a config.

    All sections but ``model`` are validated before torch is imported, so that the user sees their
    errors at once. Raises ConfigError.
    """
    from fusetk import sections

    sections.check(config, overrides)
    from fusetk import recipe

    return recipe.load(config, overrides)
