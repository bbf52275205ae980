import logging
from pathlib import Path

import pytest

from fusetk.errors import DataError
from fusetk.plotting.figure import check_output, fonts, label


def test_impossible_outputs_are_refused(tmp_path: Path) -> None:
    check_output(tmp_path / "a.PNG")
    with pytest.raises(DataError, match=r"\.png.*\.svg.*\.npz"):
        check_output(tmp_path / "a.jpg")
    with pytest.raises(DataError, match="nowhere does not exist"):
        check_output(tmp_path / "nowhere" / "a.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        check_output(tmp_path / "folder.png")


def test_labels_show_unprintable_characters_as_codes() -> None:
    assert label("a\tb\u2028c\x00") == "a\\u0009b\\u2028c\\u0000"
    assert label("Straße") == "Straße"
    cut = label("x" * 50 + "y" * 50)
    assert len(cut) < 35 and cut.startswith("xx") and cut.endswith("yy") and "\u2026" in cut


def test_latin_greek_and_cyrillic_need_one_font(caplog: pytest.LogCaptureFixture) -> None:
    assert fonts(["Straße", "Привет , мир", "αβγ", "</s>", "an@@"]) == ["DejaVu Sans"]
    assert not caplog.records


def test_characters_without_a_font_are_named_by_script(caplog: pytest.LogCaptureFixture) -> None:
    unassigned = "\U000e0080"  # an unassigned code point
    with caplog.at_level(logging.WARNING):
        fonts(["a", unassigned])
    [record] = caplog.records
    assert "UNNAMED" in record.getMessage() and "install a font" in record.getMessage()


def test_chinese_gets_a_font_or_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        families = fonts(["他 在 会议 上 。"])
    if len(families) == 1:
        [record] = caplog.records
        assert "CJK" in record.getMessage()
    else:
        assert not caplog.records


def test_an_installed_font_that_has_the_characters_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fusetk.plotting import figure

    real = figure._glyphs
    without = {0x41F}
    monkeypatch.setattr(
        figure,
        "_glyphs",
        lambda file: real(file) - without if file.endswith("DejaVuSans.ttf") else real(file),
    )
    families = fonts(["\u041f"])
    assert len(families) == 2 and not families[1].startswith(("Last Resort", "STIXSize", "cm"))
