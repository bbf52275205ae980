"""Heatmaps drawn by matplotlib: rows of panels with a label at every row and column."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fusetk.plotting.figure import fonts, label
from fusetk.plotting.panel import Panel, Scale, axes, near_square, scales, split_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

# Font sizes in points.
FONT = 8.0
TITLE = 9.5
HEADING = 12.0

# Lengths in inches.
LINE = 0.16  # line height of a title
GAP = 0.3  # between panels, including the first line of the title
LEAST_BAR = 1.4  # smallest height of a colour bar
BAR_ROOM = 0.95  # width of a colour bar, its numbers and the first line of its label
PAD = 0.06  # between a label and its cells
WIDEST = 36.0  # largest width of a row of panels
NUMBER = 0.5  # width of a number beside its cell
LEAST_CELL = 0.15  # smallest cell with room for a label of 8 points
LARGEST_CELL = 0.3

EMPTY = "#efe6d3"  # colour of a cell without a number; no colour map contains it
CUT = "#e8710a"  # colour of the dividing line; visible on every colour map


class _Layout(NamedTuple):
    """Positions in inches. The panels of a row share a height; equally long rows share columns."""

    rows: list[list[Panel]]
    cell: float
    lefts: list[list[float]]  # left edge of the cells of each panel, by row
    width: float  # of the widest row
    above: tuple[float, ...]  # height of the column labels, by row
    height: tuple[float, ...]  # of the highest matrix, by row
    below: tuple[float, ...]  # height of the titles, by row

    def top(self, row: int) -> float:
        """Return the distance from the top of the first row to the top of ``row``."""
        return sum(self.above[:row]) + sum(self.height[:row]) + sum(self.below[:row])


class _Frame(NamedTuple):
    """Sizes of the figure and of the areas around the panels, in inches."""

    width: float
    height: float
    left: float  # width of the margin with the name of the rows
    head: float  # height of the heading and of the name of the columns
    bar_room: float  # width of the colour bars and their labels
    bar: float  # height of a colour bar

    @property
    def top(self) -> float:
        """Upper edge of the first row, measured from the bottom of the figure."""
        return self.height - self.head


def draw(
    panels: Sequence[Panel],
    *,
    title: str = "",
    colors: str = "blue",
    columns: int | Sequence[int] | None = None,
) -> "Figure":
    """Return a figure of the panels. It grows with the number of words: labels never overlap.

    ``columns``: the number of panels side by side (None: as many as fit), or the number in each
    row. Panels of the same measure share a colour scale.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not panels:
        raise ValueError("a heatmap needs at least one panel")
    x_label, y_label = axes(panels)
    measures = scales(panels, colors)
    names = [text for panel in panels for text in (*panel.x, *panel.y, panel.title)]
    families = fonts({label(text, 200) for text in [*names, title, x_label, y_label, *measures]})
    layout = _lay_out(panels, families, columns)
    bar = _bar_height(layout, len(measures))
    bar_labels = {measure: _wrap(measure, bar, FONT) for measure in measures}
    bar_room = BAR_ROOM + 0.14 * max(text.count("\n") for text in bar_labels.values())
    left = 0.3 if y_label else 0.1
    width = left + layout.width + GAP + bar_room
    heading = _wrap(label(title, 500), width - 0.4, HEADING) if title else ""
    head = 0.45 + 0.2 * heading.count("\n") if title else 0.12
    if x_label:
        head += 0.25
    content = max(layout.top(len(layout.rows)), layout.above[0] + len(measures) * (bar + GAP))
    frame = _Frame(width, head + content, left, head, bar_room, bar)
    figure = Figure(figsize=(frame.width, frame.height))
    FigureCanvasAgg(figure)
    images = _draw_panels(figure, frame, layout, measures, families)
    for i, line in enumerate(heading.split("\n")):
        _write(figure, line, (0.5 * width, frame.height - 0.2 - 0.2 * i), families, HEADING)
    _write(figure, x_label, ((left + width - bar_room) / 2, frame.top + 0.12), families, TITLE)
    _write(figure, y_label, (0.15, frame.top / 2), families, TITLE, rotation=90)
    _draw_bars(figure, frame, layout, images, bar_labels)
    return figure


