"""Building of a prepared folder: each stage is reused or made again.

New files are written into a subfolder and moved into place at the end. If a build is interrupted,
the subfolder keeps its complete stages. The next build continues with those whose settings and
texts are the same, and deletes the others.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fusetk.data import manifest
from fusetk.data.manifest import Record, differences, same
from fusetk.data.parallel import Workers
from fusetk.data.text import FilePair, cannot_write
from fusetk.errors import DataError, join_names
from fusetk.files import digest, flush, lock, read_json, remove_temporary_files, replace_file

BUILDING = ".building"
RECORDS = ".stages.json"  # in ``BUILDING``: the records of its complete stages
# Names of the old and new outputs. The file exists while new outputs are moved into place. After a
# kill in this time, the next ``finish`` deletes the outputs that are not needed.
MOVING = ".moving.json"
LOCK = ".lock"
Results = dict[str, Any]


class Stage(NamedTuple):
    """One stage. It is out of date if its settings, its texts or a needed stage changed."""

    name: str
    settings: Mapping[str, Any]
    texts: list[FilePair]
    needs: list[str]  # names of earlier stages
    run: Callable[["Build"], Results]  # writes the outputs


class Build:
    """A build of a prepared folder: paths of the outputs, and a record of each stage."""

    def __init__(
        self,
        folder: Path,
        workers: Workers,
        report: Callable[[str], None],
        before: Callable[[], None],
        is_first: bool,
    ):
        """``before`` is called once before the first stage is made.

        ``is_first``: whether the folder has no stage of an earlier build.
        """
        self.folder = folder
        self.aside = folder / BUILDING
        self.workers = workers
        self.report = report
        self.before = before
        self.is_first = is_first
        self.lines = 0  # pairs of lines in the texts of the current stage
        # For each stage by name: its key, settings, inputs, needs, outputs and results.
        self.stages: dict[str, dict[str, Any]] = {}
        self.made: list[str] = []  # names of the stages that are not reused from the folder
        self.interrupted = _interrupted_stages(self.aside)  # records of complete stages
        self.shared: dict[str, Any] = {}  # objects that stages of this build share in memory

    def find(self, name: str) -> Path:
        """Return the path of an output of an earlier stage."""
        fresh = self.aside / name
        return fresh if fresh.exists() else self.folder / name

    def new(self, name: str) -> Path:
        """Return the path for a new output, and make its folder."""
        path = self.aside / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def remove_unusable(
        self, stages: Sequence[Stage], inputs: Mapping[str, Record], force: bool
    ) -> None:
        """Delete the outputs of an interrupted build that none of ``stages`` can use.

        Stages of other settings may have written files of the same names. With ``force``, all
        outputs are deleted.
        """
        states: dict[str, dict[str, Any]] = {}
        for stage in stages:
            states[stage.name] = describe(stage, inputs, states)
        for name, record in list(self.interrupted.items()):
            if force or name not in states or states[name]["key"] != record["key"]:
                self._remove(self.interrupted.pop(name))

    def run(
        self,
        stage: Stage,
        inputs: Mapping[str, Record],
        old: Mapping[str, Any] | None,
        force: bool = False,
    ) -> None:
        """Reuse the stage if its inputs are unchanged and its outputs exist; otherwise make it.

        ``old`` is the stage's record in the manifest of an earlier build. With ``force`` the stage
        is always made.
        """
        state = describe(stage, inputs, self.stages)
        if force and old:
            reasons = ["made again by --force"]
        else:
            reasons = reasons_to_make(self.folder, state, old, self.made)
        interrupted = self.interrupted.pop(stage.name, None)
        if old and not reasons:
            self._remove(interrupted)
            self.stages[stage.name] = {**old, "inputs": state["inputs"]}
            return
        if not self.made:
            self.aside.mkdir(exist_ok=True)
            self.before()
        if interrupted and self._is_unchanged(interrupted):
            self.report(f"{stage.name}: made before the interruption")
            self._add(stage.name, {**interrupted, "inputs": state["inputs"]})
            return
        self._remove(interrupted)
        if old is None and not self.is_first:
            reasons = ["made, because it is new"]
        for reason in reasons:
            self.report(f"{stage.name}: {reason}")
        existing = set(_names(self.aside))
        self.lines = sum(inputs[str(pair.source)]["lines"] for pair in stage.texts)
        results = stage.run(self)
        names = [name for name in _names(self.aside) if name not in existing]
        for name in names:
            flush(self.aside / name)
        outputs = {name: manifest.output_record(self.aside / name) for name in names}
        self._add(stage.name, {**state, "outputs": outputs, "results": results})

    def _add(self, name: str, record: dict[str, Any]) -> None:
        self.stages[name] = record
        self.made.append(name)
        records = {name: self.stages[name] for name in self.made} | self.interrupted
        document = {"format": manifest.FORMAT, "stages": records}
        replace_file(self.aside / RECORDS, json.dumps(document))

    def _is_unchanged(self, record: Mapping[str, Any]) -> bool:
        return all(same(self.find(name), output) for name, output in record["outputs"].items())

    def _remove(self, record: Mapping[str, Any] | None) -> None:
        """Remove the outputs of a stage of an interrupted build from ``aside``."""
        for name in record["outputs"] if record else ():
            _unlink(self.aside / name)

    def finish(self, description: Mapping[str, Any], old: Mapping[str, Any]) -> None:
        """Move the new files into place, and delete old files that are not needed.

        Before the move, the new manifest and ``MOVING`` are written, and the old manifest is
        deleted. After it, the new manifest is moved, and ``MOVING`` is deleted. If no stage was
        made, a folder that cannot be written keeps its manifest.
        """
        if not self.made and not os.access(self.folder, os.W_OK):
            return
        names = _names(self.aside)
        self.aside.mkdir(exist_ok=True)
        manifest.write(self.aside, description)
        outputs = _outputs(self.stages)
        # A killed build may have moved some of the outputs that MOVING names.
        existing = _outputs(old) | set(read_json(self.folder / MOVING) or ())
        replace_file(self.folder / MOVING, json.dumps(sorted({*existing, *names})))
        (self.folder / manifest.NAME).unlink(missing_ok=True)
        for name in existing - outputs:
            (self.folder / name).unlink(missing_ok=True)
        for name in names:
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.aside / name, target)
        os.replace(self.aside / manifest.NAME, self.folder / manifest.NAME)
        shutil.rmtree(self.aside, ignore_errors=True)
        (self.folder / MOVING).unlink(missing_ok=True)


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        if os.access(path.parent, os.W_OK):  # an up-to-date folder may be read-only
            raise


def _names(aside: Path) -> list[str]:
    """Return the names of all outputs in ``BUILDING``."""
    return sorted(
        path.relative_to(aside).as_posix()
        for path in aside.rglob("*")
        if path.is_file() and path != aside / RECORDS
    )


def _interrupted_stages(aside: Path) -> dict[str, dict[str, Any]]:
    """Return the records of the complete stages in ``BUILDING``, and remove all other files."""
    try:
        stages = manifest.checked_stages(read_json(aside / RECORDS))
    except ValueError:
        shutil.rmtree(aside, ignore_errors=True)
        return {}
    for name in set(_names(aside)) - _outputs(stages):
        _unlink(aside / name)
    return stages


def _outputs(stages: Mapping[str, Mapping[str, Any]]) -> set[str]:
    return {name for stage in stages.values() for name in stage["outputs"]}


def describe(
    stage: Stage, inputs: Mapping[str, Record], stages: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the record of a stage before it is made: key, settings, inputs and needs.

    The key is a checksum of the settings, the inputs and the keys of the needed stages.
    """
    files = {str(path): inputs[str(path)] for pair in stage.texts for path in pair}
    sums = [inputs[str(path)]["sha256"] for pair in stage.texts for path in pair]
    key = digest([stage.settings, sums, [stages[name]["key"] for name in stage.needs]])
    return {"key": key, "settings": dict(stage.settings), "inputs": files, "needs": stage.needs}


