"""Heatmaps drawn by matplotlib: rows of panels with a label at every row and column."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fusetk.plotting.figure import fonts, label, without_latex
from fusetk.plotting.heatmap_layout import (
    BAR,
    GAP,
    LEAST_BAR,
    LONGEST_BAR,
    MARGIN,
    PAD,
    Arranged,
    arrange,
    axis_room,
    flat_bar_height,
    names_columns,
    names_rows,
    wrap,
)
from fusetk.plotting.panel import DEFAULT_COLORS, Panel, Scale, round_ticks, scales, short_titles
from fusetk.plotting.style import SCREEN, Size, Style
from fusetk.plotting.text_width import TextWidth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

LEAST_HEADING = 2.5  # inches; a narrow figure grows so that its heading has few lines

log = logging.getLogger(__name__)

EMPTY = "#efe6d3"  # colour of a cell without a number; no colour map contains it
CUT = "#e8710a"  # colour of the dividing line; visible on every colour map


class _Frame(NamedTuple):
    """Sizes of the figure and of the areas around the panels, in inches."""

    width: float
    height: float
    head: float  # height of the heading
    heading: list[str]  # its lines
    bars: list[tuple[float, float, float, float]]  # left, bottom, width, height
    bar_labels: list[list[str]]  # the lines of each
    flat: bool  # the colour bars are below the panels


class _Pen(NamedTuple):
    """The figure and the fonts of its texts."""

    figure: "Figure"
    families: list[str]
    style: Style

    def write(self, text: str, x: float, y: float, size: float, **options: Any) -> None:
        """Write text at a place in inches from the lower left corner."""
        width, height = self.figure.get_size_inches()
        place: dict[str, Any] = {"ha": "center", "va": "center", **options}
        place |= {"family": self.families, "size": size, "parse_math": False}
        self.figure.text(x / width, y / height, text, **place)

    def axes(self, left: float, bottom: float, width: float, height: float) -> "Axes":
        """Return new axes at a place in inches."""
        across, up = self.figure.get_size_inches()
        return self.figure.add_axes((left / across, bottom / up, width / across, height / up))


@without_latex()
def draw(
    panels: Sequence[Panel],
    *,
    title: str = "",
    colors: str = DEFAULT_COLORS,
    columns: int | Sequence[int] | None = None,
    style: Style = SCREEN,
    size: Size | None = None,
) -> "Figure":
    """Return a figure of the panels. Labels never overlap.

    Without a ``size`` or widths in the style, the figure grows with the number of words. With a
    width, the cells get the size that fits, and rows of panels are divided if that is necessary.
    The height follows from the number of cells, which are square. Raises DataError if the panels
    do not fit in the width.

    ``columns``: the number of panels side by side (None: as many as fit), or the number in each
    row. Panels of the same measure share a colour scale. If there are several, each colour bar is
    below a panel. A measure whose panels have one column, beside which the numbers are written, has
    no colours and no colour bar if there are other panels. A panel's caption has the parts of its
    title that other panels do not have. ``title`` is written above the panels.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not panels:
        raise ValueError("a heatmap needs at least one panel")
    measures = scales(panels, colors)
    barred = {panel.measure: measures[panel.measure] for panel in panels if len(panel.x) > 1}
    barred = barred or measures
    captions = short_titles(panels)[1]
    texts = [text for panel in panels for text in (*panel.x, *panel.y, *panel.axes)]
    families = fonts({label(text, 200) for text in [*texts, *captions, title, *measures]})
    widths = TextWidth(families)
    layout, frame = _lay_out(panels, captions, barred, title, columns, style, size, widths)
    if style.widths and not layout.figure_width:
        log.warning(
            "the picture is %.1f inches wide, because its labels do not fit in %g inches",
            frame.width,
            style.widths[-1],
        )
    figure = Figure(figsize=(frame.width, frame.height))
    FigureCanvasAgg(figure)
    pen = _Pen(figure, families, style)
    images = _draw_panels(pen, frame, layout, barred)
    for i, line in enumerate(frame.heading):
        y = frame.height - MARGIN - (i + 0.5) * 1.3 * style.heading / 72
        pen.write(line, frame.width / 2, y, style.heading)
    for place, text, measure in zip(frame.bars, frame.bar_labels, barred, strict=True):
        ticks = _ticks(barred[measure])
        if frame.flat:
            ticks = _ticks_with_room(ticks, place[2], style, widths)
        _draw_bar(pen, place, frame.flat, "\n".join(text), ticks, images[measure])
    return figure


