import json
import logging
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from fusetk.errors import DataError
from fusetk.plotting.heatmap import draw
from fusetk.plotting.panel import COLORS, DIVERGING, Page, Panel, scales, short_titles, with_top
from fusetk.plotting.save import save
from fusetk.plotting.style import STYLES, Size, parse_size, parse_top


def panel(rows: int, columns: int, name: str = "decoder.layer1.cross", seed: int = 1) -> Panel:
    weights = np.random.default_rng(seed).dirichlet(np.ones(columns), size=rows).astype(np.float32)
    title = f"encoder layer 1, self-attention, mean of 8 heads, panel {name}"
    words = [f"Wort{i}" for i in range(columns)], [f"Äpfelg{i}" for i in range(rows)]
    return Panel(
        name, title, weights, *words, "attention weight (a row sums to 1)", ("source", "target")
    )


def overlap(box: Bbox, other: Bbox) -> bool:
    """Whether two boxes have a common area; their edges may touch."""
    return bool(box.x0 < other.x1 and other.x0 < box.x1 and box.y0 < other.y1 and other.y0 < box.y1)


def check_places(figure: Figure) -> None:
    """Check that all panels and bars with their labels are in the figure, and do not overlap."""
    renderer = figure.canvas.get_renderer()
    boxes = [axes.get_tightbbox(renderer) for axes in figure.axes]
    for i, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, "outside the figure"
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1, "outside the figure"
        assert not any(overlap(box, other) for other in boxes[i + 1 :])


