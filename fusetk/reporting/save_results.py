"""Saving the results of run folders as result files; see ``result_files``."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fusetk.data.text import cannot_write, read_lines
from fusetk.errors import ConfigError, DataError, FusetkError, quantity
from fusetk.evaluation.metrics import is_outside_metric
from fusetk.files import locked, write_if_changed
from fusetk.reporting import score_log
from fusetk.reporting.cost import finite_value, read_cost
from fusetk.reporting.deviations import (
    SECTIONS,
    config_overrides,
    without_folders,
)
from fusetk.reporting.layer_weights import layer_weights
from fusetk.reporting.parameters import count_parameters, vocabulary_sizes_of
from fusetk.reporting.rename_results import file_stem, rename_results, row_fields
from fusetk.reporting.result_files import (
    Columns,
    Curve,
    RunResult,
    SavedScore,
    SavedTraining,
    columns_bytes,
    read_columns,
    read_result,
    result_text,
    text_kind,
    texts_path,
    translations_path,
)
from fusetk.reporting.runs import MeasuredRun, is_outdated
from fusetk.reporting.score_log import ScoreRecord
from fusetk.reporting.tables import PaperRow
from fusetk.runs import (
    CONFIG,
    TEXT,
    is_finite_number,
    read_metrics,
    read_sessions,
    references_folder,
)

# Columns of the curves, and the significant digits that are kept.
TRAIN_CURVE = ("update", "epoch", "loss", "lr", "grad_norm")
VALID_CURVE = ("update", "epoch", "loss", "ppl", "accuracy", "bleu")
DIGITS = 6


class SaveReport(NamedTuple):
    """The files that ``save_results`` wrote or renamed, and the runs that it left out."""

    written: list[Path]
    unchanged: list[Path]
    renamed: list[tuple[Path, Path]]
    left_out: list[tuple[Path, str]]  # run folders, and the reasons
    notes: list[str]


class RunContents(NamedTuple):
    """The result of a run with its texts by test set."""

    result: RunResult
    translations: dict[str, Columns]
    texts: dict[str, Columns]


def save_results(folder: Path, rows: Sequence[PaperRow]) -> SaveReport:
    """Write a result file for each scored run of the rows, with its translations.

    Scores that are older than the last updates of a run are left out. Result files of the same rows
    that are in the folder already get the name that belongs to the current recipes. Nothing is
    rewritten if nothing changed. Raises ConfigError if two recipes have the same file name,
    DataError if two runs have the same system, seed and config, if a file in the folder is damaged
    or missing, or if a file cannot be written.
    """
    systems = _systems(rows)
    report = SaveReport([], [], [], [], [])
    saved: dict[str, tuple[MeasuredRun, RunContents]] = {}
    for row, run in _runs_to_save(rows):
        reason = _missing(run)
        if reason:
            report.left_out.append((run.folder, reason))
            continue
        run = run._replace(records=[r for r in run.records if not is_outdated(r, run)])
        contents = _saved_run(run, row, report.notes)
        stem = file_stem(contents.result, row)
        if stem in saved:
            raise DataError(
                f"{saved[stem][0].folder} and {run.folder} have the same system, seed and config: "
                "save one of them"
            )
        saved[stem] = run, contents
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            report.renamed.extend(rename_results(folder, systems))
        # Now each file of an earlier save has the name of its config. The folder is not locked,
        # because the weights of many models take minutes.
        weighted = {
            stem: _with_layer_weights(contents, run, folder / f"{stem}.json", report.notes)
            for stem, (run, contents) in saved.items()
        }
        with locked(folder):
            for stem, contents in weighted.items():
                _write(folder, stem, contents, report)
    except OSError as error:
        raise cannot_write(error.filename or folder, error) from None
    return report


def _systems(rows: Sequence[PaperRow]) -> dict[str, PaperRow]:
    """Return the rows with recipes by the file names of the recipes."""
    systems: dict[str, PaperRow] = {}
    for row in rows:
        if row.path is None:
            continue
        other = systems.setdefault(row.path.stem, row)
        if other is not row:
            raise ConfigError(
                f"{other.path} and {row.path} have the same file name, so their results would have "
                "the same names: save them in two folders"
            )
    return systems


def _runs_to_save(rows: Sequence[PaperRow]) -> Iterator[tuple[PaperRow, MeasuredRun]]:
    """Yield each run once: with the row that it names, or else with the first row of its config."""
    owners: dict[Path, tuple[PaperRow, MeasuredRun]] = {}
    for row in rows:
        for run in row.runs:
            named = (run.setting("paper", "table"), run.setting("paper", "row")) == row.key
            if named or run.folder not in owners:
                owners[run.folder] = row, run
    yield from owners.values()


def _missing(run: MeasuredRun) -> str | None:
    """Return the reason why a run has no complete result; None if it has one."""
    for section in SECTIONS:
        if not isinstance(run.setting(section), dict):
            return f"its config has no section {section}"
    scores = run.test_scores
    if not scores:
        return "it has no score of a test set"
    if all(is_outdated(record, run) for record in scores):
        return "it was trained further after it was scored"
    return None


# The contents of a run folder ---------------------------------------------------------------------


def _saved_run(run: MeasuredRun, row: PaperRow, notes: list[str]) -> RunContents:
    assert row.path is not None
    translations = _translations(run)
    texts: dict[str, Columns] = {}
    for name in list(translations):
        try:
            columns = _texts(run, name)
            _check_lines(translations[name], columns)
            texts[name] = columns
        except FusetkError as error:
            notes.append(f"{run.folder}: the translations of {name} are not saved, because {error}")
            del translations[name]
    result = RunResult(
        system=row.path.stem,
        **row_fields(row),
        seed=int(run.setting("training", "seed") or 0),
        overrides=config_overrides(run.config, row.config),
        training=_training(run),
        scores=[
            SavedScore(**{name: getattr(record, name) for name in SavedScore.model_fields})
            for record in run.records
        ],
        translations={name: list(columns) for name, columns in translations.items()},
        texts={name: _checksum(columns) for name, columns in texts.items()},
        layer_weights=[],
        train_curve=_curve(run.folder, "train", TRAIN_CURVE),
        valid_curve=_curve(run.folder, "valid", _valid_curve_names(run)),
        config=without_folders(run.config),
    )
    return RunContents(result, translations, texts)


def _with_layer_weights(
    saved: RunContents, run: MeasuredRun, path: Path, notes: list[str]
) -> RunContents:
    """Return the contents with the layer weights of the model.

    They are those of the file ``path``, if it has them for the same checkpoint.
    """
    known = read_result(path).layer_weights if path.is_file() else []
    sets = [record.set_name for record in run.test_scores]
    source, target = (
        _text_file(run, sets[0], str(run.setting("data", side)), "txt")
        for side in ("source", "target")
    )
    try:
        weights = layer_weights(run.folder, source, target, known)
    except FusetkError as error:
        notes.append(f"{run.folder}: the layer weights are not saved, because {error}")
        weights = known
    return saved._replace(result=saved.result.model_copy(update={"layer_weights": weights}))


def _text_file(run: MeasuredRun, set_name: str, language: str, kind: str) -> Path:
    """Return a text of a test set in the prepared folder of a run."""
    return Path(str(run.setting("data", "folder"))) / f"test.{set_name}.{language}.{kind}"


def _training(run: MeasuredRun) -> SavedTraining:
    memory = 0
    best: int | None = None
    epochs: float | None = None
    validation_seconds = 0.0
    for record in read_metrics(run.folder):
        epoch = finite_value(record, "epoch")
        epochs = epochs if epoch is None else epoch
        memory = max(memory, int(finite_value(record, "memory") or 0))
        if record["kind"] == "valid":
            validation_seconds += finite_value(record, "seconds") or 0.0
            best = int(record["update"]) if record.get("best") else best
    cost = read_cost(run.folder)
    update_seconds = cost.hours * 3600 - validation_seconds if cost.hours is not None else None
    return SavedTraining(
        parameters=_parameters(run),
        updates=run.updates,
        epochs=epochs,
        best_update=best,
        update_seconds=rounded(update_seconds),
        validation_seconds=rounded(validation_seconds),
        tokens_per_second=rounded(cost.tokens_per_second),
        peak_memory=memory or None,
        data=run.data,
        sessions=read_sessions(run.folder),
    )


def _parameters(run: MeasuredRun) -> int | None:
    """Return the number of parameters of the run's model; None if it cannot be built any more."""
    from fusetk import recipe

    try:
        loaded = recipe.load(run.folder / CONFIG)
        return sum(count_parameters(loaded, vocabulary_sizes_of(run.folder / TEXT)).values())
    except FusetkError:
        return None


