"""The first stages of preparation, which convert raw text to words.

Training text is filtered, and the config may move some of its pairs to validation. Other text is
converted line by line.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fusetk import display
from fusetk.data.config import DataConfig, Every, Sample
from fusetk.data.filter import Deduplicator, PairSteps, PassSpec
from fusetk.data.parallel import chunks
from fusetk.data.pipeline import SIDES, Text, learned_steps, load_models
from fusetk.data.stages import Build, Results
from fusetk.data.steps.base import LearnedStep, PairStep, PrepStep, StepModel, StepModels
from fusetk.data.steps.calls import learn_model, save_model
from fusetk.data.text import FilePair, read_lines, read_pairs, writer
from fusetk.display import Task
from fusetk.errors import ConfigError, DataError, quantity

LinePair = tuple[str, str]  # a source line and a target line
LINE_NUMBER = np.dtype("<i8")
NUMBERS = "line.numbers"  # a file ending; it has a dot, so it cannot be a language
BLOCK = 100  # lines that progress counts together


def languages(config: DataConfig) -> tuple[str, str]:
    return config.source, config.target


def languages_by_side(config: DataConfig) -> dict[str, str]:
    return dict(zip(SIDES, languages(config), strict=True))


def size_of(pair: LinePair) -> int:
    return len(pair[0]) + len(pair[1])


def all_pairs(pairs: Sequence[FilePair], ends: list[int] | None = None) -> Iterator[LinePair]:
    """Yield the pairs of lines of several parallel texts, one text after the other.

    Append the number of pairs so far to ``ends`` at the end of each text.
    """
    count = 0
    for pair in pairs:
        for lines in read_pairs(pair):
            count += 1
            yield lines
        if ends is not None:
            ends.append(count)


# Words of the training text ----------------------------------------------------------------------


def train_words(build: Build, config: DataConfig, pairs: Sequence[FilePair]) -> Results:
    """Apply all steps to the training pairs, then move the pairs for validation.

    A learned step starts a new pass: its model is learned on the output of the pass before it.
    """
    dropped: Counter[str] = Counter()
    models: dict[tuple[str, str], StepModel] = {}
    ends: list[int] = []
    passes = _passes(config.steps)
    read: Callable[[], Iterator[LinePair]] = partial(all_pairs, pairs, ends)
    numbers: Path | None = None
    total = num_kept = 0
    for i, steps in enumerate(passes):
        if i:
            models |= _learn(build, config, steps[0], i - 1, num_kept)
        spec = PassSpec(
            steps, *languages(config), models, drop_empty=_drops_empty(config, passes, i)
        )
        with display.task("training text", "lines", num_kept or build.lines) as done:
            num_kept, dropped_now = _run_pass(build, spec, read(), numbers, i, done)
        if not i:
            total = num_kept + sum(dropped_now.values())
        dropped.update(dropped_now)
        output = FilePair(*(build.aside / f"pass{i}.{language}" for language in languages(config)))
        read = partial(read_pairs, output, bom=False)
        numbers = build.aside / f"pass{i}.{NUMBERS}"
    if not num_kept:
        reasons = ", ".join(f"{n} {reason}" for reason, n in dropped.most_common())
        raise DataError(
            f"all {total} training pairs were dropped ({reasons}); "
            "loosen the filter, or check that the files belong together"
        )
    _save_models(build, config, models)
    last = len(passes) - 1
    to_valid = _split(build, config, pairs, num_kept, last)
    corpora = _pairs_by_corpus(_line_numbers(build.aside / f"pass{last}.{NUMBERS}"), to_valid, ends)
    for i in range(len(passes)):
        for suffix in (*languages(config), NUMBERS):
            (build.aside / f"pass{i}.{suffix}").unlink(missing_ok=True)
    return {
        "pairs_in": total,
        "pairs_out": num_kept - len(to_valid),
        "to_valid": len(to_valid),
        "dropped": dict(sorted(dropped.items())),
        "corpora": corpora,
    }


def _drops_empty(config: DataConfig, passes: Sequence[Sequence[PrepStep]], i: int) -> bool:
    """Whether pass ``i``, if it is the last, drops pairs with an empty side."""
    if i + 1 < len(passes):
        return False
    return not any(isinstance(step, PairStep) and step.allows_empty() for step in config.steps)


def _pairs_by_corpus(
    origin: NDArray[np.int64], to_valid: NDArray[np.int64], ends: Sequence[int]
) -> list[int]:
    """Return the number of training pairs of each corpus.

    ``origin`` holds the line number in the concatenated corpora of each pair that the steps kept,
    ``to_valid`` the indices in ``origin`` of pairs moved to validation, and ``ends`` the end of
    each corpus.
    """
    bounds = [0, *ends]
    num_kept = np.diff(np.searchsorted(origin, bounds))
    num_moved = np.diff(np.searchsorted(origin[to_valid], bounds))
    return [int(count) for count in num_kept - num_moved]


def _passes(steps: Sequence[PrepStep]) -> list[list[PrepStep]]:
    """Split the steps into passes: a learned step begins a pass.

    Raises ConfigError if a learned step occurs twice for one side.
    """
    passes: list[list[PrepStep]] = [[]]
    seen: set[tuple[str, str]] = set()
    for step in steps:
        if isinstance(step, LearnedStep):
            keys = {(side, step.step) for side in SIDES if step.works_on(side)}
            if keys & seen:
                raise ConfigError(
                    f"data.steps: {step.step} occurs twice for one side; remove one of the two"
                )
            seen |= keys
            passes.append([])
        passes[-1].append(step)
    return passes


def _learn(
    build: Build, config: DataConfig, step: PrepStep, previous: int, num_lines: int
) -> dict[tuple[str, str], StepModel]:
    """Learn the models of a step on the output of the pass ``previous``.

    The output has ``num_lines`` lines.
    """
    assert isinstance(step, LearnedStep)
    models = {}
    for side, language in languages_by_side(config).items():
        if step.works_on(side):
            lines = read_lines(build.aside / f"pass{previous}.{language}", bom=False)
            name = f"learning {step.step} of {language}"
            lines = display.tracked(lines, name, "lines", num_lines, BLOCK)
            models[side, step.step] = learn_model(step, lines)
    return models


def _save_models(build: Build, config: DataConfig, models: StepModels) -> None:
    for side, language in languages_by_side(config).items():
        for step in learned_steps(config.steps, side):
            path = build.new(f"words/{step.model_file}.{language}")
            save_model(step, models[side, step.step], path)


def _run_pass(
    build: Build,
    spec: PassSpec,
    lines: Iterator[LinePair],
    numbers: Path | None,
    i: int,
    done: Task,
) -> tuple[int, Counter[str]]:
    """Write the pairs that the steps keep, and the line number (from 0) of each in the corpus.

    ``numbers`` is the file of line numbers of the pass before, None in the first pass. ``done``
    counts the lines. Returns the number of pairs that were kept, and the numbers of dropped pairs
    by reason.
    """
    deduplicator = Deduplicator(spec.steps)
    dropped: Counter[str] = Counter()
    origin = None if numbers is None else _line_numbers(numbers)
    read = num_kept = 0
    with (
        writer(build.aside / f"pass{i}.{spec.source}") as source,
        writer(build.aside / f"pass{i}.{spec.target}") as target,
        open(build.aside / f"pass{i}.{NUMBERS}", "wb", 1 << 20) as positions,
    ):
        for outcomes in build.workers.ordered(PairSteps, (spec,), chunks(lines, size_of)):
            for outcome in outcomes:
                reason = deduplicator.reason(outcome)
                if reason:
                    dropped[reason] += 1
                else:
                    number = read if origin is None else int(origin[read])
                    source.write(outcome.source + "\n")
                    target.write(outcome.target + "\n")
                    positions.write(number.to_bytes(8, "little"))
                    num_kept += 1
                read += 1
            done.set(read)
    assert read == num_kept + sum(dropped.values())
    return num_kept, dropped


def _line_numbers(path: Path) -> NDArray[np.int64]:
    if not path.stat().st_size:
        return np.zeros(0, LINE_NUMBER)
    return np.memmap(path, LINE_NUMBER, "r")


def _split(
    build: Build, config: DataConfig, pairs: Sequence[FilePair], num_kept: int, last: int
) -> NDArray[np.int64]:
    """Write the training words, without the pairs that the config moves to validation.

    Returns the indices of the moved pairs among the ``num_kept`` pairs of the pass ``last``.
    """
    names = [build.aside / f"pass{last}.{language}" for language in languages(config)]
    if isinstance(config.valid, list):
        for language, name in zip(languages(config), names, strict=True):
            name.replace(build.new(f"words/train.{language}"))
        return np.zeros(0, np.int64)
    chosen = _choose(config.valid, num_kept)
    if not len(chosen) or len(chosen) >= num_kept:
        raise DataError(
            f"the training text has {quantity(num_kept, 'pair')}, too few for data.valid = "
            f"{json.dumps(config.valid.model_dump())}; add training text, or give a smaller number"
        )
    for language, name in zip(languages(config), names, strict=True):
        with (
            writer(build.new(f"words/train.{language}")) as train,
            writer(build.new(f"valid.{language}.txt")) as valid,
        ):
            _divide(read_lines(name, bom=False), chosen, valid, train)
    raw_numbers = np.asarray(_line_numbers(build.aside / f"pass{last}.{NUMBERS}")[chosen])
    for side, language in enumerate(languages(config)):
        raw_lines = (line for pair in pairs for line in read_lines(pair[side]))
        with writer(build.new(f"valid.{language}.raw")) as valid:
            _divide(raw_lines, raw_numbers, valid, None)
    return chosen


def _choose(split: Every | Sample, num_kept: int) -> NDArray[np.int64]:
    """Return the indices of the pairs that go to validation, in ascending order."""
    if isinstance(split, Every):
        return np.arange(split.every - 1, num_kept, split.every)
    if split.sample >= num_kept:
        return np.arange(num_kept)
    return np.array(sorted(Random(split.seed).sample(range(num_kept), split.sample)))


def _divide(
    lines: Iterator[str],
    chosen: NDArray[np.int64],
    chosen_file: IO[str],
    other_file: IO[str] | None,
) -> None:
    """Write the lines with the chosen numbers into ``chosen_file``.

    Write the others into ``other_file`` unless it is None.
    """
    following = iter(chosen.tolist())
    next_chosen = next(following, -1)
    for number, line in enumerate(lines):
        if number == next_chosen:
            chosen_file.write(line + "\n")
            next_chosen = next(following, -1)
        elif other_file:
            other_file.write(line + "\n")
    assert next_chosen == -1


# Words of other text -----------------------------------------------------------------------------


def _with_words(text: Text, chunk: list[LinePair]) -> list[tuple[LinePair, LinePair]]:
    """Return each raw pair of a chunk and its words."""
    words = text.words
    return [
        ((source, target), (words("source", source), words("target", target)))
        for source, target in chunk
    ]


def held_out_words(
    build: Build,
    config: DataConfig,
    split: str,
    pairs: Sequence[FilePair],
    further: Sequence[FilePair],
) -> Results:
    """Write all lines of validation or test text, raw and as words.

    ``further`` are the files of further references, those of the second reference first. Raises
    DataError if a side has no word. The target of a test text may have none, because it may be
    secret.
    """
    text = Text(config.steps, *languages(config), prepared_models(build, config))
    count = 0
    has_words = [False, False]
    with ExitStack() as stack:

        def open_both(kind: str) -> list[IO[str]]:
            names = [f"{split}.{language}.{kind}" for language in languages(config)]
            return [stack.enter_context(writer(build.new(name))) for name in names]

        raw_files = open_both("raw")
        word_files = open_both("txt")
        done = stack.enter_context(display.task(split, "lines", build.lines))
        lines = chunks(all_pairs(pairs), size_of)
        for chunk in build.workers.ordered(partial, (_with_words, text), lines):
            count += len(chunk)
            done.set(count)
            for raw, words in chunk:
                for side in (0, 1):
                    raw_files[side].write(raw[side] + "\n")
                    word_files[side].write(words[side] + "\n")
                    has_words[side] |= bool(words[side])
    for side, language in enumerate(languages(config)):
        is_validation = split == "valid"
        if not has_words[side] and (is_validation or side == 0):
            raise DataError(
                f"the {'validation' if is_validation else 'test'} text has no word in {language} "
                f"({', '.join(str(pair[side]) for pair in pairs)}): check data.{split}"
            )
    for start in range(0, len(further), len(pairs)):
        name = f"{split}.{config.target}{start // len(pairs) + 1}"
        _write_reference(build, name, further[start : start + len(pairs)], text)
    return {"pairs_in": count, "pairs_out": count, "dropped": {}}


def _write_reference(build: Build, name: str, files: Sequence[FilePair], text: Text) -> None:
    """Write the target lines of ``files``, raw and as words."""
    with (
        writer(build.new(f"{name}.raw")) as raw_file,
        writer(build.new(f"{name}.txt")) as word_file,
    ):
        for _, line in all_pairs(files):
            raw_file.write(line + "\n")
            word_file.write(text.words("target", line) + "\n")


def prepared_models(build: Build, config: DataConfig) -> Mapping[tuple[str, str], StepModel]:
    """Return the models that were learned on the training text."""
    return load_models(
        lambda name: build.find(f"words/{name}"), config.steps, languages_by_side(config)
    )
