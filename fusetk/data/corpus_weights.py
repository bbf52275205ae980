"""Sampling weights of training corpora."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import PurePath
from typing import NamedTuple

from fusetk.errors import ConfigError


class CorpusPart(NamedTuple):
    """One of the corpora that form the training text."""

    prefix: str  # as in data.train
    pairs: int  # number of pairs after preparation


class WeightedSpan(NamedTuple):
    """Consecutive training pairs with one weight, the mean number of uses of a pair in an epoch."""

    start: int
    end: int
    weight: float


def sampling_spans(
    parts: Sequence[CorpusPart], weights: Mapping[str, float] | None, stage: int = 0
) -> list[WeightedSpan]:
    """Return the spans of the training text with their weights; empty if all weights are 1.

    A corpus that ``weights`` does not name has the weight 1; a corpus with the weight 0 has no
    span. ``stage`` is the number of the stage, for errors. Raises ConfigError if a name matches no
    corpus or several, if two names match the same corpus, or if no pair remains.
    """
    if not weights:
        return []
    names: dict[str, str] = {}  # by prefix
    for name in weights:
        prefix = find(name, [part.prefix for part in parts], stage)
        if prefix in names:
            raise ConfigError(
                f"training.stages.{stage}.weights: {names[prefix]} and {name} are the same corpus, "
                f"{prefix}: remove one of the two names"
            )
        names[prefix] = name
    part_weights = [weights[names[part.prefix]] if part.prefix in names else 1.0 for part in parts]
    weighted = list(zip(parts, part_weights, strict=True))
    if not any(weight and part.pairs for part, weight in weighted):
        counts = ", ".join(
            f"{part.prefix}: {weight:g} x {part.pairs:,} pairs" for part, weight in weighted
        )
        raise ConfigError(
            f"training.stages.{stage}.weights leave no pair to train on ({counts}); "
            "give one corpus a weight above 0"
        )
    if all(weight == 1 for weight in part_weights):
        return []
    ends = accumulate(part.pairs for part in parts)
    return [
        WeightedSpan(end - part.pairs, end, weight)
        for end, (part, weight) in zip(ends, weighted, strict=True)
        if weight
    ]


def find(name: str, prefixes: Sequence[str], stage: int = 0) -> str:
    """Return the prefix that equals ``name``, or else the only prefix that ends with this path.

    Raises ConfigError if none or more than one matches.
    """
    if name in prefixes:
        return name
    parts = tuple(part for part in PurePath(name).parts if part != "..")
    matches = [
        prefix
        for prefix in dict.fromkeys(prefixes)
        if parts and PurePath(prefix).parts[-len(parts) :] == parts
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError(
            f"training.stages.{stage}.weights: {name!r} may be {' or '.join(matches)}; "
            "write more of its path"
        )
    known = ", ".join(dict.fromkeys(prefixes))
    raise ConfigError(
        f"training.stages.{stage}.weights: no training corpus is called {name!r}; data.train has "
        f"{known}"
    )
