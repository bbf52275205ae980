"""All steps on training pairs, with the reason for each pair that is dropped."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from fusetk.data.steps.base import PairStep, PrepStep, StepModels, UniquePairStep
from fusetk.data.steps.calls import key_function, line_function, reason_function
from fusetk.data.steps.filter import EMPTY
from fusetk.data.text import FilePair, cannot_write, open_text, read_pairs, single_spaces, writer

SUBWORDS = "too many subwords"  # reason for dropping a pair after BPE


class Outcome(NamedTuple):
    """The result of all steps on one pair."""

    source: str  # words; empty if the pair is dropped
    target: str
    reason: str  # reason for dropping the pair; empty if it is kept
    keys: tuple[bytes, ...]  # one key for each UniquePairStep that the pair reached


class PassSpec(NamedTuple):
    """The steps of one pass over the training pairs, with their languages and models."""

    steps: Sequence[PrepStep]
    source: str  # languages
    target: str
    models: StepModels
    drop_empty: bool  # drop pairs with an empty side after all steps


class PairSteps:
    """All steps on a pair, except the comparison with earlier pairs (see ``Deduplicator``)."""

    def __init__(self, spec: PassSpec):
        self.functions = [
            (
                reason_function(step),
                key_function(step),
                line_function(step, "source", spec.source, spec.models),
                line_function(step, "target", spec.target, spec.models),
            )
            for step in spec.steps
        ]
        self.drop_empty = spec.drop_empty

    def __call__(self, chunk: list[tuple[str, str]]) -> list[Outcome]:
        return [self.pair(source, target) for source, target in chunk]

    def pair(self, source: str, target: str) -> Outcome:
        """Apply the steps to one pair until a step drops it."""
        keys: tuple[bytes, ...] = ()
        for drop_reason, key, on_source, on_target in self.functions:
            if drop_reason and (reason := drop_reason(source, target)):
                return Outcome("", "", reason, keys)
            if key:
                keys += (key(source, target),)
            if on_source:
                source = on_source(source)
            if on_target:
                target = on_target(target)
        source, target = single_spaces(source), single_spaces(target)
        if self.drop_empty and not (source and target):
            return Outcome("", "", EMPTY, keys)
        return Outcome(source, target, "", keys)


class Deduplicator:
    """Drops pairs with a repeated key. The pairs must come in the order of the corpus."""

    def __init__(self, steps: Sequence[PrepStep]):
        self.steps = [step for step in steps if isinstance(step, UniquePairStep)]
        self.seen: list[set[bytes]] = [set() for _ in self.steps]

    def reason(self, outcome: Outcome) -> str:
        """Return the reason for dropping the pair, or an empty string.

        A repeated key takes precedence over the reasons of later steps.
        """
        for step, seen, key in zip(self.steps, self.seen, outcome.keys, strict=False):
            if key in seen:
                return step.reason
            seen.add(key)
        return outcome.reason


@contextmanager
def _replacing(path: Path) -> Iterator[IO[str]]:
    """Open a file that replaces ``path`` at the end, unless an error occurs.

    Raises DataError if it cannot be written.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():  # a device or a pipe
        with writer(path) as file:
            yield file
        return
    new = target.with_name(f".{os.getpid()}.{target.name}")
    try:
        with open_text(new) as file:
            yield file
        if target.exists():
            shutil.copymode(target, new)
        os.replace(new, target)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        with suppress(OSError):
            new.unlink()


def filter_files(
    inputs: FilePair, outputs: FilePair, step: PairStep, unique: Sequence[UniquePairStep]
) -> tuple[int, Counter[str]]:
    """Copy the pairs of lines that the steps keep, unchanged.

    After an error in the inputs, or if the disk is full, the outputs are unchanged.
    Returns the number of these pairs, and the number of dropped pairs for each reason.
    """
    deduplicator = Deduplicator(unique)
    num_kept = 0
    dropped: Counter[str] = Counter()
    with _replacing(outputs.source) as source_file, _replacing(outputs.target) as target_file:
        for source, target in read_pairs(inputs):
            reason = step.drop_reason(source, target)
            if not reason:
                keys = tuple(unique_step.key(source, target) for unique_step in unique)
                reason = deduplicator.reason(Outcome(source, target, "", keys))
            if reason:
                dropped[reason] += 1
            else:
                num_kept += 1
                source_file.write(source + "\n")
                target_file.write(target + "\n")
        # Both files are complete before one of the outputs is replaced.
        source_file.close()
        target_file.close()
    return num_kept, dropped
