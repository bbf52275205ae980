"""Curves of training and validation, read from the ``metrics.jsonl`` of run folders."""

import difflib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fusetk.errors import DataError
from fusetk.plotting.figure import (
    NUMBERS,
    check_output,
    colors,
    dress,
    finite,
    fonts,
    label,
    legend,
    save_numbers,
    save_picture,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

KINDS = ("train", "valid")
USUAL = (
    "loss",
    "ppl",
    "accuracy",
    "bleu",
)  # drawn when nothing else is asked for, as far as the runs have them
TITLES = {
    "loss": "loss per token (nats)",
    "smoothed": "loss with label smoothing",
    "ppl": "perplexity",
    "accuracy": "token accuracy",
    "bleu": "BLEU",
    "lr": "learning rate",
    "tokens_per_second": "target tokens/s",
    "grad_norm": "gradient norm",
}
LOWER_IS_BETTER = ("loss", "smoothed", "ppl")
HIGHER_IS_BETTER = ("accuracy", "bleu")

log = logging.getLogger(__name__)

Records = list[dict[str, Any]]


@dataclass(frozen=True)
class Curve:
    """One quantity of one run."""

    run: str
    kind: str  # train or valid
    what: str  # the key in metrics.jsonl
    update: np.ndarray  # (N,) rising
    epoch: np.ndarray  # (N,) NaN where it was not noted
    value: np.ndarray  # (N,) finite or not, as it was noted

    def best(self) -> int | None:
        """The place of the best value; None where better has no meaning, and for training curves."""
        finite = np.isfinite(self.value)
        if (
            self.kind != "valid"
            or not finite.any()
            or self.what not in LOWER_IS_BETTER + HIGHER_IS_BETTER
        ):
            return None
        sign = 1 if self.what in HIGHER_IS_BETTER else -1
        return int(np.argmax(np.where(finite, sign * self.value, -np.inf)))


# Reading -------------------------------------------------------------------------------------------------------------


def read_metrics(run: Path) -> Records:
    """What a run noted, by update; where a resumed run noted an update again, the later note.

    A damaged last line (of a run that was killed while writing) is passed over with a warning. Raises DataError for a
    folder without metrics and for a line that is damaged elsewhere.
    """
    path = run / "metrics.jsonl"
    if not run.is_dir():
        raise DataError(
            f"{run} is not a run folder" if run.exists() else f"there is no run folder {run}"
        )
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise DataError(
            f"{run} has no metrics.jsonl: it is not a run folder, or its training has not begun"
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    last = max((number for number, line in enumerate(lines, 1) if line.strip()), default=0)
    records: dict[tuple[str, float], dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        record = _record(line)
        if record is not None:
            records[record["kind"], record["update"]] = record
        elif number == last:
            log.warning(
                "%s: the last line (%d) is damaged, the run was killed while it wrote; passed over",
                path,
                number,
            )
        else:
            raise DataError(
                f"{path}, line {number}: not a JSON object with kind and update; repair or remove the line"
            )
    if not records:
        raise DataError(f"{path} has no complete line yet: the run has noted nothing")
    return sorted(records.values(), key=lambda record: record["update"])


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # not UTF-8 is a ValueError too
        return None
    good = (
        isinstance(record, dict)
        and isinstance(record.get("kind"), str)
        and _number(record.get("update")) is not None
    )
    return record if good else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def curves(
    runs: Mapping[str, Records], what: Sequence[str] = (), kinds: Sequence[str] = KINDS
) -> list[Curve]:
    """The curves of each quantity (none named: the usual ones that some run has), run after run.

    Raises DataError for a quantity that no run has.
    """
    of_kind = {
        run: [record for record in records if record["kind"] in kinds]
        for run, records in runs.items()
    }
    noted = [record for records in of_kind.values() for record in records]
    numbers = {
        key: None for record in noted for key, value in record.items() if _number(value) is not None
    }
    known = [key for key in numbers if key not in ("update", "epoch")]
    chosen = list(dict.fromkeys(what)) or [key for key in USUAL if key in known]
    for key in chosen:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = (
                f"did you mean {near[0]!r}?"
                if near
                else f"there is {', '.join(known) or 'nothing'}"
            )
            raise DataError(f"no run has {key!r} among its {' or '.join(kinds)} metrics; {hint}")
    if not chosen:
        raise DataError(
            f"the runs have no {' or '.join(kinds)} metrics to draw; there is {', '.join(known) or 'nothing'}"
        )
    found = [
        _curve(run, kind, key, of_kind[run]) for key in chosen for run in runs for kind in kinds
    ]
    return [curve for curve in found if len(curve.value)]


def _curve(run: str, kind: str, what: str, records: Records) -> Curve:
    mine = [
        record
        for record in records
        if record["kind"] == kind and _number(record.get(what)) is not None
    ]
    epochs = [_number(record.get("epoch")) for record in mine]
    return Curve(
        run,
        kind,
        what,
        np.array([record["update"] for record in mine], dtype=np.float64),
        np.array([math.nan if epoch is None else epoch for epoch in epochs], dtype=np.float64),
        np.array([record[what] for record in mine], dtype=np.float64),
    )


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """The mean of ``window`` values around each, of fewer near the ends; what is not finite does not count."""
    finite = np.isfinite(values)
    sums = np.concatenate(([0.0], np.cumsum(np.where(finite, values, 0.0))))
    counts = np.concatenate(([0], np.cumsum(finite)))
    place = np.arange(len(values))
    room = np.minimum(
        place, place[::-1]
    )  # as many on one side as on the other, or steep ends would be bent
    start = place - np.minimum(room, (window - 1) // 2)
    end = place + np.minimum(room, window // 2) + 1
    count = counts[end] - counts[start]
    return np.where(count > 0, (sums[end] - sums[start]) / np.maximum(count, 1), math.nan)


# Drawing -------------------------------------------------------------------------------------------------------------


def plot(found: Sequence[Curve], path: Path, *, x: str = "updates", window: int = 1) -> None:
    """Draw the curves, one panel a quantity, over ``x`` (updates or epochs), or write their numbers, as the ending says.

    Training curves are smoothed over ``window`` points, in pictures and in numbers. Raises DataError when ``path`` cannot
    be written, or epochs are asked for and were not noted.
    """
    check_output(path)
    if x == "epochs":
        for curve in found:
            if np.isnan(curve.epoch).all():
                raise DataError(
                    f"{curve.run} has no epochs in its {curve.kind} metrics; draw over updates"
                )
    if path.suffix.lower() in NUMBERS:
        save_numbers(path, _arrays(found, window), _document(found, window))
    else:
        save_picture(draw(found, x, window), path)


def draw(found: Sequence[Curve], x: str, window: int) -> "Figure":
    """The figure of ``plot``: a colour for each run, thin lines for training, dots for validation, a star at the best."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    whats = list(dict.fromkeys(curve.what for curve in found))
    runs = list(dict.fromkeys(curve.run for curve in found))
    families = fonts(label(run, 60) for run in runs)
    columns = 2 if len(whats) == 4 else min(len(whats), 3)
    rows = math.ceil(len(whats) / columns)
    most = max(sum(curve.what == what for curve in found) for what in whats)
    figure = Figure(figsize=(6.4 * columns, rows * (4.0 + 0.19 * most)), layout="constrained")
    FigureCanvasAgg(figure)
    color = dict(zip(runs, colors(len(runs)), strict=True))
    for i, what in enumerate(whats):
        axes = figure.add_subplot(rows, columns, i + 1)
        mine = [curve for curve in found if curve.what == what]
        entries = [_draw(axes, curve, x, window, color[curve.run]) for curve in mine]
        _dress(axes, what, x, np.concatenate([curve.value for curve in mine]))
        legend(axes, entries, families)
    return figure


def _draw(axes: "Axes", curve: Curve, x: str, window: int, color: Any) -> "tuple[Line2D, str]":
    """Draw one curve; returns its line and what the legend says of it."""
    place = curve.update if x == "updates" else curve.epoch
    name = f"{label(curve.run, 60)}, {curve.kind}"
    value = np.where(np.isfinite(curve.value), curve.value, math.nan)
    if curve.kind == "valid":
        best = curve.best()
        if best is not None:
            at = f"update {place[best]:.0f}" if x == "updates" else f"epoch {place[best]:.1f}"
            name += f" (best {_short(curve.value[best])} at {at})"
            axes.plot(
                place[best],
                value[best],
                "*",
                color=color,
                markersize=13,
                markeredgecolor="white",
                zorder=4,
            )
        return axes.plot(place, value, "-o", color=color, linewidth=1.8, markersize=3.5, zorder=3)[
            0
        ], name
    if window > 1:
        axes.plot(place, value, "-", color=color, linewidth=0.6, alpha=0.3)
        name += f" (mean of {window})"
    return axes.plot(place, smooth(value, window), "-", color=color, linewidth=1.0, alpha=0.7)[
        0
    ], name


def _dress(axes: "Axes", what: str, x: str, values: np.ndarray) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    values = values[np.isfinite(values)]
    if what == "ppl" and len(values) and values.min() > 0 and values.max() > 20 * values.min():
        axes.set_yscale(
            "log"
        )  # the first perplexity is the size of the vocabulary, and would leave the rest flat
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title(TITLES.get(what, label(what)), fontsize=11, parse_math=False)
    axes.set_xlabel("update" if x == "updates" else "epoch")
    dress(axes)


def _short(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"


def _shown(curve: Curve, window: int) -> np.ndarray:
    return (
        smooth(curve.value, window) if window > 1 and curve.kind == "train" else curve.value
    )  # a window of 1 keeps infinities


def _arrays(found: Sequence[Curve], window: int) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for curve in found:
        name = f"{curve.run}/{curve.kind}/{curve.what}"
        arrays |= {
            f"{name}.update": curve.update,
            f"{name}.epoch": curve.epoch,
            f"{name}.value": _shown(curve, window),
        }
    return arrays


def _document(found: Sequence[Curve], window: int) -> Any:
    return [
        {
            "run": curve.run,
            "kind": curve.kind,
            "what": curve.what,
            "best": curve.best(),
            "update": finite(curve.update),
            "epoch": finite(curve.epoch),
            "value": finite(_shown(curve, window)),
        }
        for curve in found
    ]
