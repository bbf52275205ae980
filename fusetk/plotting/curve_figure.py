"""Figures and numbers of training and validation curves."""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fusetk.errors import DataError
from fusetk.plotting.annotations import MARKER, separate
from fusetk.plotting.curves import TITLES, Curve, smooth
from fusetk.plotting.figure import (
    NUMBERS,
    check_output,
    colors,
    finite,
    fonts,
    label,
    legend,
    save_numbers,
    save_picture,
    style_axes,
    without_latex,
)
from fusetk.plotting.style import SCREEN, Size, Style
from fusetk.plotting.text_width import TextWidth, missing_glyphs_ignored
from fusetk.runs import OTHER_PARTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.text import Annotation

PANEL_WIDTH, NARROWEST_PANEL = 3.8, 2.1  # inches; the latter in a picture with a given width
ASPECT = 0.68  # height of a panel, in widths
LONGEST_NAME = 60  # characters of the name of a run in the legend
SHORTEST_NAME = 8
MOST_NUMBERS = 6  # runs whose best values are written beside their stars


def plot(
    curves: Sequence[Curve],
    path: Path,
    *,
    x: str = "updates",
    window: int = 1,
    title: str = "",
    style: Style = SCREEN,
    size: Size | None = None,
) -> None:
    """Draw the curves over ``x`` (updates or epochs), or write their numbers, by the file's ending.

    Each quantity has a panel. Quantities in BY_LAYER have one for each group of layers and each
    run. Training curves are smoothed over ``window`` points, in pictures and in numbers. Raises
    DataError if ``path`` cannot be written, or if ``x`` is epochs and the runs did not record them.
    """
    check_output(path)
    if x == "epochs":
        for curve in curves:
            if np.isnan(curve.epoch).all():
                raise DataError(
                    f"{curve.run} has no epochs in its {curve.kind} metrics; use --x updates"
                )
    if path.suffix.lower() in NUMBERS:
        save_numbers(path, _arrays(curves, window), _document(curves, window))
        return
    figure = draw(curves, x, window, title=title, style=style, size=size)
    save_picture(figure, path, style.dpi)


class _CurveOptions(NamedTuple):
    """Options of all curves of a figure."""

    x: str  # updates or epochs
    window: int  # points over which training curves are smoothed
    colors: Mapping[tuple[bool, str], Any]  # of each line
    families: list[str]  # of fonts
    style: Style

    def positions(self, curve: Curve) -> np.ndarray:
        """Return the horizontal position of each value of a curve."""
        return curve.update if self.x == "updates" else curve.epoch


