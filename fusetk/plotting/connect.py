"""Heatmaps of the weights with which layers and sub-layers read the outputs below them."""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from fusetk.decoding.target_scores import IdPair
from fusetk.errors import DataError
from fusetk.evaluation.connection_weights import Readings, trace_readings
from fusetk.evaluation.forward_trace import UNKNOWN_WORDS, batches
from fusetk.plotting.attention import TokenPair
from fusetk.plotting.panel import Panel, square_rows
from fusetk.trace import MODEL_SIDES

if TYPE_CHECKING:
    from fusetk.models.seq2seq import Seq2Seq

READ = "output that is read"


def panels(
    model: "Seq2Seq",
    pairs: Sequence[IdPair] = (UNKNOWN_WORDS,),
    sides: Sequence[str] = MODEL_SIDES,
) -> list[Panel]:
    """Return the panels of one sentence pair, or of learned weights if no pair is given.

    A row is a reading, a column is an output that it can read; l0 is the word embedding. The row
    ``top`` is the stack's output. If the weights depend on the position, there are their mean and
    their standard deviation over the positions. Raises the errors of ``trace_readings``.
    """
    means = ReadingMeans(model, sides)
    means.add(pairs)
    return means.panels()


def position_panels(
    model: "Seq2Seq",
    pairs: Sequence[IdPair],
    tokens: TokenPair,
    reader: int,
    sides: Sequence[str] = MODEL_SIDES,
) -> list[Panel]:
    """Return the weights of reading ``reader`` (from 1) at each position of one sentence pair.

    A row is an output that is read, the lowest at the bottom, and a column is a token. Raises
    DataError if no site has so many readings whose weights depend on the position.
    """
    readings = [reading for reading in trace_readings(model, pairs, sides) if reading.by_position]
    most = max((len(reading.rows) for reading in readings), default=0)
    if not 1 <= reader <= most:
        raise DataError(
            f"--layer {reader}: there is no such row with weights that depend on the position; "
            f"give a row from 1 to {most}"
        )
    drawn = []
    for reading in readings:
        if reader > len(reading.rows):
            continue
        x, _ = tokens.labels(reading.side, "self")
        weights = reading.of_sentence(0)[:, reader - 1]  # (T, C)
        row = reading.rows[reader - 1]
        readable = np.isfinite(weights).any(0)
        drawn.append(
            Panel(
                f"{reading.name}.{row}",
                reading.row_title(row),
                weights[:, readable].T,
                x,
                [name for name, is_read in zip(reading.columns, readable, strict=True) if is_read],
                "weight",
                ("input token", READ),
                up=True,
            )
        )
    return drawn


def row_lengths(panels: Sequence[Panel]) -> list[int] | None:
    """Return the number of panels in each row of a figure.

    A side with several panels starts a row. Returns None if each side has one panel.
    """
    by_side = [
        list(group) for _, group in groupby(panels, lambda panel: panel.name.partition(".")[0])
    ]
    if len(by_side) == len(panels):
        return None
    return [length for group in by_side for length in square_rows(group)]


class ReadingMeans:
    """Sums over the positions of many sentences, and the panels of means and deviations."""

    def __init__(self, model: "Seq2Seq", sides: Sequence[str] = MODEL_SIDES):
        self.model = model
        self.sides = sides
        self.sentences = 0
        self.last: list[Readings] = []  # of the last batch, for names and learned numbers
        self.sums: dict[str, np.ndarray] = {}  # for each site (2, R, C): of weights and of squares
        self.counts: dict[str, int] = {}  # for each site: number of positions

    def add(self, pairs: Sequence[IdPair]) -> None:
        """Add sentence pairs, in batches of similar length."""
        for batch in batches(pairs):
            self.last = trace_readings(self.model, batch, self.sides)
            self.sentences += len(batch)
            for reading in self.last:
                if not reading.by_position:
                    continue
                for i in range(len(batch)):
                    weights = reading.of_sentence(i).astype(np.float64)
                    sums = np.stack((weights.sum(0), np.square(weights).sum(0)))
                    self.sums[reading.name] = self.sums.get(reading.name, 0) + sums
                    self.counts[reading.name] = self.counts.get(reading.name, 0) + len(weights)

    def panels(self) -> list[Panel]:
        """Return the panels of all sites. ``add`` must have been called."""
        return [panel for reading in self.last for panel in self._panels(reading)]

    def _panels(self, reading: Readings) -> list[Panel]:
        if not reading.by_position:
            return [_panel(reading, reading.weights, "", "learned weight")]
        mean, square = self.sums[reading.name] / self.counts[reading.name]
        deviation = np.sqrt(np.maximum(square - mean**2, 0))
        return [
            _panel(reading, mean, ".mean", f"weight, {reading.side}"),
            _panel(reading, deviation, ".deviation", f"standard deviation, {reading.side}"),
        ]


def _panel(reading: Readings, matrix: np.ndarray, suffix: str, measure: str) -> Panel:
    what = {".mean": ", mean over the positions", ".deviation": ", standard deviation"}
    return Panel(
        f"{reading.name}{suffix}",
        f"{reading.title}{what.get(suffix, '')}",
        matrix.astype(np.float32),
        reading.columns,
        reading.rows,
        measure,
        (READ, reading.reader),
    )
