"""The section `data` of a config: text files, prep steps, BPE and vocabularies."""

from typing import Annotated

from pydantic import Field, PositiveInt, model_validator

from fusetk.config import Config
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
    test: dict[str, list[str]] = {}
    """Test sets: a mapping of names to lists of file prefixes."""
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
