"""Text as troff, for manual pages."""

import inspect
import re

import fusetk


def escape(text: str) -> str:
    """Text as troff shows it literally: backslashes, minus signs, characters beyond ASCII, and dots that begin a line."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(c if ord(c) < 128 else f"\\[u{ord(c):04X}]" for c in text)
    return re.sub(r"(?m)^(?=[.'])", r"\\&", text)


def bold(text: str) -> str:
    """In bold face."""
    return f"\\fB{escape(text)}\\fR"


def italic(text: str) -> str:
    """In italic face, for what a user fills in."""
    return f"\\fI{escape(text)}\\fR"


def prose(text: str) -> str:
    """Docstring text: blank lines part paragraphs, ``code`` is bold, a paragraph that starts with backspace keeps its lines (click)."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        kept = paragraph.startswith("\b")
        lines = [
            line.strip() if not kept else line for line in paragraph.lstrip("\b\n").splitlines()
        ]
        pieces = re.split(r"(`+)(.+?)\1", "\n".join(lines) if kept else " ".join(lines))
        shown = "".join(
            bold(piece) if i % 3 == 2 else escape(piece)
            for i, piece in enumerate(pieces)
            if i % 3 != 1
        )
        paragraphs.append(f".nf\n{shown}\n.fi" if kept else shown)
    return "\n.PP\n".join(paragraphs)


def page(name: str, section: int, summary: str, body: list[str]) -> str:
    """A manual page; ``body`` follows its NAME."""
    head = f'.TH "{escape(name.upper())}" "{section}" "" "fusetk {escape(fusetk.__version__)}" "fusetk"'
    return (
        "\n".join(
            [
                head,
                ".ad l",
                ".nh",
                ".SH NAME",
                f"{escape(name)} \\- {escape(summary.rstrip('.'))}",
                *body,
            ]
        )
        + "\n"
    )
