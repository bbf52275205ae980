"""Heatmap data: labelled matrices, their colour scales, and their form in .npz and .json files."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from operator import not_
from typing import Any, NamedTuple

import numpy as np

from fusetk.plotting.figure import finite

# Colour maps by the user's name. `grey` draws attention as papers do: 1 is white, 0 is black.
COLORS = {"blue": "Blues", "viridis": "viridis", "grey": "gray"}
DEFAULT_COLORS = "blue"
TICKS = 6  # most intervals between the ticks of a scale
DIVERGING = "RdBu_r"  # for panels with negative numbers: 0 is white, positive red, negative blue


@dataclass(frozen=True)
class Panel:
    """A matrix of numbers with a label for each row and column. NaN is an empty cell."""

    name: str  # key in .npz and .json files
    title: str
    matrix: np.ndarray  # (len(y), len(x))
    x: Sequence[str]
    y: Sequence[str]
    # The quantity. Panels with the same measure share their colour scale and colour bar.
    measure: str = "weight"
    axes: tuple[str, str] = ("", "")  # names of the columns and of the rows
    up: bool = False  # draw the first row at the bottom
    cut: int = 0  # number of columns left of the dividing line; 0: no line
    # The number at the end of the colour scale; None: a round number for the measure's panels.
    top: float | None = None

    def __post_init__(self) -> None:
        if self.matrix.shape != (len(self.y), len(self.x)):
            raise ValueError(
                f"{self.name}: a matrix {self.matrix.shape} with {len(self.y)} row and "
                f"{len(self.x)} column labels"
            )


class Page(NamedTuple):
    """The panels of one sentence pair, or of an average over many (number 0)."""

    panels: Sequence[Panel]
    number: int = 0  # from 1, in the order of the input
    source: str = ""
    target: str = ""


class Scale(NamedTuple):
    """The colour scale of a measure: a matplotlib colour map from ``low`` to ``high``."""

    map: str
    low: float
    high: float


def scales(panels: Sequence[Panel], colors: str = DEFAULT_COLORS) -> dict[str, Scale]:
    """Return the colour scale of each measure, in order of appearance.

    A scale ends at the largest ``top`` of its panels, or, if a panel has none, at a round number
    that is not below the numbers. Measures with negative numbers get a diverging map, symmetric
    about 0.
    """
    by_measure: dict[str, Scale] = {}
    for measure in dict.fromkeys(panel.measure for panel in panels):
        of_measure = [panel for panel in panels if panel.measure == measure]
        values = np.concatenate([panel.matrix.ravel() for panel in of_measure])
        values = values[np.isfinite(values)]
        low = float(values.min(initial=0.0))
        tops = [panel.top for panel in of_measure if panel.top is not None]
        largest = max(float(values.max(initial=0.0)), -low) or 1.0
        high = float(f"{round_ticks(0.0, largest)[-1]:.9g}")
        if len(tops) == len(of_measure):
            high = max(tops)
        name = DIVERGING if low < 0 else COLORS.get(colors, colors)
        by_measure[measure] = Scale(name, -high if low < 0 else 0.0, high)
    return by_measure


def round_ticks(low: float, high: float) -> np.ndarray:
    """Return equidistant round numbers from at most ``low`` to at least ``high``."""
    from matplotlib.ticker import MaxNLocator

    return np.asarray(MaxNLocator(TICKS, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high))


def with_top(pages: Sequence[Page], top: float) -> list[Page]:
    """Return the pages with ``top`` as the end of all colour scales.

    With infinity, each scale ends at a round number above its numbers.
    """
    end = None if math.isinf(top) else top
    return [
        page._replace(panels=[replace(panel, top=end) for panel in page.panels]) for page in pages
    ]


def short_titles(panels: Sequence[Panel]) -> tuple[str, list[str]]:
    """Return the parts that the titles of all panels share, and each title without them.

    Parts are separated by commas. If the numbers of parts differ, only parts at the beginning and
    at the end are compared.
    """
    titles = [panel.title.split(", ") for panel in panels]
    first = titles[0]
    shortest = min(map(len, titles))
    if all(len(title) == shortest for title in titles):
        differs = [len(set(parts)) > 1 for parts in zip(*titles, strict=True)]
        captions = [", ".join(compress(title, differs)) for title in titles]
        return ", ".join(compress(first, map(not_, differs))), captions
    begin = 0
    while begin < shortest and all(title[begin] == first[begin] for title in titles):
        begin += 1
    end = 0
    while end < shortest - begin and all(title[-end - 1] == first[-end - 1] for title in titles):
        end += 1
    shared = first[:begin] + first[len(first) - end :]
    return ", ".join(shared), [", ".join(title[begin : len(title) - end]) for title in titles]


def _key(page: Page, panel: Panel, pages: Sequence[Page]) -> str:
    """Return a panel's name in a file; with several pages it starts with the page's number."""
    return panel.name if len(pages) == 1 else f"{page.number}.{panel.name}"


def arrays(pages: Sequence[Page]) -> dict[str, np.ndarray]:
    """Return the content of an .npz file: each matrix as NAME, its labels as NAME.x and NAME.y."""
    content: dict[str, np.ndarray] = {}
    for page in pages:
        for panel in page.panels:
            name = _key(page, panel, pages)
            content[name] = panel.matrix
            content[f"{name}.x"] = np.array(list(panel.x), dtype=np.str_)
            content[f"{name}.y"] = np.array(list(panel.y), dtype=np.str_)
    return content


def document(pages: Sequence[Page], title: str) -> dict[str, Any]:
    """Return the content of a .json file, with the names of ``arrays``; NaN is null."""
    x, y = axes([panel for page in pages for panel in page.panels])
    content: dict[str, Any] = {"title": title, "x_label": x, "y_label": y}
    if len(pages) > 1:
        content["sentences"] = [
            {"number": page.number, "source": page.source, "target": page.target} for page in pages
        ]
    content["panels"] = [
        {"name": _key(page, panel, pages), **json_fields(panel)}
        for page in pages
        for panel in page.panels
    ]
    return content


def json_fields(panel: Panel) -> dict[str, Any]:
    """Return the values of a panel in .json files and in pages, without its name."""
    return {
        "title": panel.title,
        "measure": panel.measure,
        "axes": list(panel.axes),
        "x": list(panel.x),
        "y": list(panel.y),
        "matrix": [finite(row) for row in panel.matrix],
        **({"cut": panel.cut} if panel.cut else {}),
    }


def axes(panels: Sequence[Panel]) -> tuple[str, str]:
    """Return the names of the columns and of the rows of all panels, joined by slashes."""
    x, y = (
        " / ".join(dict.fromkeys(panel.axes[i] for panel in panels if panel.axes[i]))
        for i in range(2)
    )
    return x, y


def near_square(count: int, rows: int, columns: int) -> int:
    """Return how many of ``count`` panels go side by side so that the figure is nearly square.

    A panel has ``rows`` x ``columns`` cells.
    """
    margin = 6  # approximate size of the labels, in cells
    best = math.ceil(math.sqrt(count * (rows + margin) / (columns + margin)))
    best = max(1, min(count, best))
    return math.ceil(count / math.ceil(count / best))  # avoid a nearly empty last row


def split_rows(count: int, columns: int) -> list[int]:
    """Return the number of panels in each row, at most ``columns``."""
    return [min(columns, count - start) for start in range(0, count, columns)]


def square_rows(panels: Sequence[Panel]) -> list[int]:
    """Return the number of panels in each row of a block that is nearly square.

    The panels have the size of the first one.
    """
    columns = near_square(len(panels), len(panels[0].y), len(panels[0].x))
    return split_rows(len(panels), columns)
