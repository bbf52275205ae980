import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fusetk.errors import DataError
from fusetk.plotting.heatmap import COLORS, Panel, draw, heatmap

OPTIONS = {"title": "a run", "x_label": "source", "y_label": "target", "bar_label": "weight", "colors": "blue"}


def panel(rows: int, columns: int, name: str = "decoder.layer1.cross", seed: int = 1) -> Panel:
    weights = np.random.default_rng(seed).dirichlet(np.ones(columns), size=rows).astype(np.float32)
    title = f"encoder layer 1, self-attention, mean of 8 heads, panel {name}"
    return Panel(name, title, weights, [f"Wort{i}" for i in range(columns)], [f"Äpfelg{i}" for i in range(rows)])


@pytest.mark.parametrize("ending, start", [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_pictures_are_what_their_names_say_and_come_out_the_same_twice(tmp_path: Path, ending: str, start: bytes) -> None:
    for name in ("a", "b"):
        heatmap([panel(5, 7), panel(2, 3, "other")], tmp_path / f"{name}.{ending}", title="x")
    first = (tmp_path / f"a.{ending}").read_bytes()
    assert first.startswith(start)
    assert first == (tmp_path / f"b.{ending}").read_bytes()


def test_numbers_come_back(tmp_path: Path) -> None:
    panels = [panel(4, 6), panel(3, 3, "encoder.layer2.self", seed=2)]
    heatmap(panels, tmp_path / "a.npz", title="x")
    heatmap(panels, tmp_path / "a.json", title="Größe")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        for one in panels:
            np.testing.assert_array_equal(arrays[one.name], one.matrix)
            assert arrays[f"{one.name}.x"].tolist() == one.x
            assert arrays[f"{one.name}.y"].tolist() == one.y
    document = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert document["title"] == "Größe"
    for one, found in zip(panels, document["panels"], strict=True):
        np.testing.assert_array_equal(np.array(found["matrix"], dtype=np.float32), one.matrix)
        assert (found["name"], found["x"], found["y"]) == (one.name, one.x, one.y)


@pytest.mark.parametrize("rows, columns, count", [(60, 60, 3), (1, 1, 1), (4, 20, 4), (25, 3, 8)])
def test_labels_have_room_and_panels_do_not_overlap(rows: int, columns: int, count: int) -> None:
    figure = draw([panel(rows, columns, str(i)) for i in range(count)], columns=None, **OPTIONS)
    renderer = figure.canvas.get_renderer()
    boxes = [axes.get_tightbbox(renderer) for axes in figure.axes]
    for i, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, "outside the figure"
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1, "outside the figure"
        for other in boxes[i + 1 :]:
            assert not (box.x0 < other.x1 and other.x0 < box.x1 and box.y0 < other.y1 and other.y0 < box.y1)
    for axes in figure.axes[:1]:
        words = [text.get_window_extent(renderer) for text in axes.get_yticklabels()]
        assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(words))


def test_columns_as_asked() -> None:
    figure = draw([panel(3, 3, str(i)) for i in range(6)], columns=2, **OPTIONS)
    assert len({round(axes.get_position().x0, 4) for axes in figure.axes[:6]}) == 2


def test_words_are_not_formulas() -> None:
    words = ["$5", "$_{$", "\\frac", "_x"]
    figure = draw([Panel("a", "$x$", np.eye(4), words, words)], columns=None, **{**OPTIONS, "title": "$_{$"})
    figure.canvas.draw()  # matplotlib would raise on a formula that does not end
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == words


@pytest.mark.parametrize("colors", COLORS)
def test_more_weight_is_more_of_one_direction_in_brightness(tmp_path: Path, colors: str) -> None:
    import matplotlib

    shades = matplotlib.colormaps[COLORS[colors][0]](np.linspace(0, 1, 20))[:, :3] @ (0.299, 0.587, 0.114)
    steps = np.diff(shades)
    assert (steps > 0).all() or (steps < 0).all()
    heatmap([panel(2, 2)], tmp_path / "a.png", colors=colors)


def test_grey_is_white_at_one() -> None:
    figure = draw([panel(3, 3)], columns=None, **{**OPTIONS, "colors": "grey"})
    [image] = figure.axes[0].images
    assert image.get_clim() == (0.0, 1.0)
    assert image.to_rgba(1.0)[:3] == pytest.approx((1, 1, 1), abs=0.01)


def test_all_panels_share_one_scale() -> None:
    panels = [panel(3, 3, "a"), Panel("b", "b", np.full((2, 2), 0.9), ["x", "y"], ["x", "y"])]
    figure = draw(panels, columns=None, **OPTIONS)
    assert {axes.images[0].get_clim() for axes in figure.axes[:2]} == {(0.0, 0.9)}


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 row"):
        Panel("a", "a", np.zeros((3, 2)), ["x", "y"], ["x", "y"])
    with pytest.raises(DataError, match="no folder"):
        heatmap([panel(2, 2)], tmp_path / "nowhere" / "a.png")
