"""The section `data` of a config: text files, prep steps, BPE and vocabularies."""

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from fusetk import config
from fusetk.config import Aliases, Alternatives, Config, Document, Place, refuse_values
from fusetk.config.schema import NULL_WORDS
from fusetk.config.source import mapping_at
from fusetk.data.steps import Step
from fusetk.data.steps.base import LearnedStep, line_steps

# Keys with paths, as sections and a key.
PATHS: Sequence[Place] = (
    *(("data", key) for key in ("folder", "train", "valid", "test")),
    ("data", "bpe", "codes"),
    ("data", "vocabulary", "source"),
    ("data", "vocabulary", "target"),
)
# The required keys of ``Every`` and ``Sample``.
ALTERNATIVES: Alternatives = {("data", "valid"): {"every", "sample"}}
LISTS = ("train", "valid", "test")  # keys in which only the items of lists are paths


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


# One file name, or a list of one or two.
Files = Annotated[list[str], Field(min_length=1, max_length=2), BeforeValidator(_listed)]


def _without_null(sets: Any) -> Any:
    if not isinstance(sets, dict):
        return sets
    return {name: prefixes for name, prefixes in sets.items() if prefixes is not None}


class Every(Config):
    """Use every n-th training pair for validation, counted after all steps."""

    every: int = Field(ge=2)
    """Interval n: with 23, the pairs 23, 46, 69 and so on go to validation."""

    @model_validator(mode="before")
    @classmethod
    def _excludes_sample(cls, values: Any) -> Any:
        other = [key for key in Sample.model_fields if isinstance(values, dict) and key in values]
        if other and "every" in values:
            raise ValueError(
                f"`every` excludes {' and '.join(f'`{key}`' for key in other)}: write `every` "
                "alone for every n-th pair, or `sample` and `seed` for random pairs"
            )
        return values


class Sample(Config):
    """Use a random sample of the training pairs for validation, drawn after all steps."""

    sample: int = Field(ge=1)
    """Number of pairs."""
    seed: int = Field(1, ge=0)
    """Seed of the sample."""


class BPEConfig(Config):
    """Byte pair encoding, learned only on the training text (subword-nmt)."""

    merges: int | None = Field(default=None, ge=1)
    """Number of merge operations; required without `codes`. If `joint` is false, each side has this
    number."""
    codes: Files | None = None
    """Existing codes instead of learned ones: one file for both sides, or a list of the source's
    file and the target's. The files are those of `fusetk prep`, of fastBPE, or of subword-nmt,
    which fairseq, Marian and Sockeye use. Codes of a run are in its folder `text`."""
    joint: bool = True
    """Learn one list of merges on both sides together."""
    min_frequency: int = Field(default=2, ge=1)
    """Smallest number of occurrences of a pair of symbols that is merged."""
    threshold: int = Field(default=0, ge=0)
    """Smallest number of occurrences of a subword in the training text of its side. Rarer subwords
    are split again (the vocabulary threshold of subword-nmt); 0 splits none. As in subword-nmt, a
    threshold above the counts of all subwords of a side splits none there."""
    max_subwords: int | None = Field(default=None, ge=1)
    """Drop training pairs with more subwords than this on either side. With `dropout`, a pair is
    dropped if one of its segmentations has more."""
    dropout: float = Field(default=0.0, ge=0, le=1)
    """Probability that a merge is left out while a training pair is split (BPE dropout, Provilkov
    et al. 2020, Algorithm 1). 0.1 is usual; 1 gives characters. Other text is always split without
    dropout: validation and test text, and the text that a trained model translates."""
    segmentations: int = Field(default=10, ge=1, le=50)
    """Number n of segmentations of the training text that `fusetk prep` writes with `dropout`.
    Epoch e of a training reads segmentation (e - 1) mod n + 1. Provilkov et al. draw new
    segmentations in all epochs. With 10, a pair is read in a new segmentation for 10 epochs, which
    is all of a training on a large corpus. A small corpus is read in more epochs and needs more.
    Disk space and the time of `fusetk prep` grow with the number."""
    seed: int = 1
    """Seed of `dropout`. The segmentation of a line depends on the seed, the number of the
    segmentation, the side and the number of the line."""

    @model_validator(mode="after")
    def _codes_or_merges(self) -> "BPEConfig":
        if (self.codes is None) == (self.merges is None):
            raise ValueError("give one of merges (to learn codes) and codes (to use existing ones)")
        return self

    @model_validator(mode="after")
    def _values_have_an_effect(self) -> "BPEConfig":
        if self.codes is not None:
            refuse_values(self, ("joint", "min_frequency"), "with codes", "remove codes")
        if not self.dropout:
            refuse_values(self, ("segmentations", "seed"), "without dropout", "give dropout, too")
        return self

    @property
    def one_list(self) -> bool:
        """Whether both sides have the same codes."""
        return self.joint if self.codes is None else len(self.codes) == 1