@pytest.mark.parametrize(
    "ending, start", [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_pictures_have_the_format_of_their_ending_and_are_reproducible(
    tmp_path: Path, ending: str, start: bytes
) -> None:
    for name in ("a", "b"):
        save([Page([panel(5, 7), panel(2, 3, "other")])], tmp_path / f"{name}.{ending}", title="x")
    first = (tmp_path / f"a.{ending}").read_bytes()
    assert first.startswith(start)
    assert first == (tmp_path / f"b.{ending}").read_bytes()


def test_numbers_are_stored(tmp_path: Path) -> None:
    panels = [panel(4, 6), panel(3, 3, "encoder.layer2.self", seed=2)]
    save([Page(panels)], tmp_path / "a.npz", title="x")
    save([Page(panels)], tmp_path / "a.json", title="Größe")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        for expected in panels:
            np.testing.assert_array_equal(arrays[expected.name], expected.matrix)
            assert arrays[f"{expected.name}.x"].tolist() == expected.x
            assert arrays[f"{expected.name}.y"].tolist() == expected.y
    document = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert (document["title"], document["x_label"], document["y_label"]) == (
        "Größe",
        "source",
        "target",
    )
    for expected, stored in zip(panels, document["panels"], strict=True):
        np.testing.assert_array_equal(np.array(stored["matrix"], dtype=np.float32), expected.matrix)
        assert (stored["name"], stored["x"], stored["y"]) == (expected.name, expected.x, expected.y)


def test_names_of_several_sentences_start_with_their_numbers(tmp_path: Path) -> None:
    pages = [
        Page([panel(2, 3, "a")], 4, "ein Satz", "a sentence"),
        Page([panel(3, 2, "a", 2)], 7, "noch einer", "another"),
    ]
    save(pages, tmp_path / "a.npz")
    save(pages, tmp_path / "a.json")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        assert set(arrays) == {
            f"{number}.a{kind}" for number in (4, 7) for kind in ("", ".x", ".y")
        }
        np.testing.assert_array_equal(arrays["7.a"], pages[1].panels[0].matrix)
    document = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert document["sentences"][1] == {"number": 7, "source": "noch einer", "target": "another"}
    assert [entry["name"] for entry in document["panels"]] == ["4.a", "7.a"]
    with pytest.raises(DataError, match=r"several.*HTML.*--corpus"):
        save(pages, tmp_path / "a.png")


@pytest.mark.parametrize(
    "rows, columns, count", [(60, 60, 3), (1, 1, 1), (1, 14, 1), (4, 20, 4), (25, 3, 8)]
)
def test_labels_have_room_and_panels_do_not_overlap(rows: int, columns: int, count: int) -> None:
    figure = draw([panel(rows, columns, str(i)) for i in range(count)], title="a run")
    check_places(figure)
    renderer = figure.canvas.get_renderer()
    words = [text.get_window_extent(renderer) for text in figure.axes[0].get_yticklabels()]
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(words))


@pytest.mark.parametrize("rows, columns", [(1, 1), (1, 2), (2, 2), (6, 2)])
@pytest.mark.parametrize("measures", [1, 2])
def test_all_texts_of_a_small_picture_are_inside_it(rows: int, columns: int, measures: int) -> None:
    x = [f"l{i}" for i in range(columns)]
    y = [f"l{i}" for i in range(rows)]
    names = ("output that is read", "layer")
    panels = [
        Panel("a", "a", np.eye(rows, columns), x, y, f"learned weight {i}", names)
        for i in range(measures)
    ]
    title = "encoder, weights of each layer's input (a-run-with-a-long-name, update-0000010)"
    figure = draw(panels, title=title)
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    texts = [text for text in figure.texts if text.get_text()]
    for part in [*texts, *figure.axes]:
        box = part.get_tightbbox(renderer)
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, part
    heading = [text for text in texts if text.get_fontsize() == STYLES["screen"].heading]
    assert len(heading) <= 4, "a narrow figure has a heading of many lines"


def test_a_panel_of_one_column_has_numbers_instead_of_a_colour_bar() -> None:
    column = Panel("b", "b", np.array([[0.25], [1.5]]), ["beta"], ["n1", "root"], "learned beta")
    figure = draw([panel(2, 3), column])
    [bar] = figure.axes[2:]
    assert (bar.get_xlabel() + bar.get_ylabel()).startswith(panel(2, 3).measure)
    assert [text.get_text() for text in figure.axes[1].texts] == ["0.25", "1.5"]
    [image] = figure.axes[1].images
    assert (image.to_rgba(column.matrix) == 1).all(), "a colour of a scale that has no bar"
    assert len(draw([column]).axes) == 2


@pytest.mark.parametrize("columns", [None, [2, 2], 1])
@pytest.mark.parametrize("style", ["screen", "paper"])
def test_each_of_several_colour_bars_is_below_a_panel_of_its_measure(
    columns: int | list[int] | None, style: str
) -> None:
    panels = [
        Panel(f"{side}.{measure}", f"{side}, {measure}", np.eye(rows) / 4, words, words, measure)
        for side, rows in (("encoder", 3), ("decoder", 9))
        for words in [[f"layer {i}" for i in range(rows)]]
        for measure in (f"weight, {side}", "deviation")
    ]
    figure = draw(panels, columns=columns, style=STYLES[style], title="a run")
    drawn, bars = figure.axes[:4], figure.axes[4:]
    renderer = figure.canvas.get_renderer()
    for bar, place in zip(bars, (0, 3, 2), strict=True):  # the last panel of "deviation"
        measure = bar.get_xlabel().partition(";")[0].replace("\n", " ")
        assert measure == panels[place].measure
        assert bar.get_position().x0 == pytest.approx(drawn[place].get_position().x0)
        box = bar.get_tightbbox(renderer)
        assert box.y1 < drawn[place].get_tightbbox(renderer).y0
        assert figure.bbox.y0 <= box.y0 and box.x1 <= figure.bbox.x1, "outside the figure"
        others = [axes.get_tightbbox(renderer) for axes in figure.axes if axes is not bar]
        assert not any(overlap(box, other) for other in others)


def test_names_of_axes_do_not_touch_the_labels() -> None:
    rows = [f"l{i}.{kind}" for i in range(1, 4) for kind in ("self", "cross", "ffn")]
    weights = np.eye(len(rows))
    figure = draw([Panel("a", "a", weights, rows, rows, axes=("output", "sub-layer that reads"))])
    figure.set_dpi(150)
    figure.canvas.draw()
    [name] = [text for text in figure.texts if text.get_text() == "sub-layer that reads"]
    labels = [text.get_window_extent() for text in figure.axes[0].get_yticklabels()]
    assert name.get_window_extent().x1 + 2 < min(label.x0 for label in labels)


@pytest.mark.parametrize("measures", [1, 2])
def test_long_names_of_low_rows_do_not_overlap(measures: int) -> None:
    axes = ("input token", "output that is read")
    panels = [
        Panel(str(i), str(i), np.ones((1, 9)), "abcdefghi", ["l0"], f"{i % measures}", axes)
        for i in range(3)
    ]
    figure = draw(panels, title="a run", columns=1)
    names = [text for text in figure.texts if text.get_text() == axes[1]]
    boxes = [name.get_window_extent(figure.canvas.get_renderer()) for name in names]
    assert len(boxes) == 3 and boxes[0].y1 <= figure.bbox.y1 and boxes[-1].y0 >= 0
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(boxes))


