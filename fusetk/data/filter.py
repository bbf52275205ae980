"""Which training pairs stay: by length and ratio, and without those that stood before."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from fusetk.data.config import Deduplicate, Filter, Step
from fusetk.data.steps import Change, change_of, concerns, one_space

EMPTY, SHORT, LONG, RATIO, DUPLICATE, SUBWORDS = (
    "empty",
    "too short",
    "too long",
    "length ratio",
    "duplicate",
    "too many subwords",
)


class Outcome(NamedTuple):
    """What became of a pair: its words, or why it was dropped."""

    source: str
    target: str
    reason: str  # empty when the pair stays
    digests: tuple[bytes, ...]  # of each deduplication that it came to


class Recipe(NamedTuple):
    """The steps of a pass over training pairs, and all that they need."""

    steps: Sequence[Step]
    source: str
    target: str
    truecasers: tuple[Change | None, Change | None]
    drop_empty: bool  # drop what has an empty side at the end


class PairSteps:
    """All steps on pairs, except what only the whole corpus can tell: whether a pair stood before."""

    def __init__(self, recipe: Recipe):
        self.steps: list[tuple[Step, Change | None, Change | None]] = []
        for step in recipe.steps:
            source = (
                change_of(step, recipe.source, recipe.truecasers[0])
                if concerns(step, "source")
                else None
            )
            target = (
                change_of(step, recipe.target, recipe.truecasers[1])
                if concerns(step, "target")
                else None
            )
            self.steps.append((step, source, target))
        self.drop_empty = recipe.drop_empty

    def __call__(self, chunk: list[tuple[str, str]]) -> list[Outcome]:
        return [self.pair(source, target) for source, target in chunk]

    def pair(self, source: str, target: str) -> Outcome:
        """One pair through all steps, up to the one that drops it."""
        digests: tuple[bytes, ...] = ()
        for step, on_source, on_target in self.steps:
            if isinstance(step, Filter):
                reason = drop_reason(step, length(source), length(target))
                if reason:
                    return Outcome("", "", reason, digests)
            elif isinstance(step, Deduplicate):
                digests += (digest(source, target),)
            if on_source:
                source = on_source(source)
            if on_target:
                target = on_target(target)
        source, target = one_space(source), one_space(target)
        if self.drop_empty and not (source and target):
            return Outcome("", "", EMPTY, digests)
        return Outcome(source, target, "", digests)


def drop_reason(step: Filter, source: int, target: int) -> str:
    """Why a filter drops a pair of these lengths in tokens; empty when it stays."""
    short, long = min(source, target), max(source, target)
    if short < step.min_length:
        return SHORT if short else EMPTY
    if step.max_length is not None and long > step.max_length:
        return LONG
    if step.max_ratio is not None and long > step.max_ratio * short:
        return RATIO
    return ""


def length(line: str) -> int:
    """Tokens of a line: what stands between ASCII spaces."""
    return (
        len(line.split(" "))
        if line and "  " not in line and line[0] != " " != line[-1]
        else sum(map(bool, line.split(" ")))
    )


def digest(source: str, target: str) -> bytes:
    """16 bytes that stand for a pair."""
    return blake2b(f"{source}\n{target}".encode(), digest_size=16).digest()


class Seen:
    """The deduplications of a pass; the pairs must come in the order of the corpus."""

    def __init__(self, steps: Sequence[Step]):
        self.sets: list[set[bytes]] = [set() for step in steps if isinstance(step, Deduplicate)]

    def reason(self, outcome: Outcome) -> str:
        """Why the pair is dropped after all; a pair that stood before counts as that, whatever later steps said."""
        for seen, mark in zip(self.sets, outcome.digests, strict=False):
            if mark in seen:
                return DUPLICATE
            seen.add(mark)
        return outcome.reason


def make_pair_steps(recipe: Recipe) -> PairSteps:
    """For worker processes."""
    return PairSteps(recipe)
