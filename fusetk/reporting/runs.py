"""Run folders for reports: search, mean scores over seeds, and comparability warnings."""

import hashlib
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fusetk.errors import DataError, FusetkError, first_names
from fusetk.evaluation.metrics import METRICS
from fusetk.papers import AVERAGE
from fusetk.reporting import score_log
from fusetk.reporting.cost import Cost, read_cost, validation_bleu
from fusetk.reporting.score_log import ScoreRecord
from fusetk.runs import CHECKPOINTS, CONFIG, check_metrics, updates_and_data

DEPTH = 5  # levels of folders that are searched below the start
MAX_RUNS = 3  # runs that a warning names
VALID = "valid"  # test set name of the BLEU of the best validation


class MeasuredRun(NamedTuple):
    """The config, the scores and the progress of a run folder."""

    folder: Path
    name: str  # the path below the searched folder
    config: Mapping[str, Any]
    records: Sequence[ScoreRecord]
    updates: int | None  # number of training updates
    data: str | None  # fingerprint of the training data
    cost: Cost

    def setting(self, *keys: str) -> Any:
        """Return a value of the config, None if a key is missing."""
        value: Any = self.config
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    @property
    def test_scores(self) -> list[ScoreRecord]:
        """The scores of test sets, without the BLEU of the best validation."""
        return [record for record in self.records if record.set_name != VALID]

    def record(self, column: "ScoreColumn") -> ScoreRecord | None:
        """Return the score of a column, None if the run has no such score."""
        return next((record for record in self.records if record.key == column), None)

    def with_average(self, sets: Sequence[str]) -> "MeasuredRun":
        """Return the run with the mean over ``sets`` for each checkpoint and metric.

        There is no mean if a set has no score, or if the run has a score of this name already.
        """
        by_key = {record.key: record for record in self.records}
        averages = []
        for checkpoint, metric in dict.fromkeys(record.key[1:] for record in self.records):
            parts = [by_key.get((name, checkpoint, metric)) for name in sets]
            records = [record for record in parts if record]
            if len(records) == len(sets) and (AVERAGE, checkpoint, metric) not in by_key:
                averages.append(_average(records))
        return self._replace(records=[*self.records, *averages])


class ScoreColumn(NamedTuple):
    """The key of scores that are comparable: a column of a table."""

    set_name: str
    checkpoint: str
    metric: str


def _average(records: Sequence[ScoreRecord]) -> ScoreRecord:
    """Return the unweighted mean of scores of several test sets, as papers average."""
    updates = [record.updates for record in records if record.updates is not None]
    references = "".join(record.references for record in records)
    return records[0]._replace(
        set_name=AVERAGE,
        value=statistics.fmean(record.value for record in records),
        details=f"mean of {', '.join(record.set_name for record in records)}",
        sentences=sum(record.sentences for record in records),
        references=hashlib.sha256(references.encode()).hexdigest(),
        updates=min(updates, default=None),
    )


class MeanScore(NamedTuple):
    """The mean of a score over runs."""

    value: float
    deviation: float | None  # sample standard deviation; None for one run
    runs: int

    def __str__(self) -> str:
        spread = f" ±{self.deviation:.2f}" if self.deviation is not None else ""
        return f"{self.value:.2f}{spread} ({self.runs})"

    def as_dict(self) -> dict[str, float | None]:
        """Return the mean for JSON."""
        return {"mean": self.value, "deviation": self.deviation, "runs": self.runs}


# Search and reading -------------------------------------------------------------------------------


def collect_runs(folder: Path) -> tuple[list[MeasuredRun], list[str]]:
    """Return the runs in a folder, which may be a run itself, and a warning for each problem."""
    runs = []
    warnings: list[str] = []
    for path in sorted(_run_folders(folder, DEPTH, set())):
        name = str(path.relative_to(folder)) if path != folder else path.resolve().name
        try:
            runs.append(_read_run(path, name, warnings))
        except DataError as error:
            warnings.append(f"{error}; the run is omitted")
    return runs, warnings


