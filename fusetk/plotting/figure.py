"""What every figure shares: its file, its fonts, its labels."""

import json
import logging
import math
import re
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fusetk.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

PICTURES = (".png", ".pdf", ".svg")
NUMBERS = (".npz", ".json")
PAGES = (".html",)

DPI = 150
MAX_PIXELS = 120_000_000  # of a PNG; what is larger gets fewer dots an inch, for a viewer must be able to open it
MAX_SIDE = 60_000  # pixels; the renderer ends at 65,536

# Fonts that come with matplotlib and have a box, or a piece of a formula, where others have a letter.
_NO_WORDS = ("Last Resort", "STIXNonUnicode", "STIXSize", "cm")
_EAST_ASIAN = (
    "CJK",
    "IDEOGRAPHIC",
    "FULLWIDTH",
    "HIRAGANA",
    "KATAKANA",
    "HANGUL",
    "BOPOMOFO",
)  # one font serves them all
_JOINERS = "\u200c\u200d"  # invisible, but words of some scripts need them

log = logging.getLogger(__name__)


def check_output(path: Path, pages: bool = False, numbers: bool = True) -> None:
    """Raise DataError when a figure cannot be written to ``path``: call it before the work, not after.

    ``pages`` says that HTML can be written, ``numbers`` that the numbers of the picture can.
    """
    if path.suffix.lower() not in PICTURES + (NUMBERS if numbers else ()) + (
        PAGES if pages else ()
    ):
        page = f", {', '.join(PAGES)} for a page to look around in," if pages else ""
        number = f" or {', '.join(NUMBERS)} for its numbers" if numbers else ""
        raise DataError(
            f"{path}: the name must end in {', '.join(PICTURES)} for a picture{page}{number}"
        )
    if not path.parent.is_dir():
        raise DataError(f"{path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file in it")


def save_picture(figure: "Figure", path: Path) -> None:
    """Write a figure as its ending says; the same figure gives the same bytes. Raises DataError when it cannot be written."""
    import matplotlib

    kind = path.suffix.lower().removeprefix(".")
    # No dates. Fonts in PDFs as TrueType, which publishers ask for; in SVGs as outlines, which need no font to be read.
    undated: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    width, height = figure.get_size_inches()
    dpi = min(float(DPI), (MAX_PIXELS / (width * height)) ** 0.5, MAX_SIDE / max(width, height))
    if kind == "png" and dpi < DPI:
        log.warning(
            "%s is large and gets %d dots an inch, not %d; to read every label write a PDF or choose fewer panels",
            path,
            dpi,
            DPI,
        )
    style = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "fusetk"}
    with matplotlib.rc_context(style), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from"
        )  # `fonts` has said it, once and with the script
        try:
            figure.savefig(path, format=kind, dpi=dpi, metadata=undated.get(kind, {}))
        except OSError as error:
            raise DataError(f"{path} cannot be written: {error.strerror or error}") from error


def save_numbers(path: Path, arrays: Mapping[str, np.ndarray], document: Any) -> None:
    """Write ``arrays`` to an .npz, or ``document`` to a .json file. Raises DataError when it cannot be written."""
    try:
        if path.suffix.lower() == ".npz":
            with path.open("wb") as file:
                np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # read without pickle: numbers and strings only
        else:
            path.write_text(
                json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
            )
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from error


def label(text: str, longest: int = 28) -> str:
    """Text as a figure can show it: what has no shape as its code, what is very long cut in the middle."""
    shown = "".join(c if c.isprintable() or c in _JOINERS else f"\\u{ord(c):04x}" for c in text)
    if len(shown) > longest:
        shown = shown[: longest * 2 // 3] + "\u2026" + shown[-(longest // 3) :]
    return shown


# Lines ---------------------------------------------------------------------------------------------------------------


def colors(count: int) -> list[Any]:
    """A colour for each of ``count`` lines."""
    import matplotlib

    if count <= 10:
        return list(matplotlib.colormaps["tab10"].colors[:count])  # type: ignore[attr-defined]
    return [matplotlib.colormaps["turbo"](0.05 + 0.9 * i / (count - 1)) for i in range(count)]


def dress(axes: "Axes") -> None:
    """A grey grid behind the lines, and no frame above and to the right."""
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def legend(
    axes: "Axes", entries: "Sequence[tuple[Line2D, str]]", families: list[str], down: float = 0.13
) -> None:
    """Names of lines below the axes, ``down`` of their height."""
    lines = [line for line, _ in entries]
    place: dict[str, Any] = {
        "loc": "upper center",
        "bbox_to_anchor": (0.5, -down),
        "frameon": False,
    }
    # Numbers first, names then: a legend drops labels that begin with an underscore and sets dollars as formulas.
    shown = axes.legend(
        lines, [str(i) for i in range(len(lines))], prop={"family": families, "size": 8.5}, **place
    )
    for text, (_, name) in zip(shown.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(name)


# Fonts ---------------------------------------------------------------------------------------------------------------


def fonts(texts: Iterable[str]) -> list[str]:
    """Font families, to be tried in this order, that have the characters of ``texts`` between them.

    The first comes with matplotlib; others are looked for among the installed ones. Logs a warning that names the script
    of characters that no installed font has.
    """
    from matplotlib import font_manager

    families = ["DejaVu Sans"]
    missing = {ord(c) for text in texts for c in text if not c.isspace() and c not in _JOINERS}
    missing -= _glyphs(font_manager.findfont("DejaVu Sans"))
    installed = font_manager.fontManager.ttflist if missing else []
    upright = [
        font
        for font in installed
        if font.style == "normal" and str(font.weight) in ("400", "normal", "regular")
    ]
    candidates = {font.name: font.fname for font in upright if not font.name.startswith(_NO_WORDS)}
    while missing and candidates:
        name = max(candidates, key=lambda name: (len(_glyphs(candidates[name]) & missing), name))
        found = _glyphs(candidates.pop(name)) & missing
        if not found:
            break
        families.append(name)
        missing -= found
    if missing:
        log.warning("%s", _complaint(missing))
    return families


@cache
def _glyphs(file: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(file).get_charmap())
    except (
        RuntimeError,
        OSError,
    ):  # a kind of font that matplotlib cannot draw, colour emoji for one
        return frozenset()


def _complaint(missing: Iterable[int]) -> str:
    scripts: dict[str, list[str]] = defaultdict(list)
    for code in sorted(missing):
        first = re.split("[ -]", unicodedata.name(chr(code), "UNNAMED"))[
            0
        ]  # Unicode names begin with the script
        scripts["CJK" if first in _EAST_ASIAN else first].append(chr(code))
    named = "; ".join(
        f"{script} ({' '.join(chars[:5])}{' ...' if len(chars) > 5 else ''})"
        for script, chars in scripts.items()
    )
    hint = "such as Noto Sans CJK" if "CJK" in scripts else "such as a Noto font"
    return f"no installed font has the characters of {named}: boxes stand in their place; install a font that has them, {hint}"


def finite(values: Iterable[float]) -> list[float | None]:
    """Numbers for JSON, which has no NaN and no infinity: null."""
    return [float(value) if math.isfinite(value) else None for value in values]
