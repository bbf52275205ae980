"""Heatmaps as one HTML file without external resources; a browser draws the panels.

The page is ``page.html`` in this folder. ``render`` inserts the title, the numbers, and the style
and the script of the panels (``panels.css`` and ``panels.js``), which `fusetk explore` shares.
"""

import html
import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fusetk.data.text import writer
from fusetk.plotting.panel import DEFAULT_COLORS, DIVERGING, Page, Panel, json_fields, scales

FOLDER = Path(__file__).parent
LARGE = 50_000_000  # characters; larger files are slow in browsers
STOPS = 17  # colours of a scale; the page interpolates between them

# On a dark page, these maps of matplotlib are replaced: colours from low to high, red, green, blue
# from 0 to 255. The colour of 0 is close to the background.
DARK = {
    "Blues": [(30, 35, 43), (30, 88, 150), (112, 170, 230), (214, 234, 255)],
    DIVERGING: [(150, 205, 255), (36, 96, 165), (30, 35, 43), (165, 62, 44), (255, 186, 160)],
}

log = logging.getLogger(__name__)


def save_page(pages: Sequence[Page], path: Path, title: str, colors: str = DEFAULT_COLORS) -> None:
    """Write the pages to one HTML file with a slider. Raises DataError if it cannot be written."""
    text = render(pages, title, colors)
    if len(text) > LARGE:
        log.warning(
            "%s has %d MB and may be slow to open; draw fewer sentences (--lines), layers or heads",
            path,
            len(text) // 1_000_000,
        )
    with writer(path) as file:
        file.write(text)


def render(pages: Sequence[Page], title: str, colors: str = DEFAULT_COLORS) -> str:
    """Return the content of the HTML file.

    No word of the input can change the page: words are strings inside a JSON element, and the
    script displays them only as text.
    """
    parts = {
        "title": html.escape(title),
        "data": json_element(_data(pages, title, colors)),
        "style": (FOLDER / "panels.css").read_text(encoding="utf-8"),
        "script": (FOLDER / "panels.js").read_text(encoding="utf-8"),
    }
    return insert((FOLDER / "page.html").read_text(encoding="utf-8"), parts)


def json_element(data: Any) -> str:
    """Return plain values as JSON that cannot end the element that contains it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Even inside a JSON string, </script> would end the element and <!-- would change its meaning.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def insert(template: str, parts: Mapping[str, str]) -> str:
    """Return a template in which each ``@NAME@`` is replaced by the part with that name.

    Placeholders inside inserted text are not replaced.
    """
    return re.sub(f"@({'|'.join(parts)})@", lambda match: parts[match[1]], template)


def _data(pages: Sequence[Page], title: str, colors: str) -> dict[str, Any]:
    return {
        "title": title,
        "scales": scales_data([panel for page in pages for panel in page.panels], colors),
        "pages": [
            {
                "number": page.number,
                "source": page.source,
                "target": page.target,
                "panels": [panel_data(panel) for panel in page.panels],
            }
            for page in pages
        ],
    }


def scales_data(panels: Sequence[Panel], colors: str = DEFAULT_COLORS) -> dict[str, Any]:
    """Return the colour scale of each measure, as ``panels.js`` reads it."""
    return {
        name: {
            "low": scale.low,
            "high": scale.high,
            "colors": _stops(scale.map),
            "dark": _dark_stops(scale.map),
        }
        for name, scale in scales(panels, colors).items()
    }


def panel_data(panel: Panel) -> dict[str, Any]:
    """Return a panel as ``panels.js`` reads it."""
    return {
        **json_fields(panel),
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


def _dark_stops(name: str) -> list[list[int]]:
    """Return STOPS equidistant colours of a map for a dark page."""
    if name not in DARK:
        return _stops(name)
    anchors = np.array(DARK[name], dtype=float)
    positions = np.linspace(0, len(anchors) - 1, STOPS)
    channels = [np.interp(positions, range(len(anchors)), channel) for channel in anchors.T]
    levels: list[list[int]] = np.rint(np.stack(channels, 1)).astype(int).tolist()
    return levels