def is_run_folder(folder: Path) -> bool:
    """Whether a folder has a config, and checkpoints or scores."""
    has_results = (folder / CHECKPOINTS).is_dir() or (folder / score_log.NAME).exists()
    return has_results and (folder / CONFIG).exists()


def _run_folders(folder: Path, depth: int, visited: set[Path]) -> Iterator[Path]:
    """Yield each run folder; do not search inside it."""
    if folder.resolve() in visited:
        return
    visited.add(folder.resolve())
    if is_run_folder(folder):
        yield folder
        return
    if not depth:
        return
    try:
        entries = list(os.scandir(folder))
    except PermissionError:
        return
    for entry in entries:
        if entry.is_dir() and not entry.name.startswith("."):
            yield from _run_folders(Path(entry), depth - 1, visited)


def _read_run(folder: Path, name: str, warnings: list[str]) -> MeasuredRun:
    """Read a run; add a warning and ignore its scores if they are damaged.

    Raises DataError if the config cannot be read, or if it or the metrics are damaged.
    """
    config = _read_config(folder / CONFIG)
    if warning := check_metrics(folder):
        warnings.append(warning)
    records: list[ScoreRecord] = []
    try:
        records = score_log.read(folder)
    except FusetkError as error:
        warnings.append(str(error))
    updates, data = updates_and_data(folder)
    if records and updates is None:  # the checkpoints were removed
        recorded = [record.updates for record in records if record.updates is not None]
        updates = max(recorded, default=None)
    if records and data is None:
        data = records[-1].data
    run = MeasuredRun(folder, name, config, records, updates, data, read_cost(folder))
    bleu = validation_bleu(folder)
    if bleu is not None and isinstance(run.setting("paper", "metric"), str):
        details = "in training"
        metric = _validation_metric(run)
        record = ScoreRecord(VALID, "best", metric, bleu, details, details, 0, "", updates, data)
        if run.record(ScoreColumn(*record.key)) is None:  # the user may have recorded one
            run = run._replace(records=[*records, record])
    return run


def _validation_metric(run: MeasuredRun) -> str:
    """Return the name of the BLEU that training computes.

    It is multi-bleu. If preparation lowercases the target text, it is also the paper's
    multi-bleu-lc.
    """
    steps = run.setting("data", "steps")
    lowercased = isinstance(steps, list) and any(
        isinstance(step, Mapping)
        and step.get("step") == "lowercase"
        and step.get("side") in ("both", "target")
        for step in steps
    )
    metric: str = run.setting("paper", "metric")
    return metric if metric == "multi-bleu-lc" and lowercased else "multi-bleu"


def _read_config(path: Path) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        config = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not valid YAML"
        raise DataError(f"{path} cannot be read: {reason}") from None
    if not isinstance(config, dict):
        raise DataError(f"{path} cannot be read: it is not a mapping of sections")
    training = config.get("training")
    for key, kind in (("seed", int), ("precision", str)):
        value = training.get(key) if isinstance(training, dict) else None
        if value is not None and type(value) is not kind:
            raise DataError(
                f"{path} is damaged (training.{key} is {value!r}): restore or remove the run"
            )
    return config


# Scores -------------------------------------------------------------------------------------------


def score_columns(runs: Iterable[MeasuredRun], sets: Sequence[str]) -> list[ScoreColumn]:
    """Return the columns of all recorded scores.

    They are sorted by test set in the order of ``sets``, then by checkpoint with ``best`` first,
    then by metric in the order of ``METRICS``.
    """
    metrics = list(METRICS)

    def order(column: ScoreColumn) -> tuple[Any, ...]:
        set_name, checkpoint, metric = column
        set_rank = sets.index(set_name) if set_name in sets else len(sets)
        metric_rank = metrics.index(metric) if metric in metrics else len(metrics)
        return set_rank, set_name, checkpoint != "best", checkpoint, metric_rank, metric

    columns = {ScoreColumn(*record.key) for run in runs for record in run.records}
    return sorted(columns, key=order)


