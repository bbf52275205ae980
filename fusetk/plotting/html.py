"""Heatmaps as one HTML file without external resources; a browser draws the panels.

The page is ``page.html`` in this folder. ``render`` inserts the title and the numbers.
"""

import html
import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fusetk.errors import DataError
from fusetk.plotting.panel import Page, Panel, numbers, scales

TEMPLATE = Path(__file__).with_name("page.html")
LARGE = 50_000_000  # characters; larger files are slow in browsers
STOPS = 17  # colours of a scale; the page interpolates between them

log = logging.getLogger(__name__)


def save_page(pages: Sequence[Page], path: Path, title: str, colors: str = "blue") -> None:
    """Write the pages to one HTML file with a slider. Raises DataError if it cannot be written."""
    text = render(pages, title, colors)
    if len(text) > LARGE:
        log.warning(
            "%s has %d MB and may be slow to open; draw fewer sentences (--lines), layers or heads",
            path,
            len(text) // 1_000_000,
        )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from error


def render(pages: Sequence[Page], title: str, colors: str = "blue") -> str:
    """Return the content of the HTML file."""
    return fill_template(TEMPLATE, title, _data(pages, title, colors))


def fill_template(template: Path, title: str, data: Any) -> str:
    """Return a template with its title, and with ``data`` as JSON.

    No word of the input can change the page: words are strings inside a JSON element, and the
    script displays them only as text.
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Even inside a JSON string, </script> would end the element and <!-- would change its meaning.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    parts = {"title": html.escape(title), "data": text}
    # One pass: placeholders inside inserted text are not replaced.
    return re.sub(
        "@(title|data)@", lambda match: parts[match[1]], template.read_text(encoding="utf-8")
    )


def _data(pages: Sequence[Page], title: str, colors: str) -> dict[str, Any]:
    measures = scales([panel for page in pages for panel in page.panels], colors)
    return {
        "title": title,
        "scales": {
            name: {"low": scale.low, "high": scale.high, "colors": _stops(scale.map)}
            for name, scale in measures.items()
        },
        "pages": [
            {
                "number": page.number,
                "source": page.source,
                "target": page.target,
                "panels": [_panel(panel) for panel in page.panels],
            }
            for page in pages
        ],
    }


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        **numbers(panel),
        "name": panel.name,
        "up": panel.up,
        "matrix": [[_short(value) for value in row] for row in panel.matrix],
    }


def _short(value: float) -> float | None:
    """Return a float32 number with the fewest digits that identify it; None for NaN, infinity."""
    return float(str(np.float32(value))) if np.isfinite(value) else None


def _stops(name: str) -> list[list[int]]:
    """Return STOPS equidistant colours of a matplotlib map: red, green, blue from 0 to 255."""
    import matplotlib

    colors = matplotlib.colormaps[name](np.linspace(0, 1, STOPS))[:, :3]
    levels: list[list[int]] = np.rint(colors * 255).astype(int).tolist()
    return levels
