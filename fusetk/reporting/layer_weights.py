"""Layer weights of trained models, for result files: means over sentences of a test set."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from fusetk.data.text import FilePair, read_pairs
from fusetk.errors import CheckpointError, DataError
from fusetk.reporting.result_files import SavedPanel, SavedWeights
from fusetk.runs import MODEL, find_checkpoint, read_state

if TYPE_CHECKING:
    from fusetk.plotting.panel import Panel

SENTENCES = 200  # the first ones of the test set
DIGITS = 4  # decimal places


def layer_weights(
    run: Path, source: Path, target: Path, known: list[SavedWeights]
) -> list[SavedWeights]:
    """Return the layer weights of a run's best checkpoint; there is no panel if it has no fusion.

    They are those of `fusetk plot-attention --corpus` with `--what fuse` and `--what connect`, for
    the tokenised sentences of two files. ``known`` is returned if the checkpoint is the same, or
    if there is none. Raises CheckpointError if the checkpoint is damaged, and DataError if a text
    cannot be read or if the weights of a fusion cannot be computed.
    """
    try:
        _, folder = find_checkpoint(run)
        resolved = folder.resolve()  # training may move the link while the files are read
        checksum = str(read_state(resolved)["sha256"][MODEL])
    except (CheckpointError, KeyError):
        return known
    if [weights.weights for weights in known] == [checksum]:
        return known
    panels, sentences = _panels(resolved, source, target)
    saved = SavedWeights(
        checkpoint=folder.name,
        weights=checksum,
        text=source.name.removesuffix(".txt"),
        sentences=sentences,
        panels=[_saved(panel) for panel in panels],
    )
    return [saved]


def _panels(checkpoint: Path, source: Path, target: Path) -> "tuple[list[Panel], int]":
    """Return the mean layer weights of all fusions and connections, and the number of sentences."""
    from fusetk import system
    from fusetk.evaluation.connection_weights import needs_text
    from fusetk.evaluation.layer_shares import find_fusions
    from fusetk.plotting.connect import ReadingMeans
    from fusetk.plotting.corpus import CorpusMeans
    from fusetk.plotting.sentences import InputPair, Reader

    loaded = system.load_model(checkpoint, "cpu")
    model = loaded.model
    reader = Reader(loaded.pipeline, tokenized=True, positions=model.max_positions, strict=False)
    lines = islice(read_pairs(FilePair(source, target)), SENTENCES)
    inputs = [InputPair(number, *pair) for number, pair in enumerate(lines, 1)]
    pairs = [sentence.ids for sentence in reader(inputs)]
    panels: list[Panel] = []
    try:
        fusions = find_fusions(model)
    except DataError:
        pass  # neither side fuses several layers
    else:
        fusion_means = CorpusMeans(model, fusions)
        fusion_means.add(pairs)
        panels += fusion_means.panels()
    try:
        needs_text(model)
    except DataError:
        pass  # no connection has weights
    else:
        reading_means = ReadingMeans(model)
        reading_means.add(pairs)
        panels += reading_means.panels()
    return panels, len(pairs)


def _saved(panel: "Panel") -> SavedPanel:
    from fusetk.plotting.figure import finite
    from fusetk.plotting.panel import json_fields

    rounded = [finite(round(float(value), DIGITS) for value in row) for row in panel.matrix]
    fields = {**json_fields(panel), "matrix": rounded}
    return SavedPanel(name=panel.name, up=panel.up, **fields)
