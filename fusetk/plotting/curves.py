"""Training and validation curves, read from the ``metrics.jsonl`` files of run folders."""

import difflib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fusetk.errors import DataError
from fusetk.evaluation.metrics import METRICS as TRANSLATION_METRICS
from fusetk.evaluation.metrics import is_lower_better
from fusetk.runs import (
    HIGHER_IS_BETTER,
    LOWER_IS_BETTER,
    METRICS,
    OTHER_PARTS,
    check_metrics,
    read_metrics,
    run_and_checkpoint,
)

RECORD_KINDS = ("train", "valid")
# Drawn by default, if the runs have them, before other metrics of translations.
DEFAULT = ("loss", "ppl", "accuracy", "bleu")
TITLES = {
    "loss": "loss per token (nats)",
    "smoothed": "loss with label smoothing",
    "ppl": "perplexity",
    "accuracy": "token accuracy",
    "bleu": "BLEU",
    "lr": "learning rate",
    "tokens_per_second": "target tokens/s",
    "grad_norm": "gradient norm",
    "grad_norms": "gradient norm",
    "layer_shares": "share in the fusion",
}
BY_LAYER = ("grad_norms", "layer_shares")  # each has a curve for each layer
# Quantities that validations record only with a key of the config.
KEYS = {
    "bleu": "training.validation.bleu",
    "layer_shares": "training.validation.share_pairs",
    "train_accuracy": "training.validation.train_pairs",
}

ON_TRAINING_PAIRS = "train_"  # prefix of the results of a validation on training pairs

log = logging.getLogger(__name__)

Records = list[dict[str, Any]]


@dataclass(frozen=True)
class Curve:
    """The values of one quantity during one run, of the whole model or of one layer."""

    run: str
    kind: str  # train or valid
    what: str  # the key in metrics.jsonl
    update: np.ndarray  # (N,) ascending
    epoch: np.ndarray  # (N,) NaN if not recorded
    value: np.ndarray  # (N,) may contain NaN and infinity
    group: str = ""  # the fusion or stack that has the layer; OTHER_PARTS for another part
    layer: str = ""  # the layer or part; empty for the whole model

    @property
    def panel(self) -> tuple[str, ...]:
        """The key of the panel: quantity, run and group for a layer; otherwise the quantity."""
        return (self.what, self.run, self.group) if self.layer else (self.what,)

    @property
    def scale(self) -> tuple[str, str]:
        """The key of the vertical scale, which the panels of several runs share."""
        return self.what, self.group

    @property
    def line(self) -> tuple[bool, str]:
        """The key of the colour: True and the layer or part, or False and the run."""
        return bool(self.layer), self.layer or self.run

    @property
    def lowest_is_best(self) -> bool:
        """Whether a lower value is better. It has no meaning if ``best`` returns None."""
        return self.what in LOWER_IS_BETTER or is_lower_better(self.what)

    def best(self) -> int | None:
        """Return the index of the best value.

        It is None for training curves, for quantities without a better direction, and for metrics
        outside fusetk, which are not imported.
        """
        is_finite = np.isfinite(self.value)
        if self.kind != "valid" or not is_finite.any():
            return None
        if self.what not in LOWER_IS_BETTER | HIGHER_IS_BETTER | TRANSLATION_METRICS.keys():
            return None
        sign = -1 if self.lowest_is_best else 1
        return int(np.argmax(np.where(is_finite, sign * self.value, -np.inf)))


