"""What the config says about data: where text comes from and what is done with it."""

from typing import Annotated, Literal

from pydantic import Field

from fusetk.config import Config

Side = Literal["both", "source", "target"]


class NFC(Config):
    """Unicode normal form C."""

    step: Literal["nfc"]
    side: Side = "both"
    """Which side's text."""


class NormalizePunctuation(Config):
    """Punctuation as Moses' normalize-punctuation does it (sacremoses). `prep` warns of a language that Moses does not know."""

    step: Literal["normalize-punctuation"]
    side: Side = "both"
    """Which side's text."""


class Tokenize(Config):
    """Moses tokenisation of the side's language (sacremoses).

    A language without rules gets the abbreviations of English, and `prep` warns. The step cannot find words in Chinese, Japanese, Thai,
    Lao, Khmer or Burmese text without spaces: segment such text before `prep`, and leave it out of this step by `side`.
    """

    step: Literal["tokenize"]
    side: Side = "both"
    """Which side's text."""
    escape: bool = True
    """Write & | < > ' " [ ] as Moses' entities."""
    aggressive_hyphens: bool = False
    """Split words at hyphens, marked `@-@`."""


class Lowercase(Config):
    """Lower case."""

    step: Literal["lowercase"]
    side: Side = "both"
    """Which side's text."""


class Truecase(Config):
    """The most frequent case of each sentence's first word, learned on the training text (Moses' truecaser)."""

    step: Literal["truecase"]
    side: Side = "both"
    """Which side's text."""


class Filter(Config):
    """Drop training pairs by length, counted in tokens as they are at this step; never drops from other splits.

    Training pairs with an empty side go in any case, unless a filter has `min_length: 0`.
    """

    step: Literal["filter"]
    min_length: int = Field(default=1, ge=0)
    """Fewest tokens on either side; 1 drops pairs with an empty side."""
    max_length: int | None = Field(default=None, ge=1)
    """Most tokens on either side."""
    max_ratio: float | None = Field(default=None, ge=1)
    """Greatest length ratio, either way."""


class Deduplicate(Config):
    """Drop training pairs that stood before."""

    step: Literal["deduplicate"]


Step = Annotated[
    NFC | NormalizePunctuation | Tokenize | Lowercase | Truecase | Filter | Deduplicate,
    Field(discriminator="step"),
]


class Every(Config):
    """Every n-th line of the training pairs that are left after all steps becomes validation."""

    every: int = Field(ge=2)
    """n."""


class Sample(Config):
    """A random sample of the training pairs that are left after all steps becomes validation."""

    sample: int = Field(ge=1)
    """How many pairs."""
    seed: int = 1
    """Decides which."""


class BPE(Config):
    """Byte pair encoding, learned on the training text only (subword-nmt)."""

    merges: int = Field(ge=1)
    """Merge operations, for each side when learned separately."""
    joint: bool = True
    """Learn one set of merges on both sides together."""
    min_frequency: int = Field(default=2, ge=1)
    """Stop merging below this pair frequency."""
    threshold: int = Field(default=0, ge=0)
    """Undo merges into subwords that stand fewer times in a side's training text (subword-nmt's vocabulary threshold)."""
    max_subwords: int | None = Field(default=None, ge=1)
    """Drop training pairs with more subwords than this on a side."""


class VocabularyConfig(Config):
    """Which tokens get ids of their own; the others are `<unk>`."""

    joint: bool = False
    """One vocabulary for both sides; needed to tie source and target embeddings."""
    threshold: int = Field(default=1, ge=1)
    """Fewest times that a token stands in the training text."""
    size: int | None = Field(default=None, ge=5)
    """Most entries, the four special ones included: the most frequent win."""


class DataConfig(Config):
    """Where text comes from and what is done with it. Paths are relative to the config file that names them."""

    source: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")
    """Source language, the suffix of its files: `de` reads `train.de` or `train.de.gz`."""
    target: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")
    """Target language."""
    folder: str
    """Where `fusetk prep` writes and `fusetk train` reads."""
    train: list[str] = Field(min_length=1)
    """Training text: one or more file prefixes, read one after the other."""
    valid: list[str] | Every | Sample
    """Validation text: file prefixes, or what to take from the training pairs."""
    test: dict[str, list[str]] = {}
    """Test sets: a name and its file prefixes."""
    steps: list[Step] = []
    """What is done with each line, in this order."""
    bpe: BPE | None = None
    """Subwords; without it, words."""
    vocabulary: VocabularyConfig = VocabularyConfig()
    """Which tokens get ids."""
