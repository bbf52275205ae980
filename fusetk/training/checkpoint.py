"""One checkpoint on disk, in safetensors and JSON files. It is complete or it does not exist.

``checkpoints/update-0012000/`` holds ``model.safetensors``, ``training.safetensors`` (optimiser
state), ``ema.safetensors`` (if training keeps a moving average of the weights) and ``state.json``
(progress, validation results, and the checksums of all files, its own included). ``best`` and
``last`` are relative links to two of these folders.
"""

import errno
import json
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from fusetk.errors import CheckpointError, DiskFull
from fusetk.files import checksum, digest, flush
from fusetk.runs import CHECKPOINTS, EMA, FORMAT, MODEL, STATE, TRAINING, checkpoints
from fusetk.training.sharding import shard_like
from fusetk.weights import damaged, read_tensors, saved_tensors

NUMBER_SUFFIX = "#number"  # suffix of the keys of numbers in the optimiser state
FILE_OVERHEAD = 4096  # bytes that a file may need on disk in addition to its content
NO_SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FREE_SPACE = "free some disk space"


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of ``saved_tensors``, detached from autograd."""
    return {name: tensor.detach() for name, tensor in saved_tensors(model).items()}


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser state by ``<parameter>:<key>``; keys of numbers have a suffix."""
    return {
        f"{name}:{key}{'' if isinstance(value, Tensor) else NUMBER_SUFFIX}": _as_tensor(value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def _as_tensor(value: Tensor | float) -> Tensor:
    """Return a tensor as it is, and a number in float64 or int64."""
    if isinstance(value, Tensor):
        return value
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)


def load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Fill the state of a new optimiser from a checkpoint.

    Raises CheckpointError if the file is damaged or does not fit the model.
    """
    parameters = dict(model.named_parameters())
    for full_name, full_tensor in read_tensors(folder, TRAINING).items():
        name, _, key = full_name.rpartition(":")
        if name not in parameters:
            raise damaged(
                folder,
                f"{folder / TRAINING} has optimiser state of {name!r}, "
                "which is not a parameter of the model",
            )
        parameter = parameters[name]
        if key.endswith(NUMBER_SUFFIX):
            optimizer.state[parameter][key.removesuffix(NUMBER_SUFFIX)] = full_tensor.item()
            continue
        tensor = shard_like(full_tensor, parameter)
        # torch keeps step counters on the CPU for parameters on the CPU.
        if tensor.dim() or parameter.device.type == "cuda":
            tensor = tensor.to(parameter.device)
        if tensor is full_tensor:
            # A mapped tensor would keep the file on the disk after its checkpoint is deleted.
            tensor = tensor.clone()
        optimizer.state[parameter][key] = tensor


def save(
    folder: Path,
    model: Mapping[str, Tensor],
    training: Mapping[str, Tensor],
    state: Mapping[str, Any],
    ema: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint under a temporary name, flush it to disk, and rename it.

    Raises CheckpointError if it cannot be written, and DiskFull if there is not enough space. After
    an error, an existing checkpoint of this name is unchanged.
    """
    temporary = folder.with_name("." + folder.name)
    old = folder.with_name("." + folder.name + ".old")
    files = {MODEL: model, TRAINING: training, **({EMA: ema} if ema else {})}
    try:
        _write(temporary, files, state)
        if folder.exists():  # a run that restarted from an earlier checkpoint reaches it again
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        temporary.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
        flush(folder.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if old.exists() and not folder.exists():
            old.rename(folder)
        sizes = [
            sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
            for tensors in files.values()
        ]
        raise write_error(folder.parent.parent, folder, error, sizes) from None


def _write(
    folder: Path, files: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    checksums = {}
    for file, tensors in files.items():
        on_cpu = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
        save_file(on_cpu, folder / file)
        # safetensors creates files that only the owner can read.
        with suppress(OSError):  # some file systems have no permissions
            (folder / file).chmod(folder.stat().st_mode & 0o666)
        checksums[file] = checksum(folder / file)
        flush(folder / file)
    # Keys that are numbers become text, which has another order, as when the digest is verified.
    content = json.loads(json.dumps({"format": FORMAT, **state, "sha256": checksums}))
    text = json.dumps({**content, "digest": digest(content)}, indent=1) + "\n"
    (folder / STATE).write_text(text, encoding="utf-8")
    flush(folder / STATE)
    flush(folder)


def write_error(
    run: Path, path: Path, error: Exception, sizes: Iterable[int] = ()
) -> CheckpointError:
    """Return the error for a file or folder of a run that cannot be written.

    ``sizes`` are the sizes of the files in bytes, if they are known.
    """
    number = _error_number(error)
    kind = DiskFull if number in NO_SPACE_ERRORS else CheckpointError
    if kind is DiskFull:
        on_disk = [size + FILE_OVERHEAD for size in sizes]
        reason, advice = _lack_of_space(number, path, on_disk)
    else:
        reason, advice = _other_cause(number, run, path, error)
    complete = checkpoints(run)
    note = f"{complete[-1].name} is complete; " if complete else ""
    return kind(
        f"{path} cannot be written: {reason}; {note}{advice} and run the same command again"
    )


def _lack_of_space(number: int, path: Path, sizes: Sequence[int]) -> tuple[str, str]:
    """Return the reason and the advice for an error number of ``NO_SPACE_ERRORS``.

    ``sizes`` are the bytes that the files need on disk, if they are known.
    """
    needed = sum(sizes) + FILE_OVERHEAD
    takes = f"the checkpoint takes {_megabytes(needed)}"
    if number == errno.EDQUOT:
        return f"your disk quota is exceeded{f' ({takes})' if sizes else ''}", FREE_SPACE
    if number == errno.EFBIG:
        largest = f" (the largest file has {_megabytes(max(sizes))})" if sizes else ""
        return f"a file exceeds the size limit{largest}", "raise the limit (ulimit -f)"
    existing = next(parent for parent in path.absolute().parents if parent.exists())
    free = shutil.disk_usage(existing).free
    advice = f"free {_megabytes(needed - free)} more" if sizes and needed > free else FREE_SPACE
    numbers = f"{takes}, " if sizes else ""
    return f"the disk is full ({numbers}{free // 1e5 / 10:,.1f} MB are free)", advice


def _other_cause(number: int, run: Path, path: Path, error: Exception) -> tuple[str, str]:
    """Return the reason and the advice for an error that is not a lack of space."""
    reason = getattr(error, "strerror", None) or str(error)
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return reason, "allow writing, or choose another --run,"
    if path.parent == run / CHECKPOINTS and not path.parent.is_dir():
        return "the run folder was moved or deleted during the training", "move it back"
    return reason, "check the disk"


def _error_number(error: Exception) -> int:
    """Return the number of a system error; 0 if there is none.

    The errors of safetensors have the number only in their text.
    """
    if isinstance(error, OSError) and error.errno:
        return error.errno
    match = re.search(r"os error (\d+)", str(error))
    return int(match[1]) if match else 0


def _megabytes(size: int) -> str:
    """Format a size in MB, rounded up so that a small size is not 0.0 MB."""
    return f"{math.ceil(size / 1e5) / 10:,.1f} MB"


def recover(run: Path) -> None:
    """Clean up after a killed process: restore replaced checkpoints, delete incomplete ones."""
    for path in sorted((run / CHECKPOINTS).glob(".update-*")):
        original = path.with_name(path.name[1:].removesuffix(".old"))
        if path.suffix == ".old" and not original.exists():
            path.rename(original)
        else:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def writing(run: Path, path: Path | None = None) -> Iterator[None]:
    """Within this context an OSError becomes a CheckpointError.

    The error names ``path``, by default the file of the OSError.
    """
    try:
        yield
    except OSError as error:
        raise write_error(run, path or Path(error.filename or run), error) from None


def link(run: Path, name: str, target: Path) -> None:
    """Point ``checkpoints/<name>`` at a checkpoint, in one atomic step. Raises CheckpointError."""
    path = run / CHECKPOINTS / name
    temporary = run / CHECKPOINTS / f".{name}"
    if path.is_symlink() and path.readlink() == Path(target.name):
        return  # a finished run may be read-only
    with writing(run, path):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target.name)
        # A copy of a run has folders in place of links if the links were followed.
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        temporary.rename(path)


def prune(run: Path, keep: Iterable[Path]) -> None:
    """Delete all checkpoints except ``keep``.

    Each checkpoint is hidden before its files are deleted. Raises CheckpointError if a checkpoint
    cannot be renamed.
    """
    names = {path.name for path in keep}
    for path in checkpoints(run):
        if path.name not in names:
            with writing(run, path):
                hidden = path.rename(path.with_name(f".{path.name}.gone"))
            shutil.rmtree(hidden, ignore_errors=True)
