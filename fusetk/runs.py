"""Run folders: the names of their files, their checkpoints and metrics, and their lock.

This module does not import torch.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from fusetk.errors import CheckpointError, ConfigError, DataError, UnreadableFile
from fusetk.files import checksum, code_checksums, digest, replace_file, similar_names, try_lock

CONFIG = "config.yaml"
TEXT = "text"
MACHINE = "machine.json"
CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
# Quantities in METRICS that have a better direction.
LOWER_IS_BETTER = {"loss", "smoothed", "ppl"}
HIGHER_IS_BETTER = {"accuracy", "bleu"}
# Quantities in METRICS that are numbers, or null if they are not finite.
QUANTITIES = {"epoch", "lr", "grad_norm", "tokens", "tokens_per_second", "memory", "seconds"}
QUANTITIES |= LOWER_IS_BETTER | HIGHER_IS_BETTER
OTHER_PARTS = "other parts"  # group of the parts in `grad_norms` that are not layers
LOG = "log.txt"
SESSIONS = "sessions.jsonl"
# Empty file in a run folder until the first session is recorded.
STARTING = ".starting"
# Empty file that a training locks if the file system, such as NFS, cannot lock the run folder.
LOCK = ".lock"

FORMAT = 1
STATE = "state.json"
MODEL = "model.safetensors"
TRAINING = "training.safetensors"
EMA = "ema.safetensors"


def run_and_checkpoint(path: Path) -> tuple[Path, str]:
    """Return the run folder of a path and the name of its checkpoint.

    The path is a run folder or a checkpoint in a run folder. The checkpoint of a run folder is
    ``best``, or ``last`` if there is no ``best``. Its name is empty if there is neither.
    Raises CheckpointError if the path is neither a run nor a checkpoint.
    """
    if not (path / CONFIG).exists():
        is_checkpoint = path.is_dir() and path.absolute().parent.name == CHECKPOINTS
        if (path / STATE).exists() or is_checkpoint:
            for folder in (path.absolute(), path.resolve()):
                if (folder.parent.parent / CONFIG).exists():
                    return folder.parent.parent, path.absolute().name
            raise CheckpointError(
                f"{path} is a checkpoint, but there is no {CONFIG} two folders above it: "
                "keep it in its run folder"
            )
        reason = "there is no such folder"
        if path.exists():
            reason = f"it has no {CONFIG}" if path.is_dir() else "it is a file"
        hint = _similar_run(path) or "; give the folder of a training (fusetk train --run)"
        raise CheckpointError(f"{path} is not a run folder: {reason}{hint}")
    names = [
        name
        for name in ("best", "last")
        if (path / CHECKPOINTS / name).is_symlink() or (path / CHECKPOINTS / name).exists()
    ]
    return path, names[0] if names else ""


def _similar_run(path: Path) -> str:
    """Return a hint: runs inside this folder, or a run around it, or runs with similar names."""
    inside = [folder.parent for folder in (path, *path.parents) if folder.name == CHECKPOINTS]
    runs = [folder for folder in inside if (folder / CONFIG).exists()]
    runs = runs or sorted(file.parent for file in path.glob(f"*/{CONFIG}"))
    if not runs:
        beside = [path.with_name(name) for name in similar_names(path)]
        runs = [folder for folder in beside if (folder / CONFIG).exists()]
    return f"; did you mean {' or '.join(map(str, runs[:3]))}?" if runs else ""


def find_checkpoint(path: Path) -> tuple[Path, Path]:
    """Return the run folder and the checkpoint folder of a path.

    The path is a run folder or a checkpoint in a run folder. Raises CheckpointError if there is no
    checkpoint, or if ``best`` or ``last`` points to a missing checkpoint.
    """
    run, name = run_and_checkpoint(path)
    if path != run:
        return run, path
    folder = run / CHECKPOINTS / name
    if not name:
        raise CheckpointError(
            f"{run} has no checkpoints/best or checkpoints/last{_alternative(run)}"
        )
    if not folder.is_dir():
        raise CheckpointError(f"{folder} points to a checkpoint that is missing{_alternative(run)}")
    return run, folder


def _alternative(run: Path) -> str:
    """Return the advice to use the newest complete checkpoint of a run, if there is one."""
    if folder := newest_intact(run):
        return f"; use {folder}, the newest complete one"
    if not any((run / CHECKPOINTS).glob("*")):
        return ": wait for its first validation, or continue its training with fusetk train"
    return "; there is no other complete checkpoint: train again in a new run folder"


def checkpoint_name(update: int) -> str:
    """Return the folder name of the checkpoint after an update."""
    return f"update-{update:07d}"


def average_name(number: int) -> str:
    """Return the usual name of the mean of the last ``number`` checkpoints."""
    return f"average-{number}"


def num_averaged(name: str) -> int | None:
    """Return the number N of a checkpoint with the name average-N; None for another checkpoint."""
    match = re.fullmatch(r"average-([1-9]\d*)", name)
    return int(match[1]) if match else None


def references_folder(out: Path, prepared: Path) -> Path:
    """Return the folder below ``out`` for the further references of a prepared folder.

    `fusetk run` writes it.
    """
    return out / f"references{prepared.name.removeprefix('data')}"


def checkpoints(run: Path) -> list[Path]:
    """Return the checkpoint folders of a run, oldest first. Their content is not verified."""
    return checkpoints_in(run / CHECKPOINTS)


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoint folders in a folder, oldest first. Their content is not verified."""
    return [path for path in checkpoint_folders(folder) if (path / STATE).exists()]


