"""Functions shared by all figures: output files, fonts and labels."""

import json
import logging
import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fusetk.data.text import cannot_write, check_folder_of
from fusetk.errors import DataError
from fusetk.plotting.style import SCREEN
from fusetk.plotting.text_width import missing_glyphs_ignored

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

PICTURES = (".png", ".pdf", ".svg")
NUMBERS = (".npz", ".json")
PAGES = (".html",)

# Limits of a PNG. A larger figure gets a lower resolution, so that viewers can open the file.
MAX_PIXELS = 120_000_000
MAX_SIDE = 60_000  # pixels; the renderer's limit is 65,536

# Fonts of matplotlib that contain boxes or parts of formulas instead of letters.
_NOT_TEXT_FONTS = ("Last Resort", "STIXNonUnicode", "STIXSize", "cm")
# First words of Unicode names; one font covers all of them.
_EAST_ASIAN = ("CJK", "IDEOGRAPHIC", "FULLWIDTH", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO")
_JOINERS = "\u200c\u200d"  # invisible, but needed by words of some scripts

log = logging.getLogger(__name__)


@contextmanager
def without_latex() -> Iterator[None]:
    """Within this context, figures do not use LaTeX, also if the user's matplotlibrc asks for it.

    Labels are words of any language, which are not LaTeX.
    """
    import matplotlib

    with matplotlib.rc_context({"text.usetex": False}):
        yield


def check_output(path: Path, pages: bool = False, numbers: bool = True) -> None:
    """Raise DataError if a figure cannot be written to ``path``. Call this before long work.

    ``pages``: the caller can write HTML. ``numbers``: the caller can write .npz and .json.
    """
    endings = PICTURES + (NUMBERS if numbers else ()) + (PAGES if pages else ())
    if path.suffix.lower() not in endings:
        page = f", {', '.join(PAGES)} for an interactive page," if pages else ""
        number = f" or {', '.join(NUMBERS)} for its numbers" if numbers else ""
        raise DataError(
            f"{path}: the name must end in {', '.join(PICTURES)} for a picture{page}{number}"
        )
    check_folder_of(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the name of a file")


def save_picture(figure: "Figure", path: Path, resolution: int = SCREEN.dpi) -> None:
    """Write a figure in the format of the file's ending; equal figures give equal bytes.

    ``resolution`` is that of a PNG file in pixels per inch. It is lower for very large figures.
    Raises DataError if the file cannot be written.
    """
    import matplotlib

    kind = path.suffix.lower().removeprefix(".")
    # Dates would make equal figures differ.
    undated: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    width, height = figure.get_size_inches()
    dpi = min(
        float(resolution), (MAX_PIXELS / (width * height)) ** 0.5, MAX_SIDE / max(width, height)
    )
    if kind == "png" and dpi < resolution:
        log.warning(
            "%s is large: its resolution is %d dpi instead of %d; "
            "write a PDF or choose fewer panels if labels are not readable",
            path,
            dpi,
            resolution,
        )
    # PDFs embed TrueType fonts, as publishers require. SVGs contain outlines instead of fonts.
    style = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "fusetk"}
    settings = matplotlib.rc_context(style)  # type: ignore[arg-type]
    with without_latex(), settings, missing_glyphs_ignored():
        try:
            figure.savefig(path, format=kind, dpi=dpi, metadata=undated.get(kind, {}))
        except OSError as error:
            raise cannot_write(path, error) from None


def save_numbers(path: Path, arrays: Mapping[str, np.ndarray], document: Any) -> None:
    """Write ``arrays`` to an .npz file, or ``document`` to a .json file.

    Raises DataError if the file cannot be written.
    """
    try:
        if path.suffix.lower() == ".npz":
            # Numbers and strings only: numpy.load reads the file without pickle.
            with path.open("wb") as file:
                np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        else:
            text = json.dumps(document, ensure_ascii=False, allow_nan=False)
            path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise cannot_write(path, error) from None


def label(text: str, longest: int = 28) -> str:
    """Return text for a figure: unprintable characters as codes, long text cut in the middle."""
    printable = "".join(c if c.isprintable() or c in _JOINERS else f"\\u{ord(c):04x}" for c in text)
    if len(printable) <= longest:
        return printable
    return printable[: longest * 2 // 3] + "\u2026" + printable[-(longest // 3) :]


# Lines --------------------------------------------------------------------------------------------


def colors(count: int) -> list[Any]:
    """Return a different colour for each of ``count`` lines."""
    import matplotlib

    if count <= 10:
        return list(matplotlib.colormaps["tab10"].colors[:count])  # type: ignore[attr-defined]
    return [matplotlib.colormaps["turbo"](0.05 + 0.9 * i / (count - 1)) for i in range(count)]


def style_axes(axes: "Axes") -> None:
    """Draw a grey grid behind the lines and remove the upper and the right frame."""
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def legend(
    place: "Axes | Figure",
    entries: "Sequence[tuple[Line2D, str]]",
    families: list[str],
    size: float,
    **options: Any,
) -> None:
    """Write the names of lines; ``options`` are those of matplotlib's ``legend``."""
    lines = [line for line, _ in entries]
    # The labels are numbers first, and names afterwards: legend() drops labels that start with an
    # underscore and typesets text between dollar signs as formulas.
    numbers = [str(i) for i in range(len(lines))]
    prop: dict[str, Any] = {"family": families, "size": size}
    drawn = place.legend(lines, numbers, prop=prop, frameon=False, **options)
    for text, (_, name) in zip(drawn.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(name)


# Fonts --------------------------------------------------------------------------------------------


def fonts(texts: Iterable[str]) -> list[str]:
    """Return font families that together have the characters of ``texts``, in order of preference.

    The first family comes with matplotlib; the others are installed ones. If no installed font has
    a character, logs a warning that names its script.
    """
    from matplotlib import font_manager

    families = ["DejaVu Sans"]
    missing = {ord(c) for text in texts for c in text if not c.isspace() and c not in _JOINERS}
    missing -= _glyphs(font_manager.findfont("DejaVu Sans"))
    installed = font_manager.fontManager.ttflist if missing else []
    candidates = {
        font.name: font.fname
        for font in installed
        if font.style == "normal"
        and str(font.weight) in ("400", "normal", "regular")
        and not font.name.startswith(_NOT_TEXT_FONTS)
    }
    while missing and candidates:
        name = max(candidates, key=lambda name: (len(_glyphs(candidates[name]) & missing), name))
        covered = _glyphs(candidates.pop(name)) & missing
        if not covered:
            break
        families.append(name)
        missing -= covered
    if missing:
        log.warning("%s", _missing_characters(missing))
    return families


@cache
def _glyphs(file: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(file).get_charmap())
    except (RuntimeError, OSError):  # for example a colour emoji font, which matplotlib cannot draw
        return frozenset()


def _missing_characters(missing: Iterable[int]) -> str:
    scripts: dict[str, list[str]] = defaultdict(list)
    for code in sorted(missing):
        # Unicode names start with the script.
        first = re.split("[ -]", unicodedata.name(chr(code), "UNNAMED"))[0]
        scripts["CJK" if first in _EAST_ASIAN else first].append(chr(code))
    names = "; ".join(
        f"{script} ({' '.join(chars[:5])}{' ...' if len(chars) > 5 else ''})"
        for script, chars in scripts.items()
    )
    hint = "such as Noto Sans CJK" if "CJK" in scripts else "such as a Noto font"
    return (
        f"no installed font has these characters: {names}; they are drawn as boxes; "
        f"install a font that has them, {hint}"
    )


def finite(values: Iterable[float]) -> list[float | None]:
    """Return numbers for JSON, which has neither NaN nor infinity: these become None."""
    return [float(value) if math.isfinite(value) else None for value in values]
