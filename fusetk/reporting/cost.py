"""Cost of a run, from its ``metrics.jsonl``: hours, tokens per second, and hardware."""

from pathlib import Path
from typing import Any, NamedTuple

from fusetk.runs import is_finite_number, read_metrics


class Cost(NamedTuple):
    """The cost of a training so far. A value is None if the metrics do not have it."""

    hours: float | None  # of updates and validations, without interruptions
    tokens_per_second: float | None  # target tokens, during updates
    hardware: str | None  # each kind of device that was used, and their number


def read_cost(run: Path) -> Cost:
    """Return the cost of a run."""
    seconds = 0.0
    update_seconds = 0.0
    tokens = 0.0
    devices: dict[str, None] = {}
    for record in read_metrics(run):
        if record["kind"] == "train":
            if isinstance(record.get("device"), str):
                devices[record["device"]] = None
            duration = _update_seconds(record)
            if duration:
                seconds += duration
                update_seconds += duration
                tokens += record["tokens"]
        elif record["kind"] == "valid":
            seconds += finite_value(record, "seconds") or 0.0
    return Cost(
        hours=seconds / 3600 if seconds else None,
        tokens_per_second=tokens / update_seconds if update_seconds else None,
        hardware=", then ".join(devices) or None,
    )


def validation_bleu(run: Path) -> float | None:
    """Return the BLEU of the best validation; None if no validation computed it."""
    best: dict[str, Any] = {}
    for record in read_metrics(run):
        if record["kind"] == "valid" and record.get("best") is True:
            best = record
    return finite_value(best, "bleu")


def _update_seconds(record: dict[str, Any]) -> float | None:
    """Return the duration of the updates of a record; None if it is unknown."""
    tokens = finite_value(record, "tokens")
    speed = finite_value(record, "tokens_per_second")
    return tokens / speed if tokens and speed else None


def finite_value(record: dict[str, Any], name: str) -> float | None:
    """Return a value of a record; None if it is not a finite number."""
    value = record.get(name)
    return float(value) if is_finite_number(value) else None
