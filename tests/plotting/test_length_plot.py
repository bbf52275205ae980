from pathlib import Path

import pytest

from fusetk.errors import DataError
from fusetk.plotting.length import Chart, draw, plot

CHART = Chart(
    ["0-10", "11-20", "21-30", "> 30"],
    [1200, 30, 0, 4],
    {"base": [30.0, 25.0, None, 20.0], "_$deep": [31.0, 26.0, None, 19.0]},
    "words of the source sentence",
    "multi-bleu",
)


def test_the_chart_has_a_line_for_each_system() -> None:
    figure = draw(CHART)
    figure.canvas.draw()
    [axes] = figure.axes
    ticks = [text.get_text() for text in axes.get_xticklabels()]
    assert ticks == [
        "0-10\nn = 1,200",
        "11-20\nn = 30",
        "> 30\nn = 4",
    ]  # the empty range is not drawn
    assert [list(line.get_ydata()) for line in axes.lines] == [[30, 25, 20], [31, 26, 19]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("words of the source sentence", "multi-bleu")
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["base", "_$deep"]
    assert len({line.get_color() for line in axes.lines}) == 2


@pytest.mark.parametrize(
    ("scores", "below_zero"),
    [((0.0, 0.0, 0.5), False), ((0.0, 0.0, 0.0), False), ((-1, 0, 3), True)],
)
def test_the_axis_of_scores_that_are_not_negative_is_not_either(
    scores: tuple[float, ...], below_zero: bool
) -> None:
    [axes] = draw(Chart(["1", "2", "3"], [1, 1, 1], {"a": scores}, "x", "y")).axes
    bottom, top = axes.get_ylim()
    assert (bottom < 0) == below_zero and bottom <= min(scores) and max(scores) < top


@pytest.mark.parametrize(
    "ending, start", [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_pictures_have_the_format_of_their_ending(
    tmp_path: Path, ending: str, start: bytes
) -> None:
    plot(CHART, tmp_path / f"a.{ending}")
    assert (tmp_path / f"a.{ending}").read_bytes().startswith(start)


def test_a_file_that_is_not_a_picture_is_refused(tmp_path: Path) -> None:
    for name in ("a.json", "a.npz", "a.html", "a"):
        with pytest.raises(DataError, match=r"must end in \.png, \.pdf, \.svg for a picture$"):
            plot(CHART, tmp_path / name)
    assert not list(tmp_path.iterdir())