def _valid_curve_names(run: MeasuredRun) -> list[str]:
    """Return VALID_CURVE, and the metric that chooses the best checkpoint."""
    metric = run.setting("training", "validation", "metric")
    return [*VALID_CURVE, *({metric} - {None, *VALID_CURVE})]


def _curve(run: Path, kind: str, names: Sequence[str]) -> Curve:
    """Return the columns of a kind of metrics, without those that have no number."""
    records: dict[float, dict[str, Any]] = {}
    for record in read_metrics(run):
        if record["kind"] == kind:
            records[record["update"]] = record  # a repeated update replaces it
    ordered = [records[update] for update in sorted(records)]
    columns = {name: [rounded(record.get(name)) for record in ordered] for name in names}
    return {name: column for name, column in columns.items() if any(v is not None for v in column)}


def rounded(value: Any) -> int | float | None:
    """Return a number with ``DIGITS`` significant digits, as an int if it is one.

    Return None for a value that is not a finite number.
    """
    if not is_finite_number(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def _testable(records: Iterable[ScoreRecord]) -> Iterator[ScoreRecord]:
    """Yield the records whose texts a report reads: those of metrics in fusetk."""
    return (record for record in records if not is_outside_metric(record.metric))


def _translations(run: MeasuredRun) -> dict[str, Columns]:
    """Return the scored translations of each test set that are in the run folder.

    `fusetk run` writes them as SET.CHECKPOINT.txt and .raw.
    """
    translations: dict[str, Columns] = {}
    for record in _testable(run.records):
        name = f"{record.checkpoint}.{text_kind(record.metric)}"
        path = run.folder / f"{record.set_name}.{name}"
        columns = translations.setdefault(record.set_name, {})
        if name not in columns and path.is_file():
            columns[name] = list(read_lines(path))
    return {name: columns for name, columns in translations.items() if columns}


def _check_lines(translations: Columns, texts: Columns) -> None:
    """Raise DataError if translations do not have a line for each line of their source."""
    expected = len(texts["source.raw"])
    for name, lines in translations.items():
        if len(lines) != expected:
            raise DataError(
                f"{name} has {quantity(len(lines), 'line')}, and the source has {expected:,}"
            )


def _texts(run: MeasuredRun, set_name: str) -> Columns:
    """Return the sources and the references of a test set, from the prepared folder of the run.

    Raises DataError if they are missing or are not those of the scores.
    """
    source, target = str(run.setting("data", "source")), str(run.setting("data", "target"))
    # `fusetk run` writes further references beside the run folders.
    prepared = Path(str(run.setting("data", "folder")))
    folder = references_folder(run.folder.parent, prepared) / set_name
    texts = {"source.raw": list(read_lines(_text_file(run, set_name, source, "raw")))}
    expected = {
        (text_kind(record.metric), record.references)
        for record in _testable(run.records)
        if record.set_name == set_name
    }
    for kind, checksum in sorted(expected):
        first = _text_file(run, set_name, target, kind)
        for paths in ([first], [first, *sorted(folder.glob(f"*.{kind}"))]):
            references = [list(read_lines(path)) for path in paths]
            if score_log.fingerprint(references) == checksum:
                names = [f"reference{i}.{kind}" for i in range(1, len(paths) + 1)]
                texts.update(zip(names, references, strict=True))
                break
        else:
            raise DataError(f"{first} is not the reference of the scores: score the run again")
    return texts


def _checksum(columns: Columns) -> str:
    return hashlib.sha256(json.dumps(columns, ensure_ascii=False).encode()).hexdigest()[:16]


# Writing ------------------------------------------------------------------------------------------


def _write(folder: Path, stem: str, saved: RunContents, report: SaveReport) -> None:
    changed = False
    for name, columns in saved.texts.items():
        path = texts_path(folder, name, saved.result.texts[name])
        changed |= _write_columns(path, columns)
    for name, columns in saved.translations.items():
        changed |= _write_columns(translations_path(folder, stem, name), columns)
    path = folder / f"{stem}.json"
    changed |= write_if_changed(path, result_text(saved.result).encode())
    (report.written if changed else report.unchanged).append(path)


def _write_columns(path: Path, columns: Columns) -> bool:
    """Write texts unless the file has them; return whether it was written."""
    try:
        if read_columns(path) == columns:
            return False
    except DataError:
        pass  # missing or damaged: it is written again
    return write_if_changed(path, columns_bytes(columns))
