"""Checkpoints on disk: safetensors and JSON, whole or not there at all.

``checkpoints/update-0012000/`` holds ``model.safetensors``, ``training.safetensors`` (optimiser state), ``ema.safetensors`` where a
mean of the weights is kept, and ``state.json`` (progress, validation results, checksums). ``best`` and ``last`` are relative links
beside it.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fusetk.data.manifest import checksum
from fusetk.errors import CheckpointError

FORMAT = 1
MODEL, TRAINING, EMA, STATE = "model.safetensors", "training.safetensors", "ema.safetensors", "state.json"


def name_of(update: int) -> str:
    """Folder name of the checkpoint after an update."""
    return f"update-{update:07d}"


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name, a shared one once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def load_model(model: nn.Module, folder: Path, file: str = MODEL) -> None:
    """Fill a model's parameters. Raises CheckpointError when names or shapes differ."""
    found, wanted = read_tensors(folder, file), dict(model.named_parameters())
    wrong = sorted(set(found) ^ set(wanted)) or [n for n in wanted if wanted[n].shape != found[n].shape]
    if wrong:
        raise CheckpointError(f"{folder / file} does not fit the model of its config: {len(wrong)} parameters differ, first {wrong[0]}")
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(found[name])


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
            raise CheckpointError(f"{folder / TRAINING} has state of a parameter {parameter!r} that the model has not")
        device = parameters[parameter].device
        optimizer.state[parameters[parameter]][key] = tensor.to(device) if tensor.dim() or device.type == "cuda" else tensor


def save(
    folder: Path, model: Mapping[str, Tensor], training: Mapping[str, Tensor], state: Mapping[str, Any],
    ema: Mapping[str, Tensor] | None = None,
) -> None:  # fmt: skip
    """Write a checkpoint aside, flush it to disk, and rename it into place. Raises CheckpointError when the disk refuses."""
    aside = folder.with_name("." + folder.name)
    try:
        _write(aside, {MODEL: model, TRAINING: training, **({EMA: ema} if ema else {})}, state)
        if folder.exists():  # a run that was set back writes an update again
            old = folder.with_name("." + folder.name + ".old")
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
            aside.rename(folder)
            shutil.rmtree(old)
        else:
            aside.rename(folder)
        _flush(folder.parent)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder} cannot be written: {error}; the one before it is whole: free some space and go on") from None


def _write(aside: Path, files: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    sums = {}
    for file, tensors in files.items():
        save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, aside / file)
        sums[file] = checksum(aside / file)
        _flush(aside / file)
    text = json.dumps({"format": FORMAT, **state, "sha256": sums}, indent=1)
    (aside / STATE).write_text(text + "\n", encoding="utf-8")
    _flush(aside / STATE)


def read_state(folder: Path) -> dict[str, Any]:
    """``state.json``. Raises CheckpointError when it is missing, damaged or of a newer fusetk."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        version = state["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder} is no whole checkpoint: {STATE} cannot be read ({error})") from None
    if version > FORMAT:
        raise CheckpointError(f"{folder} was written by a newer fusetk (format {version}, this one reads {FORMAT}): update fusetk")
    return dict(state)


def read_tensors(folder: Path, file: str) -> dict[str, Tensor]:
    """Tensors of one file, its checksum compared first."""
    expected = read_state(folder).get("sha256", {}).get(file)
    try:
        if checksum(folder / file) != expected:
            raise CheckpointError(f"{folder / file} is damaged: its checksum is not the one in {STATE}; use another checkpoint beside it")
        return dict(load_file(folder / file))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder / file} cannot be read: {error}") from None


def whole(run: Path) -> list[Path]:
    """Checkpoint folders of a run, oldest first."""
    return sorted(p for p in (run / "checkpoints").glob("update-*") if (p / STATE).exists())


def link(run: Path, name: str, target: Path) -> None:
    """Point ``checkpoints/<name>`` at a checkpoint, in one step."""
    aside = run / "checkpoints" / f".{name}"
    aside.unlink(missing_ok=True)
    aside.symlink_to(target.name)
    path = run / "checkpoints" / name
    if path.is_dir() and not path.is_symlink():  # a copy that followed the links
        shutil.rmtree(path)
    aside.rename(path)


def prune(run: Path, keep: Iterable[Path]) -> None:
    """Delete all checkpoints but these; the one file that makes each whole goes first."""
    kept = {p.name for p in keep}
    for path in whole(run):
        if path.name not in kept:
            (path / STATE).unlink()
            shutil.rmtree(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