def test_columns_set_the_number_of_panels_in_a_row() -> None:
    figure = draw([panel(3, 3, str(i)) for i in range(6)], title="a run", columns=2)
    assert len({round(axes.get_position().x0, 4) for axes in figure.axes[:6]}) == 2


def test_dollars_in_words_are_not_formulas() -> None:
    words = ["$5", "$_{$", "\\frac", "_x"]
    figure = draw([Panel("a", "$x$", np.eye(4), words, words)], title="$_{$")
    figure.canvas.draw()  # matplotlib raises for an incomplete formula
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == words


@pytest.mark.parametrize("colors", COLORS)
def test_brightness_is_monotonic_in_the_weight(tmp_path: Path, colors: str) -> None:
    import matplotlib

    shades = matplotlib.colormaps[COLORS[colors]](np.linspace(0, 1, 20))[:, :3] @ (
        0.299,
        0.587,
        0.114,
    )
    steps = np.diff(shades)
    assert (steps > 0).all() or (steps < 0).all()
    save([Page([panel(2, 2)])], tmp_path / "a.png", colors=colors)


def test_grey_is_white_at_one() -> None:
    [page] = with_top([Page([panel(3, 3)])], 1.0)
    figure = draw(page.panels, colors="grey")
    [image] = figure.axes[0].images
    assert image.get_clim() == (0.0, 1.0)
    assert image.to_rgba(1.0)[:3] == pytest.approx((1, 1, 1), abs=0.01)


def test_panels_of_one_measure_share_one_scale() -> None:
    panels = [
        panel(3, 3, "a"),
        Panel("b", "b", np.full((2, 2), 0.9), ["x", "y"], ["x", "y"], panel(3, 3).measure),
    ]
    figure = draw(
        [*panels, Panel("c", "c", np.full((2, 2), 7.0), ["x", "y"], ["x", "y"], "another")]
    )
    assert [axes.images[0].get_clim() for axes in figure.axes[:3]] == [
        (0.0, 1.0),
        (0.0, 1.0),
        (0.0, 8.0),
    ]
    assert len(figure.axes) == 3 + 2  # a colour bar for each measure


@pytest.mark.parametrize("colors", COLORS)
def test_every_number_is_inside_its_scale(colors: str) -> None:
    def of(*values: float) -> Panel:
        return Panel("a", "a", np.array([values]), ["x"] * len(values), ["y"])

    middle = scales([of(-0.5, 0.25)], colors)["weight"]
    assert middle == (DIVERGING, -0.5, 0.5)  # 0 is in the middle
    assert scales([of(-0.5, 1.5, np.nan)], colors)["weight"] == (DIVERGING, -1.5, 1.5)
    assert scales([of(0.0, 1.5)], colors)["weight"].high == 1.5
    assert scales([of(0.0, 0.0)], colors)["weight"].high == 1.0
    assert scales([of(np.nan)], colors)["weight"].low == 0.0


def test_the_first_row_can_be_at_the_bottom() -> None:
    up = Panel("a", "a", np.array([[1.0], [2.0]]), ["x"], ["low", "high"], up=True)
    figure = draw([up, Panel("b", "b", up.matrix, up.x, up.y)])
    places = []
    for axes in figure.axes[:2]:
        texts = {
            text.get_text(): text.get_window_extent(figure.canvas.get_renderer()).y0
            for text in axes.get_yticklabels()
        }
        numbers = {
            text.get_text(): text.get_window_extent(figure.canvas.get_renderer()).y0
            for text in axes.texts
        }
        places.append((texts["low"] < texts["high"], numbers["1"] < numbers["2"]))
    assert places == [(True, True), (False, False)]


