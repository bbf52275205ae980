"""Checks before training: the prepared files are unchanged, and ids and vocabularies match."""

from collections.abc import Iterable, Mapping
from os.path import exists
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fusetk.data import manifest
from fusetk.data.config import DataConfig
from fusetk.data.corpus import Corpus, Sentences
from fusetk.data.pipeline import SIDES
from fusetk.data.prepare import checksums, step_code, text_files
from fusetk.errors import DataError

RESTORE = "restore the file that fusetk prep wrote, or run fusetk prep --force"
PREPARE = "run fusetk prep with the same config and --set options, or train with --prep"


def check_settings(
    config: DataConfig, recorded: Mapping[str, Any], advice: str = PREPARE, files: bool = True
) -> None:
    """Raise DataError if the folder was prepared with other training or validation settings.

    With ``files``, the codes and vocabularies that prep read, and the code of steps outside fusetk,
    must be unchanged, too. ``advice`` is the end of the message. Paths are not compared because
    folders may be moved; test sets are not compared because training does not read them.
    """
    try:
        before = DataConfig.model_validate({**recorded["settings"], "folder": config.folder})
    except ValidationError:
        raise DataError(
            f"{config.folder} was prepared by another version of fusetk, or with a step whose "
            f"class changed: {advice}"
        ) from None
    changes = list(
        manifest.differences(training_settings(before), training_settings(config), "data")
    )
    if files and not changes:
        changed = _changed_codes_and_vocabularies(config, recorded)
        changes = [f"{name}: {file} changed" for name, file in changed]
        changes += [
            f"data.steps: the code of {module} changed" for module in changed_code(config, recorded)
        ]
    if changes:
        raise DataError(
            f"{config.folder} was prepared with other settings ({'; '.join(changes)}): {advice}"
        )


def training_settings(config: DataConfig) -> dict[str, Any]:
    """Return the settings that decide what training reads; paths become numbers of files."""
    settings = config.model_dump(mode="json", exclude={"folder", "test"})
    settings["train"] = f"file prefixes: {len(config.train)}"
    if isinstance(config.valid, list):
        settings["valid"] = f"file prefixes: {len(config.valid)}"
    if config.bpe and config.bpe.codes:
        settings["bpe"]["codes"] = f"files: {len(config.bpe.codes)}"
    for side in SIDES:
        if settings["vocabulary"][side]:
            settings["vocabulary"][side] = "a file"
    return settings