def _lay_out(
    panels: Sequence[Panel],
    captions: Sequence[str],
    barred: dict[str, Scale],
    title: str,
    columns: int | Sequence[int] | None,
    style: Style,
    size: Size | None,
    widths: TextWidth,
) -> tuple[Arranged, _Frame]:
    """Return the arrangement of the panels and of the colour bars.

    One colour bar is beside the panels, or below them if they are low. Several are below panels.
    """
    if len(barred) > 1:
        layout = arrange(panels, captions, columns, style, size, widths, MARGIN, barred)
        heading = _heading(title, layout, style, widths)
        return layout, _frame_with_bars_below(layout, list(barred), heading, style)
    [(measure, scale)] = barred.items()
    lines = 0
    bar_label = [""]
    while lines < len(bar_label):  # the room for the label depends on its lines
        lines = len(bar_label)
        bar_room = _bar_room(scale, lines, style, widths)
        layout = arrange(panels, captions, columns, style, size, widths, bar_room)
        if _is_low(layout):  # the colour bar is below the panels
            wider = arrange(panels, captions, columns, style, size, widths, MARGIN)
            layout = wider if _is_low(wider) else layout
        heading = _heading(title, layout, style, widths)
        frame = _frame(layout, heading, lines, bar_room, style)
        length = max(frame.bars[0][2:])
        bar_label = wrap(measure, length + GAP, style.font, widths)
    return layout, frame._replace(bar_labels=[bar_label])


class _Heading(NamedTuple):
    """The lines above the panels, and their width in inches."""

    lines: list[str]
    width: float

    def height(self, style: Style) -> float:
        return 1.3 * style.heading / 72 * len(self.lines)


def _heading(title: str, layout: Arranged, style: Style, widths: TextWidth) -> _Heading:
    """Return the lines of a title. Only a figure without a given width grows with them."""
    room = layout.width if layout.figure_width else max(layout.width, LEAST_HEADING)
    lines = wrap(title, room, style.heading, widths)
    return _Heading(lines, widths.widest(lines, style.heading))


def _frame(
    layout: Arranged, heading: _Heading, lines: int, bar_room: float, style: Style
) -> _Frame:
    """Return the size of the figure, and the place of its only colour bar.

    ``lines`` is the number of lines of the bar's label.
    """
    head = MARGIN + heading.height(style)
    cells = layout.above[0] + layout.height[0]
    content = layout.top(len(layout.rows))
    flat = _is_low(layout)
    if flat:
        tall = flat_bar_height(lines, style)
        beside = MARGIN + style.font / 72  # half of the number at the end is beside the bar
        least = max(layout.width, heading.width) + 2 * MARGIN
        width = layout.figure_width or max(least, LEAST_BAR + 2 * beside)
        # The colour bar begins below the first cell.
        left = MARGIN + layout.lefts[0][0]
        long = min(max(LEAST_BAR, width - left - beside), LONGEST_BAR, width - 2 * beside)
        left = max(beside, min(left, width - beside - long))
        height = head + content + tall
        place = (left, tall - BAR, long, BAR)
    else:
        long = min(max(cells - layout.above[0], LEAST_BAR), LONGEST_BAR)
        content = max(content, layout.above[0] + long + GAP)
        right = layout.figure_width or MARGIN + layout.width + bar_room
        width = layout.figure_width or max(right, heading.width + 2 * MARGIN)
        height = head + content
        top = height - head - layout.above[0]
        place = (right - bar_room + 0.14, top - long, BAR, long)
    return _Frame(width, height, head, heading.lines, [place], [], flat)


def _frame_with_bars_below(
    layout: Arranged, measures: Sequence[str], heading: _Heading, style: Style
) -> _Frame:
    """Return the size of the figure, and the places of the colour bars of several measures."""
    head = MARGIN + heading.height(style)
    width = layout.figure_width or max(layout.width, heading.width) + 2 * MARGIN
    height = head + layout.top(len(layout.rows))
    bars = [layout.bars[measure] for measure in measures]
    places = [
        (MARGIN + bar.left, height - head - layout.top(bar.row) - bar.down - BAR, bar.length, BAR)
        for bar in bars
    ]
    labels = [bar.label for bar in bars]
    return _Frame(width, height, head, heading.lines, places, labels, flat=True)


def _is_low(layout: Arranged) -> bool:
    """Whether the panels are so low that a colour bar has no room beside them."""
    return layout.top(len(layout.rows)) - layout.above[0] < LEAST_BAR


def _bar_room(scale: Scale, lines: int, style: Style, widths: TextWidth) -> float:
    """Return the width of the colour bar, with numbers and with a label of ``lines`` lines."""
    number = widths.widest(list(_ticks(scale).values()), style.font)
    return 0.14 + BAR + 0.1 + number + (1 + 1.2 * lines) * style.font / 72


