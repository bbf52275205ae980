"""The descriptions of data sets, ``sets/NAME.yaml``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from fusetk import config
from fusetk.config import Config
from fusetk.config.messages import unknown_choice
from fusetk.errors import ConfigError

SETS = Path(__file__).parent / "sets"


class ArchiveConfig(Config):
    """A file to fetch: an archive, or a text."""

    file: str
    """Name of the file."""
    url: str | None = None
    """Address; null if the user must supply the file."""
    size: int | None = None
    """Size in bytes, if it is published."""
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    """SHA-256 checksum, if it is published."""
    md5: str | None = Field(None, pattern=r"^[0-9a-f]{32}$")
    """MD5 checksum, if it is published and the SHA-256 is not."""
    note: str | None = None
    """The origin of a file without address."""


class TextConfig(Config):
    """A parallel text."""

    name: str
    """Prefix of the files of raw text: `train` becomes `train.de` and `train.en`."""
    format: Literal["lines", "wit3", "segments"]
    """`lines`: a sentence a line. `wit3`: training text of WIT3 with lines of tags. `segments`:
    the <seg> elements of XML or SGML, with any number of references."""
    source: str
    """Name of the source file, with `*` for any characters, in an archive or in a folder."""
    target: str
    """Name of the target file."""
    pairs: int | None = None
    """Published number of pairs; another number is an error."""
    dropped: list[str] = []
    """Tags whose lines are dropped, in the format `wit3`."""
    entities: bool = False
    """Replace entities such as &amp; by their characters."""
    apostrophes: bool = False
    """Replace typographic apostrophes by plain ones."""
    commas: bool = False
    """Replace the cedillas below Romanian s and t by commas."""


class DatasetConfig(Config):
    """A data set."""

    title: str
    """Name for the user."""
    source: str
    """Source language."""
    target: str
    """Target language."""
    archives: list[ArchiveConfig] = []
    """Files that contain the texts."""
    texts: list[TextConfig]
    """Texts that are made."""
    note: str | None = None
    """A fact or a step for the user."""


def names() -> list[str]:
    """Return the names of all data sets."""
    return sorted(path.stem for path in SETS.glob("*.yaml"))


def read(name: str, texts: Sequence[str] = ()) -> DatasetConfig:
    """Return the description of a data set, with these texts only or with all.

    Raises ConfigError if there is no data set of this name, or if it lacks one of the texts.
    """
    if name not in names():
        raise ConfigError(unknown_choice("data set", name, names()))
    dataset = config.parse(config.load(SETS / f"{name}.yaml"), DatasetConfig)
    if not texts:
        return dataset
    known = [text.name for text in dataset.texts]
    if unknown := [text for text in texts if text not in known]:
        raise ConfigError(
            f"{name} has no text {', '.join(unknown)}; its texts are {', '.join(known)}"
        )
    chosen = [text for text in dataset.texts if text.name in texts]
    return dataset.model_copy(update={"texts": chosen})