@without_latex()
def draw(
    curves: Sequence[Curve],
    x: str,
    window: int,
    *,
    title: str = "",
    style: Style = SCREEN,
    size: Size | None = None,
) -> "Figure":
    """Return the figure of ``plot``.

    Each run has a colour, or each layer if the quantity has a curve for each layer. Training curves
    are thin, validation curves have dots, and a star with a number marks the best value. A curve of
    one value is a dot.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    runs = list(dict.fromkeys(curve.run for curve in curves))
    colors_of_lines = _line_colors(curves)
    names = [name for _, name in colors_of_lines]
    families = fonts(label(text, 60) for text in (*runs, *names, title))
    options = _CurveOptions(x, window, colors_of_lines, families, style)
    grid = _grid(curves, style, size)
    width = grid.width
    room = LegendRoom(width, style.font, TextWidth(families))
    entries = _legend_entries(curves, options, room)
    across = room.columns([name for _, name in entries])
    legend_height = 1.7 * style.font / 72 * math.ceil(len(entries) / across) + 0.1
    height = grid.rows * ASPECT * width / grid.columns + legend_height
    figure = Figure(figsize=(width, size.height or height if size else height))
    figure.set_layout_engine("constrained")
    FigureCanvasAgg(figure)
    numbers = _draw_panels(figure, grid, curves, options)
    legend(figure, entries, families, style.font, loc="outside lower center", ncols=across)
    if title:
        figure.suptitle(label(title, 200), family=families, size=style.heading, parse_math=False)
    if size:
        _check_room(figure)
    separate(figure, numbers)
    _remove_negative_ticks(figure)
    return figure


class _Grid(NamedTuple):
    """The arrangement of the panels of a figure."""

    places: dict[tuple[str, ...], int]  # of each panel, row by row, from 0
    columns: int
    width: float  # of the figure, in inches

    @property
    def rows(self) -> int:
        return max(self.places.values()) // self.columns + 1


def _grid(curves: Sequence[Curve], style: Style, size: Size | None) -> _Grid:
    """Return the places of the panels: those with the same scale follow each other.

    If all curves belong to layers, each of two runs has a column of its own.
    """
    scales = list(dict.fromkeys(curve.scale for curve in curves))
    runs = list(dict.fromkeys(curve.run for curve in curves))
    ordered = sorted(curves, key=lambda curve: scales.index(curve.scale))
    curve_of = {curve.panel: curve for curve in ordered}
    width = size.width if size else style.widths[0] if style.widths else None
    run_by_run = len(runs) == 2 and all(curve.layer for curve in curves)
    columns = 2 if run_by_run or len(curve_of) == 4 else min(len(curve_of), 3)
    if width:
        columns = max(1, min(columns, int(width / NARROWEST_PANEL)))
    places = {panel: i for i, panel in enumerate(curve_of)}
    if run_by_run and columns == 2:  # a run may lack a group of layers, and its place remains empty
        places = {
            panel: 2 * scales.index(curve.scale) + runs.index(curve.run)
            for panel, curve in curve_of.items()
        }
    return _Grid(places, columns, width or PANEL_WIDTH * columns)


def _check_room(figure: "Figure") -> None:
    """Raise DataError if a figure has no room for its panels beside their labels."""
    with warnings.catch_warnings(), missing_glyphs_ignored():
        warnings.filterwarnings("error", message="constrained_layout not applied")
        try:
            figure.draw_without_rendering()
        except UserWarning:
            width, height = figure.get_size_inches()
            raise DataError(
                f"--size: {width:.3g} x {height:.3g} inches are too small for the panels and their "
                "labels: give a larger size"
            ) from None


def _line_colors(curves: Sequence[Curve]) -> dict[tuple[bool, str], Any]:
    """Return the colour of each line. The lowest layer is dark, the highest one light.

    Runs and then other parts have the colours of ``colors``.
    """
    from matplotlib import colormaps

    lines = list(dict.fromkeys(curve.line for curve in curves))
    layers = {curve.line for curve in curves if curve.group and curve.group != OTHER_PARTS}
    # The summary of the lower layers, `sum`, is below the layers.
    ordered = sorted(layers, key=lambda line: (line[1] != "sum", len(line[1]), line[1]))
    others = sorted(set(lines) - layers, key=lambda line: (line[0], lines.index(line)))
    shades = colormaps["viridis"](np.linspace(0, 0.92, len(ordered)))
    return dict(zip((*ordered, *others), (*shades, *colors(len(others))), strict=True))


class LegendRoom(NamedTuple):
    """The room for the entries of a legend."""

    width: float  # of the figure, in inches
    font: float  # size in points
    text_width: TextWidth

    def shortened(self, name: str) -> str:
        """Return a name that fits into the width of the figure, cut in the middle if necessary."""
        longest = LONGEST_NAME
        while longest > SHORTEST_NAME and self._entry(label(name, longest)) > self.width:
            longest -= 2
        return label(name, longest)

    def columns(self, names: Sequence[str]) -> int:
        """Return how many entries fit side by side."""
        return max(1, min(len(names), int(self.width / max(map(self._entry, names)))))

    def _entry(self, name: str) -> float:
        """Return the width of an entry: its line, its name and the space to the next one."""
        return self.text_width.of(name, self.font) + 4.5 * self.font / 72


def _legend_entries(
    curves: Sequence[Curve], options: _CurveOptions, room: LegendRoom
) -> "list[tuple[Line2D, str]]":
    """Return a line for each colour, each kind of curve and the best value, with their names."""
    from matplotlib.lines import Line2D

    style = options.style
    wide = 2.5 * style.line
    entries = [
        (Line2D([], [], color=color, linewidth=wide), room.shortened(name))
        for (_, name), color in options.colors.items()
    ]
    kinds = {curve.kind for curve in curves}
    grey: dict[str, Any] = {"color": "0.4", "linewidth": style.line}
    if "train" in kinds:
        thin = {**grey, "linewidth": 0.6 * style.line}
        entries.append((Line2D([], [], **thin), "training"))
    if "valid" in kinds:
        entries.append((Line2D([], [], marker="o", markersize=3, **grey), "validation"))
    if any(curve.best() is not None for curve in curves):
        star = Line2D([], [], color="0.4", marker="*", linestyle="", markersize=style.font)
        entries.append((star, "best"))
    return entries


def _draw_panels(
    figure: "Figure", grid: _Grid, curves: Sequence[Curve], options: _CurveOptions
) -> "list[list[Annotation]]":
    """Draw all panels. Return the numbers beside the stars of each panel, if they are written."""
    runs = {curve.run for curve in curves}
    numbers: list[list[Annotation]] = []
    first_axes: dict[tuple[str, str], Axes] = {}  # of each scale
    for panel, place in grid.places.items():
        of_panel = [curve for curve in curves if curve.panel == panel]
        first = of_panel[0]
        same = first_axes.get(first.scale)
        axes = figure.add_subplot(grid.rows, grid.columns, place + 1, sharex=same, sharey=same)
        first_axes.setdefault(first.scale, axes)
        values = np.concatenate([curve.value for curve in curves if curve.scale == first.scale])
        _style_panel(axes, first.what, values, options)
        if first.group:
            name = f"{first.group}, {first.run}" if len(runs) > 1 else first.group
            font: dict[str, Any] = {"fontsize": options.style.caption, "family": options.families}
            axes.set_title(label(name), parse_math=False, **font)
        for curve in of_panel:
            _draw_curve(axes, curve, options)
        stars = [_mark_best(axes, c, options) for c in of_panel if c.best() is not None]
        if len(runs) <= MOST_NUMBERS:
            numbers.append([_write_best(axes, star, options.style) for star in stars])
    return numbers


def _remove_negative_ticks(figure: "Figure") -> None:
    """Remove the ticks below 0 of panels without negative values.

    The room for the numbers beside the stars may extend the axis of such a panel below 0.
    """
    for axes in figure.axes:
        panels = axes.get_shared_y_axes().get_siblings(axes)
        lines = [line.get_ydata() for panel in panels for line in panel.lines]
        values = np.concatenate([np.asarray(line, float) for line in lines])
        bottom, top = axes.get_ylim()
        if bottom < 0 and np.nanmin(values, initial=0.0) >= 0:
            axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= top])


def _draw_curve(axes: "Axes", curve: Curve, options: _CurveOptions) -> None:
    position, color, style = options.positions(curve), options.colors[curve.line], options.style
    value = np.where(np.isfinite(curve.value), curve.value, math.nan)
    one_value = np.isfinite(value).sum() == 1
    if curve.kind == "valid":
        size = 2.2 * style.line
        axes.plot(
            position, value, "-o", color=color, linewidth=style.line, markersize=size, zorder=3
        )
        return
    if options.window > 1:
        axes.plot(position, value, "-", color=color, linewidth=0.4 * style.line, alpha=0.3)
    axes.plot(
        position,
        smooth(value, options.window),
        "o" if one_value else "-",
        color=color,
        markersize=1.6 * style.line,
        linewidth=0.6 * style.line,
        alpha=0.7,
    )


class _Star(NamedTuple):
    """The star at the best value of a validation curve."""

    place: tuple[float, float]
    is_highest: bool
    color: Any


def _mark_best(axes: "Axes", curve: Curve, options: _CurveOptions) -> _Star:
    """Mark the best value of a validation curve by a star."""
    best = curve.best()
    assert best is not None
    place = (options.positions(curve)[best], curve.value[best])
    color = options.colors[curve.line]
    star: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.5, "zorder": 4}
    axes.plot(*place, "*", color=color, markersize=MARKER * options.style.font, **star)
    return _Star(place, not curve.lowest_is_best, color)


def _write_best(axes: "Axes", star: _Star, style: Style) -> "Annotation":
    """Write the best value of a validation curve above or below its star."""
    from matplotlib.patheffects import withStroke

    return axes.annotate(
        _short(star.place[1]),
        star.place,
        (0, style.font * (0.8 if star.is_highest else -0.8)),
        textcoords="offset points",
        ha="center",
        va="bottom" if star.is_highest else "top",
        color=star.color,
        size=style.font,
        zorder=5,
        path_effects=[withStroke(linewidth=2, foreground="white")],
    )


def _style_panel(axes: "Axes", what: str, values: np.ndarray, options: _CurveOptions) -> None:
    """Set scales and labels of a panel. ``values`` are those of all panels of its scale."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    values = values[np.isfinite(values)]
    # The first perplexity is about the vocabulary size: on a linear scale the rest would be flat.
    wide = what == "ppl" and len(values) and values.max() > 20 * values.min() > 0
    if wide or (what == "grad_norms" and values.max(initial=0) > 0):  # some norms may be 0
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    # Room for the numbers beside the stars.
    axes.margins(x=0.07, y=0.12)
    # Means of equal values differ by rounding errors, which must not be the range of the axis.
    if len(values) and values.min() == values.max():
        room = 0.06 * abs(values[0]) or 0.06
        axes.set_ylim(values[0] - room, values[0] + room)
    caption = options.style.caption
    axes.set_ylabel(TITLES.get(what, label(what)), fontsize=caption, parse_math=False)
    axes.set_xlabel("update" if options.x == "updates" else "epoch", fontsize=caption)
    axes.tick_params(labelsize=options.style.font)
    style_axes(axes)


def _short(value: float) -> str:
    return f"{value:.2f}" if 10 <= abs(value) < 100_000 else f"{value:.4g}"


def _smoothed(curve: Curve, window: int) -> np.ndarray:
    """Return the values of a curve, smoothed if it is a training curve."""
    return smooth(curve.value, window) if curve.kind == "train" else curve.value


def _arrays(curves: Sequence[Curve], window: int) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for curve in curves:
        name = "/".join(filter(None, (curve.run, curve.kind, curve.what, curve.group, curve.layer)))
        arrays[f"{name}.update"] = curve.update
        arrays[f"{name}.epoch"] = curve.epoch
        arrays[f"{name}.value"] = _smoothed(curve, window)
    return arrays


def _document(curves: Sequence[Curve], window: int) -> Any:
    return [
        {
            "run": curve.run,
            "kind": curve.kind,
            "what": curve.what,
            **({"group": curve.group, "layer": curve.layer} if curve.layer else {}),
            "best": curve.best(),
            "update": finite(curve.update),
            "epoch": finite(curve.epoch),
            "value": finite(_smoothed(curve, window)),
        }
        for curve in curves
    ]
