"""The choice of checkpoints and metrics of an experiment."""

from collections.abc import Sequence

from fusetk.data.steps.lowercase import Lowercase
from fusetk.data.steps.tokenize import Tokenize
from fusetk.recipe import Recipe

TOKENIZED = "multi-bleu"  # metrics whose names start with this score tokenised text
AVERAGE = "average-"  # checkpoints whose names start with this are averages of the last N


def metrics_of(recipe: Recipe, chosen: Sequence[str]) -> list[str]:
    """Return the metric of the published score first, then those to print beside it.

    Without a published score, they are the chosen ones, or else multi-bleu, which ignores case if
    the target is lowercased. If the preparation splits words at hyphens, multi-bleu differs from
    that of unsplit words, so both are included, and sacreBLEU.
    """
    published = recipe.paper.metric if recipe.paper else None
    default = "multi-bleu-lc" if lowercases_target(recipe) else "multi-bleu"
    names = [published] if published else list(chosen[:1]) or [default]
    if splits_hyphens(recipe):
        names += ["multi-bleu", "multi-bleu-joined", "sacrebleu"]
    return list(dict.fromkeys([*names, *chosen]))


def scored_checkpoints(recipe: Recipe, chosen: int | None, available: int) -> list[str]:
    """Return the names of the checkpoints that translate.

    It is the one of the published score. If the paper names none, they are the best one and an
    average of as many as training keeps. ``chosen`` is the number of checkpoints in a further
    average, or in that average. A run with only ``available`` checkpoints averages all of them.
    """
    published = recipe.paper.checkpoint if recipe.paper else None
    names = [published or "best"]
    if chosen is None and not published:
        chosen = recipe.training.keep_last
    if chosen is not None:
        names.append(f"{AVERAGE}{chosen}")
    numbers = [averaged(name) for name in names]
    limited = [
        f"{AVERAGE}{min(number, available)}" if number else name
        for name, number in zip(names, numbers, strict=True)
    ]
    return list(dict.fromkeys(limited))


def averaged(checkpoint: str) -> int | None:
    """Return the number of checkpoints in an average; None if the checkpoint is not an average."""
    number = checkpoint.removeprefix(AVERAGE)
    return int(number) if number != checkpoint else None


def lowercases_target(recipe: Recipe) -> bool:
    """Whether the preparation lowercases the target text."""
    return any(
        isinstance(step, Lowercase) and step.works_on("target") for step in recipe.data.steps
    )


def splits_hyphens(recipe: Recipe) -> bool:
    """Whether the tokeniser splits words of the target at hyphens."""
    return any(
        isinstance(step, Tokenize) and step.aggressive_hyphens and step.works_on("target")
        for step in recipe.data.steps
    )
