"""The mean of the weights of several checkpoints, written as a checkpoint."""

import math
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from torch import Tensor

from fusetk.errors import CheckpointError, join_names
from fusetk.files import locked
from fusetk.runs import MODEL, checkpoint_name, checkpoints, find_checkpoint, read_state_if_valid
from fusetk.training import checkpoint
from fusetk.training.checkpoints import regular_checkpoints
from fusetk.training.progress import Progress
from fusetk.training.validation_config import ranking_key
from fusetk.weights import read_state, read_tensors


def choose(
    run: Path,
    last: int | None = None,
    best: int | None = None,
    metric: str = "loss",
    updates: Sequence[int] = (),
) -> list[Path]:
    """Return the last checkpoints of a run, the best by ``metric``, or those of some updates.

    ``last`` or ``best`` is their number; by default it is the last checkpoint. For ``last`` see
    ``last_checkpoints``. Raises CheckpointError if the run has fewer checkpoints, or if none has
    ``metric``.
    """
    if not checkpoints(run):
        find_checkpoint(run)  # raises an error that says what to do
    if updates:
        return sorted(_of_updates(run, updates))
    if best:
        return sorted(_best(run, best, metric))
    return sorted(_last(run, last or 1))


def _of_updates(run: Path, updates: Sequence[int]) -> list[Path]:
    folders = checkpoints(run)
    names = {checkpoint_name(update) for update in updates}
    chosen = [path for path in folders if path.name in names]
    if len(chosen) < len(names):
        raise CheckpointError(
            f"{run} has only {len(chosen)} of the {len(names)} requested checkpoints (it has "
            f"{_names(folders)}): choose some of these, or train with training.save_every"
        )
    return chosen


def _best(run: Path, count: int, metric: str) -> list[Path]:
    folders = checkpoints(run)
    results = [(read_state(path).get("valid", {}), path) for path in folders]
    ranked = sorted(
        (ranking_key(metric, valid), path)
        for valid, path in results
        if not math.isnan(valid.get(metric, math.nan))
    )
    if not ranked and folders:
        raise CheckpointError(
            f"no checkpoint of {run} has a {metric} from a validation: choose another --metric, "
            "or use --last"
        )
    if len(ranked) < count:
        raise CheckpointError(
            f"{run} has only {len(ranked)} of the {count} requested checkpoints with {metric} "
            f"(it has {_names(folders)}): request fewer, or train with a larger training.keep_best"
        )
    return [path for _, path in ranked[:count]]


def _last(run: Path, count: int) -> list[Path]:
    chosen = last_checkpoints(run)[-count:]
    if len(chosen) < count:
        folders = checkpoints(run)
        regular = regular_checkpoints(folders)
        notes = [_names(folders)]
        if len(regular) >= count:
            notes.append("training deleted others between them")
        if len(regular) < len(folders):
            notes.append("a checkpoint of an interruption does not count")
        raise CheckpointError(
            f"{run} has only {len(chosen)} of the {count} requested last checkpoints (it has "
            f"{'; '.join(notes)}): request fewer, or train with a larger training.keep_last"
        )
    return chosen


def _names(folders: Sequence[Path]) -> str:
    return ", ".join(path.name for path in folders) or "no checkpoint"


def last_checkpoints(run: Path) -> list[Path]:
    """Return the last checkpoints of a run without a gap, oldest first.

    An older checkpoint that training kept because it is among the best is not one of them, if a
    checkpoint after it was deleted. A checkpoint that was written because of an interruption is not
    one of them.
    """
    folders = checkpoints(run)
    try:
        state = read_state_if_valid(folders[-1])
        progress = Progress.from_state(state["progress"])
    except (IndexError, KeyError, TypeError, ValueError):
        return folders
    existing = {path.name: path for path in folders}
    names = [checkpoint_name(update) for update in progress.saved if update < progress.update]
    if not state.get("interrupted"):
        names.append(folders[-1].name)
    last = takewhile(existing.__contains__, reversed(names))
    return [existing[name] for name in last][::-1]


def average(folders: Sequence[Path], into: Path) -> None:
    """Write the mean of the weights of some checkpoints as the checkpoint ``into``.

    The mean is computed in float64. Tensors of integers or booleans, which are buffers of classes
    outside fusetk, are those of the last checkpoint. Raises CheckpointError if parameters differ in
    name or shape, if the training texts differ, if a weight is not finite, or if ``into`` cannot be
    written.
    """
    if len({read_state(folder).get("data") for folder in folders} - {None}) > 1:
        raise CheckpointError(
            f"{join_names([str(folder) for folder in folders])} have different training texts and "
            "cannot be averaged: choose checkpoints of trainings on one prepared text"
        )
    first = read_tensors(folders[0], MODEL)
    shapes = {name: tensor.shape for name, tensor in first.items()}
    sums = {name: tensor.double() for name, tensor in first.items()}
    last = first
    for folder in folders[1:]:
        last = tensors = read_tensors(folder, MODEL)
        if {name: tensor.shape for name, tensor in tensors.items()} != shapes:
            raise CheckpointError(
                f"{folder} and {folders[0]} have different parameters and cannot be averaged: "
                "choose checkpoints of one model"
            )
        for name, tensor in tensors.items():
            sums[name] += tensor
    for name, total in sums.items():
        if not total.isfinite().all():
            _check_not_diverged(name, total, folders)
    mean = {
        name: (total / len(folders)).to(last[name].dtype)
        if last[name].is_floating_point()
        else last[name]
        for name, total in sums.items()
    }
    # Another process may write an average of this name.
    with checkpoint.writing(into.parent.parent, into), locked(into.parent):
        names = [path.name if path.parent == into.parent else str(path) for path in folders]
        config = read_state(folders[-1]).get("config", {})
        checkpoint.save(into, mean, {}, {"averaged": names, "config": config})


def _check_not_diverged(name: str, total: Tensor, folders: Sequence[Path]) -> None:
    """Raise CheckpointError if the values of a tensor, or their sum ``total``, are not finite.

    Infinite values that are equal in all checkpoints are allowed: a buffer of a class outside
    fusetk may have such values, which never change.
    """
    values = [read_tensors(folder, MODEL)[name] for folder in folders]
    constant = values[0].isinf()
    for value in values:
        constant &= value == values[0]
    diverged = [
        folder
        for folder, value in zip(folders, values, strict=True)
        if not (value.isfinite() | constant).all()
    ]
    # The sum of finite numbers may be infinite.
    if diverged or not (total.isfinite() | constant).all():
        raise CheckpointError(
            f"{name} has values that are not finite in {(diverged or folders)[0]}: training has "
            "diverged; choose earlier checkpoints"
        )
