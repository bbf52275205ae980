"""Heatmaps drawn by matplotlib: panels in rows, a word at every row and column of each."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fusetk.plotting.figure import fonts, label
from fusetk.plotting.panel import Panel, Scale, axes, beside, scales, share_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

FONT = 8.0  # points
TITLE = 9.5
HEADING = 12.0
LINE = 0.16  # inches from one line of a title to the next
GAP = 0.3  # inches between panels, with the first line of the title
LEAST_BAR = 1.4  # inches that a colour bar needs
BAR_ROOM = 0.95  # of the colour bar, its numbers and the first line of its label
PAD = 0.06  # between a label and its cells
WIDEST = 36.0  # inches that a row of panels may take before the next row begins
NUMBER = 0.5  # inches of a number beside its cell
EMPTY = "#efe6d3"  # a cell without a number: no colour of any map
CUT = "#e8710a"  # the line between columns of two kinds: seen on every map


class _Plan(NamedTuple):
    """Where things stand, in inches; the panels of a row share a height, rows of as many panels the columns."""

    rows: list[list[Panel]]
    cell: float
    right: list[list[float]]  # where the cells of each panel begin, by row
    width: float  # of the widest row
    above: tuple[float, ...]  # room of column labels, by row
    height: tuple[float, ...]  # of the highest matrix, by row
    below: tuple[float, ...]  # room of titles, by row

    def top(self, row: int) -> float:
        """How far below the labels of the first row those of ``row`` begin."""
        return sum(self.above[:row]) + sum(self.height[:row]) + sum(self.below[:row])


def draw(
    panels: Sequence[Panel],
    *,
    title: str = "",
    colors: str = "blue",
    columns: int | Sequence[int] | None = None,
) -> "Figure":
    """The panels as a figure: its size follows from the number of words, so that labels never overlap.

    ``columns``: so many side by side (None: as fit), or how many in each row. Panels of one measure share their colours.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not panels:
        raise ValueError("a heatmap of no panels")
    x_label, y_label = axes(panels)
    measures = scales(panels, colors)
    names = [text for panel in panels for text in (*panel.x, *panel.y, panel.title)]
    families = fonts({label(text, 200) for text in [*names, title, x_label, y_label, *measures]})
    plan = _plan(panels, families, columns)
    side = 0.3 if y_label else 0.1
    tall = _bar_height(plan, len(measures))
    texts = {measure: _wrap(measure, tall, FONT) for measure in measures}
    bar_room = BAR_ROOM + 0.14 * max(text.count("\n") for text in texts.values())
    width = side + plan.width + GAP + bar_room
    heading = _wrap(label(title, 500), width - 0.4, HEADING) if title else ""
    head = (0.45 + 0.2 * heading.count("\n") if title else 0.12) + (0.25 if x_label else 0.0)
    height = head + max(plan.top(len(plan.rows)), plan.above[0] + len(measures) * (tall + GAP))
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    images: dict[str, ScalarMappable] = {}
    for r, row in enumerate(plan.rows):
        for c, panel in enumerate(row):
            at = side + plan.right[r][c], height - head - plan.top(r) - plan.above[r]
            images[panel.measure] = _panel(
                figure, panel, at, measures[panel.measure], plan, families
            )
    for i, line in enumerate(heading.split("\n")):
        _write(figure, line, (0.5 * width, height - 0.2 - 0.2 * i), families, HEADING)
    _write(figure, x_label, ((side + width - bar_room) / 2, height - head + 0.12), families, TITLE)
    _write(figure, y_label, (0.15, (height - head) / 2), families, TITLE, rotation=90)
    for i, measure in enumerate(measures):
        low = height - head - plan.above[0] - (i + 1) * tall - i * GAP
        bar = figure.add_axes(
            ((width - bar_room + 0.1) / width, low / height, 0.14 / width, tall / height)
        )
        figure.colorbar(images[measure], cax=bar).set_label(texts[measure], fontsize=FONT)
        bar.tick_params(labelsize=FONT)
    return figure


def _panel(
    figure: "Figure",
    panel: Panel,
    at: tuple[float, float],
    scale: Scale,
    plan: _Plan,
    families: list[str],
) -> "ScalarMappable":
    """Draw one panel, its upper left cell at a place in inches."""
    import matplotlib

    width, height = figure.get_size_inches()
    across, down = plan.cell * len(panel.x), plan.cell * len(panel.y)
    place = figure.add_axes((at[0] / width, (at[1] - down) / height, across / width, down / height))
    image = place.imshow(
        panel.matrix,
        cmap=matplotlib.colormaps[scale.map].with_extremes(bad=EMPTY),
        vmin=scale.low,
        vmax=scale.high,
        aspect="auto",
        interpolation="nearest",
        origin="lower" if panel.up else "upper",
    )
    _label(place, panel, families, plan)
    return image


def _write(
    figure: "Figure",
    text: str,
    place: tuple[float, float],
    families: list[str],
    size: float,
    rotation: float = 0,
) -> None:
    """A line of text around a place in inches."""
    width, height = figure.get_size_inches()
    figure.text(
        place[0] / width,
        place[1] / height,
        label(text, int(115 * (height if rotation else width) / size)),
        ha="center",
        va="center",
        family=families,
        size=size,
        rotation=rotation,
        parse_math=False,
    )


