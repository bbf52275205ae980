"""Checkpoints on disk: safetensors and JSON, whole or not there at all.

``checkpoints/update-0012000/`` holds ``model.safetensors``, ``training.safetensors`` (optimiser state), ``ema.safetensors`` where a
mean of the weights is kept, and ``state.json`` (progress, validation results, checksums, of itself too). ``best`` and ``last`` are
relative links beside it.
"""

import errno
import json
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from fusetk import runs
from fusetk.errors import CheckpointError, DiskFull
from fusetk.files import checksum, digest, flush
from fusetk.runs import CHECKPOINTS, EMA, FORMAT, MODEL, STATE, TRAINING, checkpoints
from fusetk.training.sharding import part
from fusetk.weights import damaged, read_tensors

BLOCK = 4096  # what a disk may need more, for each file


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name, a shared one once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Optimiser state as ``<parameter>:<key>``."""
    return {
        f"{name}:{key}": torch.as_tensor(value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Fill the state of a fresh optimiser."""
    parameters = dict(model.named_parameters())
    for name, tensor in read_tensors(folder, TRAINING).items():
        parameter, _, key = name.rpartition(":")
        if parameter not in parameters:
            raise damaged(
                folder,
                f"{folder / TRAINING} has state of a parameter {parameter!r} that the model has not",
            )
        of = parameters[parameter]
        tensor = part(tensor, of)
        optimizer.state[of][key] = (
            tensor.to(of.device) if tensor.dim() or of.device.type == "cuda" else tensor
        )


def save(
    folder: Path,
    model: Mapping[str, Tensor],
    training: Mapping[str, Tensor],
    state: Mapping[str, Any],
    ema: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint aside, flush it to disk, and rename it into place.

    Raises CheckpointError when the disk refuses, DiskFull where that is for lack of space; what was there is as it was.
    """
    aside, old = folder.with_name("." + folder.name), folder.with_name("." + folder.name + ".old")
    files = {MODEL: model, TRAINING: training, **({EMA: ema} if ema else {})}
    try:
        _write(aside, files, state)
        if folder.exists():  # a run that was set back writes an update again
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        aside.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
        flush(folder.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise refused(
            folder,
            error,
            [
                sum(t.numel() * t.element_size() for t in tensors.values())
                for tensors in files.values()
            ],
        ) from None


def _write(
    aside: Path, files: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> None:
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    sums = {}
    for file, tensors in files.items():
        save_file(
            {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, aside / file
        )
        sums[file] = checksum(aside / file)
        flush(aside / file)
    content = json.loads(json.dumps({"format": FORMAT, **state, "sha256": sums}))
    (aside / STATE).write_text(
        json.dumps({**content, "digest": digest(content)}, indent=1) + "\n", encoding="utf-8"
    )
    flush(aside / STATE)
    flush(aside)


def refused(path: Path, error: Exception, sizes: Iterable[int] = ()) -> CheckpointError:
    """What to raise when ``path`` cannot be written; ``sizes`` are those of its files in bytes, where they are known."""
    found = re.search(r"os error (\d+)", str(error))  # safetensors has the number in its text only
    number = (
        error.errno if isinstance(error, OSError) and error.errno else int(found[1]) if found else 0
    )
    there = [one.name for one in checkpoints(path.parent.parent)]
    whole_one = f"{there[-1]} is complete; " if there else ""
    sizes = [size + BLOCK for size in sizes]
    needed = sum(sizes) + BLOCK
    takes = f", it takes {_megabytes(needed)}" if sizes else ""
    kind: type[CheckpointError] = DiskFull
    room = "make room"
    if number == errno.ENOSPC:
        free = shutil.disk_usage(
            next(parent for parent in path.absolute().parents if parent.exists())
        ).free
        why = f"the disk is full{takes}, {free // 1e5 / 10:,.1f} MB are free"
        room = (
            f"make room for {_megabytes(needed - free)} more" if sizes and needed > free else room
        )
    elif number == errno.EDQUOT:
        why = f"your disk quota is used up{takes}"
    elif number == errno.EFBIG:
        why = "no file may be so large" + (
            f", the largest has {_megabytes(max(sizes))}" if sizes else ""
        )
        room = "raise the limit (ulimit -f)"
    else:
        kind, why, room = CheckpointError, str(error), "see to it"
    return kind(
        f"{path} cannot be written: {why}; {whole_one}{room} and run the same command again"
    )


def _megabytes(size: int) -> str:
    """Rounded up, so that something is never 0.0 MB."""
    return f"{math.ceil(size / 1e5) / 10:,.1f} MB"


def read_state(folder: Path) -> dict[str, Any]:
    """Read ``state.json``. Raises CheckpointError, with the newest complete checkpoint, if that fails."""
    try:
        return runs.read_state(folder)
    except CheckpointError as error:
        raise damaged(folder, str(error)) from None


def recover(run: Path) -> None:
    """Clear up what a killed process left: a checkpoint that was being replaced comes back, what is half written or deleted goes."""
    for path in sorted((run / CHECKPOINTS).glob(".update-*")):
        place = path.with_name(path.name[1:].removesuffix(".old"))
        if path.suffix == ".old" and not place.exists():
            path.rename(place)
        else:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Within this context what the system refuses is a CheckpointError."""
    try:
        yield
    except OSError as error:
        raise refused(path, error) from None


def link(run: Path, name: str, target: Path) -> None:
    """Point ``checkpoints/<name>`` at a checkpoint, in one step."""
    path, aside = run / CHECKPOINTS / name, run / CHECKPOINTS / f".{name}"
    with _writing(path):
        aside.unlink(missing_ok=True)
        aside.symlink_to(target.name)
        if path.is_dir() and not path.is_symlink():  # a copy that followed the links
            shutil.rmtree(path)
        aside.rename(path)


def prune(run: Path, keep: Iterable[Path]) -> None:
    """Delete all checkpoints but these; each is out of sight before it is in parts."""
    kept = {p.name for p in keep}
    for path in checkpoints(run):
        if path.name not in kept:
            with _writing(path):
                gone = path.rename(path.with_name(f".{path.name}.gone"))
            shutil.rmtree(gone, ignore_errors=True)
