"""The choice of checkpoints and metrics of an experiment."""

from collections.abc import Sequence

from fusetk.data.steps.lowercase import Lowercase
from fusetk.recipe import Recipe

TOKENIZED = "multi-bleu"  # metrics whose names start with this score tokenised text
AVERAGE = "average-"  # checkpoints whose names start with this are averages of the last N


def metrics_of(recipe: Recipe, chosen: Sequence[str]) -> list[str]:
    """Return the metrics: the chosen ones, or else the paper's, or else multi-bleu."""
    published = getattr(recipe.paper, "metric", None)
    return list(chosen) or [published or TOKENIZED]


def averaged_checkpoints(recipe: Recipe, chosen: int | None) -> int:
    """Return the number of checkpoints to average.

    It is the chosen one, or else the paper's, or else the number that training keeps.
    """
    published = getattr(recipe.paper, "checkpoint", None) or ""
    if chosen is None and published.startswith(AVERAGE):
        return int(published.removeprefix(AVERAGE))
    return chosen or recipe.training.keep_last


def decoded_checkpoints(recipe: Recipe, averaged: int) -> list[str]:
    """Return the names of the checkpoints that translate: best, the average, and the paper's."""
    names = ["best", f"{AVERAGE}{averaged}"]
    return [*names, "last"] if getattr(recipe.paper, "checkpoint", None) == "last" else names


def lowercases_target(recipe: Recipe) -> bool:
    """Whether the preparation lowercases the target text."""
    return any(
        isinstance(step, Lowercase) and step.works_on("target") for step in recipe.data.steps
    )