VocabularySize = Annotated[int, Field(ge=5)]


class SideSizes(Config):
    """Largest numbers of entries of two vocabularies."""

    source: VocabularySize | None = None
    """Number of the source side."""
    target: VocabularySize | None = None
    """Number of the target side."""


class VocabularyConfig(Config):
    """Tokens with an id of their own; all other tokens become `<unk>`."""

    joint: bool = False
    """Use one vocabulary for both sides; required for tying source and target embeddings."""
    threshold: int = Field(default=1, ge=1)
    """Smallest number of occurrences of a token in the training text."""
    size: SideSizes | VocabularySize | None = None
    """Largest number of entries, the four special tokens included: one number, or one for each side
    (`{source: 8389, target: 6428}`). The most frequent tokens have precedence."""
    source: str | None = None
    """Existing vocabulary file. Its tokens keep their order, so that their ids stay the same.
    It is the vocabulary of both sides if `joint` is true. Accepted are the files of `fusetk prep`
    and fairseq, `.yml` files of Marian, `.json` files of Sockeye and Nematus, and lists of tokens.
    The vocabulary of a run is in its folder `text`."""
    target: str | None = None
    """Existing vocabulary file of the target side."""
    extend: bool = False
    """Append the tokens of the training text that an existing vocabulary does not have, limited by
    `threshold` and `size`. Otherwise they become `<unk>`."""

    @model_validator(mode="after")
    def _files_fit(self) -> "VocabularyConfig":
        if self.joint and self.target is not None:
            raise ValueError("a joint vocabulary has one file: give source, without target")
        if self.extend and self.source is None and self.target is None:
            raise ValueError("extend has an effect with source or target only: give a file")
        existing = self.source is not None and (self.joint or self.target is not None)
        if existing and not self.extend:
            case = "on existing vocabularies without extend"
            refuse_values(self, ("threshold", "size"), case, "set extend: true")
        for side in ("source", "target"):
            has_size = isinstance(self.size, SideSizes) and getattr(self.size, side) is not None
            if has_size and getattr(self, side) is not None and not self.extend:
                raise ValueError(
                    f"size.{side} has no effect on an existing vocabulary without extend: remove "
                    f"size.{side}, or set extend: true"
                )
        return self

    @model_validator(mode="after")
    def _one_size_for_a_joint_vocabulary(self) -> "VocabularyConfig":
        if self.joint and isinstance(self.size, SideSizes):
            raise ValueError("a joint vocabulary has one size: give vocabulary.size as one number")
        return self

    def size_of(self, side: str) -> int | None:
        """Return the largest number of entries of the side `source` or `target`."""
        if isinstance(self.size, SideSizes):
            return self.size.source if side == "source" else self.size.target
        return self.size


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
    valid_references: PositiveInt = 1
    """Number of references of the validation text. With 4, `MT06.en` has the first reference, and
    `MT06.en1`, `MT06.en2` and `MT06.en3` the others. They count for the BLEU of validations only;
    the loss is that of the first reference."""
    test: Annotated[dict[str, list[str]], BeforeValidator(_without_null)] = {}
    """Test sets: a mapping of names to lists of file prefixes.

    A name with the value null removes the test set of an extended config."""
    steps: list[Step] = []
    """Prep steps, applied to each line in this order."""
    bpe: BPEConfig | None = None
    """Split words into subwords; null uses words as tokens."""
    vocabulary: VocabularyConfig = VocabularyConfig()
    """Selection of the tokens that get ids."""

    @model_validator(mode="after")
    def _references_are_files(self) -> "DataConfig":
        if self.valid_references > 1 and not isinstance(self.valid, list):
            raise ValueError(
                f"data.valid_references is {self.valid_references}, but data.valid is a part of "
                "the training pairs, which have one reference: name files in data.valid"
            )
        return self

    @model_validator(mode="after")
    def _source_is_not_a_reference(self) -> "DataConfig":
        if re.fullmatch(rf"{re.escape(self.target)}\d+", self.source):
            raise ValueError(
                f"data.source {self.source!r} is the suffix of a further reference of data.target "
                f"{self.target!r}: rename the files of one side"
            )
        return self

    @model_validator(mode="after")
    def _one_split_into_subwords(self) -> "DataConfig":
        splitters = [step.step for step in self.steps if getattr(step, "splits_words", False)]
        if self.bpe and splitters:
            raise ValueError(f"the step {splitters[0]} splits words into subwords: set bpe: null")
        return self

    @model_validator(mode="after")
    def _models_have_own_files(self) -> "DataConfig":
        steps = {step.step: step for step in self.steps if isinstance(step, LearnedStep)}
        names: dict[str, str] = {}
        for name, step in steps.items():
            if (other := names.setdefault(step.model_file, name)) != name:
                raise ValueError(
                    f"data.steps: {other} and {name} have the same model_file, {step.model_file}: "
                    "change it in one of the classes"
                )
        return self

    @model_validator(mode="after")
    def _subwords_stay_as_they_are(self) -> "DataConfig":
        for side in ("source", "target"):
            for first, second in pairwise(line_steps(self.steps, side)):
                if first.splits_words and not second.splits_words:
                    raise ValueError(
                        f"data.steps: the step {second.step} would change the subwords of the step "
                        f"{first.step}: move it before {first.step}"
                    )
        return self


