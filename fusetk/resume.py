"""Rules for resuming a training run: its last checkpoint, and the changes that are allowed."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusetk import recipe as recipes
from fusetk.config import outside_kinds
from fusetk.data import integrity, manifest
from fusetk.errors import WARNING, ConfigError, DataError
from fusetk.machine import ChosenWays, read_chosen_ways
from fusetk.recipe import NEUTRAL_KEYS, Recipe
from fusetk.runs import (
    CHECKPOINTS,
    CONFIG,
    MACHINE,
    STATE,
    Session,
    changed_modules,
    checkpoint_folders,
    checkpoints,
    is_complete,
    read_metrics,
    read_sessions,
)
from fusetk.training import checkpoint, schedule
from fusetk.training.progress import Progress, read_progress
from fusetk.training.validation_config import scores_translations
from fusetk.weights import read_state

# Patterns of keys that may change when a run is resumed. They do not affect the trained model.
CHANGEABLE_KEYS = (
    r"data\..*",  # paths; the prepared data are compared by fingerprint
    r"paper(\..*)?",
    *NEUTRAL_KEYS,
    r"training\.stages\.\d+\.end\..*",  # but see _ends_earlier_stage
)
START_FROM = r"training\.start_from"  # a resumed run does not read it
SEARCH_KEYS = r"decoding\..*"  # changeable unless translations select the best checkpoint
# Changeable unless validation affects a learning rate, or the start or end of a stage.
VALIDATION_KEYS = r"training\.validation\.every_(updates|epochs)"

# Effects of a change.
MAY_DIFFER = "the results of an update may differ by rounding"
OTHER_MASKS = "the dropout masks change"


def last_checkpoint(run: Path) -> Path | None:
    """Return the checkpoint to resume from, None if the run has none.

    It is the newest complete checkpoint that was written after the link ``last``, or else the
    target of this link. Without the link it is the newest complete checkpoint, or the newest one if
    none is complete. A copy of a run may have a folder instead of the link. Raises ConfigError if
    the checkpoints of a training were removed, and other files are left beside them, and
    UnreadableFile if the system cannot read a checkpoint that is newer than all complete ones or
    than the link.
    """
    checkpoint.recover(run)
    last = _newest_checkpoint(run)
    folder = run / CHECKPOINTS
    has_other_files = folder.is_dir() and any(path.name[0] != "." for path in folder.iterdir())
    if last is None and (has_other_files or _has_lost_checkpoints(run)):
        raise _no_checkpoint(run)
    return last


def _no_checkpoint(run: Path) -> ConfigError:
    return ConfigError(
        f"{run} was trained before, but {run / CHECKPOINTS} has no checkpoint update-* from which "
        "the training can continue: restore one, or choose another folder"
    )


def _has_lost_checkpoints(run: Path) -> bool:
    """Whether the run, which has no checkpoint, had one before."""
    sessions = read_sessions(run)
    if not sessions:
        return False
    # The folder is made before the first session. A later session continues from a checkpoint.
    if not (run / CHECKPOINTS).is_dir() or any(session.update for session in sessions):
        return True
    # Training saves a checkpoint after each validation. A kill may come between the two, so only a
    # record after the first validation proves that there was a checkpoint.
    records = list(read_metrics(run))
    validated = [record["update"] for record in records if record["kind"] == "valid"]
    return bool(validated) and records[-1]["update"] > validated[0]


def _newest_checkpoint(run: Path) -> Path | None:
    """Return the checkpoint of ``last_checkpoint``, without a repair of the run."""
    folder = run / CHECKPOINTS
    last = folder / "last"
    if last.is_symlink() and last.is_dir():
        return _newer_than_link(run, last) or last.resolve()
    for path in reversed(checkpoints(run)):
        # A checkpoint that cannot be read is an error. A training that continued from an older one
        # would delete it, and it may be intact.
        if is_complete(path):
            return path
    # A damaged checkpoint is an error of the caller, which must not start the training again.
    # A kill may have come between the two renames of a checkpoint that is written again.
    folders = checkpoint_folders(folder) or sorted(folder.glob(".update-*.old"))
    return folders[-1] if folders else None


def _newer_than_link(run: Path, link: Path) -> Path | None:
    """Return the newest complete checkpoint that was written later than the link, or None.

    After a checkpoint was written, a kill or a full disk may prevent the change of the link. A link
    that a user sets to an earlier checkpoint is newer than the checkpoints after it, except in a
    copy of the run without time stamps.
    """
    for path in reversed(checkpoints(run)):
        if path.name == link.resolve().name:
            break
        is_newer = (path / STATE).stat().st_mtime_ns > link.lstat().st_mtime_ns
        if is_newer and is_complete(path):
            return path
    return None


def check_config(recipe: Recipe, run: Path, option: str) -> None:
    """Raise ConfigError if the config of an existing run does not fit ``recipe``.

    Also raise ConfigError if prep would replace the prepared text of the run. The error names
    ``option``, which gives another place for the run. Another process may train in the run. Raises
    CheckpointError if the last checkpoint is damaged.
    """
    if last := _newest_checkpoint(run):
        _config_changes(recipe, run, last, option)
        _check_prepared_text(recipe, run, last, option)
    elif _has_lost_checkpoints(run):
        raise _no_checkpoint(run)


def check_before_prep(recipe: Recipe, run: Path, option: str = "--run") -> None:
    """Raise ConfigError if the run cannot be resumed with text that is prepared by ``recipe``.

    The error names ``option``, which chooses the run folder. Raises the errors of
    ``check_config``, too.
    """
    if _newest_checkpoint(run):
        before, now = (
            integrity.training_settings(config.data) for config in (_recipe_of(run, option), recipe)
        )
        if changes := list(manifest.differences(before, now, "data")):
            folder = " and another data.folder" if option == "--run" else ""
            raise ConfigError(
                f"{run} was trained on text that was prepared with other settings "
                f"({'; '.join(changes)}): choose another {option}{folder}, or undo the change"
            )
    check_config(recipe, run, option)


def find_changes(
    recipe: Recipe,
    run: Path,
    last: Path | None,
    prepared: Mapping[str, Any],
    ways: ChosenWays | None,
    session: Session,
) -> list[str]:
    """Return lines about what changed since the run started.

    ``last`` is the last checkpoint, None if the run is new. ``prepared`` is the manifest of the
    prepared folder, ``session`` the session that begins. Raises ConfigError or DataError for a
    change with which the run cannot be started or resumed, and CheckpointError if ``last`` is
    damaged.
    """
    changes: list[str] = []
    if last:
        changes = _config_changes(recipe, run, last)
        _check_data(recipe, run, last, prepared)
    modules = changed_modules(run, outside_kinds(recipe.model_dump()))
    return [
        *changes,
        *(f"{WARNING}the code of the module {name} was changed" for name in modules),
        *_text_changes(recipe, prepared, resuming=bool(last)),
        *_processor_changes(run, ways, session),
        *_session_changes(run, session),
    ]


def _changeable_keys(recipe: Recipe) -> list[str]:
    stages = recipe.training.stages
    validation_decides = (
        any(schedule.uses_validation(stage.schedule) for stage in stages)
        or any(stage.start == "best" for stage in stages[1:])
        or any(stage.end.patience for stage in stages[:-1])
    )
    patterns = list(CHANGEABLE_KEYS)
    if not scores_translations(recipe.training.validation.metric):
        patterns.append(SEARCH_KEYS)
    if not validation_decides:
        patterns.append(VALIDATION_KEYS)
    return patterns


def _config_changes(recipe: Recipe, run: Path, last: Path, option: str = "--run") -> list[str]:
    """Describe the differences of the config from that of the run so far.

    Raises ConfigError, which names ``option``, for a change with which the run cannot be resumed,
    and CheckpointError if ``last`` is damaged.
    """
    old = _recipe_of(run, option)
    state = read_state(last)
    keys_of_run = (*_changeable_keys(old), START_FROM)
    recipes.check_unchanged(old, run / CONFIG, last, state, keys_of_run)
    before = old.model_dump(mode="json")
    now = recipe.model_dump(mode="json")
    old_stages = before["training"]["stages"]
    new_stages = now["training"]["stages"]
    common = min(len(old_stages), len(new_stages))
    added = [
        f"training.stages.{i}: added, {_describe_stage(stage)}"
        for i, stage in enumerate(new_stages[common:], common)
    ]
    removed = [
        f"training.stages.{i}: removed, {_describe_stage(stage)}"
        for i, stage in enumerate(old_stages[common:], common)
    ]
    progress = read_progress(last)
    removed_too_late = removed[: max(0, progress.stage + 1 - common)]
    before["training"]["stages"] = old_stages[:common]
    now["training"]["stages"] = new_stages[:common]
    changes = list(manifest.differences(before, now))
    patterns = _changeable_keys(recipe)
    if _moved(before["training"]["start_from"], now["training"]["start_from"]):
        patterns.append(START_FROM)
    changeable = re.compile("|".join(patterns))
    fixed = [
        change
        for change in changes
        for key in [change.partition(":")[0]]
        if not changeable.fullmatch(key) or _ends_earlier_stage(key, progress.stage)
    ]
    if fixed or removed_too_late:
        raise ConfigError(
            f"{run} was started with another config ({'; '.join([*fixed, *removed_too_late])}): "
            f"choose another {option}, or undo the change"
        )
    _check_end(recipe, run, progress, option)
    return [*changes, *added, *removed]


def _check_end(recipe: Recipe, run: Path, progress: Progress, option: str) -> None:
    """Raise ConfigError if the current stage already has more updates or epochs than its new end.

    Reports would show the new end, which the stage exceeded.
    """
    end = recipe.training.stages[progress.stage].end
    epochs = progress.stage_epoch + bool(progress.position)
    for key, done in (("updates", progress.stage_update), ("epochs", epochs)):
        limit = getattr(end, key)
        if limit is not None and limit < done:
            raise ConfigError(
                f"training.stages.{progress.stage}.end.{key}: {run} already has {done} {key} of "
                f"this stage, more than {limit}: set the key to at least {done}, or choose "
                f"another {option}"
            )


def _recipe_of(run: Path, option: str) -> Recipe:
    """Return the config of a run with checkpoints. Raises ConfigError if it is missing or wrong."""
    if not (run / CONFIG).exists():
        raise ConfigError(
            f"{run} has checkpoints but no {CONFIG}: copy this file from the original run folder, "
            f"or choose another {option}"
        )
    return recipes.load(run / CONFIG)


def _check_data(recipe: Recipe, run: Path, last: Path, prepared: Mapping[str, Any]) -> None:
    """Raise DataError if the prepared data are not those that the run was trained on."""
    fingerprint = manifest.training_fingerprint(prepared)
    if read_state(last).get("data") not in (None, fingerprint):
        raise DataError(
            f"the data in {recipe.data.folder} differ from the data that {run} was trained on: "
            "prepare them with the settings of that run, or choose another run folder"
        )


def _check_prepared_text(recipe: Recipe, run: Path, last: Path, option: str) -> None:
    """Raise ConfigError if prep would replace the prepared text that the run was trained on.

    If the folder has other text, or none, this is not an error here: training reports it.
    """
    folder = Path(recipe.data.folder)
    try:
        prepared = manifest.read(folder)
    except DataError:
        return
    if read_state(last).get("data") != manifest.training_fingerprint(prepared):
        return
    changed = [str(path) for path in integrity.changed_inputs(recipe.data, prepared)]
    changed += [f"the code of {name}" for name in integrity.changed_code(recipe.data, prepared)]
    if changed:
        advice = f"undo the change or choose another {option}"
        if option == "--run":
            advice = (
                "undo the change, train without --prep to keep the prepared text, or choose "
                "another --run and another data.folder"
            )
        raise ConfigError(
            f"{', '.join(changed)} changed since {folder} was prepared, and prep would "
            f"replace the text that {run} was trained on: {advice}"
        )


def _moved(before: str | None, now: str | None) -> bool:
    """Whether another path replaced a path that no longer exists."""
    return before is not None and now is not None and not Path(before).exists()


def _ends_earlier_stage(key: str, stage: int) -> bool:
    """Whether a key is a limit of a finished stage; ``stage`` is the current one."""
    match = re.match(r"training\.stages\.(\d+)\.end\.", key)
    return match is not None and int(match[1]) < stage


def _describe_stage(stage: dict[str, Any]) -> str:
    """Return a short description of a stage, such as `adam, inverse-sqrt, updates 8`."""
    end = (f"{key} {value}" for key, value in stage["end"].items() if value is not None)
    return ", ".join([stage["optimizer"]["kind"], stage["schedule"]["kind"], *end])


def _text_changes(recipe: Recipe, prepared: Mapping[str, Any], resuming: bool) -> list[str]:
    """Describe each file that changed after prep had read it.

    Raises DataError for such a file if the run is new.
    """
    paths = [str(path) for path in integrity.changed_inputs(recipe.data, prepared)]
    if paths and not resuming:
        raise DataError(
            f"{', '.join(paths)} changed since {recipe.data.folder} was prepared: "
            f"{integrity.PREPARE}"
        )
    return [
        f"{path} changed since {recipe.data.folder} was prepared; the run keeps the prepared text"
        for path in paths
    ]


def _last_session(run: Path, session: Session) -> Session | None:
    """Return the last session that made an update before ``session``; None if there is none."""
    earlier = [old for old in read_sessions(run) if old.update < session.update]
    return earlier[-1] if earlier else None


def _session_changes(run: Path, session: Session) -> list[str]:
    """Describe how a session differs from the last one that made an update."""
    before, now = _last_session(run, session), session
    if before is None:
        return []
    changes = []
    if before.processes != now.processes:
        changes.append(f"number of processes: {before.processes} -> {now.processes}; {OTHER_MASKS}")
    if before.code != now.code:
        changes.append(f"code: {before.code} -> {now.code}; the results of an update may differ")
    settings = [("PyTorch", before.torch, now.torch)]
    if before.on_gpu != now.on_gpu:
        changes.append(f"device: {before.device} -> {now.device}; {OTHER_MASKS}")
    elif now.on_gpu and before.processes == now.processes:
        settings.append(("device", before.device, now.device))
    elif before.kernels is not None and now.kernels is not None:
        old, new = ("yes" if each.kernels else "no" for each in (before, now))
        settings.append(("compiled kernels", old, new))
    return [
        *changes,
        *(f"{name}: {old} -> {new}; {MAY_DIFFER}" for name, old, new in settings if old != new),
    ]


def _processor_changes(run: Path, ways: ChosenWays | None, session: Session) -> list[str]:
    """Describe how the processor, and the ways to compute on it, changed since the run started."""
    if not ways:
        return []
    if recorded := read_chosen_ways(run / MACHINE):
        return [f"{difference}; {MAY_DIFFER}" for difference in recorded.differences(ways)]
    before = _last_session(run, session)
    if before is None or before.on_gpu:  # a session on a GPU records no ways
        return []
    return [
        f"{MACHINE} is missing or damaged, so this machine chooses how to compute; {MAY_DIFFER}"
    ]
