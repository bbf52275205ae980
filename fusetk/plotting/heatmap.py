"""Heatmaps: matrices of weights with a word at every row and column."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fusetk.plotting.figure import NUMBERS, check_output, finite, fonts, label, save_numbers, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colour maps by name: matplotlib's name, and the value of its upper end (None: the greatest weight of the figure).
# `grey` is as papers print attention: white is probability 1, black 0.
COLORS: dict[str, tuple[str, float | None]] = {"blue": ("Blues", None), "viridis": ("viridis_r", None), "grey": ("gray", 1.0)}

FONT = 8.0  # points
TITLE = 9.5
GAP = 0.3  # inches between panels
LEAST_BAR = 1.2  # inches that the colour bar needs
PAD = 0.06  # between a label and its cells
WIDEST = 36.0  # inches that a row of panels may take before the next row begins


@dataclass(frozen=True)
class Panel:
    """One matrix (rows, columns) of weights of at least 0, with a label for each row and column."""

    name: str  # key in .npz and .json files
    title: str
    matrix: np.ndarray  # (len(y), len(x))
    x: Sequence[str]
    y: Sequence[str]

    def __post_init__(self) -> None:
        if self.matrix.shape != (len(self.y), len(self.x)):
            raise ValueError(f"{self.name}: a matrix {self.matrix.shape} with {len(self.y)} row and {len(self.x)} column labels")


class _Plan(NamedTuple):
    """Where things stand, in inches; all panels of a row have the same room."""

    cell: float
    left: float  # room of row labels
    above: float  # room of column labels
    width: float  # of the widest matrix or title
    heights: tuple[float, ...]  # of the highest matrix of each row of panels
    columns: int

    def top(self, row: int) -> float:
        """How far below the first row's labels this row's begin."""
        return sum(self.above + height + GAP for height in self.heights[:row])


def heatmap(
    panels: Sequence[Panel],
    path: Path,
    *,
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    bar_label: str = "weight",
    colors: str = "blue",
    columns: int | None = None,
) -> None:
    """Draw the panels, ``columns`` side by side (None: as fit), or write their numbers, as the ending of ``path`` says.

    An .npz file holds each matrix under its panel's name, and its labels under NAME.x and NAME.y. All panels share one
    colour scale. Raises DataError when ``path`` cannot be written.
    """
    check_output(path)
    if not panels:
        raise ValueError("a heatmap of no panels")
    if path.suffix.lower() in NUMBERS:
        save_numbers(path, _arrays(panels), _document(panels, title, x_label, y_label))
    else:
        figure = draw(panels, title=title, x_label=x_label, y_label=y_label, bar_label=bar_label, colors=colors, columns=columns)
        save_picture(figure, path)


def draw(
    panels: Sequence[Panel], *, title: str, x_label: str, y_label: str, bar_label: str, colors: str, columns: int | None
) -> "Figure":
    """The figure of ``heatmap``: its size follows from the number of words, so that labels never overlap."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [text for panel in panels for text in (*panel.x, *panel.y, panel.title)]
    families = fonts({label(text, 200) for text in [*names, title, x_label, y_label, bar_label]})
    plan = _plan(panels, families, columns)
    head = (0.45 if title else 0.12) + (0.25 if x_label else 0.0)
    side = 0.3 if y_label else 0.1
    bar_room = 0.95
    width = side + plan.columns * (plan.left + plan.width + GAP) + bar_room
    height = head + max(plan.top(len(plan.heights)), plan.above + LEAST_BAR + GAP)
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    name, top = COLORS.get(colors, (colors, None))
    top = top or max(float(np.nanmax(panel.matrix, initial=0.0)) for panel in panels) or 1.0
    for i, panel in enumerate(panels):
        x = side + (i % plan.columns) * (plan.left + plan.width + GAP) + plan.left
        y = height - head - plan.top(i // plan.columns) - plan.above
        across, down = plan.cell * len(panel.x), plan.cell * len(panel.y)
        axes = figure.add_axes((x / width, (y - down) / height, across / width, down / height))
        image = axes.imshow(panel.matrix, cmap=name, vmin=0.0, vmax=top, aspect="auto", interpolation="nearest")
        _label(axes, panel, families, plan)
    _write(figure, title, (0.5 * width, height - 0.2), families, size=TITLE + 2.5)
    _write(figure, x_label, ((side + width - bar_room) / 2, height - head + 0.12), families)
    _write(figure, y_label, (0.15, (height - head) / 2), families, rotation=90)
    tall = min(max(plan.heights[0], LEAST_BAR), 4.0)
    bar = figure.add_axes(((width - bar_room + 0.1) / width, (height - head - plan.above - tall) / height, 0.14 / width, tall / height))
    figure.colorbar(image, cax=bar).set_label(bar_label, fontsize=FONT)
    bar.tick_params(labelsize=FONT)
    return figure


def _write(figure: "Figure", text: str, place: tuple[float, float], families: list[str], size: float = TITLE, rotation: float = 0) -> None:
    """A line of text around a place in inches."""
    width, height = figure.get_size_inches()
    figure.text(
        place[0] / width, place[1] / height, label(text, int(115 * (height if rotation else width) / size)), ha="center", va="center",
        family=families, size=size, rotation=rotation, parse_math=False,
    )  # fmt: skip


def _label(axes: "Axes", panel: Panel, families: list[str], plan: _Plan) -> None:
    style: dict[str, Any] = {"family": families, "size": FONT, "parse_math": False}
    axes.set_xticks(range(len(panel.x)), [label(text) for text in panel.x], rotation=90, **style)
    axes.set_yticks(range(len(panel.y)), [label(text) for text in panel.y], **style)
    axes.tick_params(length=0, pad=PAD * 72, top=False, labeltop=True, bottom=False, labelbottom=False)
    right, bottom = len(panel.x) - 0.5, len(panel.y) - 0.5
    fine: dict[str, Any] = {"color": "0.5", "alpha": 0.25, "linewidth": 0.3}  # lines that lead the eye from a cell to its words
    axes.hlines(np.arange(0.5, bottom), -0.5, right, **fine)
    axes.vlines(np.arange(0.5, right), -0.5, bottom, **fine)
    for side in axes.spines.values():
        side.set_linewidth(0.5)
        side.set_color("0.6")
    # The title stands under its panel: above it are the words.
    axes.text(
        0.0, -0.06 / (plan.cell * len(panel.y)), label(panel.title, 120), transform=axes.transAxes, ha="left", va="top",
        family=families, size=TITLE, parse_math=False,
    )  # fmt: skip


def _plan(panels: Sequence[Panel], families: list[str], columns: int | None) -> _Plan:
    longest = max(max(len(panel.x), len(panel.y)) for panel in panels)
    cell = max(0.15, min(0.3, 6.0 / longest))  # 0.15 inches is the least that a line of 8 points needs
    left = _widest([text for panel in panels for text in panel.y], families) + 2 * PAD
    above = _widest([text for panel in panels for text in panel.x], families) + 2 * PAD
    titles = _widest([panel.title for panel in panels], families, longest=120) * TITLE / FONT
    width = max(max(len(panel.x) for panel in panels) * cell, titles)
    if columns is None:
        height = max(len(panel.y) for panel in panels) * cell
        fit = max(1, int(WIDEST // (left + width + GAP)))
        square = math.ceil(math.sqrt(len(panels) * (above + height + GAP) / (left + width + GAP)))
        columns = max(1, min(fit, square, len(panels)))
        columns = math.ceil(len(panels) / math.ceil(len(panels) / columns))  # no nearly empty last row
    heights = [max(len(panel.y) for panel in panels[i : i + columns]) * cell for i in range(0, len(panels), columns)]
    return _Plan(cell, left, above, width, tuple(heights), columns)


def _widest(texts: Sequence[str], families: list[str], longest: int = 28) -> float:
    """Inches that the widest label takes."""
    import warnings

    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    renderer = RendererAgg(10, 10, 72)
    properties = FontProperties(family=families, size=FONT)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        widths = [renderer.get_text_width_height_descent(label(text, longest), properties, ismath=False)[0] for text in set(texts)]
    return max(widths, default=0.0) / 72


def _arrays(panels: Sequence[Panel]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for panel in panels:
        arrays[panel.name] = panel.matrix
        arrays[f"{panel.name}.x"] = np.array(list(panel.x), dtype=np.str_)
        arrays[f"{panel.name}.y"] = np.array(list(panel.y), dtype=np.str_)
    return arrays


def _document(panels: Sequence[Panel], title: str, x_label: str, y_label: str) -> dict[str, Any]:
    shown = [
        {"name": p.name, "title": p.title, "x": list(p.x), "y": list(p.y), "matrix": [finite(row) for row in p.matrix]} for p in panels
    ]
    return {"title": title, "x_label": x_label, "y_label": y_label, "panels": shown}
