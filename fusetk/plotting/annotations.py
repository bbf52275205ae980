"""Numbers beside points of a figure."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fusetk.plotting.text_width import missing_glyphs_ignored

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

MARKER = 1.4  # size of the marker of a point, in font sizes
PASSES = 3  # more room brings the points closer together, so that texts may overlap again


def separate(figure: "Figure", panels: Iterable[Sequence["Annotation"]]) -> None:
    """Move texts that overlap with others or with markers, and make room for them in their panel.

    The texts of a panel are all above or all below their points, by an offset in points. They are
    moved further in this direction. The markers have ``MARKER`` times the size of the texts.
    """
    groups = [texts for texts in panels if len(texts) > 1]
    if not groups:
        return
    with missing_glyphs_ignored():
        figure.draw_without_rendering()  # the positions are known after that
    for texts in groups:
        for _ in range(PASSES):
            _separate_texts(texts, 72 / figure.dpi)
            _make_room(texts)


def _separate_texts(texts: Sequence["Annotation"], points_of_pixel: float) -> None:
    upwards = texts[0].xyann[1] > 0
    sign = 1 if upwards else -1
    markers = [_marker_box(text, points_of_pixel) for text in texts]
    boxes: list[Bbox] = []
    for text in sorted(texts, key=lambda text: sign * text.get_window_extent().y0):
        box = text.get_window_extent()
        start = box.y0
        while obstacles := [other for other in (*markers, *boxes) if box.overlaps(other)]:
            free = max(sign * (other.y1 if upwards else other.y0) for other in obstacles)
            box = box.translated(0, sign * free - (box.y0 if upwards else box.y1) + sign)
        boxes.append(box)
        x, y = text.xyann
        text.xyann = (x, y + (box.y0 - start) * points_of_pixel)


def _make_room(texts: Sequence["Annotation"]) -> None:
    """Extend the vertical axis, so that the texts are inside their panel."""
    axes = texts[0].axes
    assert axes is not None
    panel = axes.get_window_extent()
    upwards = texts[0].xyann[1] > 0
    sign = 1 if upwards else -1
    boxes = [text.get_window_extent() for text in texts]
    edge = max(box.y1 for box in boxes) if upwards else min(box.y0 for box in boxes)
    outside = sign * (edge - (panel.y1 if upwards else panel.y0))
    if outside > 0:
        _, limit = axes.transData.inverted().transform((panel.x0, edge + sign * outside))
        axes.set_ylim(**{"top" if upwards else "bottom": limit})


def _marker_box(text: "Annotation", points_of_pixel: float) -> "Bbox":
    from matplotlib.transforms import Bbox

    axes = text.axes
    assert axes is not None
    x, y = axes.transData.transform(text.xy)
    radius = MARKER / 2 * float(text.get_fontsize()) / points_of_pixel
    return Bbox.from_extents(x - radius, y - radius, x + radius, y + radius)
