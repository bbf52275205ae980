"""Scores that a run folder keeps of its translations: ``scores.json``, a note for each test set, checkpoint and metric."""

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fusetk.errors import DataError
from fusetk.files import locked, replace_file

NAME = "scores.json"
FORMAT = 1


class Note(NamedTuple):
    """One score of a run, and what tells whether it can be compared with another."""

    set_name: str  # the test set
    checkpoint: str  # what was decoded: best, average-5
    metric: str
    value: float  # 0 to 100; TER may exceed 100
    signature: str  # the metric's settings
    details: str
    sentences: int
    references: str  # SHA-256 of the reference texts
    updates: int | None = None  # trained when this was noted
    data: str | None = None  # fingerprint of the data trained on

    @property
    def key(self) -> tuple[str, str, str]:
        """What there is one note of."""
        return self.set_name, self.checkpoint, self.metric


def read(run: Path) -> list[Note]:
    """The scores of a run, none without the file. Raises DataError when it is damaged or of a newer fusetk."""
    path = run / NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        version, entries = document["format"], document["scores"]
        if version == FORMAT:
            return [_note(entry) for entry in entries]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is damaged ({' '.join(str(error).split())}): repair it, or remove it and score again"
        ) from None
    raise DataError(
        f"{path} was written by another fusetk (format {version!r}, this one reads {FORMAT}): update fusetk"
    )


def write(run: Path, notes: Sequence[Note]) -> Path:
    """Add notes to those of a run, each in place of an older one of the same set, checkpoint and metric; returns the file.

    The file is written aside and renamed, and of two that write at once the second waits. Raises DataError when the old
    notes cannot be read or the new ones not written.
    """
    path = run / NAME
    try:
        with locked(run):
            new = {note.key for note in notes}
            kept = [note for note in read(run) if note.key not in new]
            text = json.dumps(
                {"format": FORMAT, "scores": [note._asdict() for note in (*kept, *notes)]},
                indent=1,
                ensure_ascii=False,
            )
            replace_file(path, text + "\n")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from None
    return path


def fingerprint(texts: Iterable[Sequence[str]]) -> str:
    """A checksum of reference texts; their order does not matter."""
    sums = sorted(
        hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()
        for lines in texts
    )
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()


def _note(entry: Any) -> Note:
    """Raises TypeError or ValueError for what is none."""
    note = Note(**entry)
    if not all(isinstance(text, str) for text in (*note.key, note.signature, note.references)):
        raise ValueError("a name that is no text")
    if not isinstance(note.value, int | float) or not math.isfinite(note.value):
        raise ValueError(f"the score {note.value!r}")
    if not isinstance(note.updates, int | None):
        raise ValueError(f"the updates {note.updates!r}")
    return note