def test_an_empty_cell_has_its_own_colour() -> None:
    for colors in COLORS:
        figure = draw(
            [Panel("a", "a", np.array([[np.nan, 0.0, 1.0]]), ["x", "y", "z"], ["a"])], colors=colors
        )
        [image] = figure.axes[0].images
        empty, none, all_ = (
            tuple(image.to_rgba(np.ma.masked_invalid(np.array([[v]])))[0, 0])
            for v in (np.nan, 0.0, 1.0)
        )
        assert len({empty, none, all_}) == 3


def test_rows_of_panels_of_different_sizes_do_not_overlap() -> None:
    side = [panel(7, 1, "encoder.a"), panel(7, 40, "encoder.b"), panel(6, 1, "encoder.c")]
    figure = draw([*side, *side, panel(3, 30), panel(3, 30)], title="a run", columns=[3, 3, 2])
    check_places(figure)


@pytest.mark.parametrize("largest", [0.7, 0.00047, 0.00072, 123456.0])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("rows", [3, 5])
def test_numbers_below_a_colour_bar_do_not_overlap(largest: float, sign: int, rows: int) -> None:
    words = list("abcde")[:rows]
    panels = [
        Panel(measure, measure, sign * largest * np.eye(rows), words, words, measure)
        for measure in ("weight", "deviation")
    ]
    figure = draw(panels, columns=2)
    renderer = figure.canvas.get_renderer()
    for bar in figure.axes[2:]:
        ticks = bar.get_xticks()
        assert np.allclose(ticks[[0, -1]], bar.get_xlim(), atol=0)
        numbers = [text.get_window_extent(renderer) for text in bar.get_xticklabels()]
        assert len(numbers) > 1
        assert all(first.x1 < second.x0 for first, second in pairwise(numbers))


@pytest.mark.parametrize("up", [False, True])
def test_a_line_divides_columns_of_two_kinds(up: bool) -> None:
    def of(cut: int) -> Panel:
        return Panel(
            "a",
            "a",
            np.eye(2, 5),
            list("abcde"),
            ["x", "y"],
            axes=("source | target", "target"),
            cut=cut,
            up=up,
        )

    figure = draw([of(2), of(0)])
    [line], none = (axes.lines for axes in figure.axes[:2])
    assert list(line.get_xdata()) == [1.5, 1.5] and not none
    assert [axes.get_ylim() for axes in figure.axes[:2]] == [(-0.5, 1.5) if up else (1.5, -0.5)] * 2
    place, cells = (
        line.get_window_extent(figure.canvas.get_renderer()),
        figure.axes[0].get_window_extent(),
    )
    assert place.y0 == pytest.approx(cells.y0, abs=1) and place.y1 > cells.y1


def test_wrong_panels_and_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 row"):
        Panel("a", "a", np.zeros((3, 2)), ["x", "y"], ["x", "y"])
    with pytest.raises(DataError, match="nowhere does not exist"):
        save([Page([panel(2, 2)])], tmp_path / "nowhere" / "a.png")
    with pytest.raises(DataError, match=r"\.html.*\.npz"):
        save([Page([panel(2, 2)])], tmp_path / "a.jpg")


def test_a_scale_ends_at_the_given_or_at_a_round_number() -> None:
    weights = panel(4, 5)
    fixed = with_top([Page([weights])], 1.0)[0].panels
    assert scales(fixed)[weights.measure] == ("Blues", 0.0, 1.0)
    for panels in (fixed, [weights]):
        *_, bar = draw(panels).axes
        assert bar.get_ylabel().replace("\n", " ") == weights.measure
        assert bar.get_yticks()[-1] == pytest.approx(scales(panels)[weights.measure].high)
    assert with_top([Page(fixed)], float("inf"))[0].panels[0].top is None


