"""The records of a training in ``metrics.jsonl``."""

import json
from pathlib import Path
from typing import Any

import pytest

from fusetk.runs import METRICS

DEPEND_ON_MACHINE = ("tokens_per_second", "memory", "seconds")


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    """Return the records of a kind, train or valid, without values that depend on the machine.

    The test fails if a line has NaN or Infinity, which are not JSON. JSON has null instead.
    """
    lines = (run / METRICS).read_text(encoding="utf-8").splitlines()
    parsed = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    return [
        {key: value for key, value in record.items() if key not in DEPEND_ON_MACHINE}
        for record in parsed
        if record["kind"] == kind
    ]
