"""Positions of the panels of a heatmap and sizes of their cells, in inches."""

import math
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from fusetk.errors import DataError
from fusetk.plotting.figure import label
from fusetk.plotting.panel import Panel, near_square, split_rows
from fusetk.plotting.style import Size, Style
from fusetk.plotting.text_width import TextWidth

GAP = 0.2  # between panels
PAD = 0.06  # between a label and its cells
MARGIN = 0.1  # at the edges of the figure
WIDEST = 36.0  # largest width of a row of panels
CAPTION = 3.5  # largest width of a caption, unless its panel is wider
LARGEST_CELL = 0.3
LOW = 8  # a panel with at most this many rows shares its column labels with an equal panel below it
LARGEST_FITTED_CELL = 0.4  # in a picture with a given width
BAR = 0.12  # thickness of a colour bar
LEAST_BAR = 1.2  # smallest length of a colour bar
LONGEST_BAR = 3.0

Captioned = tuple[Panel, list[str]]  # a panel and the lines of its caption


class Bar(NamedTuple):
    """A colour bar below a panel."""

    row: int  # of the panel
    left: float
    down: float  # distance from the top of the row
    length: float
    label: list[str]  # its lines


class Arranged(NamedTuple):
    """The panels of a figure.

    The panels of a row have one height. Rows with the same number of panels have the same columns.
    """

    rows: list[list[Captioned]]
    cell: float
    lefts: list[list[float]]  # left edge of the cells of each panel, by row
    width: float  # of the widest row
    above: tuple[float, ...]  # height of the column labels and of their name, by row
    height: tuple[float, ...]  # of the highest matrix, by row
    below: tuple[float, ...]  # height of the captions and of the colour bars, by row
    label_widths: dict[int, float]  # of the row labels, by the identity of the panel
    bars: dict[str, Bar]  # by measure
    figure_width: float | None = None  # None: as wide as its content

    def top(self, row: int) -> float:
        """Return the distance from the top of the first row to the top of ``row``."""
        return sum(self.above[:row]) + sum(self.height[:row]) + sum(self.below[:row])

    def label_width(self, panel: Panel) -> float:
        """Return the width of the labels of the panel's rows."""
        return self.label_widths[id(panel)]


def axis_room(style: Style) -> float:
    """Return the height of the name of an axis."""
    return 1.5 * style.caption / 72


def flat_bar_height(lines: int, style: Style) -> float:
    """Return the height of a horizontal colour bar with a label of ``lines`` lines."""
    return BAR + (2.5 + 1.3 * lines) * style.font / 72


def least_cell(style: Style) -> float:
    """Return the smallest cell with room for a label."""
    return 1.33 * style.font / 72


def names_rows(row: Sequence[Captioned], c: int) -> bool:
    """Whether the name of the row axis is written beside panel ``c`` of a row.

    It is not repeated for a panel with the same name and the same rows as the one before.
    """
    panel = row[c][0]
    before = row[c - 1][0] if c else None
    return before is None or (panel.axes[1], panel.y) != (before.axes[1], before.y)


def names_columns(rows: Sequence[Sequence[Captioned]], r: int, c: int) -> bool:
    """Whether the labels of the columns are written above panel ``c`` of row ``r``.

    They are not repeated below a low panel with the same columns.
    """
    panel = rows[r][c][0]
    if not r or len(rows[r - 1]) != len(rows[r]):
        return True
    above = rows[r - 1][c][0]
    return (panel.x, panel.axes[0]) != (above.x, above.axes[0]) or len(above.y) > LOW


def wrap(text: str, width: float, size: float, widths: TextWidth) -> list[str]:
    """Return the lines of a text, each at most ``width`` inches if its words allow it."""
    lines: list[str] = []
    for word in label(text, 500).split():
        if lines and widths.of(f"{lines[-1]} {word}", size) <= width:
            lines[-1] = f"{lines[-1]} {word}"
        else:
            lines.append(label(word, 60))
    return lines


