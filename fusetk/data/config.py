"""The section `data` of a config: text files, prep steps, BPE and vocabularies."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from fusetk import config
from fusetk.config import Config, Document
from fusetk.data.steps import Step


class Every(Config):
    """Use every n-th training pair for validation, counted after all steps."""

    every: int = Field(ge=2)
    """Interval n: with 23, the pairs 23, 46, 69 and so on go to validation."""


class Sample(Config):
    """Use a random sample of the training pairs for validation, drawn after all steps."""

    sample: int = Field(ge=1)
    """Number of pairs."""
    seed: int = 1
    """Seed of the sample."""


class BPEConfig(Config):
    """Byte pair encoding, learned only on the training text (subword-nmt)."""

    merges: int = Field(ge=1)
    """Number of merge operations. If `joint` is false, each side has this number."""
    joint: bool = True
    """Learn one list of merges on both sides together."""
    min_frequency: int = Field(default=2, ge=1)
    """Smallest number of occurrences of a pair of symbols that is merged."""
    threshold: int = Field(default=0, ge=0)
    """Smallest number of occurrences of a subword in the training text of its side. Rarer subwords
    are split again (the vocabulary threshold of subword-nmt); 0 splits none."""
    max_subwords: int | None = Field(default=None, ge=1)
    """Drop training pairs with more subwords than this on either side."""


class VocabularyConfig(Config):
    """Tokens with an id of their own; all other tokens become `<unk>`."""

    joint: bool = False
    """Use one vocabulary for both sides; required for tying source and target embeddings."""
    threshold: int = Field(default=1, ge=1)
    """Smallest number of occurrences of a token in the training text."""
    size: int | None = Field(default=None, ge=5)
    """Largest number of entries, the four special tokens included. The most frequent tokens have
    precedence."""


class DataConfig(Config):
    """Text files and their preparation. Paths are relative to the config file that names them."""

    source: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")
    """Source language and suffix of its files: `de` reads `train.de` or `train.de.gz`."""
    target: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")
    """Target language and suffix of its files."""
    folder: str
    """Folder that `fusetk prep` writes and `fusetk train` reads."""
    train: list[str] = Field(min_length=1)
    """Training text: one or more file prefixes, read in this order."""
    valid: list[str] | Every | Sample
    """Validation text: file prefixes, or `every` or `sample` to use part of the training pairs."""
    test: dict[str, list[str]] = {}
    """Test sets: a mapping of names to lists of file prefixes."""
    steps: list[Step] = []
    """Prep steps, applied to each line in this order."""
    bpe: BPEConfig | None = None
    """Split words into subwords; null uses words as tokens."""
    vocabulary: VocabularyConfig = VocabularyConfig()
    """Selection of the tokens that get ids."""


class DataSection(Config):
    """A config of which only the section `data` is read."""

    data: DataConfig
    """The section `data`."""


def load_data(path: Path | str, overrides: Sequence[str] = ()) -> DataConfig:
    """Read and validate the section `data` of a config; ignore the other sections.

    Unlike ``fusetk.recipe.load``, this does not import torch. Raises ConfigError as that function.
    """
    document = load_document(path, overrides)
    data = {key: value for key, value in document.values.items() if key == "data"}
    return config.parse(Document(data, document.origins), DataSection).data


def load_document(path: Path | str, overrides: Sequence[str] = ()) -> Document:
    """Read a config without validation.

    Relative paths in ``data`` become absolute; they start from the folder of the file that names
    them, or from the current folder in an override. Raises ConfigError for paths that cannot be
    expanded.
    """
    document = config.load(path, overrides)
    _resolve_paths(document)
    return document


def _resolve_paths(document: Document) -> None:
    """Make the paths in ``data`` absolute. Raises ConfigError for paths that cannot be expanded."""
    data = document.values.get("data")
    if not isinstance(data, dict):
        return
    errors: list[str] = []
    for key in ("folder", "train", "valid", "test"):
        if key in data:
            data[key] = _absolute(data[key], document, ("data", key), errors)
    if errors:
        raise config.config_error(errors)


def _absolute(value: Any, document: Document, place: config.Place, errors: list[str]) -> Any:
    """Return the value with absolute paths; append a sentence to ``errors`` for each bad path."""
    if isinstance(value, str):
        origin = document.where(place)
        try:
            return os.path.abspath(origin.folder / config.expand_path(value))
        except ValueError as error:
            errors.append(f"{'.'.join(map(str, place))}: {error}  [{origin.text}]")
            return value
    if isinstance(value, list):
        return [_absolute(item, document, (*place, i), errors) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {
            key: _absolute(item, document, (*place, key), errors) for key, item in value.items()
        }
    return value