def _draw_panels(
    figure: "Figure",
    frame: _Frame,
    layout: _Layout,
    measures: dict[str, Scale],
    families: list[str],
) -> "dict[str, ScalarMappable]":
    """Draw all panels. Return one image of each measure."""
    images: dict[str, ScalarMappable] = {}
    for r, row in enumerate(layout.rows):
        for c, panel in enumerate(row):
            corner = (
                frame.left + layout.lefts[r][c],
                frame.top - layout.top(r) - layout.above[r],
            )
            images[panel.measure] = _draw_panel(
                figure, panel, corner, measures[panel.measure], layout.cell, families
            )
    return images


def _draw_bars(
    figure: "Figure",
    frame: _Frame,
    layout: _Layout,
    images: "dict[str, ScalarMappable]",
    labels: dict[str, str],
) -> None:
    """Draw a colour bar for each measure at the right, from top to bottom."""
    left = (frame.width - frame.bar_room + 0.1) / frame.width
    for i, (measure, text) in enumerate(labels.items()):
        low = frame.top - layout.above[0] - (i + 1) * frame.bar - i * GAP
        place = (left, low / frame.height, 0.14 / frame.width, frame.bar / frame.height)
        bar = figure.add_axes(place)
        figure.colorbar(images[measure], cax=bar).set_label(text, fontsize=FONT)
        bar.tick_params(labelsize=FONT)


def _draw_panel(
    figure: "Figure",
    panel: Panel,
    corner: tuple[float, float],
    scale: Scale,
    cell: float,
    families: list[str],
) -> "ScalarMappable":
    """Draw one panel. ``corner`` is the upper left corner of its cells, in inches."""
    import matplotlib

    width, height = figure.get_size_inches()
    left, top = corner
    across = cell * len(panel.x)
    down = cell * len(panel.y)
    panel_axes = figure.add_axes(
        (left / width, (top - down) / height, across / width, down / height)
    )
    image = panel_axes.imshow(
        panel.matrix,
        cmap=matplotlib.colormaps[scale.map].with_extremes(bad=EMPTY),
        vmin=scale.low,
        vmax=scale.high,
        aspect="auto",
        interpolation="nearest",
        origin="lower" if panel.up else "upper",
    )
    _draw_labels(panel_axes, panel, families, cell)
    _draw_lines(panel_axes, panel, cell)
    return image


def _write(
    figure: "Figure",
    text: str,
    place: tuple[float, float],
    families: list[str],
    size: float,
    rotation: float = 0,
) -> None:
    """Write a line of text, centred at ``place`` (in inches)."""
    width, height = figure.get_size_inches()
    longest = int(115 * (height if rotation else width) / size)  # characters
    figure.text(
        place[0] / width,
        place[1] / height,
        label(text, longest),
        ha="center",
        va="center",
        family=families,
        size=size,
        rotation=rotation,
        parse_math=False,
    )


def _draw_labels(axes: "Axes", panel: Panel, families: list[str], cell: float) -> None:
    """Write the labels of rows and columns, the title, and the numbers of a single column."""
    style: dict[str, Any] = {"family": families, "size": FONT, "parse_math": False}
    axes.set_xticks(range(len(panel.x)), [label(text) for text in panel.x], rotation=90, **style)
    axes.set_yticks(range(len(panel.y)), [label(text) for text in panel.y], **style)
    axes.tick_params(
        length=0, pad=PAD * 72, top=False, labeltop=True, bottom=False, labelbottom=False
    )
    if len(panel.x) == 1:  # a single column has room for its numbers
        for row, value in enumerate(panel.matrix[:, 0]):
            x = 0.5 + 0.06 / cell
            axes.text(x, row, f"{value:.3g}", ha="left", va="center", size=FONT - 1)
    # The title is below the panel, because the column labels are above it.
    axes.text(
        0.0,
        -0.06 / (cell * len(panel.y)),
        _title(panel, cell),
        transform=axes.transAxes,
        ha="left",
        va="top",
        family=families,
        size=TITLE,
        parse_math=False,
        linespacing=1.1,
    )


def _draw_lines(axes: "Axes", panel: Panel, cell: float) -> None:
    """Draw the frame, thin lines between the cells, and the dividing line."""
    right = len(panel.x) - 0.5
    bottom = len(panel.y) - 0.5
    thin: dict[str, Any] = {"color": "0.5", "alpha": 0.25, "linewidth": 0.3}
    axes.hlines(np.arange(0.5, bottom), -0.5, right, **thin)
    axes.vlines(np.arange(0.5, right), -0.5, bottom, **thin)
    if panel.cut:  # the line extends up to the labels
        top = 1 + PAD / (cell * len(panel.y))
        axes.axvline(panel.cut - 0.5, 0, top, color=CUT, linewidth=1.6, clip_on=False)
    for spine in axes.spines.values():
        spine.set_linewidth(0.5)
        spine.set_color("0.6")