class _Measured:
    """The panels with the sizes of their texts; ``at`` arranges them with a size of the cells."""

    def __init__(
        self,
        panels: Sequence[Panel],
        captions: Sequence[str],
        style: Style,
        widths: TextWidth,
        bars_below: Collection[str],
    ):
        """``bars_below`` are the measures whose colour bars are below panels."""
        self.panels = panels
        self.bars_below = bars_below
        self.captions = captions
        self.style = style
        self.widths = widths
        font = style.font
        self.label_widths = {
            id(panel): widths.widest(map(label, panel.y), font) + PAD for panel in panels
        }
        self.label_heights = {
            id(panel): widths.widest(map(label, panel.x), font) + PAD for panel in panels
        }
        self.number = widths.of("-0.0001", font - 1) + PAD

    def at(self, cell: float, lengths: Sequence[int]) -> Arranged:
        """Return the panels in rows of the given ``lengths``."""
        style = self.style
        rows = self._rows(lengths, cell)
        edges = [self._left_edges(row, rows, cell) for row in rows]
        beyond = [
            max(self._overhang(panel.axes[1], len(panel.y), cell) for panel, _ in row)
            for row in rows
        ]
        above = [
            max(self._above(panel) if names_columns(rows, r, c) else PAD for c, (panel, _) in place)
            for r, place in enumerate(map(enumerate, rows))
        ]
        above = [max(room) for room in zip(above, beyond, strict=True)]
        lines = [max(len(caption) for _, caption in row) for row in rows]
        captions = [1.25 * style.caption / 72 * count for count in lines]
        heights = [max(len(panel.y) for panel, _ in row) * cell for row in rows]
        downs = [sum(parts) + PAD for parts in zip(above, heights, captions, strict=True)]
        bars = self._bars(rows, edges, downs, cell)
        bar_heights = [
            max((self._bar_height(bar) for bar in bars.values() if bar.row == r), default=0.0)
            for r in range(len(rows))
        ]
        return Arranged(
            rows,
            cell,
            [row_edges[:-1] for row_edges in edges],
            max(row_edges[-1] for row_edges in edges) - GAP,
            above=tuple(above),
            height=tuple(heights),
            below=tuple(
                max(caption + bar, name) + GAP
                for caption, bar, name in zip(captions, bar_heights, beyond, strict=True)
            ),
            label_widths=self.label_widths,
            bars=bars,
        )

    def _bars(
        self,
        rows: Sequence[Sequence[Captioned]],
        edges: Sequence[Sequence[float]],
        downs: Sequence[float],
        cell: float,
    ) -> dict[str, Bar]:
        """Return a colour bar for each measure, in the last row that has it, below its first panel.

        ``edges`` are the left edges of the panels, and ``downs`` the distances of colour bars from
        the tops of the rows.
        """
        bars: dict[str, Bar] = {}
        for r, row in enumerate(rows):
            for c, (panel, _) in enumerate(row):
                known = bars.get(panel.measure)
                if panel.measure not in self.bars_below or (known and known.row == r):
                    continue
                length = _bar_length(panel, cell)
                label_lines = wrap(panel.measure, length + GAP, self.style.font, self.widths)
                bars[panel.measure] = Bar(r, edges[r][c], downs[r], length, label_lines)
        return bars

    def _bar_height(self, bar: Bar) -> float:
        return PAD + flat_bar_height(len(bar.label), self.style)

    def _above(self, panel: Panel) -> float:
        """Return the height of the column labels of a panel, and of the name of its columns."""
        name = axis_room(self.style) if panel.axes[0] else 0.0
        return self.label_heights[id(panel)] + PAD + name

    def _rows(self, lengths: Sequence[int], cell: float) -> list[list[Captioned]]:
        wrapped = [
            wrap(caption, max(CAPTION, cell * len(panel.x)), self.style.caption, self.widths)
            for panel, caption in zip(self.panels, self.captions, strict=True)
        ]
        captioned = iter(zip(self.panels, wrapped, strict=True))
        return [list(islice(captioned, length)) for length in lengths]

    def _left_edges(
        self, row: list[Captioned], rows: list[list[Captioned]], cell: float
    ) -> list[float]:
        """Return the left edge of each panel's cells, and the edge of a panel after the last one.

        The edges are equal in all rows with the same number of panels. The first edge is equal in
        all rows.
        """
        aligned = [other for other in rows if len(other) == len(row)]
        edges: list[float] = []
        end = 0.0
        for c in range(len(row)):
            others = aligned if c else rows
            edges.append(end + max(self._beside(other, c, cell) for other in others))
            end = edges[-1] + max(self._width(other[c], cell) for other in aligned) + GAP
        return [*edges, end]

    def _beside(self, row: list[Captioned], c: int, cell: float) -> float:
        """Return the width of the row labels of a panel, and of the name of its rows.

        It has room for the left part of the name of the columns.
        """
        panel = row[c][0]
        name = axis_room(self.style) if panel.axes[1] and names_rows(row, c) else 0.0
        overhang = self._overhang(panel.axes[0], len(panel.x), cell)
        return max(self.label_widths[id(panel)] + name, overhang)

    def _overhang(self, axis: str, count: int, cell: float) -> float:
        """Return how far the name of an axis extends beyond each end of its ``count`` cells."""
        name = self.widths.of(label(axis, 60), self.style.caption)
        return max(0.0, (name - cell * count) / 2)

    def _width(self, captioned: Captioned, cell: float) -> float:
        """Return the width of a panel: its cells with the numbers beside them, or its texts."""
        panel, caption = captioned
        beside = self.number if len(panel.x) == 1 else 0.0
        overhang = self._overhang(panel.axes[0], len(panel.x), cell)
        cells = cell * len(panel.x) + max(beside, overhang)
        if panel.measure in self.bars_below:
            # Half of the number at the end is beside the bar.
            cells = max(cells, _bar_length(panel, cell) + 1.6 * self.style.font / 72)
        return max(cells, self.widths.widest(caption, self.style.caption))