def _changed_codes_and_vocabularies(
    config: DataConfig, recorded: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return the keys and paths of codes and vocabularies that changed after the preparation.

    Files that are not on this machine are not compared.
    """

    def recorded_settings(stage: str) -> Mapping[str, Any]:
        settings: Mapping[str, Any] = recorded["stages"].get(stage, {}).get("settings", {})
        return settings.get(stage, {})

    codes = (config.bpe and config.bpe.codes) or []
    files = [
        (f"data.bpe.codes.{i}", file, checksum)
        for i, (file, checksum) in enumerate(
            zip(codes, recorded_settings("bpe").get("codes", []), strict=False)
        )
    ]
    files += [
        (f"data.vocabulary.{side}", file, *recorded_settings("vocabulary").get(side, [""]))
        for side in SIDES
        if (file := getattr(config.vocabulary, side))
    ]
    return [
        (name, file)
        for name, file, checksum in files
        if Path(file).is_file() and checksums([file]) != [checksum]
    ]


def changed_code(config: DataConfig, recorded: Mapping[str, Any]) -> list[str]:
    """Return the modules of steps outside fusetk whose code changed after the preparation."""
    before = recorded["stages"].get("words.train", {}).get("settings", {}).get("step_code", {})
    now = step_code(config.steps)
    return [module for module in now if before.get(module, now[module]) != now[module]]


def changed_inputs(config: DataConfig, recorded: Mapping[str, Any]) -> list[Path]:
    """Return the text files, codes and vocabularies that changed after prep read them.

    Only training and validation text is compared, and only files that are on this machine.
    """
    changed: list[Path] = []
    for split in ("train", "valid"):
        inputs = recorded["stages"].get(f"words.{split}", {}).get("inputs", {})
        files = text_files(config, split)
        if len(files) != len(inputs):
            names = [path for file in files for path in (file, Path(f"{file}.gz"))]
            changed += filter(exists, names)
            continue
        for file, (name, record) in zip(files, inputs.items(), strict=True):
            compressed = Path(f"{file}.gz")
            candidates = [compressed, file] if name.endswith(".gz") else [file, compressed]
            path = next(filter(exists, candidates), None)
            if path and not manifest.same(path, record):
                changed.append(path)
    changed += [Path(file) for _, file in _changed_codes_and_vocabularies(config, recorded)]
    return list(dict.fromkeys(changed))


def check_files(folder: Path, recorded: Mapping[str, Any]) -> None:
    """Raise DataError if a file that training reads is not the file that prep wrote.

    Sizes and checksums are compared with the manifest; the checksum of a large file covers pieces
    spread over the file.
    """
    for stage in recorded["stages"].values():
        for name, record in stage["outputs"].items():
            if name.startswith(manifest.READ):
                _check_file(folder / name, record)


def _check_file(path: Path, record: Mapping[str, Any]) -> None:
    try:
        stat = path.stat()
        if stat.st_size != record["size"]:
            raise DataError(
                f"{path} has {stat.st_size} bytes and fusetk prep wrote {record['size']}; {RESTORE}"
            )
        if "sample" in record:
            checksum = manifest.sample(path)
            expected = record["sample"]
        else:
            checksum = manifest.checksum(path)
            expected = record["sha256"]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; {RESTORE}") from None
    if checksum != expected:
        raise DataError(
            f"{path} differs from the file that fusetk prep wrote (checksum {checksum[:12]} "
            f"instead of {expected[:12]}): it was changed, or comes from another prepared folder; "
            f"{RESTORE}"
        )


def check_ids(
    folder: Path, recorded: Mapping[str, Any], sizes: tuple[int, int], corpora: Mapping[str, Corpus]
) -> None:
    """Raise DataError if the vocabularies do not match the ids.

    ``sizes`` are the numbers of entries of the source and target vocabularies; ``corpora`` is keyed
    by split.
    """
    for side, size in zip(SIDES, sizes, strict=True):
        expected = recorded["vocabulary"][side]
        if size != expected:
            raise DataError(
                f"the {side} vocabulary in {folder / 'text'} has {size} entries, "
                f"but the ids belong to a vocabulary with {expected} entries; {RESTORE}"
            )
        for split, corpus in corpora.items():
            counts = recorded["splits"][split]
            records = [counts, *counts.get("segmentations", [])]
            for record, part in zip(records, (corpus, *corpus.segmentations), strict=True):
                _check_largest_id(getattr(part, side), record[side], size)


def _check_largest_id(sentences: Sentences, record: Mapping[str, Any], size: int) -> None:
    if record["largest"] >= size:
        raise DataError(
            f"{sentences.name} has the id {record['largest']}, "
            f"but the vocabulary has {size} entries; {RESTORE}"
        )


def check_lengths(max_positions: int | None, corpora: Iterable[Corpus]) -> None:
    """Raise DataError if a sentence has more tokens than ``max_positions``, unless that is None."""
    if max_positions is None:
        return
    longest = max(
        int(side.lengths.max(initial=0))
        for corpus in corpora
        for variant in corpus.variants()
        for side in (variant.source, variant.target)
    )
    if longest > max_positions:
        raise DataError(
            f"the longest sentence has {longest} tokens and the model {max_positions} positions: "
            "raise model.max_positions, "
            "or drop long sentences in data.steps (filter) or data.bpe.max_subwords"
        )
