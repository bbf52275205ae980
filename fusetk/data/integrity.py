"""What is looked at before training: that the prepared files are those that prep wrote, and that ids and vocabularies fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fusetk.data import manifest
from fusetk.data.config import DataConfig
from fusetk.data.corpus import Corpus, Sentences
from fusetk.data.pipeline import SIDES
from fusetk.data.prepare import text_files
from fusetk.errors import DataError

STRETCHES, STRETCH = 256, 1 << 15  # of ids that are looked at where prep did not note the largest
AGAIN = "put it back as it was, or run fusetk prep --force"


PREPARE = "run fusetk prep with the same config and --set options, or train with --prep"


def check_settings(config: DataConfig, noted: Mapping[str, Any]) -> None:
    """Raise DataError where the config asks for other training or validation data than the folder was prepared with.

    Paths and test sets are not compared: folders may be moved, and training reads no test set.
    """
    before = DataConfig.model_validate({**noted["settings"], "folder": config.folder})
    changes = list(manifest.differences(_settings(before), _settings(config), "data"))
    if changes:
        raise DataError(
            f"{config.folder} was prepared with other settings ({'; '.join(changes)}): {PREPARE}"
        )


def _settings(config: DataConfig) -> dict[str, Any]:
    """The settings that decide what training reads, with the number of files instead of their paths."""
    settings = config.model_dump(mode="json", exclude={"folder", "test"})
    settings["train"] = f"{len(config.train)} file prefixes"
    if isinstance(config.valid, list):
        settings["valid"] = f"{len(config.valid)} file prefixes"
    return settings


def changed_text(config: DataConfig, noted: Mapping[str, Any]) -> list[Path]:
    """The training and validation text files that are not as they were when the folder was prepared.

    A file that is not on this machine is not compared.
    """
    changed = []
    for split in ("train", "valid"):
        stage = noted["stages"].get(f"words.{split}", {})
        paths = list(dict.fromkeys(path for pair in text_files(config, split) for path in pair))
        records = list(stage.get("inputs", {}).values())
        if len(paths) != len(records):
            changed += paths
            continue
        changed += [
            path
            for path, record in zip(paths, records, strict=True)
            if not manifest.same(path, record)
        ]
    return changed


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
            raise DataError(
                f"{path} has {stat.st_size} bytes and fusetk prep wrote {record['size']}; {AGAIN}"
            )
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


def check_ids(
    folder: Path, noted: Mapping[str, Any], sizes: tuple[int, int], corpora: Mapping[str, Corpus]
) -> None:
    """Raise DataError where the vocabularies, of so many entries, are not those of the ids in the corpora of these splits."""
    for side, size in zip(SIDES, sizes, strict=True):
        wanted = noted["vocabulary"][side]
        if size != wanted:
            raise DataError(
                f"the {side} vocabulary in {folder / 'text'} has {size} entries and the ids are of one with {wanted}; {AGAIN}"
            )
        for split, corpus in corpora.items():
            sentences: Sentences = getattr(corpus, side)
            largest = noted["splits"][split][side].get("largest")
            if largest is None:  # in folders of earlier versions
                largest = largest_id(sentences)
            if largest >= size:
                raise DataError(
                    f"{sentences.name} has the id {largest} and the vocabulary {size} entries; {AGAIN}"
                )


def largest_id(sentences: Sentences) -> int:
    """The largest id in stretches that are spread over the corpus, which is all of a small one."""
    last = max(len(sentences.ids) - STRETCH, 0)
    starts = sorted({last * i // (STRETCHES - 1) for i in range(STRETCHES)})
    return max(int(np.max(sentences.ids[start : start + STRETCH], initial=0)) for start in starts)
