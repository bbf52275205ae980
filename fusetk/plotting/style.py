"""Styles of pictures: sizes of fonts, resolution and width."""

import math
from typing import NamedTuple


class Style(NamedTuple):
    """Sizes of a picture. Fonts are in points, lengths in inches."""

    font: float  # labels and numbers
    caption: float  # titles of panels, names of axes
    heading: float  # title of the picture
    dpi: int  # of PNG files
    widths: tuple[float, ...]  # of the picture, the preferred one first; empty: as needed
    line: float  # width of a curve, in points
    title: bool  # whether a picture has a title if the user gives none


# `paper`: the widths of one column and of two columns in the style files of most conferences.
STYLES = {
    "screen": Style(8.0, 9.0, 11.0, 150, (), 1.6, title=True),
    "paper": Style(7.0, 7.5, 8.0, 300, (3.3, 6.9), 1.0, title=False),
}
SCREEN = STYLES["screen"]

SMALLEST, LARGEST = 0.5, 100.0  # side of a picture, in inches


class Size(NamedTuple):
    """The size of a picture in inches; the height may be free."""

    width: float
    height: float | None = None


def parse_size(text: str) -> Size:
    """Parse WIDTH or WIDTHxHEIGHT in inches. Raises ValueError."""
    parts = text.lower().removesuffix("in").split("x")
    try:
        numbers = [float(part.removesuffix("in")) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(SMALLEST <= n <= LARGEST for n in numbers):
        raise ValueError(
            f"{text!r} is not WIDTH or WIDTHxHEIGHT in inches, each from {SMALLEST:g} to "
            f"{LARGEST:g}, for example 3.3 or 6.9x2.5"
        )
    return Size(*numbers)


def parse_top(text: str) -> float:
    """Parse a positive number, or ``max`` as infinity. Raises ValueError."""
    try:
        number = math.inf if text == "max" else float(text)
    except ValueError:
        number = 0.0
    if not number > 0 or (number == math.inf and text != "max"):
        raise ValueError(f"{text!r} is not a number above 0, or max")
    return number
