"""The first stages of preparation: raw text to words, for training with filters and a split, for other text line by line."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusetk.data.config import DataConfig, Every, Filter, Step, Truecase
from fusetk.data.filter import Recipe, Seen, make_pair_steps
from fusetk.data.parallel import chunks, ordered
from fusetk.data.pipeline import SIDES, Text
from fusetk.data.stages import Build, Results
from fusetk.data.steps import concerns
from fusetk.data.text import Pair, read_lines, read_pairs, writer
from fusetk.data.truecase import Truecaser
from fusetk.errors import ConfigError, DataError

Lines = tuple[str, str]
LINE = np.dtype("<i8")


def languages(config: DataConfig) -> tuple[str, str]:
    return config.source, config.target


def size_of(pair: Lines) -> int:
    return len(pair[0]) + len(pair[1])


def all_pairs(pairs: Sequence[Pair], ends: list[int] | None = None) -> Iterator[Lines]:
    """The lines of several parallel files, one after the other; ``ends`` is told at the end of each how many there were so far."""
    read = 0
    for pair in pairs:
        for lines in read_pairs(pair):
            read += 1
            yield lines
        if ends is not None:
            ends.append(read)


# Words of the training text ------------------------------------------------------------------------------------------


def train_words(build: Build, config: DataConfig, pairs: Sequence[Pair]) -> Results:
    """All steps over the training pairs, and the split; a truecaser is learned between two passes."""
    counts: Counter[str] = Counter()
    truecasers: dict[str, Truecaser] = {}
    ends: list[int] = []
    lines: Callable[[], Iterator[Lines]] = lambda: all_pairs(pairs, ends)  # noqa: E731
    numbers: Path | None = None
    keeps_empty = any(isinstance(step, Filter) and step.min_length == 0 for step in config.steps)
    passes = _passes(config.steps)
    total = 0
    for i, steps in enumerate(passes):
        if i:
            truecasers |= _learn_cases(build, config, steps[0], i - 1)
        last = i + 1 == len(passes)
        recipe = Recipe(
            steps,
            *languages(config),
            (truecasers.get("source"), truecasers.get("target")),
            last and not keeps_empty,
        )
        kept, dropped = _run_pass(build, recipe, lines(), numbers, i)
        if not i:
            total = kept + sum(dropped.values())
        counts.update(dropped)
        previous = Pair(*(build.aside / f"pass{i}.{language}" for language in languages(config)))
        lines, numbers = (lambda pair=previous: read_pairs(pair)), build.aside / f"pass{i}.lines"  # type: ignore[misc]
    if not kept:
        reasons = ", ".join(f"{n} {reason}" for reason, n in counts.most_common())
        raise DataError(
            f"all {total} training pairs were dropped ({reasons}); loosen the filter, or check that the files belong together"
        )
    for side, truecaser in truecasers.items():
        truecaser.save(
            build.new(f"words/truecase.{config.source if side == 'source' else config.target}")
        )
    chosen = _split(build, config, pairs, kept, len(passes) - 1)
    origin = _lines_of(build.aside / f"pass{len(passes) - 1}.lines")
    corpora = np.diff(np.searchsorted(origin, [0, *ends])) - np.diff(
        np.searchsorted(origin[chosen], [0, *ends])
    )
    valid = len(chosen)
    for i in range(len(passes)):
        for suffix in (*languages(config), "lines"):
            (build.aside / f"pass{i}.{suffix}").unlink(missing_ok=True)
    dropped_by_reason = dict(sorted(counts.items()))
    return {
        "pairs_in": total,
        "pairs_out": kept - valid,
        "to_valid": valid,
        "dropped": dropped_by_reason,
        "corpora": corpora.tolist(),
    }


def _passes(steps: Sequence[Step]) -> list[list[Step]]:
    """The steps cut before each truecaser, which is learned on the text as it stands there."""
    passes: list[list[Step]] = [[]]
    seen: set[str] = set()
    for step in steps:
        if isinstance(step, Truecase):
            sides = {side for side in SIDES if concerns(step, side)}
            if sides & seen:
                raise ConfigError("data.steps: truecase stands twice for one side; once is enough")
            seen |= sides
            passes.append([])
        passes[-1].append(step)
    return passes


def _learn_cases(build: Build, config: DataConfig, step: Step, done: int) -> dict[str, Truecaser]:
    return {
        side: Truecaser.learn(read_lines(build.aside / f"pass{done}.{language}", bom=False))
        for side, language in zip(SIDES, languages(config), strict=True)
        if concerns(step, side)
    }


def _run_pass(
    build: Build, recipe: Recipe, lines: Iterator[Lines], numbers: Path | None, i: int
) -> tuple[int, Counter[str]]:
    """Write the pairs that stay, and the number (from 0) that each had in the corpus; returns how many, and why others went."""
    seen = Seen(recipe.steps)
    dropped: Counter[str] = Counter()
    origin = None if numbers is None else _lines_of(numbers)
    read = kept = 0
    with (
        writer(build.aside / f"pass{i}.{recipe.source}") as source,
        writer(build.aside / f"pass{i}.{recipe.target}") as target,
        open(build.aside / f"pass{i}.lines", "wb", 1 << 20) as positions,
    ):
        for outcomes in ordered(make_pair_steps, (recipe,), chunks(lines, size_of), build.jobs):
            for outcome in outcomes:
                reason = seen.reason(outcome)
                if reason:
                    dropped[reason] += 1
                else:
                    source.write(outcome.source + "\n")
                    target.write(outcome.target + "\n")
                    positions.write(
                        (read if origin is None else int(origin[read])).to_bytes(8, "little")
                    )
                    kept += 1
                read += 1
    assert read == kept + sum(dropped.values())
    return kept, dropped


def _lines_of(path: Path) -> NDArray[np.int64]:
    return np.memmap(path, LINE, "r") if path.stat().st_size else np.zeros(0, LINE)


def _split(
    build: Build, config: DataConfig, pairs: Sequence[Pair], kept: int, last: int
) -> NDArray[np.int64]:
    """Part validation from training pairs if the config says so; returns which of those that are left went to validation."""
    names = [build.aside / f"pass{last}.{language}" for language in languages(config)]
    if isinstance(config.valid, list):
        for language, name in zip(languages(config), names, strict=True):
            name.replace(build.new(f"words/train.{language}"))
        return np.zeros(0, np.int64)
    chosen = _choose(config.valid, kept)
    if not len(chosen) or len(chosen) >= kept:
        raise DataError(
            f"the {kept} training pairs that are left cannot give {config.valid.model_dump()} for validation; "
            "give more text or a smaller number"
        )
    for language, name in zip(languages(config), names, strict=True):
        with (
            writer(build.new(f"words/train.{language}")) as train,
            writer(build.new(f"valid.{language}.txt")) as valid,
        ):
            _deal(read_lines(name, bom=False), chosen, valid.write, train.write)
    raw = np.asarray(_lines_of(build.aside / f"pass{last}.lines")[chosen])
    for side, language in enumerate(languages(config)):
        with writer(build.new(f"valid.{language}.raw")) as valid:
            _deal(
                (line for pair in pairs for line in read_lines(pair[side])), raw, valid.write, None
            )
    return chosen


def _choose(split: Any, kept: int) -> NDArray[np.int64]:
    """Which of the pairs that are left, counted from 0, go to validation."""
    if isinstance(split, Every):
        return np.arange(split.every - 1, kept, split.every)
    if split.sample >= kept:
        return np.arange(kept)
    return np.array(sorted(Random(split.seed).sample(range(kept), split.sample)))


def _deal(
    lines: Iterator[str],
    chosen: NDArray[np.int64],
    yes: Callable[[str], Any],
    no: Callable[[str], Any] | None,
) -> None:
    """Hand the lines whose numbers were chosen to one, all others to the other."""
    following = iter(chosen.tolist())
    wanted = next(following, -1)
    for number, line in enumerate(lines):
        if number == wanted:
            yes(line + "\n")
            wanted = next(following, -1)
        elif no:
            no(line + "\n")
    assert wanted == -1


# Words of other text -------------------------------------------------------------------------------------------------


class BothSides:
    """All steps on pairs that are never dropped."""

    def __init__(
        self, steps: Sequence[Step], source: str, target: str, truecasers: dict[str, Truecaser]
    ):
        self.text = Text(steps, source, target, truecasers)

    def __call__(self, chunk: list[Lines]) -> list[tuple[Lines, Lines]]:
        words = self.text.words
        return [
            ((source, target), (words("source", source), words("target", target)))
            for source, target in chunk
        ]


def held_out_words(build: Build, config: DataConfig, split: str, pairs: Sequence[Pair]) -> Results:
    """Validation or test text: every line stays, raw and as words."""
    arguments = (config.steps, *languages(config), load_truecasers(build, config))
    read = 0
    with ExitStack() as stack:
        raw, txt = (
            [
                stack.enter_context(writer(build.new(f"{split}.{language}.{kind}")))
                for language in languages(config)
            ]
            for kind in ("raw", "txt")
        )
        for chunk in ordered(BothSides, arguments, chunks(all_pairs(pairs), size_of), build.jobs):
            read += len(chunk)
            for before, after in chunk:
                for side in (0, 1):
                    raw[side].write(before[side] + "\n")
                    txt[side].write(after[side] + "\n")
    return {"pairs_in": read, "pairs_out": read, "dropped": {}}


def load_truecasers(build: Build, config: DataConfig) -> dict[str, Truecaser]:
    """The truecasers that the training text gave, by side."""
    found = {}
    for step in config.steps:
        if isinstance(step, Truecase):
            for side, language in zip(SIDES, languages(config), strict=True):
                if concerns(step, side):
                    found[side] = Truecaser.load(build.find(f"words/truecase.{language}"))
    return found
