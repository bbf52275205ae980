"""The stages of preparation: words, BPE, vocabularies, ids."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusetk.data import bpe
from fusetk.data.bpe import BPE
from fusetk.data.build import Build, Results
from fusetk.data.config import BPE as BPEConfig
from fusetk.data.config import DataConfig, Every, Filter, Step, Truecase
from fusetk.data.corpus import SentenceWriter, flat, write_sentences
from fusetk.data.filter import SUBWORDS, Recipe, Seen, make_pair_steps
from fusetk.data.parallel import chunks, ordered
from fusetk.data.pipeline import SIDES, Pipeline, Text
from fusetk.data.steps import concerns
from fusetk.data.text import Pair, read_lines, read_pairs, writer
from fusetk.data.truecase import Truecaser
from fusetk.data.vocab import Vocabulary
from fusetk.errors import ConfigError, DataError

Lines = tuple[str, str]
LINE = np.dtype("<i8")


def languages(config: DataConfig) -> tuple[str, str]:
    return config.source, config.target


def size_of(pair: Lines) -> int:
    return len(pair[0]) + len(pair[1])


def all_pairs(pairs: Sequence[Pair]) -> Iterator[Lines]:
    """The lines of several parallel files, one after the other."""
    for pair in pairs:
        yield from read_pairs(pair)


# Words of the training text ------------------------------------------------------------------------------------------


def train_words(build: Build, config: DataConfig, pairs: Sequence[Pair]) -> Results:
    """All steps over the training pairs, and the split; a truecaser is learned between two passes."""
    counts: Counter[str] = Counter()
    truecasers: dict[str, Truecaser] = {}
    lines: Callable[[], Iterator[Lines]] = lambda: all_pairs(pairs)  # noqa: E731
    numbers: Path | None = None
    keeps_empty = any(isinstance(step, Filter) and step.min_length == 0 for step in config.steps)
    passes = _passes(config.steps)
    total = 0
    for i, steps in enumerate(passes):
        if i:
            truecasers |= _learn_cases(build, config, steps[0], i - 1)
        last = i + 1 == len(passes)
        recipe = Recipe(steps, *languages(config), (truecasers.get("source"), truecasers.get("target")), last and not keeps_empty)
        kept, dropped = _run_pass(build, recipe, lines(), numbers, i)
        if not i:
            total = kept + sum(dropped.values())
        counts.update(dropped)
        previous = Pair(*(build.aside / f"pass{i}.{language}" for language in languages(config)))
        lines, numbers = (lambda pair=previous: read_pairs(pair)), build.aside / f"pass{i}.lines"  # type: ignore[misc]
    if not kept:
        reasons = ", ".join(f"{n} {reason}" for reason, n in counts.most_common())
        raise DataError(f"all {total} training pairs were dropped ({reasons}); loosen the filter, or check that the files belong together")
    for side, truecaser in truecasers.items():
        truecaser.save(build.new(f"words/truecase.{config.source if side == 'source' else config.target}"))
    valid = _split(build, config, pairs, kept, len(passes) - 1)
    for i in range(len(passes)):
        for suffix in (*languages(config), "lines"):
            (build.aside / f"pass{i}.{suffix}").unlink(missing_ok=True)
    return {"pairs_in": total, "pairs_out": kept - valid, "to_valid": valid, "dropped": dict(sorted(counts.items()))}


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


def _run_pass(build: Build, recipe: Recipe, lines: Iterator[Lines], numbers: Path | None, i: int) -> tuple[int, Counter[str]]:
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
                    positions.write((read if origin is None else int(origin[read])).to_bytes(8, "little"))
                    kept += 1
                read += 1
    assert read == kept + sum(dropped.values())
    return kept, dropped


def _lines_of(path: Path) -> NDArray[np.int64]:
    return np.memmap(path, LINE, "r") if path.stat().st_size else np.zeros(0, LINE)


def _split(build: Build, config: DataConfig, pairs: Sequence[Pair], kept: int, last: int) -> int:
    """Part validation from training pairs if the config says so; returns how many went to validation."""
    names = [build.aside / f"pass{last}.{language}" for language in languages(config)]
    if isinstance(config.valid, list):
        for language, name in zip(languages(config), names, strict=True):
            name.replace(build.new(f"words/train.{language}"))
        return 0
    chosen = _choose(config.valid, kept)
    if not len(chosen) or len(chosen) >= kept:
        raise DataError(f"the {kept} training pairs that are left cannot be split by {config.valid!r}; give more text or a smaller number")
    for language, name in zip(languages(config), names, strict=True):
        with writer(build.new(f"words/train.{language}")) as train, writer(build.new(f"valid.{language}.txt")) as valid:
            _deal(read_lines(name, bom=False), chosen, valid.write, train.write)
    raw = np.asarray(_lines_of(build.aside / f"pass{last}.lines")[chosen])
    for side, language in enumerate(languages(config)):
        with writer(build.new(f"valid.{language}.raw")) as valid:
            _deal((line for pair in pairs for line in read_lines(pair[side])), raw, valid.write, None)
    return len(chosen)


def _choose(split: Any, kept: int) -> NDArray[np.int64]:
    """Which of the pairs that are left, counted from 0, go to validation."""
    if isinstance(split, Every):
        return np.arange(split.every - 1, kept, split.every)
    if split.sample >= kept:
        return np.arange(kept)
    return np.array(sorted(Random(split.seed).sample(range(kept), split.sample)))


def _deal(lines: Iterator[str], chosen: NDArray[np.int64], yes: Callable[[str], Any], no: Callable[[str], Any] | None) -> None:
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

    def __init__(self, steps: Sequence[Step], source: str, target: str, truecasers: dict[str, Truecaser]):
        self.text = Text(steps, source, target, truecasers)

    def __call__(self, chunk: list[Lines]) -> list[tuple[Lines, Lines]]:
        words = self.text.words
        return [((source, target), (words("source", source), words("target", target))) for source, target in chunk]


def held_out_words(build: Build, config: DataConfig, split: str, pairs: Sequence[Pair]) -> Results:
    """Validation or test text: every line stays, raw and as words."""
    arguments = (config.steps, *languages(config), load_truecasers(build, config))
    read = 0
    with ExitStack() as stack:
        raw, txt = (
            [stack.enter_context(writer(build.new(f"{split}.{language}.{kind}"))) for language in languages(config)]
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


# BPE and vocabularies ------------------------------------------------------------------------------------------------


def train_counts(build: Build, config: DataConfig, longest: int | None = None, codes: dict[str, BPE] | None = None) -> list[Counter[str]]:
    """Counts of words on both sides of the training text, of pairs with at most `longest` subwords a side."""
    if "counts" in build.shared and longest is None:
        shared: list[Counter[str]] = build.shared["counts"]
        return shared
    counts: list[Counter[str]] = [Counter(), Counter()]
    for pair in read_pairs(Pair(*(build.find(f"words/train.{language}") for language in languages(config)))):
        if longest is not None and codes and any(len(codes[side](line)) > longest for side, line in zip(SIDES, pair, strict=True)):
            continue
        for side in (0, 1):
            counts[side].update(pair[side].split(" "))
    for count in counts:
        count.pop("", None)
    if longest is None:
        build.shared["counts"] = counts
    return counts


def learn_bpe(build: Build, config: DataConfig, options: BPEConfig) -> Results:
    """Codes, and with a threshold the counts of subwords that they make."""
    counts = train_counts(build, config)
    if options.joint:
        joint = bpe.learn(counts[0] + counts[1], options.merges, options.min_frequency)
        codes = [joint, joint]
    else:
        codes = [bpe.learn(count, options.merges, options.min_frequency) for count in counts]
    for language, lines in zip(languages(config), codes, strict=True):
        with writer(build.new("words/bpe.codes" if options.joint else f"words/bpe.codes.{language}")) as file:
            file.writelines(f"{line}\n" for line in lines)
    for language, lines, count in zip(languages(config), codes, counts, strict=True):
        if options.threshold:
            subwords = bpe.count_subwords(count, BPE(lines))
            with writer(build.new(f"words/bpe.vocab.{language}")) as file:
                file.writelines(f"{token} {n}\n" for token, n in sorted(subwords.items(), key=lambda entry: (-entry[1], entry[0])))
    return {"merges": len(codes[0]) - 1 if options.joint else [len(lines) - 1 for lines in codes]}


def load_codes(build: Build, config: DataConfig) -> dict[str, BPE]:
    """BPE of both sides; nothing when words are the tokens."""
    if config.bpe is None:
        return {}
    found = {}
    for side, language in zip(SIDES, languages(config), strict=True):
        known = bpe.read_vocabulary(build.find(f"words/bpe.vocab.{language}"), config.bpe.threshold) if config.bpe.threshold else None
        found[side] = BPE.load(build.find("words/bpe.codes" if config.bpe.joint else f"words/bpe.codes.{language}"), known)
    return found


def make_vocabularies(build: Build, config: DataConfig) -> Results:
    """Vocabularies of the tokens of the training text; writes the folder `text/`."""
    codes, options = load_codes(build, config), config.vocabulary
    counts = train_counts(build, config, config.bpe.max_subwords if config.bpe else None, codes)
    tokens: list[dict[str, int]] = [dict(count) for count in counts]
    if codes:
        tokens = [bpe.count_subwords(count, codes[side]) for side, count in zip(SIDES, counts, strict=True)]
    if options.joint:
        joint = Vocabulary.from_counts(Counter(tokens[0]) + Counter(tokens[1]), options.threshold, options.size)
        vocabularies = joint, joint
    else:
        source, target = (Vocabulary.from_counts(count, options.threshold, options.size) for count in tokens)
        vocabularies = source, target
    text = Text(config.steps, *languages(config), load_truecasers(build, config))
    Pipeline(text, codes, vocabularies).save(build.new("text/pipeline.json").parent)
    return {
        "source": len(vocabularies[0]),
        "target": len(vocabularies[1]),
        "joint": options.joint,
        "word_types": [len(count) for count in counts],
        "token_types": [len(count) for count in tokens],
    }


# Ids -----------------------------------------------------------------------------------------------------------------


class Ids(dict[str, tuple[int, ...]]):
    """The ids of words, made when first asked for."""

    LIMIT = 1_000_000  # entries; emptied when full

    def __init__(self, pipeline: Pipeline, side: str):
        super().__init__()
        self.side, self.pipeline = side, pipeline
        self.vocabulary = pipeline.source_vocab if side == "source" else pipeline.target_vocab

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = tuple(self.vocabulary.encode(self.pipeline.subwords(self.side, word)))
        if len(word) <= bpe.CACHED_LENGTH:
            if len(self) >= self.LIMIT:
                self.clear()
            self[word] = ids
        return ids


Chunk = list[tuple[NDArray[np.uint32], NDArray[np.int64], int]]


class Encoder:
    """Pairs of lines of words to ids, without those of too many subwords."""

    def __init__(self, text: Path, longest: int | None):
        pipeline = Pipeline.load(text)
        self.sides = [Ids(pipeline, side) for side in SIDES]
        self.longest = longest

    def __call__(self, chunk: list[Lines]) -> tuple[Chunk, int]:
        """For each side ids, lengths and the number of words; and how many pairs went."""
        rows: tuple[list[list[int]], list[list[int]]] = ([], [])
        words, gone = [0, 0], 0
        for pair in chunk:
            split = [line.split(" ") if line else [] for line in pair]
            ids = [[i for word in line for i in known[word]] for line, known in zip(split, self.sides, strict=True)]
            if self.longest is not None and max(map(len, ids)) > self.longest:
                gone += 1
                continue
            for side in (0, 1):
                rows[side].append(ids[side])
                words[side] += len(split[side])
        return [(*flat(row), count) for row, count in zip(rows, words, strict=True)], gone


def write_ids(build: Build, config: DataConfig, split: str) -> Results:
    """The words of a split as ids; only training pairs are ever dropped here."""
    text = build.find("text/pipeline.json").parent
    sizes = build.stages["vocabulary"]["results"]
    train = split == "train"
    names = [f"words/train.{language}" if train else f"{split}.{language}.txt" for language in languages(config)]
    longest = config.bpe.max_subwords if config.bpe and train else None
    pairs = read_words(Pair(*(build.find(name) for name in names)))
    dropped = 0
    build.new(f"{split}.ids")
    with ExitStack() as stack:
        writers: list[SentenceWriter] = write_sentences(
            build.aside, split, languages(config), (sizes["source"], sizes["target"]), stack
        )
        for sides, gone in ordered(Encoder, (text, longest), chunks(pairs, size_of), build.jobs):
            dropped += gone
            for out, (ids, lengths, words) in zip(writers, sides, strict=True):
                out.write(ids, lengths, words)
    if not writers[0].sentences:
        raise DataError(f"all {dropped} pairs of {split} have more than bpe.max_subwords = {longest} subwords; raise it")
    return {
        "dropped": {SUBWORDS: dropped} if dropped else {},
        **{side: out.summary() for side, out in zip(SIDES, writers, strict=True)},
    }


def read_words(pair: Pair) -> Iterator[Lines]:
    """Pairs of lines that prep wrote itself."""
    return zip(read_lines(pair.source, bom=False), read_lines(pair.target, bom=False), strict=True)
