"""The later stages of preparation, which make BPE codes, vocabularies and ids from words."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fusetk import display
from fusetk.data import bpe
from fusetk.data.bpe import BPE
from fusetk.data.config import BPEConfig, DataConfig, VocabularyConfig
from fusetk.data.corpus import SentenceWriter, flat, write_sentences
from fusetk.data.filter import SUBWORDS
from fusetk.data.parallel import chunks, ordered
from fusetk.data.pipeline import SIDES, Pipeline, Text, load_bpe
from fusetk.data.preprocess import BLOCK, Lines, languages, prepared_models, size_of
from fusetk.data.stages import Build, Results
from fusetk.data.steps.base import LineStep
from fusetk.data.text import Pair, read_lines, read_pairs, writer
from fusetk.data.vocab import SPECIAL, Vocabulary
from fusetk.errors import DataError

# BPE and vocabularies ----------------------------------------------------------------------------


def train_counts(
    build: Build,
    config: DataConfig,
    longest: int | None = None,
    codes: dict[str, BPE] | None = None,
) -> list[Counter[str]]:
    """Return the counts of words in the training text, source first.

    With ``longest``, pairs with more subwords than this on either side are not counted.
    """
    if longest is None and "counts" in build.shared:
        shared: list[Counter[str]] = build.shared["counts"]
        return shared
    counts: list[Counter[str]] = [Counter(), Counter()]
    files = Pair(*(build.find(f"words/train.{language}") for language in languages(config)))
    lines = build.stages["words.train"]["results"]["pairs_out"]
    for pair in display.tracked(read_pairs(files), "counting words", "lines", lines, BLOCK):
        if longest is not None and codes and _too_long(pair, codes, longest):
            continue
        for side in (0, 1):
            counts[side].update(pair[side].split(" "))
    for count in counts:
        count.pop("", None)
    if longest is None:
        build.shared["counts"] = counts
    return counts


def _too_long(pair: Lines, codes: dict[str, BPE], longest: int) -> bool:
    """Whether either line of a pair has more than ``longest`` subwords."""
    return any(len(codes[side](line)) > longest for side, line in zip(SIDES, pair, strict=True))


def learn_bpe(build: Build, config: DataConfig, options: BPEConfig) -> Results:
    """Write the codes and, with a threshold, the counts of the subwords that they produce.

    Existing codes are copied. Raises DataError if they are malformed.
    """
    merges = options.merges or 0  # not used with existing codes
    counts = train_counts(build, config)
    if options.codes:
        codes = [_read_codes(file) for file in options.codes]
        codes = codes * 2 if options.one_list else codes
    elif options.joint:
        joint = bpe.learn(counts[0] + counts[1], merges, options.min_frequency)
        codes = [joint, joint]
    else:
        codes = [bpe.learn(count, merges, options.min_frequency) for count in counts]
    for language, lines in zip(languages(config), codes, strict=True):
        name = "words/bpe.codes" if options.one_list else f"words/bpe.codes.{language}"
        with writer(build.new(name)) as file:
            file.writelines(f"{line}\n" for line in lines)
    for language, lines, count in zip(languages(config), codes, counts, strict=True):
        if options.threshold:
            subwords = bpe.count_subwords(count, BPE(lines))
            most_frequent = sorted(subwords.items(), key=lambda entry: (-entry[1], entry[0]))
            with writer(build.new(f"words/bpe.vocab.{language}")) as file:
                file.writelines(f"{token} {n}\n" for token, n in most_frequent)
    numbers = [len(BPE(lines).merges) for lines in codes]
    return {"merges": numbers[0] if options.one_list else numbers}


def _read_codes(file: str) -> list[str]:
    """Return the lines of a file of codes. Raises DataError if they are malformed."""
    lines = list(read_lines(file))
    BPE(lines, name=file)
    return lines


def load_codes(build: Build, config: DataConfig) -> dict[str, BPE]:
    """Return the BPE of both sides; empty if words are the tokens."""
    if config.bpe is None:
        return {}
    names = dict(zip(SIDES, languages(config), strict=True))
    return load_bpe(
        lambda name: build.find(f"words/{name}"), names, config.bpe.one_list, config.bpe.threshold
    )


def make_vocabularies(build: Build, config: DataConfig) -> Results:
    """Make the vocabularies of the training text and write the folder `text/`."""
    codes = load_codes(build, config)
    options = config.vocabulary
    counts = train_counts(build, config, config.bpe.max_subwords if config.bpe else None, codes)
    tokens: list[dict[str, int]] = [dict(count) for count in counts]
    if codes:
        tokens = [
            bpe.count_subwords(count, codes[side])
            for side, count in zip(SIDES, counts, strict=True)
        ]
    for i, side in enumerate(SIDES):
        for step in config.steps:
            if isinstance(step, LineStep) and step.works_on(side):
                for token in step.required_tokens():
                    tokens[i][token] = max(tokens[i].get(token, 0), options.threshold)
    if options.joint:
        joint = _vocabulary(options, "source", Counter(tokens[0]) + Counter(tokens[1]))
        vocabularies = joint, joint
    else:
        source, target = (
            _vocabulary(options, side, count) for side, count in zip(SIDES, tokens, strict=True)
        )
        vocabularies = source, target
    text = Text(config.steps, *languages(config), prepared_models(build, config))
    Pipeline(text, codes, vocabularies).save(build.new("text/pipeline.json").parent)
    return {
        "source": len(vocabularies[0]),
        "target": len(vocabularies[1]),
        "joint": options.joint,
        "word_types": [len(count) for count in counts],
        "token_types": [len(count) for count in tokens],
    }


def _vocabulary(options: VocabularyConfig, side: str, counts: Mapping[str, int]) -> Vocabulary:
    """Return a vocabulary of the training text, or an existing one, extended with ``extend``."""
    file = options.source if side == "source" else options.target
    size = options.size_of(side)
    if file is None:
        return Vocabulary.from_counts(counts, options.threshold, size)
    existing = Vocabulary.load(file)
    if not options.extend:
        return existing
    room = None if size is None else max(size - len(existing), 0) + len(SPECIAL)
    new = {token: count for token, count in counts.items() if token not in existing.ids}
    added = Vocabulary.from_counts(new, options.threshold, room)
    return Vocabulary(existing.tokens[len(SPECIAL) :] + added.tokens[len(SPECIAL) :])


# Ids ---------------------------------------------------------------------------------------------


class Ids(dict[str, tuple[int, ...]]):
    """Cache of the ids of each word of a side; a missing word is encoded on access."""

    LIMIT = 1_000_000  # entries; a full cache is emptied

    def __init__(self, pipeline: Pipeline, side: str):
        super().__init__()
        self.side = side
        self.pipeline = pipeline
        self.vocabulary = pipeline.source_vocab if side == "source" else pipeline.target_vocab

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = tuple(self.vocabulary.encode(self.pipeline.subwords(self.side, word)))
        if len(word) <= bpe.CACHED_LENGTH:
            if len(self) >= self.LIMIT:
                self.clear()
            self[word] = ids
        return ids


EncodedChunk = list[tuple[NDArray[np.uint32], NDArray[np.int64], int]]


class Encoder:
    """Converts pairs of lines of words to ids, and drops the pairs with too many subwords.

    ``text`` is the folder of the pipeline, and ``longest`` the largest number of subwords.
    """

    def __init__(self, text: Path, longest: int | None):
        pipeline = Pipeline.load(text)
        self.sides = [Ids(pipeline, side) for side in SIDES]
        self.longest = longest

    def __call__(self, chunk: list[Lines]) -> tuple[EncodedChunk, list[int]]:
        """Return ids, lengths and number of words of each side, and the dropped pairs' indices."""
        rows: tuple[list[list[int]], list[list[int]]] = ([], [])
        words = [0, 0]
        dropped = []
        for index, pair in enumerate(chunk):
            split = [line.split(" ") if line else [] for line in pair]
            ids = [
                [i for word in line for i in ids_of[word]]
                for line, ids_of in zip(split, self.sides, strict=True)
            ]
            if self.longest is not None and max(map(len, ids)) > self.longest:
                dropped.append(index)
                continue
            for side in (0, 1):
                rows[side].append(ids[side])
                words[side] += len(split[side])
        return [(*flat(row), count) for row, count in zip(rows, words, strict=True)], dropped


