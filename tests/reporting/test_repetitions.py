"""The table of repeated words in saved translations (tools.repetitions)."""

from pathlib import Path

import pytest

from fusetk.errors import DataError
from fusetk.reporting.result_files import columns_bytes, read_columns, translations_path
from tests.helpers.results import REFERENCES, SET
from tools.repetitions import repeats_words, rows


@pytest.mark.parametrize(
    ("line", "repeats"),
    [("a b c d a b c d", True), ("a a a a a", True), ("a b c d a b c", False), ("", False)],
)
def test_a_sequence_of_four_words_that_occurs_twice(line: str, repeats: bool) -> None:
    assert repeats_words(line) == repeats


def test_sentences_with_repetitions_are_left_out(results: Path) -> None:
    path = translations_path(results, "fused.seed1", SET)
    columns = read_columns(path)
    number = len(REFERENCES)
    columns["best.raw"][0] = "one two three four one two three four"
    path.write_bytes(columns_bytes(columns))
    table = {
        (row, seed, checkpoint): cells
        for row, seed, checkpoint, *cells in rows(results, SET, REFERENCES, "plain")
    }
    assert {key[0] for key in table} == {"plain", "fused", "other"}
    share, everything, score, _, rest, rest_score, rest_difference = table["fused", "1", "best"]
    assert share == f"{100 / number:.1f} %" and (everything, rest) == (str(number), str(number - 1))
    assert float(score) < 100 and rest_score == "100.00" and float(rest_difference) > 0
    assert table["plain", "1", "best"][3] == "+0.00"
    columns["best.raw"] = ["a b c d a b c d"] * number
    path.write_bytes(columns_bytes(columns))
    cells = dict((tuple(row[:3]), row[3:]) for row in rows(results, SET, REFERENCES, "plain"))[
        "fused", "1", "best"
    ]
    assert cells[0] == "100.0 %" and cells[-3:] == ["0", "-", "-"]
    with pytest.raises(DataError, match=f"has {number:,} lines, and the reference has 1"):
        list(rows(results, SET, REFERENCES[:1], "plain"))
    with pytest.raises(DataError, match="no complete training of the system absent"):
        list(rows(results, SET, REFERENCES, "absent"))
