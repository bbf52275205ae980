"""How often an epoch has the pairs of each training corpus."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from fusetk.errors import ConfigError


class Part(NamedTuple):
    """A corpus of which the training text was made."""

    prefix: str  # as data.train names it
    pairs: int  # that preparation left of it


class Share(NamedTuple):
    """Pairs that stand together in the training text, and how often an epoch has each."""

    start: int
    end: int
    weight: float


def shares(parts: Sequence[Part], weights: Mapping[str, float] | None) -> list[Share]:
    """What the weights of some corpora make of the training text; nothing where all weigh 1.

    Raises ConfigError for a name of no corpus or of several, and for weights that leave no pair.
    """
    if not weights:
        return []
    if not parts:
        raise ConfigError(
            "training.stages.N.weights: it is not known which training pairs came from which corpus, for they were prepared by a version "
            "that did not note it; run fusetk prep --force (the same pairs come out)"
        )
    found = [1.0] * len(parts)
    for name, weight in weights.items():
        prefix = find(name, [part.prefix for part in parts])
        for i, part in enumerate(parts):
            if part.prefix == prefix:
                found[i] = weight
    if not any(weight and part.pairs for part, weight in zip(parts, found, strict=True)):
        counts = ", ".join(
            f"{part.prefix}: {weight:g} x {part.pairs:,} pairs"
            for part, weight in zip(parts, found, strict=True)
        )
        raise ConfigError(
            f"training.stages.N.weights leave no pair to train on ({counts}): give one a weight above 0"
        )
    if all(weight == 1 for weight in found):
        return []
    starts = [sum(part.pairs for part in parts[:i]) for i in range(len(parts))]
    return [
        Share(start, start + part.pairs, weight)
        for start, part, weight in zip(starts, parts, found, strict=True)
        if weight
    ]


def find(name: str, prefixes: Sequence[str]) -> str:
    """The prefix that a name stands for: the prefix itself, or the only one that ends with the parts of this path.

    Raises ConfigError when there is none, or more than one.
    """
    if name in prefixes:
        return name
    parts = tuple(part for part in PurePath(name).parts if part != "..")
    near = [
        prefix
        for prefix in dict.fromkeys(prefixes)
        if parts and PurePath(prefix).parts[-len(parts) :] == parts
    ]
    if len(near) == 1:
        return near[0]
    if near:
        raise ConfigError(
            f"training.stages.N.weights: {name!r} may be {' or '.join(near)}: write more of its path"
        )
    known = ", ".join(dict.fromkeys(prefixes))
    raise ConfigError(
        f"training.stages.N.weights: no training corpus is called {name!r}; data.train has {known}"
    )