def write_ids(build: Build, config: DataConfig, split: str) -> Results:
    """Write the words of a split as ids. Only training pairs are dropped for too many subwords."""
    text = build.find("text/pipeline.json").parent
    train = split == "train"
    names = [
        f"words/train.{language}" if train else f"{split}.{language}.txt"
        for language in languages(config)
    ]
    pairs = read_words(Pair(*(build.find(name) for name in names)))
    longest = config.bpe.max_subwords if config.bpe and train else None
    # Number of pairs from each corpus; earlier versions did not record it.
    corpora = build.stages["words.train"]["results"].get("corpora") if train else None
    remaining = np.array(corpora or [], np.int64)
    ends = np.cumsum(corpora or [])
    sizes = build.stages["vocabulary"]["results"]
    dropped = read = 0
    build.new(f"{split}.ids")
    with ExitStack() as stack:
        writers: list[SentenceWriter] = write_sentences(
            build.aside, split, languages(config), (sizes["source"], sizes["target"]), stack
        )
        done = stack.enter_context(
            display.task(f"ids of {split}", "lines", _num_pairs(build, split))
        )
        encoded = ordered(Encoder, (text, longest), chunks(pairs, size_of), build.jobs)
        for sides, dropped_indices in encoded:
            if len(remaining) and dropped_indices:
                corpus = np.searchsorted(ends, read + np.array(dropped_indices), side="right")
                remaining -= np.bincount(corpus, minlength=len(remaining))
            dropped += len(dropped_indices)
            read += len(dropped_indices) + len(sides[0][1])
            done.set(read)
            for out, (ids, lengths, words) in zip(writers, sides, strict=True):
                out.write(ids, lengths, words)
    if not writers[0].sentences:
        raise DataError(
            f"all {dropped} pairs of {split} have more than bpe.max_subwords = {longest} subwords; "
            "raise bpe.max_subwords"
        )
    return {
        "dropped": {SUBWORDS: dropped} if dropped else {},
        **({"corpora": remaining.tolist()} if corpora else {}),
        **{side: out.summary() for side, out in zip(SIDES, writers, strict=True)},
    }


def _num_pairs(build: Build, split: str) -> int:
    """Return the number of pairs of words of a split."""
    count: int
    if f"words.{split}" in build.stages:
        count = build.stages[f"words.{split}"]["results"]["pairs_out"]
    else:  # pairs that the config moved from training to validation
        count = build.stages["words.train"]["results"]["to_valid"]
    return count


def read_words(pair: Pair) -> Iterator[Lines]:
    """Yield the pairs of lines of files that prep wrote."""
    return zip(read_lines(pair.source, bom=False), read_lines(pair.target, bom=False), strict=True)