def read_curve_records(run: Path) -> Records:
    """Return the records of a run, sorted by update.

    A resumed run may repeat an update: the later record counts. A damaged last line, as after the
    kill of a run, is skipped with a warning. Raises CheckpointError if there is no such folder, and
    DataError if the folder has no metrics, or if another line is damaged.
    """
    path = run / METRICS
    if not run.is_dir():
        run_and_checkpoint(run)  # raises CheckpointError
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise DataError(
            f"{run} has no metrics.jsonl: it is not a run folder, or its training has not started"
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if warning := check_metrics(run):
        log.warning("%s", warning)
    records = {(record["kind"], record["update"]): record for record in read_metrics(run)}
    if not records:
        raise DataError(f"{path} has no complete line yet: wait for the first line")
    return sorted(records.values(), key=lambda record: record["update"])


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf


def curves(
    runs: Mapping[str, Records], what: Sequence[str] = (), kinds: Sequence[str] = RECORD_KINDS
) -> list[Curve]:
    """Return the curves of each quantity in ``what``, run after run.

    An empty ``what`` means the quantities in DEFAULT, and the metrics of translations, that some
    run has. If only validations compute a quantity of training pairs (`train_accuracy`), the
    training curve has their values. Raises DataError if no run has a quantity.
    """
    of_kind = {
        run: [record for record in _with_training_pairs(records) if record["kind"] in kinds]
        for run, records in runs.items()
    }
    known = _quantities([record for records in of_kind.values() for record in records])
    available = ", ".join(known) or "none"
    quantities = list(dict.fromkeys(what)) or [
        key for key in (*DEFAULT, *TRANSLATION_METRICS) if key in known
    ]
    metrics = f"{' or '.join(kinds)} metrics"
    for key in quantities:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"available: {available}"
            if key in KEYS and "valid" in kinds:
                hint = f"set {KEYS[key]} before training to record it"
            raise DataError(f"no run has {key!r} in its {metrics}; {hint}")
    if not quantities:
        raise DataError(f"the runs have no {metrics} to draw; available: {available}")
    all_curves = [
        curve
        for key in quantities
        for run in runs
        for kind in kinds
        for curve in _curves(run, kind, key, of_kind[run])
    ]
    for key in quantities:
        having = {curve.run for curve in all_curves if curve.what == key}
        if lacking := [run for run in runs if run not in having]:
            log.warning("%s: no %s was recorded", ", ".join(lacking), key)
    return all_curves


def _with_training_pairs(records: Records) -> Records:
    """Add training records with the values that validations computed on training pairs.

    Quantities that training logs itself are not added, and each remains in its validation record.
    """
    logged = {key for record in records if record["kind"] == "train" for key in record}
    added = []
    for record in records:
        values = {
            key.removeprefix(ON_TRAINING_PAIRS): value
            for key, value in record.items()
            if record["kind"] == "valid" and key.startswith(ON_TRAINING_PAIRS)
        }
        values = {key: value for key, value in values.items() if key not in logged}
        if values:
            times = {key: record.get(key) for key in ("update", "epoch")}
            added.append({"kind": "train", **times, **values})
    return [*records, *added]


def _quantities(records: Records) -> list[str]:
    """Return the keys that have a number in some record, in order of appearance."""
    keys: dict[str, None] = {}
    for record in records:
        keys |= {key: None for key in record if any(_numbers(record, key))}
    return [key for key in keys if key not in ("update", "epoch")]


def _curves(run: str, kind: str, what: str, records: Records) -> list[Curve]:
    """Return the curve of a quantity, or the curves of its layers, group after group."""
    points: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for record in records:
        if record["kind"] != kind:
            continue
        epoch = _number(record.get("epoch"))
        for group, layer, number in _numbers(record, what):
            point = (record["update"], math.nan if epoch is None else epoch, number)
            points.setdefault((group, layer), []).append(point)
    curves = []
    for group, layer in sorted(points, key=lambda key: key[0] == OTHER_PARTS):
        updates, epochs, values = np.array(points[group, layer], dtype=np.float64).T
        curves.append(Curve(run, kind, what, updates, epochs, values, group, layer))
    return curves


def _numbers(record: Mapping[str, Any], key: str) -> Iterator[tuple[str, str, float]]:
    """Yield each number of a quantity with its group and layer; '' for the whole model."""
    value = record.get(key)
    for group, layers in value.items() if isinstance(value, dict) else [("", {"": value})]:
        for layer, item in layers.items() if isinstance(layers, dict) else ():
            if (number := _number(item)) is not None:
                yield group, layer, number


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Return the mean of the ``window`` values around each value, ignoring NaN and infinity.

    A window of 1 returns the values themselves, with their infinities. The window extends equally
    to both sides, so an even window has one more value. Near the ends the window shrinks on both
    sides: a window cut off on one side would bend a steep curve.
    """
    if window == 1:
        return values
    is_finite = np.isfinite(values)
    index = np.arange(len(values))
    half = np.minimum(np.minimum(index, index[::-1]), window // 2)
    start = index - half
    end = index + half + 1
    # Each window is summed by itself: differences of one cumulative sum would have the rounding
    # errors of all values before the window. `reduceat` also sums between two windows; `[::2]`
    # drops these.
    bounds = np.stack((start, end), axis=1).ravel()
    sums = np.add.reduceat(np.append(np.where(is_finite, values, 0.0), 0.0), bounds)[::2]
    counts = np.add.reduceat(np.append(is_finite, False), bounds, dtype=np.int64)[::2]
    return np.where(counts > 0, sums / np.maximum(counts, 1), math.nan)
