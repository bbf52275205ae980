"""Scores of systems by the length of sentences, as lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fusetk.plotting.figure import check_output, colors, dress, fonts, label, legend, save_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Chart:
    """What is drawn: a point for each system and row."""

    rows: Sequence[str]  # which lengths
    sentences: Sequence[int]  # of each row; one without any is left out
    scores: Mapping[str, Sequence[float | None]]  # of each system, row by row
    x: str  # what the rows are
    y: str  # what the scores are


def plot(chart: Chart, path: Path) -> None:
    """Draw the chart; raises DataError when ``path`` cannot be written."""
    check_output(path, numbers=False)
    save_picture(draw(chart), path)


def draw(chart: Chart) -> "Figure":
    """The figure of ``plot``: a colour for each system, and below each row its number of sentences."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kept = [i for i, count in enumerate(chart.sentences) if count]
    height = 4.0 + 0.19 * len(chart.scores)
    figure = Figure(figsize=(max(6.4, len(kept)), height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    entries = []
    for (name, scores), color in zip(chart.scores.items(), colors(len(chart.scores)), strict=True):
        [line] = axes.plot(
            [cast(float, scores[i]) for i in kept],
            "-o",
            color=color,
            linewidth=1.8,
            markersize=4.5,
            zorder=3,
        )
        entries.append((line, label(name, 60)))
    axes.set_xticks(
        range(len(kept)), [f"{chart.rows[i]}\nn = {chart.sentences[i]:,}" for i in kept], fontsize=9
    )
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    dress(axes)
    legend(axes, entries, fonts(name for _, name in entries), down=0.19)
    return figure
