"""The mean of several checkpoints' weights, as a checkpoint."""

import math
from collections.abc import Sequence
from pathlib import Path

from fusetk.errors import CheckpointError
from fusetk.runs import MODEL, checkpoint_name, checkpoints
from fusetk.training import checkpoint
from fusetk.training.validation import rank
from fusetk.weights import read_tensors


def choose(
    run: Path,
    last: int | None = None,
    best: int | None = None,
    metric: str = "loss",
    updates: Sequence[int] = (),
) -> list[Path]:
    """The last n, the best n by a validation metric, or named checkpoints of a run. Raises CheckpointError if there are fewer."""
    there = checkpoints(run)
    if updates:
        chosen = [
            path for path in there if path.name in {checkpoint_name(update) for update in updates}
        ]
        wanted = len(set(updates))
    elif best:
        results = [(checkpoint.read_state(path).get("valid", {}), path) for path in there]
        ranked = sorted(
            (rank(metric, valid), path)
            for valid, path in results
            if not math.isnan(valid.get(metric, math.nan))
        )
        chosen, wanted = [path for _, path in ranked[:best]], best
    else:
        wanted = last or 1
        chosen = there[-wanted:]
    if len(chosen) < wanted:
        names = ", ".join(path.name for path in there) or "none"
        judged_by = f" judged by {metric}" if best else ""
        raise CheckpointError(
            f"{run}: {wanted} checkpoints{judged_by} were asked for, {len(chosen)} of them are kept (there are: {names}); "
            "training.keep_last and training.keep_best decide how many are"
        )
    return sorted(chosen)


def average(folders: Sequence[Path], into: Path) -> None:
    """Write the mean of the weights in ``folders`` as a checkpoint. Raises CheckpointError when their parameters differ."""
    first = read_tensors(folders[0], MODEL)
    sums = {name: tensor.double() for name, tensor in first.items()}
    for folder in folders[1:]:
        tensors = read_tensors(folder, MODEL)
        if {n: t.shape for n, t in tensors.items()} != {n: t.shape for n, t in first.items()}:
            raise CheckpointError(
                f"{folder} and {folders[0]} are of different models and have no mean"
            )
        for name, tensor in tensors.items():
            sums[name] += tensor
    mean = {name: (total / len(folders)).to(first[name].dtype) for name, total in sums.items()}
    checkpoint.save(into, mean, {}, {"averaged": [folder.name for folder in folders]})
