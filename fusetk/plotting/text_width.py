"""Widths of texts in pictures."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

RESOLUTION = 300  # pixels per inch; hinting changes the widths at low resolutions


@contextmanager
def missing_glyphs_ignored() -> Iterator[None]:
    """Within this context matplotlib does not warn of characters that a font lacks.

    The function ``figure.fonts`` has already warned of them.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


class TextWidth:
    """Widths of texts in the given font families, in inches."""

    def __init__(self, families: list[str]):
        from matplotlib.backends.backend_agg import RendererAgg

        self.families = families
        self.renderer = RendererAgg(10, 10, RESOLUTION)
        self.of = cache(self._of)

    def _of(self, text: str, size: float) -> float:
        """Return the width of a line in a font size in points."""
        from matplotlib.font_manager import FontProperties

        font = FontProperties(family=self.families, size=size)
        with missing_glyphs_ignored():
            width, _, _ = self.renderer.get_text_width_height_descent(text, font, ismath=False)
        return float(width) / RESOLUTION

    def widest(self, texts: Iterable[str], size: float) -> float:
        """Return the width of the widest line; 0 if there is none."""
        return max((self.of(text, size) for text in texts), default=0.0)