def chosen_columns(
    columns: Sequence[ScoreColumn], choices: Mapping[str, Sequence[str]]
) -> list[ScoreColumn]:
    """Return the columns with the chosen names.

    ``choices`` has the names for each option, in the order of the fields of ``ScoreColumn``; no
    names choose all. Raises DataError if no column has a chosen name.
    """
    for i, (option, names) in enumerate(choices.items()):
        known = dict.fromkeys(column[i] for column in columns)
        for name in names:
            if name not in known:
                raise DataError(
                    f"{option} {name}: there is no such score; choose from {', '.join(known)}"
                )
        columns = [column for column in columns if not names or column[i] in names]
    return list(columns)


def mean_of(values: Iterable[float | None]) -> MeanScore | None:
    """Return mean and sample standard deviation of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    deviation = statistics.stdev(known) if len(known) > 1 else None
    return MeanScore(statistics.fmean(known), deviation, len(known))


# Warnings -----------------------------------------------------------------------------------------


def run_names(runs: Sequence[MeasuredRun]) -> str:
    """Return the names of the first runs, and the number of the others."""
    return first_names([run.name for run in runs], MAX_RUNS)


def format_updates(run: MeasuredRun) -> str | None:
    """Return the number of training updates with separators, None if it is unknown."""
    return f"{run.updates:,}" if run.updates is not None else None


def comparability_warnings(scored: Sequence[tuple[MeasuredRun, ScoreRecord]]) -> list[str]:
    """Return the reasons why scores of runs are not comparable with each other."""
    unique = unique_runs(run for run, _ in scored)
    precisions = [(run, run.setting("training", "precision")) for run in unique]
    warnings = [
        *_differences("updates trained", [(run, format_updates(run)) for run in unique]),
        *_differences("training.precision", precisions),
        *_differences("training data", [(run, run.data and run.data[:8]) for run in unique]),
    ]
    for name, metric in dict.fromkeys((record.set_name, record.metric) for _, record in scored):
        records = [
            (run, record)
            for run, record in scored
            if (record.set_name, record.metric) == (name, metric)
        ]
        references = [(run, record.references[:8]) for run, record in records]
        signatures = [(run, record.signature) for run, record in records]
        warnings += _differences(f"the references of {name}", references)
        warnings += _differences(f"the signature of {metric} on {name}", signatures)
    outdated = unique_runs(run for run, record in scored if is_outdated(record, run))
    if outdated:
        warnings.append(f"trained further after a score was recorded: {run_names(outdated)}")
    return warnings


def unique_runs(runs: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    return list({run.folder: run for run in runs}.values())


def _differences(quantity: str, values: Iterable[tuple[MeasuredRun, str | None]]) -> list[str]:
    """Return a sentence if runs differ in a value; a run may have several values."""
    names = {(run.folder, value): run.name for run, value in values}
    pairs = [(name, value) for (_, value), name in names.items()]
    return difference_sentence(quantity, pairs, MAX_RUNS)


def difference_sentence(
    quantity: str, values: Iterable[tuple[str, str | None]], most: int | None = None
) -> list[str]:
    """Return a sentence if runs differ in a value; the most frequent value comes first.

    ``values`` has the name and the value of each run. ``most`` limits how many names are given for
    a value.
    """
    names: dict[str, list[str]] = {}
    for name, value in values:
        names.setdefault(value or "unknown", []).append(name)
    if len(names) < 2:
        return []
    (value, usual), *others = sorted(names.items(), key=lambda group: -len(group[1]))
    count = f"{len(usual)} runs" if len(usual) > 1 else usual[0]
    rest = "; ".join(f"{other} ({first_names(members, most)})" for other, members in others)
    return [f"the runs differ in {quantity}: {value} ({count}); {rest}"]


def is_outdated(record: ScoreRecord, run: MeasuredRun) -> bool:
    """Whether the run was trained further after the record."""
    if record.updates is None or run.updates is None:
        return False
    return record.updates < run.updates


def equal_seeds(runs: Iterable[MeasuredRun]) -> list[list[MeasuredRun]]:
    """Return runs of one row with the same seed, which do not show the deviation over seeds."""
    groups: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        groups.setdefault(str(run.setting("training", "seed")), []).append(run)
    return [group for group in groups.values() if len(group) > 1]