class DataSection(Config):
    """A config of which only the section `data` is read."""

    data: DataConfig
    """The section `data`."""


def load_data(path: Path | str, overrides: Sequence[str] = ()) -> DataConfig:
    """Read and validate the section `data` of a config; ignore the other sections.

    Unlike ``fusetk.recipe.load``, this function does not import torch. Raises ConfigError as
    ``fusetk.recipe.load`` does.
    """
    document = load_document(path, overrides)
    data = {key: value for key, value in document.values.items() if key == "data"}
    return config.parse(Document(data, document.origins), DataSection).data


def load_document(
    path: Path | str,
    overrides: Sequence[str] = (),
    more_paths: Sequence[Place] = (),
    aliases: Aliases | None = None,
) -> Document:
    """Read a config without validation; ``aliases`` are other names of keys.

    Relative paths in ``data`` and in the keys ``more_paths`` become absolute; they start from the
    folder of the file that names them, or from the current folder in an override. Raises
    ConfigError for paths that cannot be expanded.
    """
    document = config.load(path, overrides, ALTERNATIVES, aliases)
    _resolve_paths(document, [*PATHS, *more_paths])
    return document


def _resolve_paths(document: Document, paths: Sequence[Place]) -> None:
    """Make the paths of these keys absolute. Raises ConfigError for bad paths."""
    errors: list[str] = []
    for place in paths:
        *above, key = place
        section = mapping_at(document.values, above)
        if key in section:
            path = section[key]
            may_be_null = key not in ("folder", *LISTS)
            is_null = may_be_null and path in NULL_WORDS
            section[key] = None if is_null else _absolute(path, document, place, errors)
    if errors:
        raise config.config_error(errors)


def _absolute(value: Any, document: Document, place: Place, errors: list[str]) -> Any:
    """Return the value with absolute paths; append a sentence to ``errors`` for each bad path."""
    # Prefixes are in lists. A string in place of a list stays as it is for the error about it.
    if isinstance(value, str) and not (set(LISTS) & set(place) and isinstance(place[-1], str)):
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
