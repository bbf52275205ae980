"""Numbers and tables as text."""

import pytest

from fusetk.cli.tables import markdown_table
from fusetk.reporting.formats import TextTable, latex_text, signed


@pytest.mark.parametrize(
    ("difference", "text"),
    [(0.004, "+0.00"), (-0.004, "+0.00"), (-0.0, "+0.00"), (-0.006, "-0.01"), (1.5, "+1.50")],
)
def test_a_difference_that_is_rounded_to_zero_is_not_negative(difference: float, text: str) -> None:
    assert signed(difference) == text


@pytest.mark.parametrize("name", ["[2ex] x", "*star"])
def test_latex_does_not_read_a_row_as_an_argument(name: str) -> None:
    text = latex_text(TextTable("", ["", ""], [["x", "1"], [name, "2"]], []))
    assert f"x & 1 \\\\\n{{}}{name} & 2" in text


def test_latex_has_commands_for_special_characters() -> None:
    text = latex_text(TextTable("a|b", ["", "50%"], [["x_1 > y", None]], []))
    assert r"a\textbar{}b" in text and r"50\%" in text and r"x\_1 $>$ y & -- \\" in text


def test_markdown_escapes_bars_in_heads_and_cells() -> None:
    table = markdown_table("t", ["", "a|b"], [["x|y", "1"]], [])
    assert "|  | a\\|b |\n| --- | ---: |\n| x\\|y | 1 |" in table
