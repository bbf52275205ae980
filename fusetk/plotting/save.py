"""Writing heatmap panels as a picture, an HTML page or numbers."""

from collections.abc import Sequence
from pathlib import Path

from fusetk.errors import DataError
from fusetk.plotting.figure import (
    NUMBERS,
    PAGES,
    PICTURES,
    check_output,
    save_numbers,
    save_picture,
)
from fusetk.plotting.heatmap import draw
from fusetk.plotting.html import save_page
from fusetk.plotting.panel import DEFAULT_COLORS, Page, arrays, document
from fusetk.plotting.style import SCREEN, Size, Style


def save(
    pages: Sequence[Page],
    path: Path,
    *,
    title: str = "",
    colors: str = DEFAULT_COLORS,
    columns: int | Sequence[int] | None = None,
    style: Style = SCREEN,
    size: Size | None = None,
) -> None:
    """Write the pages in the format of the file's ending.

    A picture has exactly one page; ``columns``, ``style`` and ``size`` arrange its panels (see
    ``heatmap.draw``). An .npz file holds each matrix under its panel's name and the labels under
    NAME.x and NAME.y; with several pages, each name starts with the page's number and a dot. Raises
    DataError if ``path`` cannot be written.
    """
    check_output(path, pages=True)
    ending = path.suffix.lower()
    if ending in NUMBERS:
        save_numbers(path, arrays(pages), document(pages, title))
    elif ending in PAGES:
        save_page(pages, path, title, colors)
    else:
        check_one(len(pages), path)
        panels = pages[0].panels
        figure = draw(panels, title=title, colors=colors, columns=columns, style=style, size=size)
        save_picture(figure, path, style.dpi)


def check_one(sentences: int, path: Path) -> None:
    """Raise DataError for a picture of several sentences. Call this before the work."""
    if sentences > 1 and path.suffix.lower() in PICTURES:
        raise DataError(
            f"{path}: a picture shows one sentence, but the input has several; choose one "
            "(--lines N), write an HTML page with a slider (.html), or draw the average of a "
            "fusion (--corpus)"
        )