def _lay_out(
    panels: Sequence[Panel], families: list[str], columns: int | Sequence[int] | None
) -> _Layout:
    longest = max(max(len(panel.x), len(panel.y)) for panel in panels)
    cell = max(LEAST_CELL, min(LARGEST_CELL, 6.0 / longest))
    widths = {id(panel): _width(panel, cell, families) for panel in panels}
    label_widths = {id(panel): _widest(panel.y, families) + 2 * PAD for panel in panels}
    if columns is None:
        widest = max(label_widths.values()) + max(widths.values())
        fitting = max(1, int(WIDEST // (widest + GAP)))
        most_rows = max(len(panel.y) for panel in panels)
        columns = min(fitting, near_square(len(panels), most_rows, round(widest / cell) - 6))
    rows = _split(panels, columns)
    edges = []
    for row in rows:
        if isinstance(columns, int):
            aligned = rows
        else:
            aligned = [other for other in rows if len(other) == len(row)]
        edges.append(_left_edges(row, aligned, rows, label_widths, widths))
    above = [_widest([text for panel in row for text in panel.x], families) for row in rows]
    title_lines = [max(_title(panel, cell).count("\n") for panel in row) for row in rows]
    return _Layout(
        rows,
        cell,
        [row_edges[:-1] for row_edges in edges],
        max(row_edges[-1] for row_edges in edges) - GAP,
        above=tuple(height + 2 * PAD for height in above),
        height=tuple(max(len(panel.y) for panel in row) * cell for row in rows),
        below=tuple(GAP + LINE * lines for lines in title_lines),
    )


def _split(panels: Sequence[Panel], columns: int | Sequence[int]) -> list[list[Panel]]:
    """Split the panels into rows of ``columns`` panels, or of the given numbers of panels."""
    lengths = split_rows(len(panels), columns) if isinstance(columns, int) else columns
    rows = []
    start = 0
    for length in lengths:
        rows.append(list(panels[start : start + length]))
        start += length
    return rows


def _left_edges(
    row: list[Panel],
    aligned: list[list[Panel]],
    rows: list[list[Panel]],
    label_widths: dict[int, float],
    widths: dict[int, float],
) -> list[float]:
    """Return the left edge of each panel's cells, and the edge of a panel after the last one.

    The edges are equal in all ``aligned`` rows. The first edge is equal in all ``rows``.
    """
    edges = []
    end = 0.0
    for c in range(len(row)):
        same_edge = [other[c] for other in (aligned if c else rows) if c < len(other)]
        same_column = [other[c] for other in aligned if c < len(other)]
        edges.append(end + max(label_widths[id(panel)] for panel in same_edge))
        end = edges[-1] + max(widths[id(panel)] for panel in same_column) + GAP
    return [*edges, end]


def _width(panel: Panel, cell: float, families: list[str]) -> float:
    """Return the width of a panel: its cells with the numbers beside them, or its title."""
    title = _widest(_title(panel, cell).split("\n"), families, longest=200) * TITLE / FONT
    return max(cell * len(panel.x) + (NUMBER if len(panel.x) == 1 else 0.0), title)


def _title(panel: Panel, cell: float) -> str:
    return _wrap(label(panel.title, 200), max(2.0, cell * len(panel.x)), TITLE)


def _wrap(text: str, inches: float, size: float) -> str:
    """Wrap text to a width. If it is too long, text in brackets starts a new line."""
    room = max(16, int(inches * 72 / (0.58 * size)))
    pieces = [text] if len(text) <= room else text.replace(" (", "\n(").split("\n")
    return "\n".join(line for piece in pieces for line in textwrap.wrap(piece, room))


def _bar_height(layout: _Layout, bars: int) -> float:
    if bars == 1:
        room = layout.height[0]
    else:
        room = (layout.top(len(layout.rows)) - layout.above[0]) / bars - GAP
    return min(max(room, LEAST_BAR), 4.0)


def _widest(texts: Sequence[str], families: list[str], longest: int = 28) -> float:
    """Return the width of the widest label, in inches."""
    import warnings

    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    renderer = RendererAgg(10, 10, 72)
    properties = FontProperties(family=families, size=FONT)
    widths = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        for text in set(texts):
            size = renderer.get_text_width_height_descent(
                label(text, longest), properties, ismath=False
            )
            widths.append(size[0])
    return max(widths, default=0.0) / 72