def _draw_panels(
    pen: _Pen, frame: _Frame, layout: Arranged, scale_of: dict[str, Scale]
) -> "dict[str, ScalarMappable]":
    """Draw all panels, in white if their measure has no scale. Return one image of each measure."""
    images: dict[str, ScalarMappable] = {}
    size = pen.style.caption
    for r, row in enumerate(layout.rows):
        for c, (panel, caption) in enumerate(row):
            left = MARGIN + layout.lefts[r][c]
            top = frame.height - frame.head - layout.top(r) - layout.above[r]
            has_names = names_columns(layout.rows, r, c)
            scale = scale_of.get(panel.measure)
            image = _draw_panel(pen, panel, (left, top), scale, layout.cell, has_names)
            images[panel.measure] = image
            across, down = layout.cell * len(panel.x), layout.cell * len(panel.y)
            x_name, y_name = (label(name, 60) for name in panel.axes)
            if x_name and has_names:
                above = top + layout.above[r] - axis_room(pen.style) / 2
                pen.write(x_name, left + across / 2, above, size, style="italic")
            if y_name and names_rows(row, c):
                beside = left - layout.label_width(panel) - axis_room(pen.style) / 2
                pen.write(y_name, beside, top - down / 2, size, rotation=90, style="italic")
            below = top - down - PAD
            pen.write("\n".join(caption), left, below, size, ha="left", va="top", linespacing=1.1)
    return images


def _ticks(scale: Scale) -> dict[float, str]:
    """Return the numbers beside a colour bar. The end of the scale is always one of them."""
    values = round_ticks(scale.low, scale.high)
    if not np.allclose(values[[0, -1]], (scale.low, scale.high), atol=0):
        values = np.linspace(scale.low, scale.high, 5)
    return {float(value): f"{value:.3g}" for value in values}


def _ticks_with_room(
    ticks: dict[float, str], length: float, style: Style, widths: TextWidth
) -> dict[float, str]:
    """Return the ticks of a horizontal bar without those whose numbers would overlap.

    ``length`` is in inches. The ticks are equidistant, and the first and the last one remain.
    """
    intervals = len(ticks) - 1
    needed = widths.widest(ticks.values(), style.font) + style.font / 72 / 2
    fitting = (
        step
        for step in range(1, intervals)
        if intervals % step == 0 and step * length / intervals >= needed
    )
    return dict(list(ticks.items())[:: next(fitting, intervals)])


def _draw_bar(
    pen: _Pen,
    place: tuple[float, float, float, float],
    flat: bool,
    text: str,
    ticks: dict[float, str],
    image: "ScalarMappable",
) -> None:
    """Draw a colour bar and its label ``text``."""
    axes = pen.axes(*place)
    bar = pen.figure.colorbar(image, cax=axes, orientation="horizontal" if flat else "vertical")
    bar.set_ticks(list(ticks), labels=list(ticks.values()))
    bar.outline.set_linewidth(0.5)
    axes.tick_params(labelsize=pen.style.font, length=2, width=0.5, pad=2)
    fonts: dict[str, Any] = {"family": pen.families, "fontsize": pen.style.font}
    bar.set_label(text, parse_math=False, linespacing=1.05, **fonts)


def _draw_panel(
    pen: _Pen,
    panel: Panel,
    corner: tuple[float, float],
    scale: Scale | None,
    cell: float,
    has_names: bool,
) -> "ScalarMappable":
    """Draw one panel. ``corner`` is the upper left corner of its cells, in inches.

    ``has_names``: write the labels of the columns.
    """
    left, top = corner
    down = cell * len(panel.y)
    axes = pen.axes(left, top - down, cell * len(panel.x), down)
    image = axes.imshow(
        panel.matrix,
        **_colors(scale),
        aspect="auto",
        interpolation="nearest",
        origin="lower" if panel.up else "upper",
    )
    _draw_labels(axes, panel, pen, cell, has_names)
    _draw_lines(axes, panel, cell)
    return image


def _colors(scale: Scale | None) -> dict[str, Any]:
    """Return the arguments of ``imshow`` that determine the colours."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    if scale is None:
        return {"cmap": ListedColormap(["white"])}
    colors = matplotlib.colormaps[scale.map].with_extremes(bad=EMPTY)
    return {"cmap": colors, "vmin": scale.low, "vmax": scale.high}


def _draw_labels(axes: "Axes", panel: Panel, pen: _Pen, cell: float, has_names: bool) -> None:
    """Write the labels of rows and columns, and the numbers of a single column."""
    style: dict[str, Any] = {"family": pen.families, "size": pen.style.font, "parse_math": False}
    axes.set_xticks(range(len(panel.x)), [label(text) for text in panel.x], rotation=90, **style)
    axes.set_yticks(range(len(panel.y)), [label(text) for text in panel.y], **style)
    axes.tick_params(
        length=0, pad=PAD * 72, top=False, labeltop=has_names, bottom=False, labelbottom=False
    )
    if len(panel.x) == 1:  # a single column has room for its numbers
        for row, value in enumerate(panel.matrix[:, 0]):
            x = 0.5 + 0.06 / cell
            axes.text(x, row, f"{value:.3g}", ha="left", va="center", size=pen.style.font - 1)


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