@pytest.mark.parametrize(
    "largest, end",
    [(0.9967, 1), (1, 1), (1.18, 1.2), (0.0123, 0.0125), (13.7, 15), (0.31, 0.4), (0, 1)],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_scale_ends_at_a_round_number(largest: float, end: float, sign: int) -> None:
    weights = Panel("a", "a", np.array([[sign * largest, 0.0]]), ["x", "y"], ["z"])
    low = -end if sign < 0 < largest else 0
    assert scales([weights])["weight"][1:] == (pytest.approx(low), pytest.approx(end))
    figure = draw([weights])
    ticks = figure.axes[-1].get_xticks()
    assert ticks[[0, -1]].tolist() == pytest.approx([low, end])
    digits = [
        label.get_text().replace("\u2212", "-") for label in figure.axes[-1].get_xticklabels()
    ]
    assert [float(text) for text in digits] == pytest.approx(ticks.tolist())


def test_captions_have_the_parts_that_differ() -> None:
    def titled(*titles: str) -> tuple[str, list[str]]:
        return short_titles([Panel("a", title, np.eye(1), ["x"], ["y"]) for title in titles])

    assert titled(
        "decoder layer 1, cross-attention, mean", "decoder layer 2, cross-attention, mean"
    ) == (
        "cross-attention, mean",
        ["decoder layer 1", "decoder layer 2"],
    )
    assert titled("decoder fusion, hop 1", "decoder fusion, hop 2")[1] == ["hop 1", "hop 2"]
    assert titled("a, x, 1", "b, x, 1", "b, x, 2") == ("x", ["a, 1", "b, 1", "b, 2"])
    assert titled("a, b", "a, b, c") == ("a, b", ["", "c"])
    assert titled("a, b") == ("a, b", [""])


def test_captions_are_on_one_line() -> None:
    figure = draw([panel(3, 3, str(i)) for i in range(3)])
    captions = [text.get_text() for text in figure.texts]
    assert all(f"panel {i}" in captions for i in range(3))
    assert not any("\n" in caption for caption in captions)


@pytest.mark.parametrize("count, columns", [(1, 12), (3, 12), (4, 20)])
def test_a_picture_has_the_width_of_the_style_or_of_the_user(count: int, columns: int) -> None:
    panels = [panel(6, columns, str(i)) for i in range(count)]
    paper = draw(panels, style=STYLES["paper"])
    assert paper.get_size_inches()[0] in STYLES["paper"].widths
    assert draw(panels, size=Size(7.5)).get_size_inches()[0] == 7.5
    renderer = paper.canvas.get_renderer()
    for axes in paper.axes:
        box = axes.get_tightbbox(renderer)
        assert paper.bbox.x0 <= box.x0 and box.x1 <= paper.bbox.x1
    assert {text.get_size() for text in paper.axes[0].get_xticklabels()} == {7.0}


def test_one_warning_has_the_width_of_a_picture_that_does_not_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The panel is low, so arrangements with the colour bar beside it and below it are tried."""
    with caplog.at_level(logging.WARNING):
        figure = draw([panel(2, 60)], style=STYLES["paper"])
    [message] = caplog.messages
    assert f" {figure.get_size_inches()[0]:.1f} inches wide" in message


def test_a_width_without_room_for_the_labels_is_refused() -> None:
    with pytest.raises(DataError, match=r"at least \d+\.\d inches"):
        draw([panel(40, 40)], size=Size(3.3))


def test_labels_of_columns_are_not_repeated_below_a_low_panel() -> None:
    low = [panel(4, 6, "a"), panel(4, 6, "b", seed=2)]
    high = [panel(20, 6, "a"), panel(20, 6, "b", seed=2)]
    for panels, labels in ((low, [6, 0]), (high, [6, 6])):
        figure = draw(panels, columns=1)
        visible = [
            sum(tick.label2.get_visible() for tick in axes.xaxis.get_major_ticks())
            for axes in figure.axes[:2]
        ]
        assert visible == labels


def test_a_pdf_embeds_its_fonts(tmp_path: Path) -> None:
    save([Page([panel(2, 2)])], tmp_path / "a.pdf", style=STYLES["paper"])
    assert b"/FontFile2" in (tmp_path / "a.pdf").read_bytes()


def test_sizes_and_ends_of_scales_are_parsed() -> None:
    assert parse_size("3.3") == (3.3, None) and parse_size("6.9x2.5in") == (6.9, 2.5)
    assert parse_top("0.5") == 0.5 and parse_top("max") == float("inf")
    for text in ("", "x", "3x", "0.1", "nan", "1x2x3", "1000"):
        with pytest.raises(ValueError, match="WIDTH"):
            parse_size(text)
    for text in ("0", "-1", "nan", "inf", "top"):
        with pytest.raises(ValueError, match="above 0, or max"):
            parse_top(text)
