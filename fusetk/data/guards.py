"""What is looked at before training: that the prepared files are those that prep wrote, and that ids and vocabularies fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fusetk.data import manifest
from fusetk.data.corpus import Corpus, Sentences
from fusetk.data.pipeline import SIDES
from fusetk.errors import DataError

STRETCHES, STRETCH = 256, 1 << 15  # of ids that are looked at where prep did not note the largest
AGAIN = "put it back as it was, or run fusetk prep --force"


def check_files(folder: Path, noted: Mapping[str, Any]) -> None:
    """Raise DataError where a file that training reads is not the one that prep wrote.

    Compared with the manifest are sizes and checksums: of small files whole, of large ones of pieces that are spread over the file.
    """
    for stage in noted["stages"].values():
        for name, record in stage["outputs"].items():
            if name.startswith(manifest.READ):
                _check_file(folder / name, record)


def _check_file(path: Path, record: Mapping[str, Any]) -> None:
    try:
        stat = path.stat()
        if stat.st_size != record["size"]:
            raise DataError(f"{path} has {stat.st_size} bytes and fusetk prep wrote {record['size']}; {AGAIN}")
        if "sample" in record:
            found, wanted = manifest.sample(path), record["sample"]
        elif stat.st_size <= manifest.SMALL or stat.st_mtime_ns != record["mtime_ns"]:
            found, wanted = manifest.checksum(path), record["sha256"]
        else:  # an earlier version took no sample
            return
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; {AGAIN}") from None
    if found != wanted:
        raise DataError(
            f"{path} is not what fusetk prep wrote (checksum {found[:12]} instead of {wanted[:12]}): it was changed, or comes from another "
            f"prepared folder; {AGAIN}"
        )


def check_ids(folder: Path, noted: Mapping[str, Any], sizes: tuple[int, int], corpora: Mapping[str, Corpus]) -> None:
    """Raise DataError where the vocabularies, of so many entries, are not those of the ids in the corpora of these splits."""
    for side, size in zip(SIDES, sizes, strict=True):
        wanted = noted["vocabulary"][side]
        if size != wanted:
            raise DataError(f"the {side} vocabulary in {folder / 'text'} has {size} entries and the ids are of one with {wanted}; {AGAIN}")
        for split, corpus in corpora.items():
            sentences: Sentences = getattr(corpus, side)
            largest = noted["splits"][split][side].get("largest")
            if largest is None:  # in folders of earlier versions
                largest = largest_id(sentences)
            if largest >= size:
                raise DataError(f"{sentences.name} has the id {largest} and the vocabulary {size} entries; {AGAIN}")


def largest_id(sentences: Sentences) -> int:
    """The largest id in stretches that are spread over the corpus, which is all of a small one."""
    last = max(len(sentences.ids) - STRETCH, 0)
    starts = sorted({last * i // (STRETCHES - 1) for i in range(STRETCHES)})
    return max(int(np.max(sentences.ids[start : start + STRETCH], initial=0)) for start in starts)
