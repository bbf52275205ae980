"""What runs measured: run folders found and read leniently, scores over seeds, and where runs should not be compared."""

import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fusetk.errors import DataError, FusetkError
from fusetk.evaluation.metrics import METRICS
from fusetk.reporting import score_log
from fusetk.reporting.score_log import Note
from fusetk.runs import CHECKPOINTS, CONFIG, progress

DEPTH = 5  # levels of folders below the one that is searched
NAMED = 3  # runs that a remark names


class Run(NamedTuple):
    """A run folder, as far as it can be read."""

    folder: Path
    name: str  # below the folder that was searched
    config: Mapping[str, Any]
    notes: Sequence[Note]
    updates: int | None  # trained
    data: str | None  # fingerprint of the data trained on

    def setting(self, *keys: str) -> Any:
        """A key of the config, None where it is missing."""
        found: Any = self.config
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found


class Column(NamedTuple):
    """What scores can be put together."""

    set_name: str
    checkpoint: str
    metric: str


class Mean(NamedTuple):
    """A score over runs."""

    value: float
    deviation: float | None  # of the sample; None for one run
    runs: int

    def __str__(self) -> str:
        spread = f" ±{self.deviation:.2f}" if self.deviation is not None else ""
        return f"{self.value:.2f}{spread} ({self.runs})"


# Finding and reading -------------------------------------------------------------------------------------------------


def collect(folder: Path, doubts: list[str]) -> list[Run]:
    """The runs in a folder, or the one that it is, by name; ``doubts`` gets a sentence for each that is damaged."""
    found = []
    for path in sorted(_run_folders(folder, DEPTH, set())):
        name = str(path.relative_to(folder)) if path != folder else path.resolve().name
        try:
            found.append(_read(path, name, doubts))
        except DataError as error:
            doubts.append(f"{error}; the run is left out")
    return found


def _run_folders(folder: Path, depth: int, seen: set[Path]) -> Iterator[Path]:
    """Folders with config.yaml and checkpoints/ or scores.json, each once, not searched further."""
    if folder.resolve() in seen:
        return
    seen.add(folder.resolve())
    if (folder / CONFIG).exists() and (
        (folder / CHECKPOINTS).is_dir() or (folder / score_log.NAME).exists()
    ):
        yield folder
    elif depth:
        try:
            below = [
                Path(entry)
                for entry in os.scandir(folder)
                if entry.is_dir() and not entry.name.startswith(".")
            ]
        except PermissionError:
            return
        for path in below:
            yield from _run_folders(path, depth - 1, seen)


def _read(folder: Path, name: str, doubts: list[str]) -> Run:
    """Read a run. Raises DataError when its config cannot be read; damaged scores are a doubt, and then none."""
    path = folder / CONFIG
    try:
        config = yaml.load(
            path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no valid YAML"
        raise DataError(f"{path} cannot be read: {reason}") from None
    if not isinstance(config, dict):
        raise DataError(f"{path} cannot be read: it is no mapping of sections")
    try:
        found = score_log.read(folder)
    except FusetkError as error:
        doubts.append(str(error))
        found = []
    updates, data = progress(folder)
    if found and updates is None:  # kept without its checkpoints
        updates = max((note.updates for note in found if note.updates is not None), default=None)
    if found and data is None:
        data = found[-1].data
    return Run(folder, name, config, found, updates, data)


# Scores --------------------------------------------------------------------------------------------------------------


def columns(runs: Iterable[Run], sets: Sequence[str] = ()) -> list[Column]:
    """All that is noted: ``sets`` first and in their order, best before other checkpoints, metrics as in ``METRICS``."""
    found = {Column(*note.key) for run in runs for note in run.notes}
    metrics = list(METRICS)

    def place(column: Column) -> tuple[Any, ...]:
        set_name, checkpoint, metric = column
        ranks = (
            sets.index(set_name) if set_name in sets else len(sets),
            metrics.index(metric) if metric in metrics else len(metrics),
        )
        return ranks[0], set_name, checkpoint != "best", checkpoint, ranks[1], metric

    return sorted(found, key=place)


def note_of(run: Run, column: Column) -> Note | None:
    """The run's note for a column."""
    return next((note for note in run.notes if note.key == column), None)


def mean(runs: Iterable[Run], column: Column) -> Mean | None:
    """Mean and sample standard deviation over the runs that have a score; None when none has."""
    values = [note.value for run in runs if (note := note_of(run, column))]
    if not values:
        return None
    return Mean(
        statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values)
    )


# Remarks -------------------------------------------------------------------------------------------------------------


def named(runs: Sequence[Run]) -> str:
    """The names of some runs, the first few of many."""
    names = ", ".join(run.name for run in runs[:NAMED])
    return names + (f" and {len(runs) - NAMED} more" if len(runs) > NAMED else "")


def differ(what: str, values: Iterable[tuple[Run, str | None]]) -> Iterator[str]:
    """A sentence where runs do not all have the same value; of many that agree, it says how many they are."""
    groups: dict[str | None, dict[Path, Run]] = {}
    for run, value in values:
        groups.setdefault(value, {})[run.folder] = run
    if len(groups) > 1:
        first, *others = sorted(
            ((value, list(found.values())) for value, found in groups.items()),
            key=lambda group: -len(group[1]),
        )
        usual = f"{len(first[1])} runs" if len(first[1]) > 1 else named(first[1])
        rest = "; ".join(f"{value or 'unknown'} ({named(runs)})" for value, runs in others)
        yield f"the runs differ in {what}: {first[0] or 'unknown'} ({usual}); {rest}"


def updates(run: Run) -> str | None:
    """Updates trained, to be read."""
    return f"{run.updates:,}" if run.updates is not None else None


def remarks(runs: Sequence[Run], columns: Sequence[Column]) -> list[str]:
    """Why the runs of one table, or their scores in these columns, should not be compared as if they were alike."""
    shown = [(run, note) for run in runs for column in columns if (note := note_of(run, column))]
    scored = list({run.folder: run for run, _ in shown}.values())
    found = [
        *differ("updates trained", [(run, updates(run)) for run in scored]),
        *differ(
            "training.precision", [(run, run.setting("training", "precision")) for run in scored]
        ),
        *differ("the data trained on", [(run, run.data and run.data[:8]) for run in scored]),
    ]
    for name, metric in dict.fromkeys((column.set_name, column.metric) for column in columns):
        mine = [
            (run, note) for run, note in shown if (note.set_name, note.metric) == (name, metric)
        ]
        found += differ(
            f"the references of {name}", [(run, note.references[:8]) for run, note in mine]
        )
        found += differ(
            f"how {metric} of {name} was counted", [(run, note.signature) for run, note in mine]
        )
    older = list({run.folder: run for run, note in shown if _older(note, run)}.values())
    return [
        *found,
        *([f"trained on after a score was noted: {named(older)}"] if older else []),
        *(f"the same row and seed: {named(twins)}" for twins in _twins(scored)),
    ]


def _older(note: Note, run: Run) -> bool:
    return note.updates is not None and run.updates is not None and note.updates < run.updates


def _twins(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Runs of one row with one seed, which are no sample of seeds."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault(
            (str(run.setting("paper", "row")), str(run.setting("training", "seed"))), []
        ).append(run)
    return (group for group in groups.values() if len(group) > 1)
