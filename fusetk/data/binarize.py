"""The later stages of preparation, which make BPE codes, vocabularies and ids from words."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

from fusetk import display
from fusetk.data import bpe
from fusetk.data.bpe import BPE
from fusetk.data.bpe_dropout import possible_subwords
from fusetk.data.config import BPEConfig, DataConfig, VocabularyConfig
from fusetk.data.corpus import SentenceWriter, open_sentence_writers, segmentation_name
from fusetk.data.encode import DroppedPair, Encoder, NumberedLines
from fusetk.data.filter import SUBWORDS
from fusetk.data.parallel import chunks
from fusetk.data.pipeline import SIDES, Pipeline, Text, load_bpe
from fusetk.data.preprocess import (
    BLOCK,
    LinePair,
    languages,
    languages_by_side,
    prepared_models,
    size_of,
)
from fusetk.data.stages import Build, Results
from fusetk.data.steps.base import line_steps
from fusetk.data.text import FilePair, read_lines, read_pairs, writer
from fusetk.data.vocab import SPECIAL, Vocabulary
from fusetk.errors import DataError, quantity

# BPE and vocabularies ----------------------------------------------------------------------------


def dropout_of(config: DataConfig, split: str) -> BPEConfig | None:
    """Return the settings of BPE dropout for a split; None if it is split without dropout."""
    return config.bpe if config.bpe and config.bpe.dropout and split == "train" else None


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
    files = FilePair(*(build.find(f"words/train.{language}") for language in languages(config)))
    lines = build.stages["words.train"]["results"]["pairs_out"]
    pairs = read_pairs(files, bom=False)
    for pair in display.tracked(pairs, "counting words", "lines", lines, BLOCK):
        if longest is not None and codes and _too_long(pair, codes, longest):
            continue
        for side in (0, 1):
            counts[side].update(pair[side].split(" "))
    for count in counts:
        count.pop("", None)
    if longest is None:
        build.shared["counts"] = counts
    return counts


def all_too_long_error(pairs: int, longest: int) -> DataError:
    """Return the error for a training text whose pairs all have more subwords than ``longest``.

    With BPE dropout, a pair is too long if one of its segmentations is.
    """
    return DataError(
        f"all {pairs} training pairs have more than bpe.max_subwords = {longest} subwords; "
        "raise bpe.max_subwords"
    )


def _too_long(pair: LinePair, codes: dict[str, BPE], longest: int) -> bool:
    """Whether either line of a pair has more than ``longest`` subwords."""
    return any(len(codes[side](line)) > longest for side, line in zip(SIDES, pair, strict=True))


def learn_bpe(build: Build, config: DataConfig, options: BPEConfig) -> Results:
    """Write the codes and, with a threshold, the counts of the subwords that they produce.

    Existing codes are copied. Raises DataError if they are malformed.
    """
    merges = options.merges or 0  # not used with existing codes
    learn = partial(bpe.learn, merges=merges, min_frequency=options.min_frequency)
    counts = train_counts(build, config)
    if options.codes:
        codes = [_read_codes(file) for file in options.codes]
        codes = codes * 2 if options.one_list else codes
    elif options.joint:
        joint = learn(counts[0] + counts[1])
        codes = [joint, joint]
    else:
        # The processes have started if the text is long.
        fewest = len(counts) if build.workers.running else None
        learned = build.workers.ordered(partial, (learn,), counts, fewest)
        codes = list(
            display.tracked(learned, "learning BPE of both languages", "languages", len(counts))
        )
    if not options.codes:
        prefixes = [""] if options.joint else [f"{language}: " for language in languages(config)]
        for prefix, lines in zip(prefixes, codes, strict=False):
            if message := bpe.fewer_merges_message(lines, merges, options.min_frequency):
                build.report(f"bpe: {prefix}{message}")
    for language, lines in zip(languages(config), codes, strict=True):
        with writer(build.new(f"words/{bpe.codes_name(options.one_list, language)}")) as file:
            file.writelines(f"{line}\n" for line in lines)
    splitters = [BPE(lines) for lines in codes]
    if options.threshold:
        for language, split, count in zip(languages(config), splitters, counts, strict=True):
            subwords = bpe.count_subwords(count, split)
            most_frequent = sorted(subwords.items(), key=lambda entry: (-entry[1], entry[0]))
            highest = most_frequent[0][1] if most_frequent else 0
            if highest < options.threshold:
                build.report(
                    f"warning: data.bpe.threshold: {options.threshold} is above the highest count "
                    f"of a subword of {language} ({highest}), so it has no effect: lower it"
                )
            with writer(build.new(f"words/bpe.vocab.{language}")) as file:
                file.writelines(f"{token} {n}\n" for token, n in most_frequent)
    numbers = [len(split.merges) for split in splitters]
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
    return load_bpe(
        lambda name: build.find(f"words/{name}"),
        languages_by_side(config),
        config.bpe.one_list,
        config.bpe.threshold,
    )


def check_required_tokens(config: DataConfig, vocabularies: Sequence[Vocabulary]) -> None:
    """Raise DataError if a vocabulary that prep makes or extends lacks tokens of a step."""
    options = config.vocabulary
    for side, vocabulary in zip(SIDES, vocabularies, strict=True):
        existing = options.source if options.joint else getattr(options, side)
        if existing and not options.extend:
            continue
        for step in line_steps(config.steps, side):
            lacks = [token for token in step.required_tokens() if token not in vocabulary.ids]
            if lacks:
                raise DataError(
                    f"the {side} vocabulary lacks {quantity(len(lacks), 'token')} that the step "
                    f"{step.step} requires, such as {lacks[0]!r}: raise data.vocabulary.size"
                )


def make_vocabularies(build: Build, config: DataConfig) -> Results:
    """Make the vocabularies of the training text and write the folder `text/`."""
    codes = load_codes(build, config)
    options = config.vocabulary
    longest = config.bpe.max_subwords if config.bpe else None
    counts = train_counts(build, config, longest, codes)
    if longest is not None and not any(counts):
        raise all_too_long_error(build.stages["words.train"]["results"]["pairs_out"], longest)
    tokens = _token_counts(config, counts, codes)
    if codes:
        build.shared["subwords"] = {side: dict(codes[side].cache) for side in SIDES}
    possible: list[dict[str, int]] = [{}, {}]
    if dropout_of(config, "train"):
        possible = [
            bpe.count_subwords(count, partial(possible_subwords, codes[side]))
            for side, count in zip(SIDES, counts, strict=True)
        ]
    if options.joint:
        joint = _vocabulary(options, "source", _sum(tokens), _sum(possible))
        vocabularies = joint, joint
    else:
        source, target = (
            _vocabulary(options, *counts_of)
            for counts_of in zip(SIDES, tokens, possible, strict=True)
        )
        vocabularies = source, target
    for side, vocabulary in zip(SIDES, vocabularies, strict=True):
        if len(vocabulary) == len(SPECIAL):
            raise DataError(
                f"the {side} vocabulary has only the special tokens, so all tokens of the text "
                "would be unknown: check data.vocabulary"
            )
    check_required_tokens(config, vocabularies)
    text = Text(config.steps, *languages(config), prepared_models(build, config))
    Pipeline(text, codes, vocabularies).save(build.new("text/pipeline.json").parent)
    return {
        "source": len(vocabularies[0]),
        "target": len(vocabularies[1]),
        "joint": options.joint,
        "word_types": [len(count) for count in counts],
        "token_types": [len(count) for count in tokens],
    }


def _token_counts(
    config: DataConfig, words: Sequence[Mapping[str, int]], codes: Mapping[str, BPE]
) -> list[dict[str, int]]:
    """Return the counts of the tokens of each side, given those of the words, source first.

    A token that a step requires has at least the count that the vocabulary needs.
    """
    tokens = []
    for side, counts in zip(SIDES, words, strict=True):
        of_side = bpe.count_subwords(counts, codes[side]) if codes else dict(counts)
        for step in line_steps(config.steps, side):
            for token in step.required_tokens():
                of_side[token] = max(of_side.get(token, 0), config.vocabulary.threshold)
        tokens.append(of_side)
    return tokens


def _sum(counts: Sequence[Mapping[str, int]]) -> Counter[str]:
    return Counter(counts[0]) + Counter(counts[1])


def _vocabulary(
    options: VocabularyConfig, side: str, counts: Mapping[str, int], possible: Mapping[str, int]
) -> Vocabulary:
    """Return a vocabulary of the training text, or an existing one, extended with ``extend``.

    ``possible`` maps the subwords that BPE dropout can make to the numbers of their places. They
    follow the tokens of the text without dropout, which have the same ids as without dropout.
    """
    file = options.source if side == "source" else options.target
    size = options.size_of(side)
    if file is None:
        vocabulary = Vocabulary.from_counts(counts, options.threshold, size)
    else:
        vocabulary = Vocabulary.load(file, bom=True)
        if not options.extend:
            return vocabulary
        vocabulary = _extended(vocabulary, counts, options.threshold, size)
    return _extended(vocabulary, possible, options.threshold, size) if possible else vocabulary


def _extended(
    existing: Vocabulary, counts: Mapping[str, int], threshold: int, size: int | None
) -> Vocabulary:
    """Return an existing vocabulary with the other tokens of ``counts`` at its end."""
    room = None if size is None else max(size - len(existing), 0) + len(SPECIAL)
    new = {token: count for token, count in counts.items() if token not in existing.ids}
    added = Vocabulary.from_counts(new, threshold, room)
    return Vocabulary(existing.tokens[len(SPECIAL) :] + added.tokens[len(SPECIAL) :])


# Ids ---------------------------------------------------------------------------------------------


def write_ids(build: Build, config: DataConfig, split: str) -> Results:
    """Write the words of a split as ids. Only training pairs are dropped for too many subwords.

    With BPE dropout, write `train.N` for each segmentation N of the training text.
    """
    text = build.find("text/pipeline.json").parent
    train = split == "train"
    names = [
        f"words/train.{language}" if train else f"{split}.{language}.txt"
        for language in languages(config)
    ]
    pairs = read_pairs(FilePair(*(build.find(name) for name in names)), bom=False)
    longest = config.bpe.max_subwords if config.bpe and train else None
    dropout = dropout_of(config, split)
    dropped = _Dropped(build.stages["words.train"]["results"]["corpora"] if train else [])
    read = 0
    with ExitStack() as stack:
        writers = _open_writers(build, config, split, stack)
        done = stack.enter_context(
            display.task(f"ids of {split}", "lines", _num_pairs(build, split))
        )
        known = build.shared.get("subwords", {})
        encoded = build.workers.ordered(Encoder, (text, longest, dropout, known), _numbered(pairs))
        for segmentations, dropped_pairs in encoded:
            dropped.add(dropped_pairs, read)
            read += len(dropped_pairs) + len(segmentations[0][0][1])
            done.set(read)
            for sides, outs in zip(segmentations, writers, strict=True):
                for out, (ids, lengths, words) in zip(outs, sides, strict=True):
                    out.write(ids, lengths, words)
    if not writers[0][0].sentences:
        assert longest is not None
        raise all_too_long_error(dropped.pairs, longest)
    counts, *random_counts = (
        {side: out.summary() for side, out in zip(SIDES, outs, strict=True)} for outs in writers
    )
    return {
        **dropped.results(),
        **counts,
        **({"segmentations": random_counts} if random_counts else {}),
    }


class _Dropped:
    """Counts of the pairs with too many subwords."""

    def __init__(self, corpora: Sequence[int]):
        """``corpora`` has the number of training pairs of each corpus. Other text has none."""
        self.pairs = 0
        self.tokens = [0, 0]  # of each side
        self.remaining = np.array(corpora, np.int64)  # pairs of each corpus that are not dropped
        self._ends = np.cumsum(corpora)

    def add(self, pairs: Sequence[DroppedPair], first: int) -> None:
        """Count the dropped pairs of a chunk that begins with pair number ``first``."""
        if len(self.remaining) and pairs:
            places = first + np.array([pair.place for pair in pairs])
            corpus = np.searchsorted(self._ends, places, side="right")
            self.remaining -= np.bincount(corpus, minlength=len(self.remaining))
        self.pairs += len(pairs)
        for pair in pairs:
            self.tokens = [n + m for n, m in zip(self.tokens, pair.tokens, strict=True)]

    def results(self) -> Results:
        """Return the counts for the manifest."""
        results: Results = {"dropped": {}}
        if self.pairs:
            results["dropped"] = {SUBWORDS: self.pairs}
            results["dropped_tokens"] = dict(zip(SIDES, self.tokens, strict=True))
        if len(self.remaining):
            results["corpora"] = self.remaining.tolist()
        return results


def _numbered(pairs: Iterable[LinePair]) -> Iterator[NumberedLines]:
    """Yield consecutive pairs in chunks."""
    first = 0
    for chunk in chunks(pairs, size_of):
        yield NumberedLines(first, chunk)
        first += len(chunk)


def _open_writers(
    build: Build, config: DataConfig, split: str, stack: ExitStack
) -> list[list[SentenceWriter]]:
    """Open the files of both sides of a split, and those of each random segmentation after it."""
    sizes = build.stages["vocabulary"]["results"]
    dropout = dropout_of(config, split)
    numbers = range(1, dropout.segmentations + 1) if dropout else ()
    return [
        open_sentence_writers(
            build.aside, name, languages(config), (sizes["source"], sizes["target"]), stack
        )
        for name in (split, *(segmentation_name(number) for number in numbers))
    ]


def _num_pairs(build: Build, split: str) -> int:
    """Return the number of pairs of words of a split."""
    count: int
    if f"words.{split}" in build.stages:
        count = build.stages[f"words.{split}"]["results"]["pairs_out"]
    else:  # pairs that the config moved from training to validation
        count = build.stages["words.train"]["results"]["to_valid"]
    return count
