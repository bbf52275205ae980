"""What a heatmap is made of: matrices with a label at every row and column, and their form as numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fusetk.plotting.figure import finite

# Colours by name: matplotlib's name, and the value of their upper end (None: the greatest of the panels).
# `grey` is as papers print attention: white is probability 1, black 0.
COLORS: dict[str, tuple[str, float | None]] = {
    "blue": ("Blues", None),
    "viridis": ("viridis_r", None),
    "grey": ("gray", 1.0),
}
DIVERGING = "RdBu_r"  # where there are numbers below 0: white is 0, red above, blue below


@dataclass(frozen=True)
class Panel:
    """One matrix (rows, columns) of numbers, with a label for each row and column. NaN is an empty cell."""

    name: str  # key in .npz and .json files
    title: str
    matrix: np.ndarray  # (len(y), len(x))
    x: Sequence[str]
    y: Sequence[str]
    measure: str = (
        "weight"  # what the numbers are; panels of one measure share their colours and a colour bar
    )
    axes: tuple[str, str] = ("", "")  # what the columns and what the rows are
    up: bool = False  # the first row stands at the bottom
    cut: int = 0  # columns before a dividing line, where they are of two kinds; 0: all are of one

    def __post_init__(self) -> None:
        if self.matrix.shape != (len(self.y), len(self.x)):
            raise ValueError(
                f"{self.name}: a matrix {self.matrix.shape} with {len(self.y)} row and {len(self.x)} column labels"
            )


class Page(NamedTuple):
    """The panels of one sentence pair, or of what stands for many (number 0)."""

    panels: Sequence[Panel]
    number: int = 0  # from 1, in the order of the input
    source: str = ""
    target: str = ""


class Scale(NamedTuple):
    """The colours of a measure: a map of matplotlib from ``low`` to ``high``."""

    map: str
    low: float
    high: float


def scales(panels: Sequence[Panel], colors: str = "blue") -> dict[str, Scale]:
    """The scale of each measure, in order of appearance. No number lies outside: the ends move, or the map has two directions."""
    found: dict[str, Scale] = {}
    for measure in dict.fromkeys(panel.measure for panel in panels):
        values = np.concatenate(
            [panel.matrix.ravel() for panel in panels if panel.measure == measure]
        )
        values = values[np.isfinite(values)]
        low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))
        if low < 0:
            far = max(-low, high)
            found[measure] = Scale(DIVERGING, -far, far)
        else:
            name, top = COLORS.get(colors, (colors, None))
            found[measure] = Scale(name, 0.0, max(top or 0.0, high) or 1.0)
    return found


def arrays(pages: Sequence[Page]) -> dict[str, np.ndarray]:
    """For .npz: each matrix under its name, its labels under NAME.x and NAME.y; numbered names where there are several pages."""
    found: dict[str, np.ndarray] = {}
    for page in pages:
        for panel in page.panels:
            name = panel.name if len(pages) == 1 else f"{page.number}.{panel.name}"
            found[name] = panel.matrix
            found[f"{name}.x"] = np.array(list(panel.x), dtype=np.str_)
            found[f"{name}.y"] = np.array(list(panel.y), dtype=np.str_)
    return found


def document(pages: Sequence[Page], title: str) -> dict[str, Any]:
    """For .json: the panels, row by row, as ``arrays`` names them; NaN is null."""
    x, y = axes([panel for page in pages for panel in page.panels])
    found: dict[str, Any] = {"title": title, "x_label": x, "y_label": y}
    if len(pages) > 1:
        found["sentences"] = [
            {"number": page.number, "source": page.source, "target": page.target} for page in pages
        ]
    found["panels"] = [
        {"name": panel.name if len(pages) == 1 else f"{page.number}.{panel.name}", **numbers(panel)}
        for page in pages
        for panel in page.panels
    ]
    return found


def numbers(panel: Panel) -> dict[str, Any]:
    """A panel for JSON, without its name."""
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
    """What the columns and the rows of all panels are."""
    x, y = (
        " / ".join(dict.fromkeys(panel.axes[i] for panel in panels if panel.axes[i]))
        for i in range(2)
    )
    return x, y


def beside(count: int, rows: int, columns: int) -> int:
    """How many of ``count`` panels of rows x columns cells should stand side by side for a figure near a square."""
    words = 6  # about the room of the labels, in cells
    best = max(1, min(count, math.ceil(math.sqrt(count * (rows + words) / (columns + words)))))
    return math.ceil(count / math.ceil(count / best))  # no nearly empty last row


def share_out(count: int, columns: int) -> list[int]:
    """Lengths of the rows of ``count`` panels, ``columns`` in a row."""
    return [min(columns, count - start) for start in range(0, count, columns)]
