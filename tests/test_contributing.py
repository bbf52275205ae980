"""CONTRIBUTING.md agrees with the code: its picture, its paths and the tables that it names."""

import re
from pathlib import Path

import pytest

from tools import layout

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATHS = sorted(set(re.findall(r"`((?:fusetk|tests|tools|recipes)/[\w./]*)`", TEXT)))
# For example: `FUSIONS` in `fusetk/fusion/__init__.py`
NAMES = sorted(set(re.findall(r"`(\w+)`[^`.]*? in\s+`(fusetk/[\w./]+|tests/[\w./]+)`", TEXT)))


def test_the_picture_is_made_from_the_imports() -> None:
    assert layout.update(TEXT) == TEXT, "the picture is out of date: run `make layout`"


def test_every_part_of_the_package_is_described() -> None:
    for name in layout.packages():
        assert f"| `fusetk/{name}/` |" in TEXT or f"| `fusetk/{name}.py` |" in TEXT, name


@pytest.mark.parametrize("path", [path for path in PATHS if "NAME" not in path])
def test_every_path_exists(path: str) -> None:
    assert (ROOT / path).exists()
    assert path.endswith("/") == (ROOT / path).is_dir()


@pytest.mark.parametrize(("name", "path"), NAMES)
def test_every_name_is_in_its_file(name: str, path: str) -> None:
    files = (ROOT / path).rglob("*.py") if path.endswith("/") else [ROOT / path]
    assert any(re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")) for file in files)


def test_reduction_keeps_what_can_be_reached() -> None:
    imports = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set()}
    assert layout.reduce(imports) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set()}


def test_a_file_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="does not contain"):
        layout.update("# Title\n")