def newest_intact(run: Path) -> Path | None:
    """Return the newest complete checkpoint of a run, or None."""
    return next((folder for folder in reversed(checkpoints(run)) if is_intact(folder)), None)


def checkpoint_folders(folder: Path) -> list[Path]:
    """Return the paths in a folder that have the name of a checkpoint, oldest first."""
    folders = [
        path for path in folder.glob("update-*") if path.name.removeprefix("update-").isdecimal()
    ]
    return sorted(folders, key=lambda path: (len(path.name), path.name))


def read_state(folder: Path) -> dict[str, Any]:
    """Read ``state.json`` of a checkpoint.

    Raises CheckpointError if it is missing, damaged or written by a newer fusetk, and
    UnreadableFile if the system cannot read it.
    """
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        version = state["format"]
        checksums = state["sha256"]
        unchanged = state.pop("digest") == digest(state)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"it is damaged, {type(error).__name__}: {error}"
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            reason = error.strerror or str(error)
        elif isinstance(error, OSError):
            raise unreadable(folder / STATE, error) from None
        raise CheckpointError(
            f"{folder} is not a complete checkpoint: {STATE} cannot be read ({reason})"
        ) from None
    if isinstance(version, int) and version > FORMAT:
        raise CheckpointError(
            f"{folder} was written by a newer fusetk "
            f"(format {version}, this one reads {FORMAT}): update fusetk"
        )
    if version != FORMAT or not isinstance(checksums, dict) or not unchanged:
        raise CheckpointError(
            f"{folder / STATE} is damaged: its content changed after it was written"
        )
    return dict(state)


def unreadable(path: Path, error: OSError) -> UnreadableFile:
    """Return the error for a file of a checkpoint that the system cannot read."""
    advice = "make it readable" if isinstance(error, PermissionError) else "check the disk"
    return UnreadableFile(f"{path} cannot be read: {error.strerror or error}: {advice}")


def read_state_if_valid(folder: Path) -> dict[str, Any]:
    """Read ``state.json`` of a checkpoint, or return an empty dict if it cannot be read."""
    try:
        return read_state(folder)
    except CheckpointError:
        return {}


def is_intact(folder: Path) -> bool:
    """Whether a checkpoint can be read and is complete; see ``is_complete``."""
    with suppress(UnreadableFile):
        return is_complete(folder)
    return False


def is_complete(folder: Path) -> bool:
    """Whether every file of a checkpoint has the checksum that was recorded when it was written.

    Raises UnreadableFile if the system cannot read a file, which may be intact.
    """
    try:
        expected = read_state(folder)["sha256"]
    except UnreadableFile:
        raise
    except CheckpointError:
        return False
    files = [file for file in (MODEL, TRAINING, EMA) if file in expected]
    return MODEL in files and all(
        _checksum_or_none(folder / file) == expected[file] for file in files
    )


