"""Whether one system is better than another or only luckier with this text: paired tests of the sacrebleu library.

Bootstrap (Koehn 2004) draws texts of as many lines from the lines, with replacement, the same ones for both systems. Approximate
randomisation (Riezler and Maxwell 2005) swaps lines between the two systems by chance. Both ask how often a difference as large as the
one that was found comes about so. Intervals are of the bootstrap in both.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from fusetk.errors import DataError
from fusetk.evaluation.metrics import Metric, Row

SAMPLES = {
    "bootstrap": 1000,
    "randomization": 10_000,
}  # tests, and how many samples sacreBLEU draws for each
SEED = 12345  # sacreBLEU's
FEW = 10  # lines that differ; with fewer, many samples are ties, which sacreBLEU does not count: its p is too small


class Sampling(NamedTuple):
    """How systems are tested."""

    kind: str  # in SAMPLES
    samples: int
    seed: int = SEED  # at least 1, for sacreBLEU takes 0 for no seed

    def __str__(self) -> str:
        return f"paired {self.kind.replace('randomization', 'approximate randomisation')}, {self.samples} samples, seed {self.seed}"


class Found(NamedTuple):
    """What a test says of one system by one metric."""

    mean: float  # of the bootstrap samples
    interval: float  # half of what the middle 95 % of the samples span
    p: (
        float | None
    )  # that chance makes such a difference from the first system; None for the first itself
    differ: int | None  # lines that count otherwise than in the first system


def compare(
    metric: Metric, counted: Mapping[str, Sequence[Row]], sampling: Sampling
) -> dict[str, Found]:
    """Test each system against the first one; ``counted`` has what ``metric`` counted in the lines of each.

    p is sacreBLEU's, but 1 where no line makes a difference: sacreBLEU asks for more than the difference found, so that a system beside
    itself would have the smallest p there is. Raises DataError where the samples do not fit into memory.
    """
    from sacrebleu.significance import PairedTest

    _check_memory(next(iter(counted.values())), sampling)
    with _seed(sampling.seed):
        kind = "bs" if sampling.kind == "bootstrap" else "ar"
        systems: Any = list(counted.items())
        metrics: Any = {metric.name: _Counted(metric.library())}
        columns: Any = PairedTest(systems, metrics, None, kind, sampling.samples, 0)()[1]
    [results] = (column for name, column in columns.items() if name != "System")
    first, *others = counted.values()
    differ = [
        None,
        *(sum(tuple(a) != tuple(b) for a, b in zip(first, rows, strict=True)) for rows in others),
    ]
    return {
        name: Found(
            float(result.mean), float(result.ci), 1.0 if lines == 0 else result.p_value, lines
        )
        for name, result, lines in zip(counted, results, differ, strict=True)
    }


class _Counted:
    """A metric of sacrebleu for lines that are counted already: rows stand for hypotheses."""

    def __init__(self, metric: Any) -> None:
        self._aggregate_and_compute = metric._aggregate_and_compute
        self._compute_score_from_stats = metric._compute_score_from_stats

    def _extract_corpus_statistics(self, rows: Sequence[Row], references: None) -> Sequence[Row]:
        return rows

    def get_signature(self) -> Any:
        from sacrebleu.metrics.base import Signature

        return Signature({"num_refs": None})


@contextmanager
def _seed(seed: int) -> Iterator[None]:
    """The seed where sacrebleu looks for it."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        del os.environ["SACREBLEU_SEED"]
        if before is not None:
            os.environ["SACREBLEU_SEED"] = before


def _check_memory(rows: Sequence[Row], sampling: Sampling) -> None:
    """Raise DataError where sacrebleu, which draws all samples at once, needs more than half of the memory of this machine."""
    drawn = sampling.samples if sampling.kind == "bootstrap" else SAMPLES["bootstrap"]
    need = drawn * len(rows) * (8 + 4 * len(rows[0]))  # places in 8 bytes, numbers in 4
    if sampling.kind == "randomization":
        need += sampling.samples * len(rows) * 10
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if need > there / 2:
        raise DataError(
            f"{sampling} of {len(rows)} lines need {need / 2**30:.0f} GiB of memory, and this machine has {there / 2**30:.0f}: "
            "give fewer --samples, or fewer lines"
        )