def _bar_length(panel: Panel, cell: float) -> float:
    """Return the length of the colour bar below a panel."""
    return min(max(LEAST_BAR, cell * len(panel.x)), LONGEST_BAR)


def arrange(
    panels: Sequence[Panel],
    captions: Sequence[str],
    columns: int | Sequence[int] | None,
    style: Style,
    size: Size | None,
    widths: TextWidth,
    bar_room: float,
    bars_below: Collection[str] = (),
) -> Arranged:
    """Return the arrangement of the panels beside a colour bar that needs ``bar_room``.

    ``bars_below`` are the measures whose colour bars are below panels. Raises DataError if the
    panels do not fit in the width of ``size``. Without a size, the first width of the style in
    which they fit is chosen; if there is none, the figure grows with its words.
    """
    measured = _Measured(panels, captions, style, widths, bars_below)
    longest = max(max(len(panel.x), len(panel.y)) for panel in panels)
    natural_cell = max(least_cell(style), min(LARGEST_CELL, 6.0 / longest))
    for width in (size.width,) if size else style.widths:
        fitted = _fit(measured, width - MARGIN - bar_room, columns, natural_cell)
        if fitted:
            return fitted._replace(figure_width=width)
    if size:
        narrowest = measured.at(least_cell(style), [1] * len(panels)).width + MARGIN + bar_room
        raise DataError(
            f"--size {size.width:g}: the labels need a width of at least {narrowest:.1f} inches; "
            "give a larger size or a shorter sentence"
        )
    lengths = next(_arrangements(measured, columns, natural_cell))
    return measured.at(natural_cell, lengths)


def _fit(
    measured: _Measured, room: float, columns: int | Sequence[int] | None, natural_cell: float
) -> Arranged | None:
    """Return the arrangement with the most panels in a row that fits in ``room``, or None.

    The cells get the largest size that fits.
    """
    least = least_cell(measured.style)
    for lengths in _arrangements(measured, columns, natural_cell):
        if measured.at(least, lengths).width > room:
            continue
        low, high = least, LARGEST_FITTED_CELL
        for _ in range(12):
            cell = (low + high) / 2
            low, high = (cell, high) if measured.at(cell, lengths).width <= room else (low, cell)
        return measured.at(low, lengths)
    return None


def _arrangements(
    measured: _Measured, columns: int | Sequence[int] | None, natural_cell: float
) -> Iterator[list[int]]:
    """Yield the numbers of panels in each row: the natural ones first, then shorter rows."""
    panels = measured.panels
    count = len(panels)
    if columns is None:
        column = measured.at(natural_cell, [1] * count)
        fitting = max(1, int(WIDEST // (column.width + GAP)))
        most_rows = max(len(panel.y) for panel in panels)
        columns = min(
            fitting, near_square(count, most_rows, round(column.width / natural_cell) - 6)
        )
    natural_lengths = split_rows(count, columns) if isinstance(columns, int) else list(columns)
    yield natural_lengths
    for most in range(max(natural_lengths) - 1, 0, -1):
        yield [part for length in natural_lengths for part in _even_rows(length, most)]


def _even_rows(count: int, most: int) -> list[int]:
    """Divide ``count`` panels into rows of at most ``most``, of nearly equal length."""
    return split_rows(count, math.ceil(count / math.ceil(count / most)))
