"""The score log of a run folder, ``scores.json``: one record a test set, checkpoint and metric."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fusetk.data.text import cannot_write
from fusetk.errors import DataError, one_line
from fusetk.evaluation.metric import Score
from fusetk.evaluation.metrics import metric_class
from fusetk.files import locked_file, replace_file
from fusetk.runs import is_finite_number, updates_and_data

NAME = "scores.json"
# A training holds the lock of the run folder until it ends, so scores have their own.
LOCK = ".scores.lock"
FORMAT = 1


class ScoreDestination(NamedTuple):
    """The run folder whose log gets scores, and the test set and checkpoint that were scored."""

    run: Path
    set_name: str
    checkpoint: str
    has_checkpoint: bool = True  # whether the run has it; else its updates are unknown


class ScoreRecord(NamedTuple):
    """One score of a run, with the facts that decide whether it is comparable with another one."""

    set_name: str  # the test set
    checkpoint: str  # the decoded checkpoint: best, average-5
    metric: str
    value: float  # 0 to 100; TER may exceed 100
    signature: str  # the settings of the metric
    details: str
    sentences: int
    references: str  # SHA-256 of the reference texts
    updates: int | None = None  # of training at the time of the record; None if unknown
    data: str | None = None  # fingerprint of the training data
    lower_is_better: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """Test set, checkpoint and metric; a log has at most one record of each key."""
        return self.set_name, self.checkpoint, self.metric


def read(run: Path) -> list[ScoreRecord]:
    """Return the records of a run; none if the file does not exist.

    Raises DataError if the file is damaged or was written by a newer fusetk.
    """
    path = run / NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        version = document["format"]
        entries = document["scores"]
        if not isinstance(entries, list):
            raise ValueError("its scores are not a list")
        if version == FORMAT:
            return _unique([_parse(entry) for entry in entries])
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else one_line(error)
        raise DataError(
            f"{path} is damaged ({problem}): repair it, or remove it and score again"
        ) from None
    raise DataError(
        f"{path} was written by another version of fusetk (format {version!r}; this version reads "
        f"{FORMAT}): update fusetk"
    )


def _unique(records: list[ScoreRecord]) -> list[ScoreRecord]:
    """Return the records. Raises ValueError if two of them have one key."""
    for key, number in Counter(record.key for record in records).items():
        if number > 1:
            raise ValueError(f"{number} records of {', '.join(key)}")
    return records


def write(run: Path, records: Sequence[ScoreRecord]) -> Path:
    """Add records to the log of a run and return its file.

    A new record replaces the old one with the same key. The file is replaced in one step. A second
    process that writes at the same time waits. Raises DataError if the old records cannot be read
    or the new file cannot be written.
    """
    path = run / NAME
    try:
        with locked_file(run / LOCK):
            keys = {record.key for record in records}
            others = [record for record in read(run) if record.key not in keys]
            scores = [record._asdict() for record in (*others, *records)]
            document = {"format": FORMAT, "scores": scores}
            replace_file(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise cannot_write(error.filename or path, error) from None
    return path


def record_scores(
    destination: ScoreDestination, scores: Iterable[Score], references: Iterable[Sequence[str]]
) -> Path:
    """Add scores against references to the log of a run, as ``write`` does; return its file.

    Raises DataError also if the metric of a score is unknown or cannot be imported, and if a score
    is not finite, before a score is recorded.
    """
    scores = list(scores)
    for score in scores:
        if not math.isfinite(score.value):
            raise DataError(
                f"the score of the metric {score.metric} is {score.value}, which cannot be "
                "recorded: correct the method value or score of the metric"
            )
    updates, data = updates_and_data(destination.run)
    if not destination.has_checkpoint:
        updates = None
    checksum = fingerprint(references)
    records = [
        ScoreRecord(
            set_name=destination.set_name,
            checkpoint=destination.checkpoint,
            metric=score.metric,
            value=score.value,
            signature=score.signature,
            details=score.details,
            sentences=score.sentences,
            references=checksum,
            updates=updates,
            data=data,
            lower_is_better=metric_class(score.metric).lower_is_better,
        )
        for score in scores
    ]
    return write(destination.run, records)


def fingerprint(texts: Iterable[Sequence[str]]) -> str:
    """Return a SHA-256 checksum of reference texts, which does not depend on their order."""
    checksums = sorted(
        hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()
        for lines in texts
    )
    if len(checksums) == 1:
        return checksums[0]
    return hashlib.sha256("".join(checksums).encode()).hexdigest()


def _parse(entry: Any) -> ScoreRecord:
    """Return the record of a JSON object; raise TypeError or ValueError if it is invalid."""
    record = ScoreRecord(**entry)
    texts = [*record.key, record.signature, record.details, record.references]
    for text in texts if record.data is None else [*texts, record.data]:
        if not isinstance(text, str):
            raise ValueError(f"{text!r} is not a string")
    if not is_finite_number(record.value):
        raise ValueError(f"the score {record.value!r} is not a finite number")
    counts = [record.sentences] if record.updates is None else [record.sentences, record.updates]
    for count in counts:
        if not isinstance(count, int) or isinstance(count, bool):
            raise ValueError(f"{count!r} is not a whole number")
    if not isinstance(record.lower_is_better, bool):
        raise ValueError(f"lower_is_better is {record.lower_is_better!r}, not true or false")
    return record