def reasons_to_make(
    folder: Path,
    state: Mapping[str, Any],
    old: Mapping[str, Any] | None,
    made_stages: Sequence[str],
) -> list[str]:
    """Return the reasons for making a stage again; none if it is up to date or was never made.

    ``made_stages`` lists the stages that this build has made.
    """
    if old is None:
        return []
    if old["key"] == state["key"]:
        return [
            f"{name} is missing or changed"
            for name, record in old["outputs"].items()
            if not same(folder / name, record)
        ]
    reasons = list(differences(old["settings"], state["settings"]))
    before = old["inputs"]
    now = state["inputs"]
    reasons += [f"{path} is new" for path in now if path not in before]
    reasons += [f"{path} is no longer read" for path in before if path not in now]
    reasons += [
        f"{path} changed"
        for path in now
        if path in before and now[path]["sha256"] != before[path]["sha256"]
    ]
    if reasons:
        return reasons
    changed = [name for name in state["needs"] if name in made_stages]
    return [f"follows from {join_names(changed)}" if changed else "its inputs changed"]


@contextmanager
def opened(folder: Path) -> Iterator[None]:
    """Make and lock the folder. After an error, delete the outputs of incomplete stages.

    Raises DataError if the folder has files of another origin, if another prep holds the lock, or
    if the folder cannot be written. A prepared folder that is up to date may be read-only.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        own = (folder / LOCK).exists() or manifest.is_of_prep(folder)
        if not own and (others := sorted(os.listdir(folder))):
            raise DataError(
                f"{folder} was not made by fusetk prep and holds {others[0]}: "
                "choose an empty or a new folder as data.folder"
            )
        descriptor = _open_lock(folder)
    except OSError as error:
        raise cannot_write(folder, error) from None
    try:
        if not lock(descriptor):
            raise DataError(
                f"another fusetk prep is running in {folder}; wait for it, or give another folder"
            )
        try:
            if os.access(folder, os.W_OK):  # an up-to-date folder may be read-only
                remove_temporary_files(folder, [manifest.NAME, MOVING])
            yield
            shutil.rmtree(folder / BUILDING, ignore_errors=True)
        except BrokenPipeError:  # from the reader of the report
            raise
        except OSError as error:
            raise cannot_write(error.filename or folder, error) from None
        finally:
            _interrupted_stages(folder / BUILDING)
    finally:
        os.close(descriptor)


def _open_lock(folder: Path) -> int:
    """Open the file that is locked: without writing if a prepared folder cannot be written."""
    path = folder / LOCK
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS) or not manifest.is_of_prep(folder):
            raise
        return os.open(path if path.exists() else folder, os.O_RDONLY)
