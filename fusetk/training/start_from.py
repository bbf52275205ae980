"""Initial weights from another run: `training.start_from`."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fusetk.data.pipeline import Pipeline
from fusetk.data.vocab import Vocabulary
from fusetk.errors import WARNING, CheckpointError, ConfigError, first_names
from fusetk.runs import EMA, MODEL, TEXT, find_checkpoint
from fusetk.weights import read_state, read_weights, saved_tensors

# The side of the vocabulary, for each module whose weights have a row for each token. Modules of
# other names, such as those of positions, may have as many rows by chance.
VOCABULARY_SIDES = {
    "source": "source",
    "source.tokens": "source",
    "target": "target",
    "target.tokens": "target",
    "output": "target",
}


class TokenRows(NamedTuple):
    """Numbers of the rows of a weight that has a row for each token."""

    name: str
    copied: int  # rows of tokens that both vocabularies have
    new: int  # rows of tokens that only the new vocabulary has


class StartReport(NamedTuple):
    """The weights that were copied, and those that were not."""

    folder: Path
    averaged: bool  # the moving averages (EMA) were copied
    copied: list[str]
    rows: list[TokenRows]
    missing: list[str]  # weights of the new model that the run does not have
    unused: list[str]  # weights of the run that the new model does not have
    different: list[str]  # weights with different shapes

    def lines(self) -> list[str]:
        """Return the lines of the log."""
        total = len(self.copied) + len(self.missing) + len(self.different)
        weights = "moving averages" if self.averaged else "weights"
        lines = [f"start from {self.folder}: {len(self.copied)} of {total} {weights} copied"]
        for rows in self.rows:
            if rows.new:
                lines.append(
                    f"start from: {rows.name} has {rows.copied:,} rows of known tokens and "
                    f"{rows.new:,} of new tokens, which have initial weights"
                )
        for words, names in (
            ("have initial weights, because the run does not have them", self.missing),
            ("have initial weights, because their shapes differ", self.different),
            ("of the run are not used, because the model does not have them", self.unused),
        ):
            if names:
                lines.append(f"{WARNING}{first_names(names)} {words}")
        return lines


def start_checkpoint(path: Path) -> tuple[Path, Path]:
    """Return the run folder and the checkpoint folder of a run or checkpoint, without links.

    A run that is being trained may move its links at any time. Raises CheckpointError if there is
    no checkpoint.
    """
    try:
        run, folder = find_checkpoint(path)
    except CheckpointError as error:
        raise CheckpointError(f"training.start_from: {error}") from None
    return run, folder.resolve()


def start_from(model: nn.Module, run: Path, folder: Path, pipeline: Pipeline) -> StartReport:
    """Copy the weights of a checkpoint into a new model on the CPU, matched by name.

    ``run`` and ``folder`` are those of ``start_checkpoint``.

    Embeddings and the output projection have a row (or an element) for each token: rows are
    matched by token, and rows of tokens that the run does not have keep their initial weights. The
    moving average (EMA) is copied if the run has one. Raises CheckpointError if the run cannot be
    read, and ConfigError if no weight fits.
    """
    file = EMA if EMA in read_state(folder)["sha256"] else MODEL
    tensors = read_weights(model, folder, file)
    old = Pipeline.load(run / TEXT)
    report = StartReport(folder, file == EMA, [], [], [], [], [])
    parameters = saved_tensors(model)
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name not in tensors:
                report.missing.append(name)
                continue
            vocabularies = _vocabularies(name, old, pipeline)
            if vocabularies and _has_rows(parameter, tensors[name], vocabularies):
                report.rows.append(_copy_rows(name, parameter, tensors[name], *vocabularies))
            elif parameter.shape == tensors[name].shape:
                parameter.copy_(tensors[name])
            else:
                report.different.append(name)
                continue
            report.copied.append(name)
    report.unused.extend(sorted(set(tensors) - set(parameters)))
    if not report.copied:
        raise ConfigError(
            f"training.start_from: no weight of {folder} fits this model; "
            "the sections `model` of both configs must be similar"
        )
    return report


def _vocabularies(name: str, old: Pipeline, new: Pipeline) -> tuple[Vocabulary, Vocabulary] | None:
    side = VOCABULARY_SIDES.get(name.rpartition(".")[0])
    if side is None:
        return None
    return old.vocabulary(side), new.vocabulary(side)


def _has_rows(
    parameter: Tensor, tensor: Tensor, vocabularies: tuple[Vocabulary, Vocabulary]
) -> bool:
    """Whether both tensors have a row for each token, and their rows have one shape."""
    old, new = vocabularies
    return tensor.shape == (len(old), *parameter.shape[1:]) and len(parameter) == len(new)


def _copy_rows(
    name: str, parameter: Tensor, tensor: Tensor, old: Vocabulary, new: Vocabulary
) -> TokenRows:
    """Copy the rows of the tokens that both vocabularies have."""
    known = [(i, old.ids[token]) for i, token in enumerate(new.tokens) if token in old.ids]
    into, source = (torch.tensor(indices) for indices in zip(*known, strict=True))
    parameter[into] = tensor[source].to(parameter.dtype)
    return TokenRows(name, len(known), len(new) - len(known))
