"""Reading of checkpoints: state and tensors, verified by checksums, and the weights of a model."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from fusetk import runs
from fusetk.errors import CheckpointError, UnreadableFile, join_names
from fusetk.files import checksum
from fusetk.runs import MODEL, STATE, checkpoints_in, is_intact, unreadable

UNREADABLE = (OSError, SafetensorError, ValueError, KeyError, RuntimeError)


def read_state(folder: Path) -> dict[str, Any]:
    """Read ``state.json``.

    Raises CheckpointError, which names the newest complete checkpoint, and UnreadableFile if the
    system cannot read the file.
    """
    try:
        return runs.read_state(folder)
    except UnreadableFile:
        raise
    except CheckpointError as error:
        raise damaged(folder, str(error)) from None


def read_tensors(folder: Path, file: str) -> dict[str, Tensor]:
    """Read the tensors of one file of a checkpoint.

    Raises CheckpointError if the file is missing, has a wrong checksum or is not a file of tensors,
    and UnreadableFile if the system cannot read it.
    """
    expected = runs.read_state(folder)["sha256"].get(file)
    try:
        str(folder / file).encode()
        if checksum(folder / file) == expected:
            return dict(load_file(folder / file))
        reason = f"is damaged: its checksum is not the one in {STATE}"
    except FileNotFoundError:
        reason = "is missing"
    except OSError as error:
        raise unreadable(folder / file, error) from None
    except UnicodeEncodeError:  # safetensors reads only paths that are UTF-8
        raise UnreadableFile(
            f"{folder / file} cannot be read, because its path is not UTF-8: rename it"
        ) from None
    except UNREADABLE as error:
        reason = f"cannot be read: {error}"
    raise damaged(folder, f"{folder / file} {reason}")


def saved_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that a checkpoint stores: parameters and persistent buffers, by name.

    A shared tensor appears once. Only classes outside fusetk have persistent buffers.
    """
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    persistent = model.state_dict(keep_vars=True).keys()
    buffers = model.named_buffers()
    return tensors | {name: buffer for name, buffer in buffers if name in persistent}


def read_weights(model: nn.Module, folder: Path, file: str = MODEL) -> dict[str, Tensor]:
    """Read the weights in a file of a checkpoint.

    The file of a moving average (EMA) has no buffers. They are read from the file of the model.
    Raises the errors of ``read_tensors``.
    """
    tensors = read_tensors(folder, file)
    buffers = saved_tensors(model).keys() - dict(model.named_parameters()).keys()
    if buffers and file != MODEL:
        weights = read_tensors(folder, MODEL)
        tensors.update({name: weights[name] for name in buffers & weights.keys()})
    return tensors


def load_weights(
    model: nn.Module,
    folder: Path,
    file: str = MODEL,
    place: Callable[[Tensor, Tensor], Tensor] = lambda tensor, model_tensor: tensor,
) -> None:
    """Load a model's parameters and persistent buffers from a checkpoint.

    ``place`` converts a full tensor to the shard of a parameter if necessary. Raises
    CheckpointError if the file is damaged, or if names or shapes differ.
    """
    tensors = read_weights(model, folder, file)
    own = saved_tensors(model)
    wrong = sorted(set(tensors) ^ set(own))
    wrong = wrong or [name for name in own if own[name].shape != tensors[name].shape]
    if wrong:
        shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
        number = "1 tensor differs" if len(wrong) == 1 else f"{len(wrong)} tensors differ"
        raise damaged(
            folder,
            f"{folder / file} does not fit the model of its config: {number}, first {wrong[0]}",
            shapes,
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(place(tensors[name], tensor))


def damaged(
    folder: Path, problem: str, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> CheckpointError:
    """Return the error for a damaged checkpoint.

    It names the newest complete checkpoint with parameters of these shapes.
    """
    wrong = folder.resolve()
    last = (wrong.parent / "last").resolve() == wrong
    others = [path for path in reversed(checkpoints_in(wrong.parent)) if path.name != wrong.name]
    complete = [path for path in others if is_intact(path)]
    for path in complete:
        if shapes is None or _shapes(path) == shapes:
            resume = f"; to resume from there, remove {wrong.name}" if last else ""
            return CheckpointError(
                f"{problem}; use checkpoints/{path.name}, the newest complete one{resume}"
            )
    if complete:
        names = join_names([path.name for path in complete])
        verb = "does" if len(complete) == 1 else "do"
        return CheckpointError(
            f"{problem}; {names} {verb} not fit it either: if config.yaml, the folder text, or the "
            "code of a class outside fusetk was changed, restore the original"
        )
    return CheckpointError(
        f"{problem}; there is no other complete checkpoint in this run: train again in a new run "
        "folder"
    )


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint's parameters; empty if it cannot be read."""
    try:
        with safe_open(folder / MODEL, framework="pt") as file:
            names = file.keys()
            return {name: tuple(file.get_slice(name).get_shape()) for name in names}
    except UNREADABLE:
        return {}
