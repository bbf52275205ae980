"""Line charts of system scores by sentence length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fusetk.plotting.figure import (
    check_output,
    colors,
    fonts,
    label,
    legend,
    save_picture,
    style_axes,
    without_latex,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Chart:
    """A score for each system and each range of lengths."""

    rows: Sequence[str]  # labels of the ranges
    sentences: Sequence[int]  # number of sentences in each range; empty ranges are not drawn
    scores: Mapping[str, Sequence[float | None]]  # of each system, range by range
    x: str  # label of the ranges
    y: str  # label of the scores


def plot(chart: Chart, path: Path) -> None:
    """Draw the chart to a file. Raises DataError if ``path`` cannot be written."""
    check_output(path, numbers=False)
    save_picture(draw(chart), path)


@without_latex()
def draw(chart: Chart) -> "Figure":
    """Return the figure of ``plot``: one line per system, sentence counts below the ranges."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [i for i, count in enumerate(chart.sentences) if count]
    height = 4.0 + 0.19 * len(chart.scores)
    figure = Figure(figsize=(max(6.4, len(rows)), height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    entries = []
    for (name, scores), color in zip(chart.scores.items(), colors(len(chart.scores)), strict=True):
        values = [cast(float, scores[i]) for i in rows]
        [line] = axes.plot(values, "-o", color=color, linewidth=1.8, markersize=4.5, zorder=3)
        entries.append((line, label(name, 60)))
    ticks = [f"{chart.rows[i]}\nn = {chart.sentences[i]:,}" for i in rows]
    axes.set_xticks(range(len(rows)), ticks, fontsize=9)
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    drawn = [cast(float, scores[i]) for scores in chart.scores.values() for i in rows]
    if min(drawn, default=0.0) >= 0:
        axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
    style_axes(axes)
    families = fonts(name for _, name in entries)
    legend(axes, entries, families, 8.5, loc="upper center", bbox_to_anchor=(0.5, -0.19))
    return figure
