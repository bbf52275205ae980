"""Prepared text as ids, in files that are mapped into memory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fusetk.data.corpus_weights import CorpusPart
from fusetk.errors import DataError
from fusetk.special_tokens import EOS, UNK

OFFSETS = np.dtype("<i8")
BLOCK = 1 << 20  # sentences whose lengths are computed at once


class Sentences:
    """One side of a corpus: the ids of all sentences in one array; every sentence ends with EOS.

    `ids` is (tokens,), `offsets` (n + 1,) and `lengths` (n,), EOS included. `entries` is the size
    of the vocabulary if it is known. `name` is the name of the file in errors.
    """

    def __init__(
        self,
        ids: NDArray[Any],
        offsets: NDArray[np.int64],
        entries: int | None = None,
        name: str = "ids",
    ):
        self.ids = ids
        self.offsets = offsets
        self.entries = entries
        self.name = name

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        lengths = np.empty(len(self), np.int32)
        for start in range(0, len(lengths), BLOCK):
            lengths[start : start + BLOCK] = np.diff(self.offsets[start : start + BLOCK + 1])
        return lengths

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def copy(self) -> "Sentences":
        """Return the same sentences. The copy computes the lengths again when they are read."""
        return Sentences(self.ids, self.offsets, self.entries, self.name)

    def __getitem__(self, i: int) -> NDArray[Any]:
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        i %= len(self)
        return self.ids[self.offsets[i] : self.offsets[i + 1]]


class Corpus:
    """Pairs of sentences: `train`, `valid` or `test.<name>` of a prepared folder.

    `parts` lists the corpora of `train` in their order. `segmentations` are the same pairs, split
    into subwords with BPE dropout; it is empty without dropout.
    """

    def __init__(
        self,
        source: Sentences,
        target: Sentences,
        parts: Sequence[CorpusPart] = (),
        segmentations: Sequence["Corpus"] = (),
    ):
        assert len(source) == len(target)
        self.source = source
        self.target = target
        self.parts = parts
        self.segmentations = segmentations

    def of_epoch(self, epoch: int) -> "Corpus":
        """Return the pairs that a training reads in an epoch, counted from 0.

        With BPE dropout, they are a segmentation, in turn. The lengths of its sentences use memory
        as long as the caller keeps the result.
        """
        if not self.segmentations:
            return self
        chosen = self.segmentations[epoch % len(self.segmentations)]
        return Corpus(chosen.source.copy(), chosen.target.copy(), self.parts)

    def variants(self) -> Iterator["Corpus"]:
        """Yield the pairs in each form in which a training reads them."""
        return (self.of_epoch(epoch) for epoch in range(max(len(self.segmentations), 1)))

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def open(cls, folder: Path | str, split: str) -> "Corpus":
        """Map the files of a split into memory.

        Raises DataError if the folder is not prepared, does not have the split, or has incomplete
        files.
        """
        from fusetk.data.manifest import read

        folder = Path(folder)
        manifest = read(folder)
        if split not in manifest["splits"]:
            raise DataError(
                f"{folder} does not have the split {split!r}; "
                f"it has {', '.join(manifest['splits'])}"
            )
        counts = manifest["splits"][split]
        entries = manifest["vocabulary"]
        return cls(
            *_open_both(folder, split, counts, entries),
            [CorpusPart(part["prefix"], part["pairs"]) for part in counts.get("corpora", [])],
            [
                cls(*_open_both(folder, segmentation_name(number), sides, entries))
                for number, sides in enumerate(counts.get("segmentations", []), 1)
            ],
        )


def segmentation_name(number: int) -> str:
    """Return the first part of the names of the files of a segmentation of the training text."""
    return f"train.{number}"


def _open_both(
    folder: Path, name: str, counts: Mapping[str, Any], entries: Mapping[str, int]
) -> tuple[Sentences, Sentences]:
    """Map the files of both sides. ``entries`` are the sizes of the vocabularies by side."""
    source, target = (
        _open(folder, name, counts[side], entries[side]) for side in ("source", "target")
    )
    if len(source) != len(target):
        raise DataError(
            f"{folder}: {name} has {len(source)} source and {len(target)} target sentences; "
            "run fusetk prep again"
        )
    return source, target


def _open(folder: Path, split: str, side: Mapping[str, Any], entries: int) -> Sentences:
    name = folder / f"{split}.{side['language']}"
    ids = _map(Path(f"{name}.ids"), np.dtype(side["dtype"]), side["tokens_with_end"])
    offsets = _map(Path(f"{name}.offsets"), OFFSETS, side["sentences"] + 1)
    sentences = Sentences(ids, offsets, entries, f"{name}.ids")
    problem = ""
    if offsets[0] != 0 or offsets[-1] != len(ids):
        problem = f"its offsets go from {offsets[0]} to {offsets[-1]}, not from 0 to {len(ids)}"
    elif sentences.copy().lengths.min(initial=1) < 1:
        problem = "its offsets do not ascend"
    if problem:
        raise DataError(
            f"{name}.offsets does not match {name}.ids: {problem}; run fusetk prep again"
        )
    return sentences


def _map(path: Path, dtype: np.dtype[Any], size: int) -> NDArray[Any]:
    try:
        actual_bytes = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; run fusetk prep again") from None
    expected_bytes = size * dtype.itemsize
    if actual_bytes != expected_bytes:
        raise DataError(
            f"{path} has {actual_bytes} bytes instead of {expected_bytes}; run fusetk prep again"
        )
    return np.memmap(path, dtype, "r", shape=(size,)) if size else np.zeros(0, dtype)


def id_type(size: int) -> np.dtype[Any]:
    """Return the smallest type for the ids of a vocabulary of this size."""
    return np.dtype("<u2") if size <= 1 << 16 else np.dtype("<u4")


class SentenceWriter:
    """Writes one side of a split in chunks, and counts sentences, words and tokens."""

    def __init__(self, ids: IO[bytes], offsets: IO[bytes], language: str, size: int):
        self.files = ids, offsets
        self.dtype = id_type(size)
        self.language = language
        self.position = 0
        self.sentences = 0
        self.words = 0
        self.longest = 0  # tokens of the longest sentence, EOS included
        self.counts = np.zeros(size, np.int64)
        offsets.write(np.zeros(1, OFFSETS).tobytes())

    def write(self, ids: NDArray[Any], lengths: NDArray[np.int64], words: int) -> None:
        """Add n sentences that end with EOS: ids (tokens,) and lengths (n,)."""
        self.files[0].write(ids.astype(self.dtype, copy=False).tobytes())
        self.files[1].write((np.cumsum(lengths) + self.position).astype(OFFSETS).tobytes())
        self.position += len(ids)
        self.sentences += len(lengths)
        self.words += words
        self.longest = max(self.longest, int(lengths.max(initial=0)))
        self.counts += np.bincount(ids, minlength=len(self.counts))

    def summary(self) -> dict[str, Any]:
        """Return the counts for the manifest.

        `types` is the number of distinct tokens except EOS and `<unk>`. `unknown_rate` is the
        fraction of unknown tokens among all tokens except EOS. `longest` is the number of tokens of
        the longest sentence, without EOS. `largest` is the largest id.
        """
        tokens = self.position - self.sentences
        unknown = int(self.counts[UNK])
        return {
            "language": self.language,
            "dtype": self.dtype.str,
            "sentences": self.sentences,
            "words": self.words,
            "tokens": tokens,
            "tokens_with_end": self.position,
            "types": int(np.count_nonzero(self.counts)) - (self.sentences > 0) - (unknown > 0),
            "unknown": unknown,
            "unknown_rate": unknown / tokens if tokens else 0.0,
            "longest": self.longest - (self.sentences > 0),
            "largest": int(self.counts.nonzero()[0].max(initial=0)),
        }


def flat(sentences: Sequence[Sequence[int]]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Concatenate sentences of ids and add EOS to each; return ids (tokens,) and lengths (n,)."""
    ids: list[int] = []
    ends = np.zeros(len(sentences) + 1, np.int64)
    for i, sentence in enumerate(sentences, 1):
        ids += sentence
        ids.append(EOS)
        ends[i] = len(ids)
    return np.array(ids, np.uint32), np.diff(ends)


def open_sentence_writers(
    folder: Path, split: str, languages: tuple[str, str], sizes: tuple[int, int], stack: ExitStack
) -> list[SentenceWriter]:
    """Open the files of both sides of a split; ``stack`` closes them."""
    writers = []
    for language, size in zip(languages, sizes, strict=True):
        files = [
            stack.enter_context((folder / f"{split}.{language}.{kind}").open("wb", 1 << 20))
            for kind in ("ids", "offsets")
        ]
        writers.append(SentenceWriter(files[0], files[1], language, size))
    return writers