def _checksum_or_none(path: Path) -> str | None:
    """Return the checksum of a file; None if there is none. Raises UnreadableFile."""
    try:
        return checksum(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from None


def updates_and_data(run: Path) -> tuple[int | None, str | None]:
    """Return the number of updates of a run and the fingerprint of its data.

    A value is None if neither the checkpoints nor the metrics have it.
    """
    for folder in (run / CHECKPOINTS / "last", *reversed(checkpoints(run))):
        try:
            state = json.loads((folder / STATE).read_text(encoding="utf-8"))
            update = int(state["progress"]["update"])
            data = state.get("data")
        except (OSError, ValueError, OverflowError, KeyError, TypeError, RecursionError):
            continue
        return update, data if isinstance(data, str) else None
    updates = [record["update"] for record in read_metrics(run)]
    return (int(updates[-1]), None) if updates else (None, None)


def read_metrics(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of ``metrics.jsonl`` in order, as records, without damaged lines.

    A record has a ``kind`` and a finite ``update``, and each of its ``QUANTITIES`` is a number or
    None.
    """
    return (record for _, record in _numbered_metrics(run) if record is not None)


def check_metrics(run: Path) -> str | None:
    """Return a warning if the last line of ``metrics.jsonl`` is damaged, as after a kill.

    Raises DataError if another line is damaged.
    """
    path = run / METRICS
    numbers = [(number, record is None) for number, record in _numbered_metrics(run)]
    for number, damaged in numbers[:-1]:
        if damaged:
            raise DataError(
                f"{path}, line {number} is damaged: it is not a JSON object with kind, update and "
                "numbers; repair or remove the line"
            )
    if numbers and numbers[-1][1]:
        return (
            f"{path}: the last line ({numbers[-1][0]}) is damaged and was skipped; "
            "the run was killed while writing it"
        )
    return None


def _numbered_metrics(run: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield the number of each line of ``metrics.jsonl`` that is not blank, and its record."""
    try:
        lines = (run / METRICS).read_bytes().split(b"\n")
    except OSError:
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, parse_metrics(line)


def parse_metrics(line: bytes) -> dict[str, Any] | None:
    """Read one line of ``metrics.jsonl``; None if it is damaged."""
    try:
        record = json.loads(line)
        update = record["update"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    valid = (
        isinstance(record.get("kind"), str)
        and is_finite_number(update)
        and all(record[name] is None or _is_number(record[name]) for name in QUANTITIES & {*record})
    )
    return record if valid else None


def is_finite_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value is a number that is finite as a float, and not a truth value."""
    return _is_number(value) and abs(value) <= sys.float_info.max


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Session:
    """A start or a resumption of training, with the code and the machine that it used."""

    update: int  # updates before the session
    fusetk: str
    revision: str | None  # git revision of the code, None outside of a git checkout
    torch: str
    processor: str
    device: str
    threads: int
    processes: int
    module_checksums: dict[str, str] = field(default_factory=dict)
    """Checksums of the files of the modules outside fusetk that the config names, by module."""
    kernels: bool | None = None
    """Whether compiled kernels were available; None on a GPU and in sessions of older versions."""

    @property
    def code(self) -> str:
        """The version of fusetk, with its git revision."""
        return f"fusetk {self.fusetk}" + (f" ({self.revision})" if self.revision else "")

    @property
    def on_gpu(self) -> bool:
        return "CPU, " not in self.device


def changed_modules(run: Path, kinds: Iterable[str], update: int | None = None) -> list[str]:
    """Return the modules outside fusetk whose code changed since a session of a run.

    It is the session that made update number ``update``; by default, it is the last one.
    """
    sessions = [old for old in read_sessions(run) if update is None or old.update < update]
    before = sessions[-1].module_checksums if sessions else {}
    now = code_checksums(kinds)
    return [name for name in now if before.get(name, now[name]) != now[name]]


def read_sessions(run: Path) -> list[Session]:
    """Return the recorded sessions of a run, oldest first.

    Damaged lines, and runs of versions of fusetk that recorded no sessions, have none.
    """
    try:
        lines = (run / SESSIONS).read_bytes().splitlines()
    except OSError:
        return []
    sessions = []
    for line in lines:
        try:
            session = Session(**json.loads(line))
        except (ValueError, TypeError):
            continue
        if is_finite_number(session.update):
            sessions.append(session)
    return sessions


def add_session(run: Path, session: Session) -> None:
    """Record a session. Sessions that began at the same or a later update are removed.

    Their updates are repeated. Raises OSError if the file cannot be written.
    """
    sessions = [old for old in read_sessions(run) if old.update < session.update]
    lines = [json.dumps(asdict(each)) for each in (*sessions, session)]
    replace_file(run / SESSIONS, "".join(f"{line}\n" for line in lines))


def check_run_folder(run: Path) -> None:
    """Raise ConfigError if the folder has files and is not a run folder, or cannot be made."""
    if run.is_symlink() and not run.exists():
        raise ConfigError(
            f"{run} is a link to {os.readlink(run)}, which does not exist: make this folder, or "
            "choose another --run"
        )
    has_session = (run / SESSIONS).exists() or (run / STARTING).exists()
    if has_session or checkpoint_folders(run / CHECKPOINTS) or not run.is_dir():
        return
    foreign = sorted(path.name for path in run.iterdir() if not _may_precede_run(path))
    if foreign:
        raise ConfigError(
            f"{run} has files that no training wrote, such as {foreign[0]}: choose an empty or a "
            "new --run, or move the files"
        )


def _may_precede_run(path: Path) -> bool:
    """Whether a run folder may have the file before training.

    It may be hidden, a log, or an empty folder for checkpoints.
    """
    if path.name == CHECKPOINTS and path.is_dir():
        return not any(path.iterdir())
    return path.name.startswith(".") or path.name == LOG or path.suffix in (".out", ".err", ".log")


class RunLock:
    """Context in which, after ``take``, no other process trains in the run folder."""

    def __init__(self, run: Path):
        self.run = run
        self.descriptor: int | None = None

    def __enter__(self) -> "RunLock":
        return self

    def take(self) -> None:
        """Lock the folder if it exists. Raises ConfigError if another process holds the lock."""
        if self.descriptor is not None or not self.run.is_dir() or os.name != "posix":
            return
        self.descriptor = os.open(self.run, os.O_RDONLY)
        taken = try_lock(self.descriptor)
        if taken is None:
            with suppress(OSError):  # the first write of the training reports the same error
                file = os.open(self.run / LOCK, os.O_WRONLY | os.O_CREAT, 0o666)
                os.close(self.descriptor)
                self.descriptor = file
                taken = try_lock(file)
        if taken is False:
            raise ConfigError(
                f"another fusetk train is running in {self.run}: "
                "wait until it ends, or choose another --run"
            )

    def __exit__(self, *error: object) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