def _label(axes: "Axes", panel: Panel, families: list[str], plan: _Plan) -> None:
    style: dict[str, Any] = {"family": families, "size": FONT, "parse_math": False}
    axes.set_xticks(range(len(panel.x)), [label(text) for text in panel.x], rotation=90, **style)
    axes.set_yticks(range(len(panel.y)), [label(text) for text in panel.y], **style)
    axes.tick_params(
        length=0, pad=PAD * 72, top=False, labeltop=True, bottom=False, labelbottom=False
    )
    right, bottom = len(panel.x) - 0.5, len(panel.y) - 0.5
    fine: dict[str, Any] = {
        "color": "0.5",
        "alpha": 0.25,
        "linewidth": 0.3,
    }  # lines that lead the eye from a cell to its words
    axes.hlines(np.arange(0.5, bottom), -0.5, right, **fine)
    axes.vlines(np.arange(0.5, right), -0.5, bottom, **fine)
    if panel.cut:  # up to the labels
        axes.axvline(
            panel.cut - 0.5,
            0,
            1 + PAD / (plan.cell * len(panel.y)),
            color=CUT,
            linewidth=1.6,
            clip_on=False,
        )
    for side in axes.spines.values():
        side.set_linewidth(0.5)
        side.set_color("0.6")
    if len(panel.x) == 1:  # there is room to say what a colour can only hint at
        for row, value in enumerate(panel.matrix[:, 0]):
            axes.text(
                0.5 + 0.06 / plan.cell, row, f"{value:.3g}", ha="left", va="center", size=FONT - 1
            )
    # The title stands under its panel: above it are the words.
    axes.text(
        0.0,
        -0.06 / (plan.cell * len(panel.y)),
        _title(panel, plan.cell),
        transform=axes.transAxes,
        ha="left",
        va="top",
        family=families,
        size=TITLE,
        parse_math=False,
        linespacing=1.1,
    )


def _plan(
    panels: Sequence[Panel], families: list[str], columns: int | Sequence[int] | None
) -> _Plan:
    longest = max(max(len(panel.x), len(panel.y)) for panel in panels)
    cell = max(
        0.15, min(0.3, 6.0 / longest)
    )  # 0.15 inches is the least that a line of 8 points needs
    widths = {id(panel): _width(panel, cell, families) for panel in panels}
    lefts = {id(panel): _widest(panel.y, families) + 2 * PAD for panel in panels}
    if columns is None:
        widest = max(lefts.values()) + max(widths.values())
        most = max(1, int(WIDEST // (widest + GAP)))
        columns = min(
            most,
            beside(len(panels), max(len(panel.y) for panel in panels), round(widest / cell) - 6),
        )
    fixed = isinstance(columns, int)
    lengths = share_out(len(panels), columns) if isinstance(columns, int) else list(columns)
    starts = np.cumsum([0, *lengths]).tolist()
    rows = [
        list(panels[start : start + length]) for start, length in zip(starts, lengths, strict=False)
    ]
    right = [
        _places(
            row,
            rows if fixed else [other for other in rows if len(other) == len(row)],
            rows,
            lefts,
            widths,
        )
        for row in rows
    ]
    return _Plan(
        rows,
        cell,
        [places[:-1] for places in right],
        max(places[-1] for places in right) - GAP,
        above=tuple(
            _widest([text for panel in row for text in panel.x], families) + 2 * PAD for row in rows
        ),
        height=tuple(max(len(panel.y) for panel in row) * cell for row in rows),
        below=tuple(
            GAP + LINE * max(_title(panel, cell).count("\n") for panel in row) for row in rows
        ),
    )


def _places(
    row: list[Panel],
    aligned: list[list[Panel]],
    rows: list[list[Panel]],
    lefts: dict[int, float],
    widths: dict[int, float],
) -> list[float]:
    """Where the cells of each panel of a row begin, under one another in the ``aligned`` rows, and where the next would."""
    places, end = [], 0.0
    for c in range(len(row)):
        left = [other[c] for other in (aligned if c else rows) if c < len(other)]
        places.append(end + max(lefts[id(panel)] for panel in left))
        end = places[-1] + max(widths[id(other[c])] for other in aligned if c < len(other)) + GAP
    return [*places, end]


def _width(panel: Panel, cell: float, families: list[str]) -> float:
    """Inches that a panel's cells, the number beside a single column, or its title take."""
    title = _widest(_title(panel, cell).split("\n"), families, longest=200) * TITLE / FONT
    return max(cell * len(panel.x) + (NUMBER if len(panel.x) == 1 else 0.0), title)


def _title(panel: Panel, cell: float) -> str:
    return _wrap(label(panel.title, 200), max(2.0, cell * len(panel.x)), TITLE)


def _wrap(text: str, inches: float, size: float) -> str:
    """Text in lines of about so many inches; what is in brackets begins a line rather than to be torn."""
    room = max(16, int(inches * 72 / (0.58 * size)))
    pieces = [text] if len(text) <= room else text.replace(" (", "\n(").split("\n")
    return "\n".join(line for piece in pieces for line in textwrap.wrap(piece, room))


def _bar_height(plan: _Plan, bars: int) -> float:
    room = plan.height[0] if bars == 1 else (plan.top(len(plan.rows)) - plan.above[0]) / bars - GAP
    return min(max(room, LEAST_BAR), 4.0)


def _widest(texts: Sequence[str], families: list[str], longest: int = 28) -> float:
    """Inches that the widest label takes."""
    import warnings

    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    renderer = RendererAgg(10, 10, 72)
    properties = FontProperties(family=families, size=FONT)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        widths = [
            renderer.get_text_width_height_descent(label(text, longest), properties, ismath=False)[
                0
            ]
            for text in set(texts)
        ]
    return max(widths, default=0.0) / 72
